"""Instruments: plain counters and histograms, updated on the hot path and read by the metrics page.

A request finds its `Series` once (one dictionary look-up) and then only adds to numbers. Labels are
bounded: tenants past `max_tenants` share the label `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

# Upper bounds in seconds. Queues and long streams exceed the ten seconds of the usual sets.
TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0,
)  # fmt: skip
TPOT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
PHASE_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip

# A request's time, cut without gaps or overlaps; the sum of a request's phases is its whole time.
PHASES = ("limit", "queue", "failed", "connect", "prefill", "decode", "finish")

OTHER = "other"


class Histogram:
    """Counts by upper bound. `counts` is one longer than the bounds: the last is above them all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Adds one value, in the unit of the bounds."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self.counts)


@dataclass(slots=True)
class Series:
    """The numbers of one (model, pool, class, tenant)."""

    model: str
    pool: str
    cls: str
    tenant: str
    requests: Counter[str] = field(default_factory=Counter)  # by outcome label
    phases: dict[str, Histogram] = field(default_factory=lambda: {p: Histogram(PHASE_BUCKETS) for p in PHASES})
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BUCKETS))
    tpot: Histogram = field(default_factory=lambda: Histogram(TPOT_BUCKETS))
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    estimated_usage: int = 0  # requests settled without a usage report


@dataclass(slots=True)
class Instruments:
    """All numbers of one process that are not read from a snapshot of some part."""

    max_tenants: int = 200
    series: dict[tuple[str, str, str, str], Series] = field(default_factory=dict)
    inflight: int = 0
    unauthenticated: Counter[str] = field(default_factory=Counter)  # refusals before a key was known, by outcome
    attempts: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # (pool, replica, result)
    refusals_by_limit: Counter[tuple[str, str]] = field(default_factory=Counter)  # (level, dimension)
    shadow_by_limit: Counter[tuple[str, str]] = field(default_factory=Counter)
    reloads: Counter[str] = field(default_factory=Counter)  # "applied" or "refused"
    # (pool, result) of streams that broke after content was out: "continued", "failed" or "impossible"
    broken_streams: Counter[tuple[str, str]] = field(default_factory=Counter)
    _tenants: set[str] = field(default_factory=set)

    def of(self, model: str, pool: str, cls: str, tenant: str) -> Series:
        """The series of these labels, made on first use."""
        key = (model, pool, cls, tenant)
        found = self.series.get(key)
        if found is None:
            if tenant not in self._tenants:
                if len(self._tenants) >= self.max_tenants:
                    return self.of(model, pool, cls, OTHER) if tenant != OTHER else self._make(key)
                self._tenants.add(tenant)
            found = self._make(key)
        return found

    def _make(self, key: tuple[str, str, str, str]) -> Series:
        made = self.series[key] = Series(*key)
        return made
