"""Spending near and far from a limit: a piece of a shared limit, held by one instance.

Far from a limit an instance spends from a *lease*, a chunk q taken from the shared limit when it was granted, and asks
nobody. Near it every request asks the store. With N instances, a burst B and a rate r:

    q       = min(amount / 20, B / 4) / N             so all leases together are at most 5 % of a period's amount
    far     while at least 2 * N * q is left in the store (money and slots: and at least a tenth)
    admitted in any window W  <=  B + r * W + min(N * q, B + r * lease time)       + the terms of store.py

The added term is reached by an adversary that lets the store refill while it sits on its leases. What is stranded, in
leases nobody spends, is the same N * q at most. Slots and money are taken out of the store when leased, and neither
refills, so for them the added term is zero.

Each state here is an ordinary bucket, set of slots or budget, so the same `take` runs on it, but its size is the
lease: `cap` (or `amount`) grows by what is granted and shrinks by what is given back, while `debt` (or `used`, `held`,
`spent`) says what this instance's requests have taken of it. `whole` mirrors the shared limit as last told.

A lease call is prepared (`ask`), which at once takes out of the lease what is given back, and completed (`granted`)
by the answer. A call whose answer was lost is sent again as it was: the store does it once, and its grants are
forfeited.
"""

from __future__ import annotations

from typing import NamedTuple

from ratelimit.bucket import Bucket
from ratelimit.budget import NEAR_DIVISOR, Budget
from ratelimit.concurrency import RETRY_US, Slots
from ratelimit.limit import MICROSECONDS, Dimension, Limit, Reason, Refusal, Standing, StandingSource

EPSILON_DIVISOR = 20
"""All leases of a rate together are at most one part in this many of its amount per period."""

SHORTEST_LEASE_US = 5 * MICROSECONDS
LONGEST_LEASE_US = 30 * MICROSECONDS
"""A lease lasts as long as two refills at the pace of the last, within these."""


class Ask(NamedTuple):
    """One entry of a lease call; see the script for what a, b and c are per kind. All in store figures."""

    a: int
    b: int
    c: int
    want: int
    need: int
    floor: int


