"""Reservations: a tenant's guaranteed part of a pool, what of it is held free, and how much may be sold.

A reservation is a rate and a room. The *rate* (cost units/s) is a real-time clock R, the shape known from mClock:
while R <= now the tenant is served before all shares, and a grant of estimate e moves R to
max(R, now - burst / rate) + e / rate. Idle time earns nothing beyond `burst`. The *room* is seats and KV tokens:
while the tenant holds less than its room its requests go first too. Of the unused room the fraction `hold` is kept
free of work that cannot be preempted; the rest is lent. Batch work may fill held room, since it can be taken back.

A schedule switches a reservation on for windows of local time (`windows_from_local`); between windows it is nothing.
When measured capacity falls below what was sold all floors shrink by the same factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a tenant was sold in one pool. `windows` are (from, to) in the pool's monotonic seconds; None = always."""

    rate: float = 0.0  # cost units/s
    burst: float = 0.0  # cost units it may run ahead after idling
    seats: int = 0
    kv_tokens: int = 0
    hold: float = 0.5  # fraction of the unused room kept free for it
    windows: tuple[tuple[float, float], ...] | None = None

    def __post_init__(self) -> None:
        if self.rate < 0 or self.burst < 0 or self.seats < 0 or self.kv_tokens < 0:
            raise ValueError("a reservation cannot be negative")
        if not 0.0 <= self.hold <= 1.0:
            raise ValueError(f"hold must be between 0 and 1, not {self.hold}")

    def active(self, now: float) -> bool:
        return self.windows is None or any(start <= now < end for start, end in self.windows)

    def next_change(self, now: float) -> float | None:
        """The next time at which a window opens or closes; None = never."""
        if self.windows is None:
            return None
        return min((edge for window in self.windows for edge in window if edge > now), default=None)


@dataclass(frozen=True, slots=True)
class LocalWindow:
    """A weekly window in a tenant's local time. An end at or before the start means the next day."""

    weekdays: frozenset[int]  # 0 = Monday
    start: time
    end: time


def windows_from_local(
    windows: Iterable[LocalWindow], zone: tzinfo, first_day: date, days: int, to_monotonic: float
) -> tuple[tuple[float, float], ...]:
    """Concrete windows of the `days` days from `first_day` in `zone`, merged, in monotonic seconds.

    `to_monotonic` is added to a Unix time to give the pool's clock. A wall time that a clock change skips begins
    when the clock change ends; one that occurs twice begins at its first and ends at its second occurrence, so a
    guarantee is never shorter than it reads."""
    spans: list[tuple[float, float]] = []
    for offset in range(days):
        day = first_day + timedelta(days=offset)
        for window in windows:
            if day.weekday() not in window.weekdays:
                continue
            last = day if window.end > window.start else day + timedelta(days=1)
            start = datetime.combine(day, window.start, tzinfo=zone).replace(fold=0).timestamp()
            end = datetime.combine(last, window.end, tzinfo=zone).replace(fold=1).timestamp()
            if end > start:
                spans.append((start + to_monotonic, end + to_monotonic))
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


@dataclass(frozen=True, slots=True)
class Vector:
    """Capacity of a pool or a replica in what reservations are sold in. None = not measured."""

    rate: float | None  # cost units/s
    seats: int | None
    kv_tokens: int | None


def total(vectors: Iterable[Vector]) -> Vector:
    """The sum; unknown where one of them is unknown, or where there are none."""
    parts = list(vectors)
    rates = [v.rate for v in parts if v.rate is not None]
    seats = [v.seats for v in parts if v.seats is not None]
    kv = [v.kv_tokens for v in parts if v.kv_tokens is not None]
    n = len(parts)
    return Vector(
        sum(rates) if n and len(rates) == n else None,
        sum(seats) if n and len(seats) == n else None,
        sum(kv) if n and len(kv) == n else None,
    )


