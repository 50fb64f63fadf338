"""What a failed attempt means: an upstream's status, headers and error body turned into one of ten kinds of failure.

Upstreams agree on neither shape nor status: vLLM wraps, SGLang does not, TGI sends text, Gemini may send a list; a full
queue is 503, 429 or 529; "too long" has no code anywhere but at OpenAI; an empty purse is a 400 at one vendor and a 429
at another. So `read_error` first brings every shape to one, then the rules below are asked in order and the first that
matches decides; when none does, the status alone does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from providers.engines import FACTS
from providers.exchange import Failure, FailureKind, Headers
from providers.hints import retry_after_s

MESSAGE_MAX = 2000
"""Characters of an upstream's message that are kept."""
_PARSE_MAX = 1 << 20

_CONTEXT = re.compile(
    r"maximum context length|model's context length|maximum model length|maximum sequence length|max_seq_len"
    r"|context[ _](?:length|window|limit|size)[^.]{0,40}exceed|exceed[^.]{0,40}context (?:length|window|limit|size)"
    r"|exceed_context_size|(?:prompt|input) is too long|input (?:tokens?|token count|length)[^.]{0,40}exceed"
    r"|`inputs` must have less than|`inputs` tokens \+ `max_new_tokens` must be|prompt length \(\d+\) exceeds"
    r"|maximum prompt length is|reduce the length of the (?:messages|prompt|input)|too many input tokens"
    r"|exceeds the maximum number of tokens allowed",
    re.IGNORECASE,
)
_CREDIT = re.compile(
    r"credit balance is too low|insufficient (?:balance|funds|credit)|billing hard limit", re.IGNORECASE
)
_QUOTA = re.compile(
    r"api usage limits|spend(?:ing)? limit|exceeded your (?:current|monthly|daily) quota|per ?day|daily limit",
    re.IGNORECASE,
)
_PER_DAY = re.compile(r"per_?day", re.IGNORECASE)
_RAN_OUT_OF_TIME = re.compile(r"running[^.]{0,20}time|time[sd]? ?out[^.]{0,30}running|forward timeout", re.IGNORECASE)
_PRIORITY_OFF = re.compile(r"priority[^.]{0,60}(?:disabled|not enabled|not supported)", re.IGNORECASE)
_NO_PRIORITY_POLICY = re.compile(r"got priority .* but priority scheduling is not enabled", re.IGNORECASE)
_LOADING = re.compile(r"loading model|model is loading|kv[ _-](?:cache )?(?:load|transfer)", re.IGNORECASE)
_BUSY = re.compile(
    r"queue|overload|busy|capacity|too many (?:requests|concurrent)|higher priority request|at maximum|rate.?limit",
    re.IGNORECASE,
)
_BAD_KEY = re.compile(r"api[ _]key (?:not valid|not found|expired|invalid)|invalid api key|unauthorized", re.IGNORECASE)

_CREDIT_CODES = frozenset(
    {"insufficient_quota", "credit_balance_exhausted", "billing_hard_limit_reached", "billing_error"}
)
_QUOTA_CODES = frozenset(
    {
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "enforced_spend_limit_reached",
        "servicequotaexceededexception",
    }
)
_CONTEXT_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "string_above_max_length"})
_CONTENT_CODES = frozenset({"content_filter", "content_policy_violation", "responsibleaipolicyviolation"})
_CONFIG_CODES = frozenset(
    {
        "model_not_found",
        "deploymentnotfound",
        "not_supported_error",
        "notimplementederror",
        "failed_precondition",
        "resourcenotfoundexception",
        "unsupported_country_region_territory",
    }
)
_AUTH_CODES = frozenset(
    {
        "invalid_api_key",
        "authentication_error",
        "permission_error",
        "accessdeniedexception",
        "expiredtokenexception",
        "unrecognizedclientexception",
        "invalidsignatureexception",
        "missingauthenticationtokenexception",
        "api_key_invalid",
    }
)
_CAPACITY_CODES = frozenset(
    {"overloaded_error", "server_is_overloaded", "overloaded", "modelnotreadyexception", "engine_overloaded"}
)

# Names an error may carry instead of a status, inside a stream that began with 200.
_STATUS_OF_NAME: Mapping[str, int] = MappingProxyType(
    {
        "invalid_request_error": 400,
        "badrequesterror": 400,
        "invalid_argument": 400,
        "failed_precondition": 400,
        "validationexception": 400,
        "servicequotaexceededexception": 400,
        "exceed_context_size_error": 400,
        "context_length_exceeded": 400,
        "authentication_error": 401,
        "unauthenticated": 401,
        "billing_error": 402,
        "permission_error": 403,
        "permission_denied": 403,
        "accessdeniedexception": 403,
        "not_found_error": 404,
        "notfounderror": 404,
        "not_found": 404,
        "resourcenotfoundexception": 404,
        "modeltimeoutexception": 408,
        "request_too_large": 413,
        "unprocessableentityerror": 422,
        "validation": 422,
        "generation": 424,
        "modelerrorexception": 424,
        "modelstreamerrorexception": 424,
        "rate_limit_error": 429,
        "rate_limit_exceeded": 429,
        "resource_exhausted": 429,
        "throttlingexception": 429,
        "modelnotreadyexception": 429,
        "insufficient_quota": 429,
        "slow_down": 429,
        "overloaded": 429,
        "api_error": 500,
        "server_error": 500,
        "internalservererror": 500,
        "internal": 500,
        "internalserverexception": 500,
        "incomplete_generation": 500,
        "not_supported_error": 501,
        "notimplementederror": 501,
        "service_unavailable_error": 503,
        "serviceunavailableerror": 503,
        "server_is_overloaded": 503,
        "unavailable_error": 503,
        "unavailable": 503,
        "serviceunavailableexception": 503,
        "timeout_error": 504,
        "deadline_exceeded": 504,
        "overloaded_error": 529,
    }
)

