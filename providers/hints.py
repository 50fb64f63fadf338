"""When to come back and how much is left, in every form upstreams say it.

A provider names the wait in one of four places: `retry-after-ms`, `retry-after` (seconds or an HTTP date), the reset of
an exhausted bucket (`x-ratelimit-reset-*`, a duration; `anthropic-ratelimit-*-reset`, a time of day), or inside the
error body (Gemini's RetryInfo). Dates are read against the answer's own `date` header, so no clock is needed here and a
skewed one does no harm; a date without that header is unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any

RETRY_MAX_S = 3600.0
"""No hint is believed beyond an hour: a wrong one would take a target out for longer than anyone notices."""

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|s|m|h|d)")
_UNIT_S = MappingProxyType(
    {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
)
_TRY_AGAIN = re.compile(
    r"(?:try again|retry) (?:in|after) (\d+(?:\.\d+)?)\s*(ms|s|milliseconds|seconds)?\b", re.IGNORECASE
)


def duration_s(text: str) -> float | None:
    """Seconds in `1s`, `6m0s`, `12ms`, `1h2m3.5s` or a bare number of seconds; None for anything else."""
    text = text.strip()
    if not text:
        return None
    end = 0
    total = 0.0
    for part in _PART.finditer(text):
        if part.start() != end:
            return _number(text)
        total += float(part[1]) * _UNIT_S[part[2]]
        end = part.end()
    return total if end == len(text) else _number(text)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def clamp_s(seconds: float) -> float:
    """A hint within [0, RETRY_MAX_S] seconds."""
    return min(max(seconds, 0.0), RETRY_MAX_S)


def _moment(text: str) -> datetime | None:
    """A moment with a zone from RFC 3339 or an HTTP date."""
    try:
        moment = datetime.fromisoformat(text) if text[:4].isdigit() else parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo is not None else None


def _until_s(text: str, headers: Mapping[str, str]) -> float | None:
    """Seconds from the answer's `date` to the moment in `text`."""
    moment, now = _moment(text.strip()), _moment(headers.get("date", ""))
    return None if moment is None or now is None else (moment - now).total_seconds()


def retry_after_s(headers: Mapping[str, str], error: Mapping[str, Any] | None, message: str = "") -> float | None:
    """Seconds the upstream asks to wait, clamped, or None.

    `headers` has lower-case names; `error` is the error object of the body; `message` its text, read last.
    """
    value = _number(headers.get("retry-after-ms", "").strip())
    if value is not None:
        return clamp_s(value / 1000)
    text = headers.get("retry-after", "").strip()
    if text:
        value = duration_s(text)
        if value is None:
            value = _until_s(text, headers)
        if value is not None:
            return clamp_s(value)
    for found in (_body_hint_s(error), _reset_hint_s(headers), _message_hint_s(message)):
        if found is not None:
            return clamp_s(found)
    return None


def _body_hint_s(error: Mapping[str, Any] | None) -> float | None:
    details = error.get("details") if error else None
    if not isinstance(details, list):
        return None
    for detail in details:
        if isinstance(detail, dict) and isinstance(detail.get("retryDelay"), str):
            return duration_s(detail["retryDelay"])
    return None


def _message_hint_s(message: str) -> float | None:
    found = _TRY_AGAIN.search(message)
    if found is None:
        return None
    value = float(found[1])
    return value / 1000 if found[2] in ("ms", "milliseconds") else value


@dataclass(frozen=True, slots=True)
class Window:
    """One bucket of our account at a provider: what is allowed, what is left, seconds until it is full. None = not
    said.
    """

    limit: int | None = None
    remaining: int | None = None
    reset_s: float | None = None


@dataclass(frozen=True, slots=True)
class LimitHints:
    """The rate-limit headers of one answer. A window no header names is None."""

    requests: Window | None = None
    tokens: Window | None = None
    input_tokens: Window | None = None
    output_tokens: Window | None = None


# Window -> its names in the OpenAI family, None where that has none, and what Anthropic calls it.
_WINDOWS: Mapping[str, tuple[tuple[str, str, str] | None, str]] = MappingProxyType(
    {
        "requests": (
            ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
            "requests",
        ),
        "tokens": (
            ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
            "tokens",
        ),
        "input_tokens": (None, "input-tokens"),
        "output_tokens": (None, "output-tokens"),
    }
)


def _count(text: str | None) -> int | None:
    """A count a header names; a negative one (Azure's -1) means it does not know."""
    if text is None:
        return None
    try:
        value = int(float(text))
    except (ValueError, OverflowError):
        return None
    return value if value >= 0 else None


def _reset_s(text: str | None, headers: Mapping[str, str]) -> float | None:
    if not text:
        return None
    value = duration_s(text)
    if value is None:
        value = _until_s(text, headers)
    if value is not None and value > 1e8:  # an epoch, not a duration: no clock to compare it with
        return None
    return None if value is None else max(value, 0.0)


def limit_hints(headers: Mapping[str, str]) -> LimitHints:
    """The account's limits as the OpenAI family or Anthropic states them. `headers` has lower-case names."""
    windows: dict[str, Window | None] = {}
    for name, (openai, anthropic) in _WINDOWS.items():
        names = openai
        if names is None or not any(header in headers for header in names):
            prefix = f"anthropic-ratelimit-{anthropic}-"
            names = (f"{prefix}limit", f"{prefix}remaining", f"{prefix}reset")
        limit, remaining, reset = (headers.get(header) for header in names)
        window = Window(_count(limit), _count(remaining), _reset_s(reset, headers))
        windows[name] = None if window == Window() else window
    return LimitHints(**windows)


def _reset_hint_s(headers: Mapping[str, str]) -> float | None:
    """The longest reset among exhausted buckets; among all that name one when none says it is exhausted."""
    hints = limit_hints(headers)
    windows = [w for w in (hints.requests, hints.tokens, hints.input_tokens, hints.output_tokens) if w is not None]
    resets = [w.reset_s for w in windows if w.reset_s is not None and w.remaining == 0]
    if not resets:
        resets = [w.reset_s for w in windows if w.reset_s is not None and w.remaining is None]
    return max(resets, default=None)