def chunk(limit: Limit, instances: int) -> int:
    """q: the most units one instance may lease."""
    if limit.exact:
        return 0
    if limit.dimension is Dimension.CONCURRENCY:
        return limit.amount // (8 * instances)
    if limit.dimension in (Dimension.MONEY_DAY, Dimension.MONEY_MONTH):
        return limit.amount // EPSILON_DIVISOR // instances
    return min(limit.amount // EPSILON_DIVISOR, limit.burst // 4) // instances


def floor(limit: Limit, instances: int) -> int:
    """Units that must be left in the store for a lease to be granted."""
    least = 2 * instances * chunk(limit, instances)
    if limit.dimension in (Dimension.CONCURRENCY, Dimension.MONEY_DAY, Dimension.MONEY_MONTH):
        return max(least, limit.amount // NEAR_DIVISOR)
    return least


def lease_us(between_calls_us: int, shortest_us: int = SHORTEST_LEASE_US) -> int:
    """How long the next lease lasts, from the time between the last two calls."""
    return max(shortest_us, min(LONGEST_LEASE_US, 2 * between_calls_us))


class LeasedRate(Bucket):
    """A chunk of a rate, in ticks: room = cap - debt. It earns nothing; what is overdrawn is owed to the store."""

    __slots__ = ("largest", "whole")

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.whole = Bucket(limit)
        self.leak = 0
        self.cap = 0
        self.ceiling = 1 << 200  # debt is cut in the store, not here
        self.largest = 0  # ticks of the dearest recent request: a lease smaller than that serves nobody

    def reshape(self, limit: Limit) -> None:
        old = self.unit
        self.whole.reshape(limit)
        self.limit, self.unit = limit, self.whole.unit
        room = max(0, self.cap - self.debt) // old * self.unit
        self.debt = -(-self.debt // old) * self.unit
        self.cap = self.debt + room
        self.largest = 0

    def forgettable(self, now: int) -> bool:
        return self.cap == self.debt

    def spare(self) -> bool:
        return self.cap > self.debt

    def overdrawn(self) -> bool:
        return self.debt > self.cap

    def short(self, units: int) -> bool:
        return self.debt + units * self.unit > self.cap

    def far(self, instances: int, cost: int, now: int) -> bool:
        """Whether a lease would be granted and serve a request of `cost` units."""
        self.largest = max(cost * self.unit, self.largest - self.largest // 8)
        return (
            chunk(self.limit, instances) * self.unit >= self.largest
            and self.whole.remaining(now) >= floor(self.limit, instances) > 0
        )

    def low(self, instances: int) -> bool:
        return (self.cap - self.debt) * 2 < chunk(self.limit, instances) * self.unit

    def ask(self, instances: int, need: int, now: int, *, renew: bool) -> Ask:
        owe = max(0, self.debt - self.cap)
        self.cap += owe
        room = self.cap - self.debt
        back = 0 if renew or need else room
        self.cap -= back
        size = chunk(self.limit, instances) * self.unit
        want = max(0, size - room) if renew and self.low(instances) else 0
        return Ask(owe, back, 0, want, need * self.unit, floor(self.limit, instances) * self.unit)

    def granted(self, grant: int, level: int, now: int, _: int) -> None:
        self.cap += grant
        self.whole.debt, self.whole.at = level, now

    def told(self, level: int, now: int) -> None:
        self.whole.debt, self.whole.at = level, now

    def standing(self, now: int) -> Standing:
        room = max(0, self.cap - self.debt)
        left = min(self.limit.burst, (max(0, self.whole.cap - self.whole.owed(now)) + room) // self.whole.unit)
        return Standing(self.limit, left, self.whole.reset_us(now))

    def refusal(self, units: int, now: int, source: StandingSource) -> Refusal:
        left, wait = self.whole.remaining(now), self.whole.wait_us(units, now)
        if wait is None:
            return Refusal(self.limit, units, left, None, Reason.NEVER_FITS, source)
        return Refusal(self.limit, units, left, max(1_000, wait), Reason.EXCEEDED, source)


class LeasedSlots(Slots):
    """Some of the slots of a concurrency limit: `amount` of them are held, `used` are taken by requests."""

    __slots__ = ("asked", "whole")

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.whole = Slots(limit)
        self.amount = 0
        self.asked = 0  # granted perhaps by a call whose answer never came; given up by the next

    def reshape(self, limit: Limit) -> None:
        self.whole.reshape(limit)
        self.limit = limit

    def forgettable(self, now: int = 0) -> bool:
        return self.amount == 0 and self.used == 0 and self.asked == 0

    def spare(self) -> bool:
        return self.amount > self.used

    def overdrawn(self) -> bool:
        return self.used > self.amount

    def short(self, units: int) -> bool:
        return self.used >= self.amount

    def far(self, instances: int, cost: int, now: int) -> bool:
        return chunk(self.limit, instances) > 0 and self.whole.remaining() >= floor(self.limit, instances)

    def low(self, instances: int) -> bool:
        return (self.amount - self.used) * 2 < chunk(self.limit, instances)

    def ask(self, instances: int, need: int, now: int, *, renew: bool) -> Ask:
        keep = max(self.used, self.amount if renew or need else 0)
        drop = max(0, self.amount - keep) + self.asked
        want = 0
        if renew and self.low(instances):
            want = max(0, chunk(self.limit, instances) - (self.amount - self.used))
        self.amount, self.asked = keep, max(want, need)
        return Ask(keep, drop, 0, want, need, floor(self.limit, instances))

    def granted(self, grant: int, level: int, now: int, _: int) -> None:
        self.amount += grant
        self.asked = 0
        self.whole.used = level

    def told(self, level: int, now: int) -> None:
        self.whole.used = level

    def standing(self, now: int) -> Standing:
        return Standing(self.limit, max(0, self.whole.remaining() + self.amount - self.used), 0)

    def refusal(self, units: int, now: int, source: StandingSource) -> Refusal:
        never = self.limit.amount == 0
        reason = Reason.NEVER_FITS if never else Reason.CONCURRENCY
        return Refusal(self.limit, 1, self.whole.remaining(), None if never else RETRY_US, reason, source)


class LeasedMoney(Budget):
    """A part of a budget: `amount` is leased and not yet reported spent, `held` and `spent` are of it."""

    __slots__ = ("asked", "told_at", "whole")

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.whole = Budget(limit)
        self.amount = 0
        self.near = 0
        self.asked = 0  # granted perhaps by a call whose answer never came; the next says anew what is kept
        self.told_at = 0  # when the store last said how much is left; 0: never

    def reshape(self, limit: Limit) -> None:
        self.whole.reshape(limit)
        self.limit = limit

    def roll(self, now: int) -> None:
        """A new period voids the lease: it was a part of the old one."""
        before = self.period
        super().roll(now)
        if self.period != before:
            self.amount = self.spent = self.held = 0

    def forgettable(self, now: int) -> bool:
        self.free(now)
        return self.amount == 0 and self.held == 0 and self.spent == 0 and self.asked == 0

    def spare(self) -> bool:
        return self.amount > self.spent + self.held

    def overdrawn(self) -> bool:
        return self.spent + self.held > self.amount

    def short(self, units: int) -> bool:
        return units > self.amount - self.spent - self.held

    def far(self, instances: int, cost: int, now: int) -> bool:
        size = chunk(self.limit, instances)
        return 0 < size >= cost and self.whole.free(now) >= floor(self.limit, instances)

    def low(self, instances: int) -> bool:
        return (self.amount - self.spent - self.held) * 2 < chunk(self.limit, instances)

    def ask(self, instances: int, need: int, now: int, *, renew: bool) -> Ask:
        self.free(now)
        spent, self.spent = self.spent, 0
        keep = self.held if not (renew or need) else max(self.held, self.amount - spent)
        self.amount = keep
        want = max(0, chunk(self.limit, instances) - (keep - self.held)) if renew and self.low(instances) else 0
        self.asked = max(want, need)
        return Ask(spent, self.period, keep, want, need, floor(self.limit, instances))

    def granted(self, grant: int, level: int, now: int, period: int) -> None:
        if period == self.period:
            self.amount += grant
        self.asked = 0
        self.told(level, now)

    def told(self, level: int, now: int) -> None:
        self.whole.free(now)
        self.whole.spent, self.whole.held = level, 0
        self.told_at = now

    def standing(self, now: int) -> Standing:
        left = min(self.limit.amount, self.whole.free(now) + max(0, self.free(now)))
        return Standing(self.limit, left, self.whole.ends - now if left < self.limit.amount else 0)

    def refusal(self, units: int, now: int, source: StandingSource) -> Refusal:
        never = units > self.limit.amount
        left, wait = self.whole.free(now), self.whole.wait_us(units, now)
        reason = Reason.NEVER_FITS if never else Reason.BUDGET_EXHAUSTED if units > left else Reason.EXCEEDED
        return Refusal(self.limit, units, left, None if never else max(1_000, wait or 0), reason, source)


Leased = LeasedRate | LeasedSlots | LeasedMoney


def new_leased(limit: Limit) -> Leased:
    """An empty lease of a limit."""
    match limit.dimension:
        case Dimension.CONCURRENCY:
            return LeasedSlots(limit)
        case Dimension.MONEY_DAY | Dimension.MONEY_MONTH:
            return LeasedMoney(limit)
        case _:
            return LeasedRate(limit)
