"""How much may spill to a target: no more than it has to spare, a little at first, the lowest class shed first.

Traffic that loses its first tier would otherwise fall at once on the second and take it down too. So what spills to a
target is bounded like one more tenant there:

    spare = (1 - headroom) * capacity - reserved - own rate        (cost units a second)

where *own* is the target's ordinary traffic. A token bucket of that rate admits the spill. Its rate is ramped: a tenth
of the spare at first, a fifth more each second, from the start again after a pause. A request may draw the bucket into
debt, so large ones pass too; a class is admitted while the level is above its floor, and the lower the class the higher
its floor: batch goes first. What does not fit stays in its own queue until its time is over.

Where the capacity is unknown (a vendor that says nothing) it is learned by being refused: a 429 or an overload sets the
bound at 70 % of the rate that met it, which then grows by 2 % a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from providers.route import Skip, SkipReason


@dataclass(frozen=True, slots=True)
class SpillSettings:
    """The numbers of one target. Rates in cost units (or tokens) a second, times in seconds."""

    headroom: float = 0.15
    """The part of the capacity that spill never touches."""
    ramp_start: float = 0.1
    ramp_per_s: float = 0.2
    pause_s: float = 10.0
    """Without any spill for this long, the ramp begins anew."""
    burst_s: float = 1.0
    """Seconds of the rate that the bucket holds."""
    memory_s: float = 5.0
    """Time constant of the measured rates."""
    classes: tuple[str, ...] = ("batch", "interactive")
    """Lowest first."""
    cut: float = 0.7
    grow_per_s: float = 0.02


DEFAULT = SpillSettings()


class Rate:
    """An exponentially forgetting rate: what was counted lately, per second."""

    __slots__ = ("_at", "_memory", "_sum")

    def __init__(self, memory_s: float) -> None:
        self._memory = memory_s
        self._sum = 0.0
        """What was counted, each part faded by its age; divided by `memory` it is the rate."""
        self._at = 0.0

    def add(self, amount: float, now: float) -> None:
        """Count `amount`."""
        if now > self._at:
            self._sum *= math.exp((self._at - now) / self._memory)
            self._at = now
        self._sum += amount

    def per_s(self, now: float) -> float:
        """The rate now."""
        return self._sum / self._memory * math.exp(min(0.0, self._at - now) / self._memory)


@dataclass(frozen=True, slots=True)
class SpillSnapshot:
    """A target's spill as seen from outside. Rates a second; None is unknown and unbounded."""

    spare: float | None
    allowed: float | None
    own: float
    spilled: float
    level: float
    shed: dict[str, int]


