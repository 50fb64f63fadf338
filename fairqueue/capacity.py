"""A pool's capacity vector: what is measured, reserved, held, lent, free.

A figure is known from one of four places, in this order of trust: what the engine reports, what the operator
configured, what was fitted or learned from what is seen. A configured figure is a ceiling: the engine's own figure
counts where it is smaller. Unknown is None and never zero, and nothing is guessed: unknown seats are learned
(`learn.py`), unknown KV is not tested, unknown prefill speed is learned (`prefill.py`).

Between scrapes the truth is own accounting: `held now = max(own, scraped + change of own since the scrape)`, so a
scrape sees what others do on the replica and is never behind on what this instance does. A scrape older than 3
intervals is forgotten (own accounting only, with a lower KV watermark); one older than 10 makes the replica unusable
for new work if it has a fresh peer. A replica that was never scraped is not stale: it may simply have no metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Capacity:
    """One replica's vector. None = unknown."""

    seats: int | None = None
    kv_tokens: int | None = None
    prefill_rate: float | None = None  # tokens/s of prefill alone
    chunk_tokens: int | None = None  # prefill tokens in one engine step
    block_tokens: int = 16


@dataclass(frozen=True, slots=True)
class Scrape:
    """What an engine's metrics said at `at` (monotonic seconds). None = the metric is missing."""

    at: float
    running: int | None = None
    waiting: int | None = None
    kv_used_ratio: float | None = None  # 0..1 of its KV tokens
    preemptions_total: int | None = None


class Source(StrEnum):
    """Where a figure comes from."""

    CONFIGURED = "configured"
    ENGINE = "engine"
    FIT = "fit"
    LEARNED = "learned"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure and its source; `provisional` while it rests on less than a day of data."""

    value: float | None
    source: Source
    provisional: bool = False


def resolve(configured: float | None, engine: float | None) -> Figure:
    """The smaller of what was configured and what the engine says; UNKNOWN if neither is known."""
    if engine is not None and (configured is None or engine <= configured):
        return Figure(engine, Source.ENGINE)
    if configured is not None:
        return Figure(configured, Source.CONFIGURED)
    return Figure(None, Source.UNKNOWN)


class ReplicaView(Protocol):
    """What a replica choice may look at."""

    @property
    def name(self) -> str: ...
    @property
    def inflight(self) -> int: ...
    @property
    def seats_free(self) -> int: ...
    @property
    def kv_capacity(self) -> int | None: ...
    @property
    def kv_free(self) -> int | None: ...
    @property
    def prefill_waiting(self) -> int: ...


class ScrapeState:
    """The last scrape of one replica and own accounting at that moment."""

    __slots__ = ("interval_s", "last", "own_kv", "own_seats")

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.last: Scrape | None = None
        self.own_seats = 0
        self.own_kv = 0

    def take(self, scrape: Scrape, own_seats: int, own_kv: int) -> bool:
        """Keep it unless a newer one is known. Returns whether it was kept."""
        if self.last is not None and scrape.at < self.last.at:
            return False
        self.last = scrape
        self.own_seats = own_seats
        self.own_kv = own_kv
        return True

    def age(self, now: float) -> float | None:
        return None if self.last is None else now - self.last.at

    def fresh(self, now: float) -> bool:
        return self.last is not None and now - self.last.at <= 3.0 * self.interval_s

    def lost(self, now: float) -> bool:
        """Scraped once and not for more than 10 intervals."""
        return self.last is not None and now - self.last.at > 10.0 * self.interval_s

    def seats(self, own: int, now: float) -> int:
        """Sequences on the replica: own, or more where the engine saw more."""
        last = self.last
        if last is None or last.running is None or not self.fresh(now):
            return own
        seen = last.running + (last.waiting or 0)
        # A response takes time to arrive, so a small excess is only the requests that ended meanwhile.
        if seen - self.own_seats <= max(2, self.own_seats // 10):
            return own
        return max(own, seen + own - self.own_seats)

    def kv(self, own: int, capacity: int, now: float) -> float:
        """KV tokens in use on the replica."""
        last = self.last
        if last is None or last.kv_used_ratio is None or not self.fresh(now):
            return own
        return max(own, last.kv_used_ratio * capacity + own - self.own_kv)
