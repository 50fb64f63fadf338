"""What a store must promise; the in-process one.

The promise, whichever store keeps it:

- a reserve takes from every limit or from none, in one step; the same request id again is the same reservation;
- a settle counts once; what is settled is what stays charged, the rest is refunded up to a full bucket;
- admitted tokens in any window of length W stay within  burst + rate * W + O + U,  where O is what open
  reservations at its start will give back, and U by how much requests open at its end have passed theirs;
- an unused limit costs no memory: a full bucket, an untouched budget and a free slot are what a new one would be,
  so they are forgotten once no open reservation refers to them (forget.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ratelimit.bucket import Bucket
from ratelimit.budget import Budget
from ratelimit.forget import KEPT, Forgetting
from ratelimit.group import (
    Group,
    Member,
    charge,
    explain,
    forgettable,
    new_member,
    raise_to,
    reprice,
    settle,
    take,
)
from ratelimit.limit import MICROSECONDS, Amounts, Limit, Reason, Refusal, Standing
from ratelimit.reservation import Reservation

ABANDONED_AFTER_US = 3_600 * MICROSECONDS
"""A reservation of this process without settle or progress for an hour is settled as abandoned."""

LOOKS_PER_SWEEP = 256
"""Groups looked at in a sweep, so that what a flood left behind goes when it is over."""


class StoreMode(StrEnum):
    """Who decides at the moment."""

    IN_PROCESS = "in_process"  # one process, no shared store asked for
    SHARED = "shared"  # the shared store, by lease or by exact call
    AWAY = "away"  # the shared store is out of reach: every limit follows its own mode


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """For /readyz, a metric and a header. `ready` is False when a store that was asked for has never answered."""

    mode: StoreMode
    ready: bool
    reason: str = ""
    instances: int = 1
    journalled: int = 0  # settled requests whose usage the shared store does not know yet


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counters since the start, and what is held now."""

    open: int
    groups: int
    states: int
    admitted: int
    settled: int
    abandoned: int
    refused: dict[Reason, int]
    shadow_refused: dict[str, int]  # by limit key
    cut_units: dict[str, int]  # by limit key: units beyond the debt ceiling, never charged


class Limiter(Protocol):
    """What the gateway asks of limits. `now` is Unix time in integer microseconds."""

    def group(self, limits: Sequence[Limit]) -> Group: ...
    async def reserve(
        self, request_id: str, limits: Sequence[Limit] | Group, amounts: Amounts, now: int
    ) -> Reservation | Refusal: ...
    async def progress(self, reservation: Reservation, so_far: Amounts, now: int) -> None: ...
    async def reprice(self, reservation: Reservation, micro_usd: int, worst_micro_usd: int, now: int) -> None: ...
    async def settle(self, reservation: Reservation, actual: Amounts, now: int) -> None: ...
    async def seed(self, limit: Limit, spent_micro_usd: int, now: int) -> None: ...
    def standings(self, decided: Reservation | Refusal, now: int) -> tuple[Standing, ...]: ...
    def status(self) -> StoreStatus: ...


