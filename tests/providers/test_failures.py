"""The table of failures: what each upstream says, and what it means for the next attempt and for the caller."""

# ruff: noqa: E501 - a table reads best with one row a line
from __future__ import annotations

from typing import Any

import orjson
import pytest

from providers.errors import encode_error, encode_stream_error
from providers.exchange import Dialect, FailureKind
from providers.failures import classify, classify_error, read_error

K = FailureKind


def openai(
    message: str = "m", type_: str | None = None, code: Any = None, param: str | None = None, **extra: Any
) -> Any:
    return {"error": {"message": message, "type": type_, "param": param, "code": code, **extra}}


def gemini(code: int, status: str, message: str = "m", *details: Any) -> Any:
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


def anthropic(type_: str, message: str = "m", **details: Any) -> Any:
    error: dict[str, Any] = {"type": type_, "message": message}
    return {"type": "error", "error": {**error, "details": details} if details else error, "request_id": "req_1"}


def sglang(status: int, message: str) -> Any:
    return {"object": "error", "message": message, "type": "X", "param": None, "code": status}


VLLM_LONG = (
    "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens "
    "(4900 in the messages, 100 in the completion). Please reduce the length of the messages or completion."
)
DAY = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerDayPerProject"}],
}
MINUTE = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerMinute"}],
}
BAD_KEY = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}