_BY_STATUS: Mapping[int, FailureKind] = MappingProxyType(
    {
        401: FailureKind.AUTH,
        402: FailureKind.CREDIT,
        403: FailureKind.AUTH,
        404: FailureKind.CONFIG,
        408: FailureKind.TRANSIENT,
        424: FailureKind.TRANSIENT,
        425: FailureKind.TRANSIENT,
        429: FailureKind.RATE,
        499: FailureKind.TRANSIENT,
        501: FailureKind.CONFIG,
        529: FailureKind.CAPACITY,
    }
)
_CALLERS = frozenset({FailureKind.CLIENT, FailureKind.CONTEXT, FailureKind.CONTENT})


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """An error of any shape brought to one. `names` holds every code, type and status it gave, lower case."""

    message: str
    type: str | None
    code: str | None
    param: str | None
    status: int | None
    """The HTTP status named inside the body."""
    names: frozenset[str]
    raw: dict[str, Any]


def read_error(value: Any) -> ErrorBody | None:
    """The error in a parsed JSON body or stream event, or None when it is none.

    Known shapes: `{"error": {...}}`, `{"error": "text", "error_type": ...}`, flat `{"object": "error", ...}`,
    `{"type": "error", "error": {...}}`, a list of one of these, FastAPI's `{"detail": ...}`, AWS's `{"message": ...}`.
    """
    if isinstance(value, list):
        return read_error(value[0]) if value else None
    if not isinstance(value, dict):
        return None
    inner = value.get("error")
    if isinstance(inner, dict) and inner:
        return _from_object(inner)
    if isinstance(inner, str) and inner:
        return _from_object({**value, "message": inner, "type": value.get("error_type") or value.get("type")})
    if inner:
        return _from_object({"message": str(inner)})
    if value.get("object") == "error" or value.get("type") == "error":
        return _from_object(value)
    return None


def _from_object(error: dict[str, Any]) -> ErrorBody:
    code = error.get("code")
    details = error.get("details")
    status = code if isinstance(code, int) and not isinstance(code, bool) and 100 <= code <= 599 else None
    given: list[Any] = [code, error.get("type"), error.get("status"), error.get("reason"), error.get("error_code")]
    if isinstance(details, dict):
        given.append(details.get("error_code"))
    elif isinstance(details, list):
        given.extend(detail.get("reason") for detail in details if isinstance(detail, dict))
    inner = (error.get("innererror"), error.get("metadata"))
    given.extend(part.get("code") for part in inner if isinstance(part, dict))
    names = frozenset(name.lower() for name in given if isinstance(name, str) and name)
    if status is None:
        known = (_STATUS_OF_NAME.get(name.lower()) for name in given if isinstance(name, str))
        status = next((named for named in known if named is not None), None)
    message = error.get("message")
    param = error.get("param")
    type_ = error.get("type")
    return ErrorBody(
        message=message[:MESSAGE_MAX] if isinstance(message, str) else "",
        type=type_ if isinstance(type_, str) else None,
        code=None if code is None else str(code),
        param=param if isinstance(param, str) else None,
        status=status,
        names=names,
        raw=error,
    )


def _read_body(headers: Mapping[str, str], body: bytes) -> ErrorBody:
    """The error of a non-2xx answer, whatever its body is; an HTML page or no body at all leaves an empty message."""
    aws = headers.get("x-amzn-errortype", "").partition(":")[0].rpartition("#")[2]
    value: Any = None
    if len(body) <= _PARSE_MAX:
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            value = None
    error = read_error(value)
    if error is not None:
        return error
    if isinstance(value, dict):
        aws = aws or str(value.get("__type", "")).rpartition("#")[2]
        message = value.get("message", value.get("Message", value.get("detail", "")))
        text = message if isinstance(message, str) else orjson.dumps(message).decode()
        raw = {**value, "message": text, "type": aws or value.get("type")}
        return _from_object(raw)
    text = body[: 4 * MESSAGE_MAX].decode("utf-8", "replace").strip()
    if text.startswith("<"):
        text = ""
    return _from_object({"message": text, "type": aws or None})


def classify(kind: str, status: int, headers: Headers, body: bytes) -> Failure:
    """The failure of an answer with a status outside 200 to 299."""
    named = {name.lower(): value for name, value in headers}
    return _failure(kind, status, named, _read_body(named, body))