class Spill:
    """What spills to one target, in this instance. With several instances hand in each one's part of the capacity."""

    __slots__ = (
        "_at", "_capacity", "_last", "_learned", "_learned_at", "_level", "_own", "_ramp_at", "_reserved",
        "_settings", "_spilled", "shed",
    )  # fmt: skip

    def __init__(self, settings: SpillSettings = DEFAULT) -> None:
        self._settings = settings
        self._capacity: float | None = None
        self._reserved = 0.0
        self._own = Rate(settings.memory_s)
        self._spilled = Rate(settings.memory_s)
        self._learned: float | None = None
        self._learned_at = 0.0
        self._level = 0.0
        """Cost units that may spill now; at most `burst_s` of the rate, and in debt by at most one request."""
        self._at = 0.0
        self._ramp_at = -math.inf
        self._last = -math.inf
        """When something last wanted to spill."""
        self.shed: dict[str, int] = dict.fromkeys(settings.classes, 0)
        """Requests not admitted, by class, ever."""

    @property
    def headroom(self) -> float:
        """The part of the capacity that spill never touches."""
        return self._settings.headroom

    def configure(self, capacity: float | None, reserved: float = 0.0) -> None:
        """The target's measured capacity and what of it is reserved for others; None is unknown."""
        self._capacity = capacity
        self._reserved = reserved

    def served(self, cost: float, now: float) -> None:
        """Ordinary traffic of the target took `cost`."""
        self._own.add(cost, now)

    def overloaded(self, now: float) -> None:
        """The target refused spilled work for want of capacity (a 429 or an overload)."""
        met = self._own.per_s(now) + self._spilled.per_s(now)
        if met > 0.0:
            self._learned = self._settings.cut * (met if self._learned is None else min(met, self._grown(now)))
            self._learned_at = now

    def spare(self, now: float) -> float | None:
        """Cost units a second that may spill there once the ramp is done; None is unbounded."""
        own = self._own.per_s(now)
        bounds = []
        if self._capacity is not None:
            bounds.append((1.0 - self._settings.headroom) * self._capacity - self._reserved - own)
        if self._learned is not None:
            bounds.append(self._grown(now) - own)
        return max(0.0, min(bounds)) if bounds else None

    def hindrance(self, cls: str, now: float) -> Skip | None:
        """Why a request of class `cls` may not spill now. Looks only: every plan asks, most never spill."""
        level, _, allowed = self._turned(now)
        if allowed is None:
            return None
        if allowed <= 0.0:
            return Skip(SkipReason.NO_SPARE_CAPACITY, "nothing to spare")
        floor = allowed * self._settings.burst_s * self._floor(cls)
        if level > floor:
            return None
        until = now + (floor - level) / allowed
        if level > 0.0:
            return Skip(SkipReason.SHED_FIRST, f"{allowed:.0f}/s to spare go to higher classes first", until)
        return Skip(SkipReason.NO_SPARE_CAPACITY, f"{allowed:.0f}/s to spare are taken", until)

    def take(self, cls: str, cost: float, now: float) -> bool:
        """Let one request of `cost` spill; False if it may not."""
        refused = self.hindrance(cls, now) is not None
        self._level, self._ramp_at, allowed = self._turned(now)
        self._at = self._last = max(self._at, now)
        if refused:
            self.shed[cls] = self.shed.get(cls, 0) + 1
            return False
        if allowed is not None:
            self._level -= cost
        self._spilled.add(cost, now)
        return True

    def settle(self, reserved: float, actual: float, now: float) -> None:
        """The true cost of a spilled request is known."""
        self._level += reserved - actual
        self._spilled.add(actual - reserved, now)

    def snapshot(self, now: float) -> SpillSnapshot:
        """The figures as they are."""
        level, _, allowed = self._turned(now)
        return SpillSnapshot(
            spare=self.spare(now),
            allowed=allowed,
            own=self._own.per_s(now),
            spilled=self._spilled.per_s(now),
            level=level,
            shed=dict(self.shed),
        )

    def _allowed(self, now: float, ramp_at: float) -> float | None:
        spare = self.spare(now)
        if spare is None:
            return None
        ramp = self._settings.ramp_start + self._settings.ramp_per_s * max(0.0, now - ramp_at)
        return spare * min(1.0, ramp)

    def _turned(self, now: float) -> tuple[float, float, float | None]:
        """The level, the start of the ramp and the rate as they are at `now`."""
        if now - self._last > self._settings.pause_s:
            allowed = self._allowed(now, now)
            return (allowed or 0.0) * self._settings.burst_s, now, allowed
        allowed = self._allowed(now, self._ramp_at)
        rate = allowed or 0.0
        grown = self._level + max(0.0, now - self._at) * rate
        return min(grown, rate * self._settings.burst_s), self._ramp_at, allowed

    def _floor(self, cls: str) -> float:
        """The part of a full bucket that is kept for higher classes."""
        classes = self._settings.classes
        rank = classes.index(cls) if cls in classes else len(classes) - 1
        return (len(classes) - 1 - rank) / len(classes)

    def _grown(self, now: float) -> float:
        assert self._learned is not None
        return self._learned * math.exp(self._settings.grow_per_s * max(0.0, now - self._learned_at))