TABLE: list[tuple[str, int, Any, FailureKind]] = [
    # vLLM
    ("vllm", 400, openai(VLLM_LONG, "BadRequestError", 400, "input_tokens"), K.CONTEXT),
    ("vllm", 400, openai("temperature must be non-negative", "BadRequestError", 400), K.CLIENT),
    ("vllm", 400, openai("Got priority 3 but Priority scheduling is not enabled.", "BadRequestError", 400), K.CONFIG),
    ("vllm", 401, {"error": "Unauthorized"}, K.AUTH),
    ("vllm", 404, openai("The model `x` does not exist.", "NotFoundError", 404), K.CONFIG),
    ("vllm", 422, openai("unprocessable", "UnprocessableEntityError", 422), K.CLIENT),
    ("vllm", 500, openai("EngineCore encountered an issue", "InternalServerError", 500), K.TRANSIENT),
    ("vllm", 501, openai("no", "NotImplementedError", 501), K.CONFIG),
    ("vllm", 503, openai("Too many queued requests", "ServiceUnavailableError", 503), K.CAPACITY),
    ("vllm", 503, openai("x", "Service Unavailable", 503), K.CAPACITY),
    ("vllm", 503, openai("KV load failure", "ServiceUnavailableError", 503), K.TRANSIENT),
    # SGLang
    ("sglang", 400, sglang(400, "The input (5000 tokens) is longer than the model's context length (4096 tokens)."), K.CONTEXT),
    (
        "sglang",
        400,
        sglang(400, "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested 5000."),
        K.CONTEXT,
    ),
    ("sglang", 400, sglang(400, "bad field"), K.CLIENT),
    ("sglang", 503, sglang(503, "The request queue is full."), K.CAPACITY),
    ("sglang", 503, sglang(503, "The request is aborted by a higher priority request."), K.CAPACITY),
    ("sglang", 503, sglang(503, "Request waiting timeout reached in the queue."), K.CAPACITY),
    ("sglang", 503, sglang(503, "Request running timeout reached."), K.TRANSIENT),
    ("sglang", 503, sglang(503, "Using priority is disabled for this server."), K.CONFIG),
    # TGI
    ("tgi", 422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048", "error_type": "validation"}, K.CONTEXT),
    ("tgi", 422, {"error": "Input validation error: `temperature` must be positive", "error_type": "validation"}, K.CLIENT),
    ("tgi", 424, {"error": "Request failed during generation: Server error", "error_type": "generation"}, K.TRANSIENT),
    ("tgi", 429, {"error": "Model is overloaded", "error_type": "overloaded"}, K.CAPACITY),
    ("tgi", 500, {"error": "Incomplete generation", "error_type": "incomplete_generation"}, K.TRANSIENT),
    # llama.cpp
    ("llamacpp", 400, openai("request (5000 tokens) exceeds the available context size (4096 tokens)", "exceed_context_size_error", 400), K.CONTEXT),
    ("llamacpp", 500, openai("the request exceeds the available context size. try increasing it", "server_error", 500), K.CONTEXT),
    ("llamacpp", 503, openai("Loading model", "unavailable_error", 503), K.TRANSIENT),
    ("llamacpp", 501, openai("not supported", "not_supported_error", 501), K.CONFIG),
    ("llamacpp", 401, openai("Invalid API Key", "authentication_error", 401), K.AUTH),
    # Ollama
    ("ollama", 503, openai("server busy, please try again.  maximum pending requests exceeded", "api_error"), K.CAPACITY),
    ("ollama", 404, openai("model 'x' not found", "not_found_error"), K.CONFIG),
    ("ollama", 500, {"error": "llama runner process has terminated"}, K.TRANSIENT),
    ("ollama", 499, {"error": "cancelled"}, K.TRANSIENT),
    # OpenAI
    ("openai", 400, openai("too long", "invalid_request_error", "context_length_exceeded", "messages"), K.CONTEXT),
    ("openai", 400, openai("unknown field", "invalid_request_error", "unsupported_parameter"), K.CLIENT),
    ("openai", 400, openai("no", "invalid_request_error", "content_policy_violation"), K.CONTENT),
    ("openai", 400, openai("hard limit", "invalid_request_error", "billing_hard_limit_reached"), K.CREDIT),
    ("openai", 401, openai("Incorrect API key provided", "invalid_request_error", "invalid_api_key"), K.AUTH),
    ("openai", 403, openai("Country not supported", None, "unsupported_country_region_territory"), K.CONFIG),
    ("openai", 403, openai("Not allowed"), K.AUTH),
    ("openai", 404, openai("no such model", "invalid_request_error", "model_not_found"), K.CONFIG),
    ("openai", 409, openai("conflict"), K.CLIENT),
    ("openai", 413, openai("too big"), K.CLIENT),
    ("openai", 429, openai("Rate limit reached", "tokens", "rate_limit_exceeded"), K.RATE),
    ("openai", 429, openai("Request too large for x on tokens per min (TPM): Limit 10, Requested 20", "tokens", "rate_limit_exceeded"), K.RATE),
    ("openai", 429, openai("slow", "requests", "slow_down"), K.RATE),
    ("openai", 429, openai("You exceeded your current quota", "insufficient_quota", "insufficient_quota"), K.CREDIT),
    ("openai", 429, openai("no", "insufficient_quota", "credit_balance_exhausted"), K.CREDIT),
    ("openai", 429, openai("limit", None, "project_spend_limit_exceeded"), K.QUOTA),
    ("openai", 500, openai("oops", "server_error"), K.TRANSIENT),
    ("openai", 503, openai("busy", "service_unavailable_error", "server_is_overloaded"), K.CAPACITY),
    ("openai", 504, openai("late"), K.TRANSIENT),
    # Azure
    ("azure", 400, openai("filtered", None, "content_filter", "prompt", innererror={"code": "ResponsibleAIPolicyViolation"}), K.CONTENT),
    ("azure", 404, openai("no deployment", None, "DeploymentNotFound"), K.CONFIG),
    ("azure", 429, openai("Requests have exceeded call rate limit", None, "429"), K.RATE),
    # Anthropic
    ("anthropic", 400, anthropic("invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"), K.CONTEXT),
    ("anthropic", 400, anthropic("invalid_request_error", "input length and `max_tokens` exceed context limit: 1 + 2 > 2"), K.CONTEXT),
    ("anthropic", 400, anthropic("invalid_request_error", "Your credit balance is too low to access the Anthropic API."), K.CREDIT),
    ("anthropic", 400, anthropic("invalid_request_error", "You have reached your specified API usage limits."), K.QUOTA),
    ("anthropic", 400, anthropic("invalid_request_error", "messages: at least one message is required"), K.CLIENT),
    ("anthropic", 401, anthropic("authentication_error"), K.AUTH),
    ("anthropic", 402, anthropic("billing_error"), K.CREDIT),
    ("anthropic", 403, anthropic("permission_error"), K.AUTH),
    ("anthropic", 404, anthropic("not_found_error", "model: x"), K.CONFIG),
    ("anthropic", 413, anthropic("request_too_large"), K.CLIENT),
    ("anthropic", 429, anthropic("rate_limit_error"), K.RATE),
    ("anthropic", 429, anthropic("rate_limit_error", error_code="enforced_spend_limit_reached"), K.QUOTA),
    ("anthropic", 500, anthropic("api_error"), K.TRANSIENT),
    ("anthropic", 529, anthropic("overloaded_error"), K.CAPACITY),
    # Gemini
    ("gemini", 400, gemini(400, "INVALID_ARGUMENT", "Unknown name \"x\": Cannot find field."), K.CLIENT),
    ("gemini", 400, gemini(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", BAD_KEY), K.AUTH),
    ("gemini", 400, gemini(400, "FAILED_PRECONDITION", "User location is not supported"), K.CONFIG),
    ("gemini", 400, gemini(400, "INVALID_ARGUMENT", "The input token count (2) exceeds the maximum number of tokens allowed (1)."), K.CONTEXT),
    ("gemini", 403, gemini(403, "PERMISSION_DENIED"), K.AUTH),
    ("gemini", 404, gemini(404, "NOT_FOUND"), K.CONFIG),
    ("gemini", 429, gemini(429, "RESOURCE_EXHAUSTED", "Quota", MINUTE), K.RATE),
    ("gemini", 429, gemini(429, "RESOURCE_EXHAUSTED", "Quota", DAY), K.QUOTA),
    ("gemini-openai", 429, [gemini(429, "RESOURCE_EXHAUSTED", "Quota", MINUTE)], K.RATE),
    ("gemini", 500, gemini(500, "INTERNAL"), K.TRANSIENT),
    ("gemini", 503, gemini(503, "UNAVAILABLE", "The model is overloaded. Please try again later."), K.CAPACITY),
    ("gemini", 504, gemini(504, "DEADLINE_EXCEEDED"), K.TRANSIENT),
    # proxies in between
    ("openai-compatible", 502, None, K.TRANSIENT),
    ("openai-compatible", 503, None, K.TRANSIENT),
    ("openai-compatible", 301, None, K.CONFIG),
    ("openai-compatible", 408, None, K.TRANSIENT),
    ("openai-compatible", 418, None, K.CLIENT),
    ("openai-compatible", 422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, K.CLIENT),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "status", "body", "expected"), TABLE)
def test_what_an_answer_means(kind: str, status: int, body: Any, expected: FailureKind) -> None:
    raw = b"<html>502 Bad Gateway</html>" if body is None else orjson.dumps(body)
    failure = classify(kind, status, (), raw)
    assert failure.kind is expected, failure
    assert failure.status == status
    assert failure.message
    assert "<html>" not in failure.message


@pytest.mark.parametrize(("kind", "status", "body", "expected"), [row for row in TABLE if isinstance(row[2], dict)])
def test_an_error_in_a_stream_means_what_its_status_would_have(
    kind: str, status: int, body: Any, expected: FailureKind
) -> None:
    """Where the body alone says enough; a body with no name for its status is a fault of the upstream."""
    error = read_error(body)
    if error is not None and error.status == status:
        assert classify_error(kind, error).kind is expected


AWS: list[tuple[str, int, str, FailureKind]] = [
    ("AccessDeniedException", 403, "no access", K.AUTH),
    ("ExpiredTokenException", 403, "expired", K.AUTH),
    ("ResourceNotFoundException", 404, "no model", K.CONFIG),
    ("ModelTimeoutException", 408, "late", K.TRANSIENT),
    ("ValidationException", 400, "Input is too long for requested model.", K.CONTEXT),
    ("ValidationException", 400, "The model returned the following errors: prompt is too long: 2 tokens > 1 maximum", K.CONTEXT),
    ("ValidationException", 400, "bad", K.CLIENT),
    ("ServiceQuotaExceededException", 400, "quota", K.QUOTA),
    ("ModelErrorException", 424, "model", K.TRANSIENT),
    ("ThrottlingException", 429, "Too many requests", K.RATE),
    ("ModelNotReadyException", 429, "warming", K.CAPACITY),
    ("InternalServerException", 500, "oops", K.TRANSIENT),
    ("ServiceUnavailableException", 503, "Bedrock is unable to process your request.", K.TRANSIENT),
]  # fmt: skip


@pytest.mark.parametrize(("name", "status", "message", "expected"), AWS)
def test_aws_names_its_errors_in_a_header_or_in_the_body(name: str, status: int, message: str, expected: K) -> None:
    header = (("x-amzn-ErrorType", f"{name}:http://internal.amazon.com/"),)
    assert classify("bedrock", status, header, orjson.dumps({"message": message})).kind is expected
    body = orjson.dumps({"__type": f"com.amazon.bedrock#{name}", "Message": message})
    failure = classify("bedrock", status, (), body)
    assert (failure.kind, failure.message) == (expected, message)


def test_a_fault_of_the_caller_is_told_in_the_callers_dialect() -> None:
    failure = classify("vllm", 400, (), orjson.dumps(openai("bad temperature", "BadRequestError", 400, "temperature")))
    assert failure.body is not None
    assert orjson.loads(failure.body) == {
        "error": {"message": "bad temperature", "type": "invalid_request_error", "param": "temperature", "code": None}
    }


def test_too_long_has_the_code_clients_know_whoever_says_it() -> None:
    for kind, status, body, expected in TABLE:
        if expected is K.CONTEXT:
            failure = classify(kind, status, (), orjson.dumps(body))
            assert failure.body is not None
            error = orjson.loads(failure.body)["error"]
            assert (error["type"], error["code"], error["param"]) == (
                "invalid_request_error",
                "context_length_exceeded",
                "messages",
            )


def test_a_content_filters_reasons_reach_the_caller() -> None:
    given = openai(
        "filtered", None, "content_filter", "prompt", innererror={"content_filter_result": {"hate": {"filtered": True}}}
    )
    failure = classify("azure", 400, (), orjson.dumps(given))
    assert failure.body is not None
    error = orjson.loads(failure.body)["error"]
    assert error["innererror"] == given["error"]["innererror"]
    assert error["code"] == "content_filter"


def test_codes_are_strings_and_only_the_callers_faults_have_a_body() -> None:
    for kind, status, body, expected in TABLE:
        failure = classify(kind, status, (), b"" if body is None else orjson.dumps(body))
        assert failure.code is None or isinstance(failure.code, str)
        assert (failure.body is not None) == (expected in (K.CLIENT, K.CONTEXT, K.CONTENT))
        if failure.body is not None:
            code = orjson.loads(failure.body)["error"]["code"]
            assert code is None or isinstance(code, str)


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"3", b'"text"', b"\xff\xfe", b'{"error":{}}', b'{"error":[1]}', b"{" * 50]
)
def test_no_body_is_too_strange(body: bytes) -> None:
    failure = classify("openai", 500, (), body)
    assert failure.kind is K.TRANSIENT
    assert failure.message