def classify_error(kind: str, error: ErrorBody, headers: Headers = ()) -> Failure:
    """The failure of an error found inside an answer of status 200: in a stream, or as its whole body."""
    named = {name.lower(): value for name, value in headers}
    return _failure(kind, error.status, named, error)


def broken(message: str, code: str, status: int | None = None) -> Failure:
    """A fault of the upstream that no error body tells: a cut stream, an empty answer, bytes that are not JSON."""
    return Failure(FailureKind.TRANSIENT, status, message, code=code, type="server_error")


def _failure(kind: str, status: int | None, headers: Mapping[str, str], error: ErrorBody) -> Failure:
    found = _kind_of(kind, status, error)
    message = error.message or (f"The upstream answered {status}." if status else "The upstream failed.")
    code, param = error.code, error.param
    body = None
    if found in _CALLERS:
        if found is FailureKind.CONTEXT:
            code, param = "context_length_exceeded", "messages"
        elif found is FailureKind.CONTENT:
            code = "content_filter"
        elif code is not None and code.isdigit():
            code = None  # engines put the HTTP status there
        told = {**error.raw, "message": message, "type": "invalid_request_error", "param": param, "code": code}
        told.pop("object", None)
        told.pop("error", None)
        body = orjson.dumps({"error": told})
    return Failure(
        kind=found,
        status=status,
        message=message,
        code=code,
        param=param,
        retry_after_s=None if found in _CALLERS else retry_after_s(headers, error.raw, message),
        body=body,
        type=error.type,
    )


def _kind_of(kind: str, status: int | None, error: ErrorBody) -> FailureKind:
    """The rules in order; the first that matches decides."""
    names, text = error.names, error.message
    if names & _CREDIT_CODES or (status in (400, 402, 403, 429) and _CREDIT.search(text)):
        # "insufficient_quota" is also what OpenAI says of an organisation that has money but has met its monthly limit;
        # both mean that nothing comes from this account until a person acts.
        return FailureKind.CREDIT
    if names & _QUOTA_CODES:
        return FailureKind.QUOTA
    if status == 429:
        return _kind_of_429(kind, error)
    if names & _CONTEXT_CODES or (status in (None, 400, 413, 422, 500) and _CONTEXT.search(text)):
        return FailureKind.CONTEXT
    if names & _CONTENT_CODES:
        return FailureKind.CONTENT
    if names & _CAPACITY_CODES:
        return FailureKind.CAPACITY
    if status == 400:
        return _kind_of_400(error)
    if status == 503:
        return _kind_of_503(kind, error)
    if names & _CONFIG_CODES:
        return FailureKind.CONFIG
    if names & _AUTH_CODES:
        return FailureKind.AUTH
    if status is None:
        return FailureKind.TRANSIENT
    found = _BY_STATUS.get(status)
    if found is not None:
        return found
    if status < 400:
        return FailureKind.CONFIG  # a redirect or the like: the base URL is wrong
    return FailureKind.CLIENT if status < 500 else FailureKind.TRANSIENT


def _kind_of_429(kind: str, error: ErrorBody) -> FailureKind:
    facts = FACTS.get(kind)
    if (facts is not None and facts.engine) or error.names & _CAPACITY_CODES:
        return FailureKind.CAPACITY
    if _QUOTA.search(error.message) and not re.search(r"per ?minute", error.message, re.IGNORECASE):
        return FailureKind.QUOTA
    for detail in error.raw.get("details") or ():
        if isinstance(detail, dict) and "QuotaFailure" in str(detail.get("@type")):
            violations = detail.get("violations")
            quotas = (
                [v.get("quotaId") for v in violations if isinstance(v, dict)] if isinstance(violations, list) else []
            )
            if any(isinstance(quota, str) and _PER_DAY.search(quota) for quota in quotas):
                return FailureKind.QUOTA
    return FailureKind.RATE


def _kind_of_400(error: ErrorBody) -> FailureKind:
    if error.names & _AUTH_CODES or _BAD_KEY.search(error.message):
        return FailureKind.AUTH
    if error.names & _CONFIG_CODES or _NO_PRIORITY_POLICY.search(error.message):
        return FailureKind.CONFIG
    if re.search(r"api usage limits|spend(?:ing)? limit", error.message, re.IGNORECASE):
        return FailureKind.QUOTA
    return FailureKind.CLIENT


def _kind_of_503(kind: str, error: ErrorBody) -> FailureKind:
    """Overloaded and unavailable are told apart: only the second is a fault."""
    if _PRIORITY_OFF.search(error.message):
        return FailureKind.CONFIG
    if _LOADING.search(error.message) or _RAN_OUT_OF_TIME.search(error.message):
        return FailureKind.TRANSIENT
    return FailureKind.CAPACITY if _BUSY.search(error.message) else _plain_503(kind)


def _plain_503(kind: str) -> FailureKind:
    # vLLM, SGLang and Ollama say 503 for a full queue and nothing else while they are alive.
    return FailureKind.CAPACITY if kind in ("vllm", "sglang", "ollama", "simulated") else FailureKind.TRANSIENT
