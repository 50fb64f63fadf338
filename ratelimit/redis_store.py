"""The same limits for a fleet: decided by lease, by one call to the shared store, or by what is agreed for an outage.

    lease   the instance holds a chunk of every limit of the principal: nobody is asked         (lease.py, tag.py)
    store   some limit is near its end: one script call decides all of them                       (reserve.lua)
    away    the store did not answer in 50 ms, or has not lately: each limit's own mode decides     (away.py)

A settlement never waits for the store: it goes into the outbox, which is sent at once and kept until it is
answered. Nothing is charged twice by that: the script settles an id once. A reserve whose answer was lost is closed by
the settlement of the same id; one whose caller was cancelled is closed with nothing charged.

This file awaits the store; what it decides, and all sums, are in fleet.py and below it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from ratelimit.concurrency import RETRY_US
from ratelimit.fleet import Fleet, SharedSnapshot
from ratelimit.group import Group, Holds
from ratelimit.lease import SHORTEST_LEASE_US
from ratelimit.limit import BUDGETS, MICROSECONDS, Amounts, Dimension, Limit, Reason, Refusal, Standing
from ratelimit.redis_calls import CALL_BUDGET_S, Calls, Client, StoreAwayError, load_script
from ratelimit.reservation import Decider, Reservation
from ratelimit.running import progressed, repriced, settled
from ratelimit.shared import SharedGroup, SharedReservation, abandoned, hash_tag
from ratelimit.store import StoreMode, StoreStatus
from ratelimit.tag import Tag
from ratelimit.upkeep import Upkeep

HOLD_S = 60.0
"""A reservation the store has not heard of for this long is settled as abandoned, and its slots are free."""
REFRESH_S = 1.0
"""How often progress is told, and the instances counted."""
LONGEST_SLOT_LEASE_MS = 40_000


def _unix_us() -> int:
    return time.time_ns() // 1_000


class RedisLimiter:
    """Limits of a fleet over one server, a set of replicas or a cluster. One per process.

    `instance`       names it; a random part is added, so that a process started anew is another instance

    `wait_replicas`  how many replicas must confirm a decision on an exact limit (WAIT); 0 asks none
    `lease_s`        the shortest time a lease lasts        `leasing`  False asks the store for every request
    `clock`          Unix microseconds, for the background work
    `server_time`    False hands the caller's time to the scripts instead of the server's own: simulations only
    """

    def __init__(
        self,
        client: Client,
        *,
        instance: str,
        hold_s: float = HOLD_S,
        refresh_s: float = REFRESH_S,
        budget_s: float = CALL_BUDGET_S,
        lease_s: float = SHORTEST_LEASE_US / MICROSECONDS,
        wait_replicas: int = 0,
        leasing: bool = True,
        clock: Callable[[], int] = _unix_us,
        server_time: bool = True,
    ) -> None:
        self._calls = Calls(client, budget_s)
        self._fleet = Fleet(f"{instance}.{secrets.token_hex(4)}", int(lease_s * MICROSECONDS), leasing=leasing)
        self._hold_ms = int(hold_s * 1_000)
        self._refresh_s = refresh_s
        self._budget_s = budget_s
        self._wait_replicas = wait_replicas
        self._clock = clock
        self._upkeep = Upkeep(
            self._fleet, self._calls, self._hold_ms, int(refresh_s * MICROSECONDS), server_time=server_time
        )
        self._reserve, self._seed = load_script("reserve"), load_script("seed")
        self._deciding: dict[str, asyncio.Future[None]] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Test the store and begin the background work. A store that is absent makes the limiter not ready, no more."""
        try:
            await self._calls.load([load_script(name) for name in ("reserve", "settle", "lease", "due", "beat")])
        except StoreAwayError:
            self._calls.failed()
        await self._upkeep.beat(self._clock())
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Tell the store everything, give the leases back, and stop. The client is its owner's to close."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if not self._calls.open:
            await self._upkeep.leave(self._clock())
        await self._calls.close()

    async def tick(self, now: int) -> None:
        """Do the background work that is due, once."""
        await self._upkeep.tick(now)

    async def flush(self, now: int) -> None:
        """Tell the store what it is still to be told."""
        await self._upkeep.flush(now, progress=True)

    def group(self, limits: Sequence[Limit]) -> SharedGroup:
        """The compiled form of a principal's limits; keep it and pass it to reserve. Same limits, same group.

        A limit that was known with other figures is changed to these. Raises ValueError, see `SharedGroup`.
        """
        return self._fleet.group(limits)

    async def reserve(
        self, request_id: str, limits: Sequence[Limit] | Group, amounts: Amounts, now: int
    ) -> Reservation | Refusal:
        """Take the amounts from every limit, or say which refuses. Delayed by the store for 50 ms at most.

        The same id again, while its reservation is open, is the same reservation anywhere in the fleet: ids are the
        gateway's own, never a caller's.
        """
        fleet = self._fleet
        known = fleet.open.get(request_id)
        if known is not None:
            return known
        if request_id in self._deciding:  # the same request again, while the store is asked
            await asyncio.wait([self._deciding[request_id]])
            return await self.reserve(request_id, limits, amounts, now)
        group = limits if isinstance(limits, SharedGroup) else fleet.group(_plain(limits))
        if not group.live or group.revision != fleet.revision:
            group = fleet.current(group)
        group.used = now
        decided: SharedReservation | Refusal | None = fleet.by_lease(request_id, group, amounts, now)
        if decided is None:
            decided = group.never_fits(amounts) or await self._alone(request_id, group, amounts, now)
        else:
            fleet.look_ahead(group)
        if fleet.urgent:
            self._wake.set()
        if isinstance(decided, Refusal):
            fleet.refused[decided.reason] += 1
        else:
            fleet.opened(decided)
        return decided

    async def progress(self, reservation: Reservation, so_far: Amounts, now: int) -> None:
        """A running request has used this much: charge what passes its reservation, and keep it alive."""
        if not reservation.settled:
            progressed(self._fleet, _shared(reservation), so_far, now)

    async def reprice(self, reservation: Reservation, micro_usd: int, worst_micro_usd: int, now: int) -> None:
        """A target is chosen: hold its price, at most what was admitted. Call it again for the next attempt."""
        if not reservation.settled:
            repriced(self._fleet, _shared(reservation), micro_usd, worst_micro_usd)

    async def settle(self, reservation: Reservation, actual: Amounts, now: int) -> None:
        """Replace the reservation by what is kept of the request. Only the first call counts; never waits."""
        if not reservation.settled:
            settled(self._fleet, _shared(reservation), actual, now)
            if reservation.by is not Decider.LEASE:
                self._wake.set()

    async def seed(self, limit: Limit, spent_micro_usd: int, now: int) -> None:
        """A ledger knows that at least so much of a budget was spent in its current period; tell it at the start.

        Raises ValueError for a limit that is not money, StoreAwayError if the store did not learn it.
        """
        if limit.dimension not in BUDGETS:
            raise ValueError(f"{limit.key} is not a budget")
        key = Tag(hash_tag(limit)).key(limit.key)
        kind = "m" if limit.dimension is Dimension.MONEY_MONTH else "d"
        await self._calls.call(self._seed, [key], [self._upkeep.now(now), kind, spent_micro_usd])

    def standings(self, decided: Reservation | Refusal, now: int) -> tuple[Standing, ...]:
        """How the limits of a decision stand, from the figures it was made with: no call."""
        if isinstance(decided, Refusal):
            return decided.source.standings(now) if decided.source is not None else ()
        return decided.standings(now)

    def status(self) -> StoreStatus:
        """Whether the store answers, and what is kept until it does again."""
        fleet = self._fleet
        away = fleet.away or self._calls.open or not self._upkeep.ready
        mode = StoreMode.AWAY if away else StoreMode.SHARED
        return StoreStatus(mode, self._upkeep.ready, self._upkeep.reason, fleet.instances, fleet.outbox.waiting)

    @property
    def calls(self) -> int:
        """Script calls made so far."""
        return self._calls.count

    def snapshot(self) -> SharedSnapshot:
        """A frozen look at the limiter; changes nothing."""
        return self._fleet.snapshot()

    async def _run(self) -> None:
        """The background: every refresh, and as soon as something waits to be told."""
        while True:
            try:
                async with asyncio.timeout(self._refresh_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self._upkeep.tick(self._clock())
            except Exception as error:
                # A fault of ours must not end the settling of reservations; it is said where operators look.
                self._upkeep.reason = f"limit_upkeep_failed: {error!r}"

    async def _alone(
        self, request_id: str, group: SharedGroup, amounts: Amounts, now: int
    ) -> SharedReservation | Refusal:
        """Ask, while any other reserve of the same id waits for the verdict."""
        verdict = self._deciding[request_id] = asyncio.get_running_loop().create_future()
        try:
            return await self._ask(request_id, group, amounts, now)
        finally:
            del self._deciding[request_id]
            verdict.set_result(None)

    async def _ask(
        self, request_id: str, group: SharedGroup, amounts: Amounts, now: int
    ) -> SharedReservation | Refusal:
        """Ask the store; if it is away, decide by what is agreed for that."""
        fleet = self._fleet
        ceiling: Holds | None = None
        store_id, sent = fleet.store_id(request_id), False
        try:
            async with asyncio.timeout(self._budget_s):
                if group.ceiling is not None:
                    taken: Holds | Refusal | None = fleet.by_ceiling(group, amounts, now)
                    if taken is None:
                        taken = await self._ask_ceiling(group, amounts, now)
                    if isinstance(taken, Refusal):
                        return taken
                    ceiling = taken
                answer, confirmed = None, 0
                while group.own and (answer is None or answer[0] == 4):
                    if answer is not None:  # settled before: this is another request under the same id
                        store_id = fleet.another_id(request_id)
                    sent = sent or not self._calls.open
                    answer, confirmed = await self._ask_own(store_id, group, amounts, now)
        except (StoreAwayError, TimeoutError) as error:
            if isinstance(error, TimeoutError):
                self._calls.failed()
            group.give_back(amounts, ceiling, now)
            return fleet.by_agreement(request_id, store_id, group, amounts, now, sent=sent)
        except asyncio.CancelledError:
            group.give_back(amounts, ceiling, now)
            self._close(group, store_id, sent=sent)
            raise
        if answer is None:  # model-wide ceilings only, and they were in hand
            made = SharedReservation(request_id, group, amounts, (), now, Decider.STORE, store_id)
        else:
            fleet.back()
            decided = fleet.by_answer(request_id, store_id, group, amounts, answer, now)
            if not isinstance(decided, Refusal) and group.exact and confirmed < self._wait_replicas:
                closed = fleet.unconfirmed(group)
                if closed is not None:
                    self._close(group, store_id, sent=True)
                    decided = Refusal(closed, 0, 0, RETRY_US, Reason.STORE_UNAVAILABLE, group)
            if isinstance(decided, Refusal):
                group.give_back(amounts, ceiling, now)
                return decided
            made = decided
        made.ceiling_holds = ceiling or ()
        return made

    async def _ask_own(self, store_id: str, group: SharedGroup, amounts: Amounts, now: int) -> tuple[Any, int]:
        assert group.own_tag is not None
        tag = group.own_tag
        keys = [tag.key(f"r:{store_id}"), tag.key("sweep"), *group.keys]
        args = [
            self._upkeep.now(now),
            store_id,
            self._hold_ms,
            max(2 * self._hold_ms, LONGEST_SLOT_LEASE_MS),
            group.description,
            orjson.dumps(group.costs(amounts)).decode(),
            ",".join(map(str, abandoned(group, amounts))),
        ]
        return await self._calls.call(self._reserve, keys, args, confirm=self._wait_replicas if group.exact else 0)

    async def _ask_ceiling(self, group: SharedGroup, amounts: Amounts, now: int) -> Holds | Refusal:
        """A lease call for what the request cannot do without; everybody who waits at the time shares it."""
        for tag, wanted in self._fleet.need_ceiling(group, amounts):
            try:
                while tag.done < wanted:
                    await self._upkeep.lease_round(tag, now)
            except (StoreAwayError, asyncio.CancelledError):
                if tag.rounds < wanted:
                    self._fleet.give_up_ceiling(tag, group, amounts)
                raise
        taken = self._fleet.by_ceiling(group, amounts, now)
        return taken if taken is not None else self._fleet.refuse_ceiling(group, amounts, now)

    def _close(self, group: SharedGroup, store_id: str, *, sent: bool) -> None:
        """Settle an id that may have been reserved, with nothing charged."""
        if sent:
            self._fleet.close(group, store_id)
            self._wake.set()


def _plain(limits: Sequence[Limit] | Group) -> Sequence[Limit]:
    return limits.limits if isinstance(limits, Group) else limits


def _shared(reservation: Reservation) -> SharedReservation:
    assert isinstance(reservation, SharedReservation), "a reservation of another limiter"
    return reservation
