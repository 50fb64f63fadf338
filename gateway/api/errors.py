"""Refusals as the caller's SDK expects them: status, headers and body, or an error event in a stream."""

from __future__ import annotations

import math

from gateway.outcomes import Outcome, Refused
from providers.errors import encode_error, encode_stream_error
from providers.exchange import Dialect

# The OpenAI SDK does not retry past this wait, and nobody should sit through more of it in silence.
_LONGEST_RETRY_S = 120.0

_OVERLOADED = 529
"""What Anthropic's SDK takes for an overload; its 503 is another exception."""
_OVERLOAD = frozenset({Outcome.QUEUE_FULL, Outcome.QUEUE_TIMEOUT, Outcome.DEADLINE_UNMEETABLE, Outcome.UPSTREAM_BUSY})
_TOO_LONG = ("prompt is too long", "exceed context limit")


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


def refusal_status(refused: Refused, dialect: Dialect) -> int:
    """The HTTP status of a refusal."""
    if refused.status is not None:
        return refused.status
    if dialect is Dialect.ANTHROPIC and refused.outcome in _OVERLOAD:
        return _OVERLOADED
    return refused.outcome.ending.status


def refusal_body(refused: Refused, dialect: Dialect, request_id: str) -> bytes:
    """The JSON body of a refusal."""
    if refused.body is not None and dialect is Dialect.OPENAI:
        return refused.body
    ending = refused.outcome.ending
    return encode_error(
        dialect,
        refusal_status(refused, dialect),
        refused.error_type or ending.error_type or "server_error",
        _message(refused, dialect),
        _code(refused, dialect),
        refused.param,
        request_id=request_id,
    )


def _message(refused: Refused, dialect: Dialect) -> str:
    """Clients of Anthropic know a prompt that is too long by these words alone."""
    if dialect is Dialect.ANTHROPIC and refused.outcome is Outcome.CONTEXT_TOO_LONG:
        if not any(words in refused.message for words in _TOO_LONG):
            return f"{_TOO_LONG[0]}: {refused.message}"
    elif dialect is Dialect.ANTHROPIC and refused.param is not None and refused.param not in refused.message:
        return f"{refused.param}: {refused.message}"
    return refused.message


def _code(refused: Refused, dialect: Dialect) -> str | None:
    if dialect is Dialect.ANTHROPIC and refused.outcome is Outcome.BUDGET_EXHAUSTED:
        return "enforced_spend_limit_reached"
    return refused.code or refused.outcome.ending.code


def refusal_event(refused: Refused, dialect: Dialect) -> bytes:
    """The error event that ends a stream already begun; no terminator follows it."""
    ending = refused.outcome.ending
    return encode_stream_error(
        dialect,
        refusal_status(refused, dialect),
        refused.error_type or ending.error_type or "server_error",
        refused.message,
        refused.code or ending.code,
        refused.param,
    )
