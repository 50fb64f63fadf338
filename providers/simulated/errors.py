"""What a simulated server answers when it will not serve: one error type, and its two spellings."""

from __future__ import annotations

from typing import Any

import orjson

# The name that engines give to each status.
_ENGINE_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "RequestEntityTooLargeError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}
# The name that hosted providers give to each status.
_ACCOUNT_TYPES = {429: "rate_limit_error", 500: "server_error", 502: "server_error", 503: "service_unavailable_error"}


class ApiError(Exception):
    """A request is answered with an error status. `code` is only spoken by provider accounts."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind
        self.headers = headers


def error_object(error: ApiError, *, account: bool) -> dict[str, Any]:
    """The `error` member: engines put the status into `code`, provider accounts a word or null."""
    if account:
        kind = error.kind or _ACCOUNT_TYPES.get(error.status, "invalid_request_error")
        return {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    kind = error.kind or _ENGINE_TYPES.get(error.status, "InternalServerError")
    return {"message": error.message, "type": kind, "param": error.param, "code": error.status}


def error_body(error: ApiError, *, account: bool) -> bytes:
    """The whole JSON body. An engine that wants a key says so with a bare string."""
    if error.status == 401 and not account:
        return b'{"error":"Unauthorized"}'
    return orjson.dumps({"error": error_object(error, account=account)})