class LocalLimiter:
    """All limits in this process. The `_now` methods are the limiter; the async ones are for its protocol."""

    def __init__(self, abandoned_after_us: int = ABANDONED_AFTER_US) -> None:
        self._states: dict[str, Member] = {}  # every state that a live group refers to, or that is not full
        self._groups: dict[tuple[Limit, ...], Group] = {}
        self._open: dict[str, Reservation] = {}  # exactly the reservations that are not settled
        self._abandoned_after_us = abandoned_after_us
        self._forgetting: Forgetting[Group] = Forgetting()
        self._admitted = 0
        self._settled = 0
        self._abandoned = 0
        self._refused: Counter[Reason] = Counter()

    def group(self, limits: Sequence[Limit]) -> Group:
        """The compiled form of a principal's limits; keep it and pass it to reserve. Same limits, same group.

        A limit that was known with other figures is changed to these, and keeps what it has been charged.
        Raises ValueError when two limits count the same thing.
        """
        wanted = tuple(limits)
        group = self._groups.get(wanted)
        if group is None:
            group = Group(wanted, [self._state(limit) for limit in wanted])
            self._groups[wanted] = group
            self._forgetting.add(group)
        else:
            for limit in wanted:
                self._state(limit)
        return group

    def reserve_now(self, request_id: str, group: Group, amounts: Amounts, now: int) -> Reservation | Refusal:
        """Take the amounts from every limit of the group, or say which refuses and until when."""
        known = self._open.get(request_id)
        if known is not None:
            return known
        if self._forgetting.owed:
            self._forget(self._forgetting.pay(lambda idle: _needless(idle, now)))
        if not group.live:
            group = self._revive(group)
        holds = take(group, amounts, now)
        if holds is None:
            refusal = explain(group, amounts, now)
            assert refusal is not None, "take and explain disagree"
            self._refused[refusal.reason] += 1
            return refusal
        if group.shadow is not None:
            holds += charge(group.shadow, amounts, now)
        group.open += 1
        self._admitted += 1
        reservation = Reservation(request_id, group, amounts, holds, now, now + self._abandoned_after_us)
        self._open[request_id] = reservation
        return reservation

    def progress_now(self, reservation: Reservation, so_far: Amounts, now: int) -> None:
        """A running request has used this much: charge what passes its reservation, and keep it alive."""
        if reservation.settled:
            return
        group, shadow = reservation.group, reservation.group.shadow
        own = len(group.money)
        reservation.streamed = so_far
        reservation.expires = now + self._abandoned_after_us
        reserved = reservation.reserved
        raised, holds = raise_to(group, reserved, so_far, reservation.holds[:own], now)
        if shadow is not None:
            holds += raise_to(shadow, reserved, so_far, reservation.holds[own:], now)[1]
        reservation.reserved, reservation.holds = raised, holds

    def reprice_now(self, reservation: Reservation, micro_usd: int, worst_micro_usd: int, now: int) -> None:
        """A target is chosen: hold its price, at most what was admitted. Call it again for the next attempt."""
        if reservation.settled:
            return
        group, shadow, own = reservation.group, reservation.group.shadow, len(reservation.group.money)
        first, holds = reservation.first_holds, reservation.holds
        old, worst = reservation.reserved.micro_usd, max(micro_usd, worst_micro_usd)
        streamed = reservation.streamed.micro_usd if reservation.streamed is not None else 0
        repriced = reprice(group, first[:own], holds[:own], old, micro_usd, worst, streamed)
        if shadow is not None:
            repriced += reprice(shadow, first[own:], holds[own:], old, micro_usd, worst, streamed)
        reservation.holds = repriced

    def settle_now(self, reservation: Reservation, actual: Amounts, now: int) -> None:
        """Replace the reservation by what is kept of the request. Only the first call counts."""
        if reservation.settled:
            return
        reservation.settled = True
        group = reservation.group
        if group.shadow is None:
            settle(group, reservation.reserved, actual, reservation.holds, reservation.at, now)
        else:
            own = len(group.money)
            settle(group, reservation.reserved, actual, reservation.holds[:own], reservation.at, now)
            settle(group.shadow, reservation.reserved, actual, reservation.holds[own:], reservation.at, now)
        group.open -= 1
        self._settled += 1
        del self._open[reservation.request_id]

    def seed_now(self, limit: Limit, spent_micro_usd: int, now: int) -> None:
        """A ledger knows that at least so much of a budget was spent in its current period; tell it at the start.

        Raises ValueError for a limit that is not money.
        """
        state = self._state(limit)
        if not isinstance(state, Budget):
            raise ValueError(f"{limit.key} is not a budget")
        state.seed(spent_micro_usd, now)

    def sweep_now(self, now: int) -> int:
        """Settle abandoned reservations with what they had streamed, and forget some of what nobody uses.

        For a housekeeper, every few seconds. Gives how many were abandoned.
        """
        lost = [r for r in self._open.values() if r.expires <= now]
        for reservation in lost:
            self.settle_now(reservation, reservation.streamed or reservation.reserved, now)
        self._abandoned += len(lost)
        if len(self._forgetting) > KEPT:
            self._forget(self._forgetting.look(LOOKS_PER_SWEEP, lambda idle: _needless(idle, now)))
        return len(lost)

    def tidy_now(self, now: int) -> None:
        """Forget everything that nobody uses; O(all)."""
        self._forget(self._forgetting.look(len(self._forgetting), lambda idle: _needless(idle, now)))

    def _forget(self, idle: Iterable[tuple[Group, list[str]]]) -> None:
        for group, freed in idle:
            if self._groups.get(group.limits) is group:
                del self._groups[group.limits]
            for key in freed:
                del self._states[key]

    def _state(self, limit: Limit) -> Member:
        state = self._states.get(limit.key)
        if state is None:
            state = self._states[limit.key] = new_member(limit)
        elif state.limit != limit:
            state.reshape(limit)
        return state

    def _revive(self, group: Group) -> Group:
        """A group that was forgotten is used again: its states were full, so they are made anew or found."""
        successor = self._groups.setdefault(group.limits, group)
        if successor is group:
            group.link([self._state(limit) for limit in group.limits])
            self._forgetting.add(group)
        return successor

    async def reserve(
        self, request_id: str, limits: Sequence[Limit] | Group, amounts: Amounts, now: int
    ) -> Reservation | Refusal:
        group = limits if isinstance(limits, Group) else self.group(limits)
        return self.reserve_now(request_id, group, amounts, now)

    async def progress(self, reservation: Reservation, so_far: Amounts, now: int) -> None:
        self.progress_now(reservation, so_far, now)

    async def reprice(self, reservation: Reservation, micro_usd: int, worst_micro_usd: int, now: int) -> None:
        self.reprice_now(reservation, micro_usd, worst_micro_usd, now)

    async def settle(self, reservation: Reservation, actual: Amounts, now: int) -> None:
        self.settle_now(reservation, actual, now)

    async def seed(self, limit: Limit, spent_micro_usd: int, now: int) -> None:
        self.seed_now(limit, spent_micro_usd, now)

    def standings(self, decided: Reservation | Refusal, now: int) -> tuple[Standing, ...]:
        """How the limits of a decision stand now."""
        if isinstance(decided, Refusal):
            return decided.source.standings(now) if decided.source is not None else ()
        return decided.standings(now)

    def status(self) -> StoreStatus:
        return StoreStatus(StoreMode.IN_PROCESS, ready=True)

    def snapshot(self) -> Snapshot:
        """A frozen look at the limiter; changes nothing."""
        states = self._states.items()
        return Snapshot(
            open=len(self._open),
            groups=len(self._groups),
            states=len(self._states),
            admitted=self._admitted,
            settled=self._settled,
            abandoned=self._abandoned,
            refused=dict(self._refused),
            shadow_refused={key: state.refused for key, state in states if state.refused},
            cut_units={key: state.cut for key, state in states if isinstance(state, Bucket) and state.cut},
        )


def _needless(group: Group, now: int) -> bool:
    return all(forgettable(member, now) for member in group.members)