@dataclass(frozen=True, slots=True)
class Line:
    """One dimension of a sale: what is asked on top of what is sold, against what may be sold."""

    dimension: str
    measured: float | None
    limit: float  # (1 - headroom) * measured, less the largest replica where that must be survived
    sold: float  # the highest sum of the other reservations over the wanted windows
    asked: float

    @property
    def fits(self) -> bool:
        return self.asked <= 0 or (self.measured is not None and self.sold + self.asked <= self.limit + 1e-9)


@dataclass(frozen=True, slots=True)
class Sale:
    """Whether a reservation may be sold, with the figures. `detail` reads well in an error."""

    ok: bool
    lines: tuple[Line, ...]
    scaled: bool  # sold reservations are already being scaled down, so nothing new is sold

    @property
    def detail(self) -> str:
        if self.scaled:
            return "measured capacity is below what is sold; nothing new is sold until it recovers"
        short = [line for line in self.lines if not line.fits]
        if not short:
            return "fits"
        return "; ".join(
            f"{line.dimension}: asked {line.asked:g}, sold {line.sold:g}, capacity not measured"
            if line.measured is None
            else f"{line.dimension}: asked {line.asked:g} + sold {line.sold:g} > {line.limit:g} sellable "
            f"of {line.measured:g} measured"
            for line in short
        )


def _overlap_sum(others: Sequence[Reservation], wanted: Reservation, dimension: str) -> float:
    """Highest sum of `dimension` over `others` at any time at which `wanted` is on."""
    edges = {start for r in (*others, wanted) if r.windows is not None for start, _ in r.windows}
    times = [t for t in edges if wanted.active(t)]
    if wanted.windows is None:
        times.append(float("-inf"))  # a time outside every window
    return max(
        (sum(getattr(r, dimension) for r in others if r.active(t)) for t in times),
        default=0.0,
    )


def sellable(
    wanted: Reservation,
    others: Sequence[Reservation],
    replicas: Sequence[Vector],
    *,
    headroom: float = 0.2,
    survive_loss: bool = True,
) -> Sale:
    """Whether `wanted` may be sold beside `others` in a pool of `replicas`.

    At most (1 - headroom) of measured capacity is sold, at every time of the schedules, and with `survive_loss` also
    of what is left without the largest replica (a pool of one replica has nothing left: then only the whole counts).
    A dimension that no replica has measured cannot be sold."""
    lines: list[Line] = []
    scaled = False
    for dimension in ("rate", "seats", "kv_tokens"):
        figures = [getattr(r, dimension) for r in replicas]
        known = [float(f) for f in figures if f is not None]
        measured = sum(known) if len(known) == len(figures) and known else None
        limit = 0.0
        if measured is not None:
            left = measured - max(known) if survive_loss and len(known) > 1 else measured
            limit = (1.0 - headroom) * left
        sold = float(_overlap_sum(others, wanted, dimension))
        lines.append(Line(dimension, measured, limit, sold, float(getattr(wanted, dimension))))
        if measured is not None and sold > (1.0 - headroom) * measured + 1e-9:
            scaled = True
    return Sale(not scaled and all(line.fits for line in lines), tuple(lines), scaled)


@dataclass(slots=True)
class Floors:
    """The factors by which sold floors are scaled at this moment; 1 = in full. Oversold means an alarm."""

    rate: float = 1.0
    seats: float = 1.0
    kv_tokens: float = 1.0
    oversold: bool = False

    @classmethod
    def of(cls, sold: Iterable[Reservation], measured: Vector, headroom: float, now: float) -> Floors:
        """Factors such that the active floors together stay within (1 - headroom) of what is measured."""
        active = [r for r in sold if r.active(now)]
        factors: list[float] = []
        for dimension in ("rate", "seats", "kv_tokens"):
            total = sum(getattr(r, dimension) for r in active)
            have = getattr(measured, dimension)
            if have is None or total <= 0:
                factors.append(1.0)
            else:
                factors.append(min(1.0, (1.0 - headroom) * have / total))
        return cls(factors[0], factors[1], factors[2], min(factors) < 1.0)
