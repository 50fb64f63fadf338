"""The closed list of ways a request ends: status, label, fault, what is refunded.

Metrics, the log and the settlement know only these. What a person reads is in the `Refused` that
carries one of them: which part refused, how much, and when to come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

from ratelimit.reservation import End


class Fault(StrEnum):
    """Who could have prevented this ending."""

    NOBODY = "nobody"
    CALLER = "caller"
    GATEWAY = "gateway"
    UPSTREAM = "upstream"


@dataclass(frozen=True, slots=True)
class Ending:
    """What an outcome means. `status` is the HTTP status when no byte has been sent yet."""

    label: str
    status: int
    fault: Fault
    end: End  # what is kept of its reservation; see the table in ratelimit.reservation
    error_type: str | None = None
    code: str | None = None
    # Sent as x-should-retry. None leaves the decision to the status, False says that trying again
    # is useless (or was already done here), so that attempts do not multiply.
    should_retry: bool | None = None


class Outcome(Enum):
    """Every way a request can end. Adding one means deciding its status, fault and refund here."""

    FINISHED = Ending("finished", 200, Fault.NOBODY, End.SUCCESS)

    BAD_REQUEST = Ending("bad_request", 400, Fault.CALLER, End.NEVER_SENT, "invalid_request_error")
    UNSUPPORTED = Ending(
        "unsupported", 400, Fault.CALLER, End.NEVER_SENT, "invalid_request_error", "unsupported_parameter"
    )
    CONTEXT_TOO_LONG = Ending(
        "context_too_long", 400, Fault.CALLER, End.NEVER_SENT, "invalid_request_error", "context_length_exceeded"
    )
    UNAUTHENTICATED = Ending(
        "unauthenticated", 401, Fault.CALLER, End.NEVER_SENT, "invalid_request_error", "invalid_api_key"
    )
    FORBIDDEN = Ending("forbidden", 403, Fault.CALLER, End.NEVER_SENT, "invalid_request_error", "model_not_allowed")
    UNKNOWN_MODEL = Ending(
        "unknown_model", 404, Fault.CALLER, End.NEVER_SENT, "invalid_request_error", "model_not_found"
    )
    UNKNOWN_PATH = Ending("unknown_path", 404, Fault.CALLER, End.NEVER_SENT, "invalid_request_error", "unknown_url")
    METHOD_NOT_ALLOWED = Ending(
        "method_not_allowed", 405, Fault.CALLER, End.NEVER_SENT, "invalid_request_error", "method_not_allowed"
    )
    SLOW_BODY = Ending(
        "slow_body", 408, Fault.CALLER, End.NEVER_SENT, "invalid_request_error", "request_timeout", False
    )
    TOO_LARGE = Ending("too_large", 413, Fault.CALLER, End.NEVER_SENT, "invalid_request_error", "request_too_large")
    ENCODED_BODY = Ending(
        "encoded_body", 415, Fault.CALLER, End.NEVER_SENT, "invalid_request_error", "unsupported_content_encoding"
    )

    RATE_LIMITED = Ending(
        "rate_limited", 429, Fault.CALLER, End.NEVER_SENT, "rate_limit_error", "rate_limit_exceeded", True
    )
    NEVER_FITS_LIMIT = Ending(
        "never_fits_limit", 429, Fault.CALLER, End.NEVER_SENT, "rate_limit_error", "request_exceeds_limit", False
    )
    BUDGET_EXHAUSTED = Ending(
        "budget_exhausted", 429, Fault.CALLER, End.NEVER_SENT, "insufficient_quota", "insufficient_quota", False
    )
    STORE_AWAY = Ending(
        "store_away", 503, Fault.GATEWAY, End.NEVER_SENT, "service_unavailable_error", "limit_store_unavailable"
    )
    GUESSING = Ending(
        "guessing", 429, Fault.CALLER, End.NEVER_SENT, "rate_limit_error", "too_many_unauthenticated_requests", False
    )

    QUEUE_FULL = Ending(
        "queue_full", 503, Fault.GATEWAY, End.NEVER_SENT, "service_unavailable_error", "server_is_overloaded"
    )
    DEADLINE_UNMEETABLE = Ending(
        "deadline_unmeetable", 503, Fault.GATEWAY, End.NEVER_SENT, "service_unavailable_error", "deadline_cannot_be_met"
    )
    QUEUE_TIMEOUT = Ending(
        "queue_timeout", 503, Fault.GATEWAY, End.NEVER_SENT, "service_unavailable_error", "queue_timeout"
    )
    SHUTTING_DOWN = Ending(
        "shutting_down", 503, Fault.GATEWAY, End.NEVER_SENT, "service_unavailable_error", "shutting_down", True
    )
    DEADLINE = Ending("deadline", 504, Fault.GATEWAY, End.NEVER_SENT, "timeout_error", "timeout", False)
    INTERNAL = Ending("internal", 500, Fault.GATEWAY, End.NEVER_SENT, "server_error", "internal_error", False)

    NO_TARGET = Ending(
        "no_target", 503, Fault.UPSTREAM, End.UPSTREAM_FAILED, "service_unavailable_error", "no_target_available"
    )
    NOT_ISOLATED = Ending(
        "not_isolated",
        503,
        Fault.GATEWAY,
        End.NEVER_SENT,
        "service_unavailable_error",
        "isolation_not_kept",
    )
    UPSTREAM_FAILED = Ending(
        "upstream_failed", 502, Fault.UPSTREAM, End.UPSTREAM_FAILED, "server_error", "upstream_error"
    )
    UPSTREAM_TIMEOUT = Ending(
        "upstream_timeout", 504, Fault.UPSTREAM, End.UPSTREAM_FAILED, "timeout_error", "timeout", False
    )
    UPSTREAM_LIMITED = Ending(
        "upstream_limited", 429, Fault.UPSTREAM, End.UPSTREAM_FAILED, "rate_limit_error", "upstream_rate_limited"
    )
    UPSTREAM_BUSY = Ending(
        "upstream_busy", 503, Fault.UPSTREAM, End.UPSTREAM_FAILED, "service_unavailable_error", "server_is_overloaded"
    )
    MISCONFIGURED = Ending(
        "misconfigured", 502, Fault.GATEWAY, End.UPSTREAM_FAILED, "server_error", "upstream_configuration_error", False
    )
    # The upstream judged the request itself at fault; its own status and words are passed on.
    REJECTED = Ending("rejected", 400, Fault.CALLER, End.UPSTREAM_REFUSED, "invalid_request_error")

    # After the first byte the status is spent; the stream ends with an error event and no terminator.
    STREAM_CUT = Ending("stream_cut", 502, Fault.UPSTREAM, End.BILLED_FAILURE, "server_error", "upstream_stream_cut")
    STREAM_SILENT = Ending(
        "stream_silent", 504, Fault.UPSTREAM, End.BILLED_FAILURE, "timeout_error", "upstream_stream_silent"
    )
    STREAM_BROKEN = Ending(
        "stream_broken", 502, Fault.UPSTREAM, End.BILLED_FAILURE, "server_error", "upstream_stream_broken"
    )
    STREAM_DEADLINE = Ending(
        "stream_deadline", 504, Fault.GATEWAY, End.BILLED_FAILURE, "timeout_error", "timeout", False
    )
    STREAM_SHUTDOWN = Ending(
        "stream_shutdown", 503, Fault.GATEWAY, End.BILLED_FAILURE, "service_unavailable_error", "shutting_down"
    )
    STREAM_INTERNAL = Ending(
        "stream_internal", 500, Fault.GATEWAY, End.BILLED_FAILURE, "server_error", "internal_error"
    )

    # 499 is for the log only; nobody is there to read it.
    GONE_UNREAD = Ending("gone_unread", 499, Fault.CALLER, End.NEVER_SENT)
    GONE_QUEUED = Ending("gone_queued", 499, Fault.CALLER, End.NEVER_SENT)
    GONE_PREFILL = Ending("gone_prefill", 499, Fault.CALLER, End.CLIENT_GONE)
    GONE_DECODE = Ending("gone_decode", 499, Fault.CALLER, End.CLIENT_GONE)

    @property
    def ending(self) -> Ending:
        """The figures behind this outcome."""
        return self.value


class Refused(Exception):  # an answer, raised to leave nested steps at once
    """A request ends here with `outcome`; `message` tells the caller what refused and how much.

    `retry_after_s` is when it would pass, None when waiting is not the cure. `status` and `body`
    replace the outcome's own where an upstream's words are passed on unchanged.
    """

    def __init__(
        self,
        outcome: Outcome,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        error_type: str | None = None,
        retry_after_s: float | None = None,
        status: int | None = None,
        body: bytes | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.param = param
        self.code = code
        self.error_type = error_type
        self.retry_after_s = retry_after_s
        self.status = status
        self.body = body
        self.headers = headers
