"""Limits of a simulated provider account: requests and tokens a minute, told in headers, refused with the wait."""

from __future__ import annotations

import math

from providers.simulated.errors import ApiError


class MinuteLimit:
    """A bucket that holds one minute's amount and refills evenly. Times are seconds of the caller's clock."""

    __slots__ = ("_at", "_level", "amount")

    def __init__(self, amount: int, now: float) -> None:
        self.amount = amount
        # Between 0 and `amount`, as of `_at`.
        self._level = float(amount)
        self._at = now

    def level(self, now: float) -> float:
        """What could be taken now."""
        self._level = min(float(self.amount), self._level + max(0.0, now - self._at) * self.amount / 60.0)
        self._at = max(self._at, now)
        return self._level

    def wait(self, wanted: int, now: float) -> float:
        """Seconds until so much could be taken; 0 is now. More than the whole bucket waits for ever."""
        if wanted > self.amount:
            return math.inf
        return max(0.0, (wanted - self.level(now)) * 60.0 / self.amount)

    def take(self, wanted: int, now: float) -> None:
        """Take it; `wait` must have been 0."""
        self._level = self.level(now) - wanted


class AccountLimits:
    """Both limits of an account, taken together or not at all. None is no limit."""

    def __init__(self, requests: int | None, tokens: int | None, now: float) -> None:
        self._limits = {
            name: MinuteLimit(amount, now)
            for name, amount in (("requests", requests), ("tokens", tokens))
            if amount is not None
        }

    def take(self, tokens: int, now: float) -> tuple[tuple[str, str], ...]:
        """Take one request and its tokens; returns the headers. Raises ApiError 429 with the wait in its headers."""
        wanted = {"requests": 1, "tokens": tokens}
        waits = {name: limit.wait(wanted[name], now) for name, limit in self._limits.items()}
        if waits and max(waits.values()) > 1e-9:
            name = max(waits, key=lambda key: waits[key])
            wait = waits[name]
            headers = self.headers(now)
            if math.isfinite(wait):
                headers += (
                    ("retry-after", str(math.ceil(wait))),
                    ("retry-after-ms", str(math.ceil(wait * 1000))),
                )
            limit = self._limits[name]
            raise ApiError(
                429,
                f"Rate limit reached on {name} per minute: limit {limit.amount}, "
                f"remaining {int(limit.level(now))}, requested {wanted[name]}. Try again in {duration(wait)}.",
                kind=name,
                code="rate_limit_exceeded",
                headers=headers,
            )
        for name, limit in self._limits.items():
            limit.take(wanted[name], now)
        return self.headers(now)

    def headers(self, now: float) -> tuple[tuple[str, str], ...]:
        """The x-ratelimit headers as they stand."""
        out: list[tuple[str, str]] = []
        for name, limit in self._limits.items():
            level = limit.level(now)
            out += [
                (f"x-ratelimit-limit-{name}", str(limit.amount)),
                (f"x-ratelimit-remaining-{name}", str(int(level))),
                (f"x-ratelimit-reset-{name}", duration((limit.amount - level) * 60.0 / limit.amount)),
            ]
        return tuple(out)


def duration(seconds: float) -> str:
    """A span as hosted providers write it: 12ms, 1.5s, 6m0s."""
    if math.isinf(seconds):
        return "never"
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s"
