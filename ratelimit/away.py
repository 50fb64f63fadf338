"""What is enforced while the shared store is out of reach.

Each limit says for itself: `closed` lets nothing pass, `open` everything, `local` a part. The part of one of N
instances is agreed beforehand, so that all of them together stay bounded without talking:

    rate      it fills at r / (2 N) and holds B / (2 N) when the outage begins
              => in an outage of X seconds all instances together admit at most (B + r * X) / 2
    slots     amount / (2 N), requests already running counted
    money     half of what was left when the store last spoke, divided by N;  nothing, if it never spoke

besides what they hold in leases until these end. N is the number of instances last seen alive. A request larger than an
instance's share of the burst is not shut out: the level may grow to a whole burst, only the start is a share. The level
lives on between outages, so that many short ones admit no more than one long one.

Usage in the meantime is journalled by the caller and charged to the store afterwards, once per request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ratelimit.bucket import Bucket
from ratelimit.budget import Budget
from ratelimit.concurrency import Slots
from ratelimit.group import Group, Member, explain
from ratelimit.lease import Leased, LeasedMoney
from ratelimit.limit import MICROSECONDS, RATES, Amounts, Dimension, Limit, Mode, Reason, Refusal

SHARE_DIVISOR = 2
"""All instances together enforce one part in this many of a limit while the store is away."""

RETRY_US = MICROSECONDS
"""When a store that is away is back is unknown; a second is what a caller is told."""


class LocalRate(Bucket):
    """One instance's share of a rate: a unit weighs 2 N times as much, so it fills 2 N times as slowly."""

    __slots__ = ("parts",)

    def __init__(self, limit: Limit, parts: int, now: int) -> None:
        super().__init__(limit)
        self._shape(limit, parts)
        self.debt, self.at = self.start(), now

    def _shape(self, limit: Limit, parts: int) -> None:
        self.reshape(limit)
        self.parts = parts
        self.unit *= parts
        self.cap = limit.burst * self.unit
        self.ceiling = 2 * self.cap

    def start(self) -> int:
        """The debt that leaves just the share."""
        return self.cap - self.cap // self.parts

    def begin(self, limit: Limit, parts: int, now: int) -> None:
        """An outage begins: the share, less what was used of it in earlier ones and not earned back since."""
        used = -(-max(0, self.owed(now) - self.start()) // self.unit)
        self.debt = 0
        self._shape(limit, parts)
        self.debt, self.at = min(self.start() + used * self.unit, self.ceiling), now


class AwayLimits:
    """The states of one outage after the other. Not used while the store answers."""

    def __init__(self) -> None:
        self._states: dict[str, Member] = {}
        self._epoch = 0  # counts outages; a state of an earlier one is begun anew when it is next asked for
        self._of_epoch: dict[str, int] = {}
        self._parts = SHARE_DIVISOR
        self._running: dict[str, int] = {}  # open requests per concurrency limit, kept while away

    @property
    def epoch(self) -> int:
        return self._epoch

    def begin(self, instances: int, open_limits: Iterable[Sequence[Limit]]) -> None:
        """An outage begins, with these requests open (each as its limits)."""
        self._epoch += 1
        self._parts = SHARE_DIVISOR * instances
        self._running = {}
        for limits in open_limits:
            for limit in limits:
                if limit.dimension is Dimension.CONCURRENCY:
                    self._running[limit.key] = self._running.get(limit.key, 0) + 1

    def group(self, limits: Sequence[Limit], leases: Sequence[Leased], now: int) -> Group:
        """The limits that are enforced locally, with their states of this outage."""
        local = [
            (limit, lease)
            for limit, lease in zip(limits, leases, strict=True)
            if limit.mode is Mode.LOCAL and not limit.shadow
        ]
        return Group([limit for limit, _ in local], [self._state(limit, lease, now) for limit, lease in local])

    def _state(self, limit: Limit, lease: Leased, now: int) -> Member:
        state = self._states.get(limit.key)
        if state is not None and self._of_epoch[limit.key] == self._epoch:
            return state
        if limit.dimension in RATES:
            if isinstance(state, LocalRate):
                state.begin(limit, self._parts, now)
            else:
                state = LocalRate(limit, self._parts, now)
        elif limit.dimension is Dimension.CONCURRENCY:
            state = Slots(limit)
            state.amount = limit.amount // self._parts
            state.used = self._running.get(limit.key, 0)
        elif not isinstance(state, LocalMoney) or not isinstance(lease, LeasedMoney) or lease.told_at > state.began:
            state = LocalMoney(limit, lease, self._parts, now)
        self._states[limit.key] = state
        self._of_epoch[limit.key] = self._epoch
        return state

    def ended(self, limits: Sequence[Limit], *, counted: bool) -> None:
        """A request ended while away. `counted`: this outage's own states admitted it and are settled already."""
        for limit in limits:
            if limit.dimension is not Dimension.CONCURRENCY:
                continue
            state = self._states.get(limit.key)
            if self._of_epoch.get(limit.key) != self._epoch or not isinstance(state, Slots):
                self._running[limit.key] = max(0, self._running.get(limit.key, 0) - 1)
            elif not counted:
                state.used = max(0, state.used - 1)

    def tidy(self, now: int) -> None:
        """No outage now: forget shares that are whole again, and slots, which are counted anew."""
        for key, state in list(self._states.items()):
            whole = isinstance(state, LocalRate) and state.owed(now) <= state.start()
            if whole or isinstance(state, Slots):
                del self._states[key], self._of_epoch[key]


class LocalMoney(Budget):
    """One instance's share of what was left of a budget; of a whole one if a new period begins meanwhile."""

    __slots__ = ("began", "parts")

    def __init__(self, limit: Limit, lease: Leased, parts: int, now: int) -> None:
        super().__init__(limit)
        self.parts = parts
        self.began = now
        self.exact = True  # the worst case is held: nobody can tell how near the end is
        self.free(now)
        known = isinstance(lease, LeasedMoney) and lease.told_at > 0
        left = lease.whole.free(now) if known and isinstance(lease, LeasedMoney) else 0
        self.amount = left // parts

    def roll(self, now: int) -> None:
        before = self.period
        super().roll(now)
        if before and self.period > before:
            self.amount = self.limit.amount // self.parts


def refuse(limits: Sequence[Limit], local: Group, amounts: Amounts, now: int) -> Refusal:
    """Why a request does not pass while the store is away."""
    for limit in limits:
        if limit.mode is Mode.CLOSED and not limit.shadow:
            return Refusal(limit, 0, 0, RETRY_US, Reason.STORE_UNAVAILABLE)
    refusal = explain(local, amounts, now)
    assert refusal is not None, "nothing refuses"
    if refusal.limit.dimension in (Dimension.MONEY_DAY, Dimension.MONEY_MONTH):
        # The budget is not known to be spent, only this instance's share of it.
        return Refusal(refusal.limit, refusal.requested, refusal.remaining, RETRY_US, Reason.STORE_UNAVAILABLE, local)
    if refusal.wait_us is None:
        return Refusal(refusal.limit, refusal.requested, 0, RETRY_US, Reason.STORE_UNAVAILABLE, local)
    return refusal
