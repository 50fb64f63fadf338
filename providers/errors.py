"""Error bodies and in-stream error frames, in the dialect of the client.

Pure functions; the gateway decides which error to tell. Inside a stream both SDKs raise on these frames only; nothing
may follow one, not even the terminator, or a client would take the answer for complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson

from providers.exchange import Dialect

# What Anthropic calls an error of each status; others are api_error from 500 on and invalid_request_error below.
_ANTHROPIC_TYPES: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        402: "billing_error",
        403: "permission_error",
        404: "not_found_error",
        409: "conflict_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
        529: "overloaded_error",
    }
)


def anthropic_type(status: int) -> str:
    """Anthropic's error type for an HTTP status."""
    return _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def _openai_error(type_: str, message: str, code: str | None, param: str | None) -> dict[str, Any]:
    return {"message": message, "type": type_, "param": param, "code": code}


def _anthropic_error(status: int, message: str, code: str | None) -> dict[str, Any]:
    error: dict[str, Any] = {"type": anthropic_type(status), "message": message}
    if code is not None:
        error["details"] = {"error_code": code}
    return error


def encode_error(
    dialect: Dialect,
    status: int,
    type_: str,
    message: str,
    code: str | None = None,
    param: str | None = None,
    *,
    request_id: str | None = None,
) -> bytes:
    """The body of an HTTP error of `status`. Anthropic's type follows from the status; `type_` is OpenAI's."""
    if dialect is Dialect.OPENAI:
        return orjson.dumps({"error": _openai_error(type_, message, code, param)})
    body: dict[str, Any] = {"type": "error", "error": _anthropic_error(status, message, code)}
    if request_id is not None:
        body["request_id"] = request_id
    return orjson.dumps(body)


def encode_stream_error(
    dialect: Dialect,
    status: int,
    type_: str,
    message: str,
    code: str | None = None,
    param: str | None = None,
) -> bytes:
    """The last frame of a stream that failed after its first byte. `status` is what would have been answered before."""
    if dialect is Dialect.OPENAI:
        return b"data: %b\n\n" % orjson.dumps({"error": _openai_error(type_, message, code, param)})
    error = _anthropic_error(status, message, code)
    return b"event: error\ndata: %b\n\n" % orjson.dumps({"type": "error", "error": error})