def test_a_long_message_is_cut() -> None:
    assert len(classify("openai", 500, (), orjson.dumps(openai("x" * 10_000))).message) == 2000


def test_no_error_is_no_error() -> None:
    for value in ({"choices": []}, {"error": None}, {"error": ""}, {"error": {}}, [], [1], "x", None):
        assert read_error(value) is None


def test_hints_are_read_from_headers_and_body() -> None:
    limited = orjson.dumps(openai("Please try again in 1.5s.", "tokens", "rate_limit_exceeded"))
    assert classify("openai", 429, (("Retry-After", "7"),), limited).retry_after_s == 7.0
    assert classify("openai", 429, (), limited).retry_after_s == 1.5
    assert classify("openai", 400, (("Retry-After", "7"),), orjson.dumps(openai("bad"))).retry_after_s is None


def test_errors_are_told_in_both_dialects() -> None:
    told = orjson.loads(encode_error(Dialect.OPENAI, 429, "rate_limit_error", "slow", "rate_limit_exceeded"))
    assert told == {
        "error": {"message": "slow", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"}
    }
    told = orjson.loads(encode_error(Dialect.ANTHROPIC, 429, "rate_limit_error", "slow", request_id="req_1"))
    assert told == {"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}, "request_id": "req_1"}
    for status, type_ in (
        (400, "invalid_request_error"),
        (500, "api_error"),
        (502, "api_error"),
        (529, "overloaded_error"),
    ):
        assert orjson.loads(encode_error(Dialect.ANTHROPIC, status, "x", "m"))["error"]["type"] == type_


def test_an_error_in_a_stream_is_one_frame_and_no_terminator() -> None:
    frame = encode_stream_error(Dialect.OPENAI, 502, "server_error", "line\nline", "upstream_truncated")
    assert frame.startswith(b'data: {"error":')
    assert frame.count(b"\n\n") == 1
    assert frame.endswith(b"}\n\n")
    frame = encode_stream_error(Dialect.ANTHROPIC, 529, "x", "m", "c")
    name, data = frame.removesuffix(b"\n\n").split(b"\n")
    assert name == b"event: error"
    assert orjson.loads(data.removeprefix(b"data: ")) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "m", "details": {"error_code": "c"}},
    }
