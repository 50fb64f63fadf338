"""Refusals as the caller's SDK expects them: status, headers and body, or an error event in a stream."""

from __future__ import annotations

import math

from gateway.outcomes import Refused
from providers.errors import encode_error, encode_stream_error
from providers.exchange import Dialect

# The OpenAI SDK does not retry past this wait, and nobody should sit through more of it in silence.
_LONGEST_RETRY_S = 120.0


def refusal_headers(refused: Refused) -> list[tuple[str, str]]:
    """When to come back, and whether coming back can help at all."""
    headers: list[tuple[str, str]] = []
    should_retry = refused.outcome.ending.should_retry
    wait = refused.retry_after_s
    if wait is not None:
        # Never early: whole seconds are rounded up; the millisecond form is exact.
        headers.append(("retry-after", str(max(1, math.ceil(wait)))))
        if wait <= _LONGEST_RETRY_S:
            headers.append(("retry-after-ms", str(max(1, math.ceil(wait * 1000)))))
        else:
            should_retry = False
    if should_retry is not None:
        headers.append(("x-should-retry", "true" if should_retry else "false"))
    headers.extend(refused.headers)
    return headers


def refusal_status(refused: Refused) -> int:
    """The HTTP status of a refusal."""
    return refused.status if refused.status is not None else refused.outcome.ending.status


def refusal_body(refused: Refused, dialect: Dialect) -> bytes:
    """The JSON body of a refusal."""
    if refused.body is not None:
        return refused.body
    ending = refused.outcome.ending
    return encode_error(
        dialect,
        refusal_status(refused),
        refused.error_type or ending.error_type or "server_error",
        refused.message,
        refused.code or ending.code,
        refused.param,
    )


def refusal_event(refused: Refused, dialect: Dialect) -> bytes:
    """The error event that ends a stream already begun; no terminator follows it."""
    ending = refused.outcome.ending
    return encode_stream_error(
        dialect,
        refusal_status(refused),
        refused.error_type or ending.error_type or "server_error",
        refused.message,
        refused.code or ending.code,
        refused.param,
    )
