"""The rate-limit headers of an answer: which of a principal's limits is the tightest, and how it stands.

The general way asks the limiter how every limit stands. Where the buckets are in this process, they are looked at
themselves, and only those that a header tells of: the same figures at a fifth of the cost.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.api.seam import Headers
from ratelimit import headers as general
from ratelimit.bucket import Bucket
from ratelimit.group import Group
from ratelimit.limit import Refusal
from ratelimit.reservation import Reservation
from ratelimit.store import Limiter


def openai(limiter: Limiter, decided: Reservation | Refusal, now: int) -> Headers:
    """The `x-ratelimit-*` family; `now` is Unix microseconds."""
    if type(decided) is not Reservation or type(decided.group) is not Group:
        return general.openai(limiter.standings(decided, now))
    group = decided.group
    found: list[tuple[str, str]] = []
    requests = _tightest(group.requests, now)
    if requests is not None:
        bucket, left = requests
        found += (
            ("x-ratelimit-limit-requests", str(bucket.limit.amount)),
            ("x-ratelimit-remaining-requests", str(left)),
            ("x-ratelimit-reset-requests", general.go_duration(bucket.reset_us(now))),
        )
    tokens = _tightest(group.total or (*group.input, *group.output), now)
    if tokens is not None:
        bucket, left = tokens
        found += (
            ("x-ratelimit-limit-tokens", str(bucket.limit.amount)),
            ("x-ratelimit-remaining-tokens", str(left)),
            ("x-ratelimit-reset-tokens", general.go_duration(bucket.reset_us(now))),
        )
    return found


def anthropic(limiter: Limiter, decided: Reservation | Refusal, now: int) -> Headers:
    """The `anthropic-ratelimit-*` family; `now` is Unix microseconds."""
    return general.anthropic(limiter.standings(decided, now), now)


def _tightest(buckets: Iterable[Bucket], now: int) -> tuple[Bucket, int] | None:
    """The bucket with the fewest units left, and how many; of several the one that is whole again last."""
    tightest: Bucket | None = None
    least = 0
    for bucket in buckets:
        left = bucket.remaining(now)
        if tightest is None or left < least or (left == least and bucket.reset_us(now) > tightest.reset_us(now)):
            tightest, least = bucket, left
    return None if tightest is None else (tightest, least)
