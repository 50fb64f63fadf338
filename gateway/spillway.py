"""Where work that lost its tier waits until a later tier has room to spare, fairly, the highest class first.

How much may spill is `providers.spill`'s to say; this file keeps the line of those who may not yet. The line is an
admission of its own with a single seat: whoever holds it is next, and gives it up the moment it has been let through.
So the line is as fair between tenants and classes as a pool's own queue, bounded as one, and refuses as honestly.

The bound has two sides. One is a rate: cost units a second at servers, whose capacity is measured; tokens a minute at
an account, which says in its answers how many it takes. The other is seats, since an account may say nothing: spilled
work starts only while fewer than `1 - headroom` of them are held, and the lower class only while half of that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from fairqueue.capacity import Capacity
from fairqueue.item import Costs, Item, Reason, Refusal, RequestClass
from fairqueue.settings import PoolSettings
from gateway.clock import Clock
from gateway.gate import Gate, QueueRefused
from providers.hints import LimitHints, limit_hints
from providers.route import Skip, SkipReason
from providers.spill import Spill, SpillSnapshot

_LOOK_S = 1.0  # whoever is next looks again at least this often, whatever it is told
_LISTEN_S = 1.0  # between two readings of an account's headers
_BATCH_PART = 0.5  # of the seats that may be spilled to; beyond it only the higher class


class Spillway:
    """What spills to one pool. Whoever was let through by `enter` owes one `settle`."""

    def __init__(self, pool: str, spill: Spill, line: Gate, gate: Gate, clock: Clock, costs: Costs) -> None:
        """`line` has no replica yet, `gate` is the pool's own, `costs` is what the pool counts with."""
        self._pool = pool
        self._costs = costs
        self._spill = spill
        self._line = line
        self._gate = gate
        self._clock = clock
        self._part = 1.0 - spill.headroom
        self._told: asyncio.Future[None] | None = None  # whoever is next waits for this: a seat, or a higher class
        line.core.set_replica("next", Capacity(seats=1), clock.monotonic())
        gate.freed = self._tell
        self._heard_at = float("-inf")
        self._account: dict[str, LimitHints] = {}  # what an account says it takes a minute, by credential
        self._tokens_per_request: float | None = None  # an account's: what of its tokens one of its requests is worth
        self._by_tokens = False  # cost is counted in the account's tokens, or failing these in its requests

    def reconfigure(self, line: PoolSettings, costs: Costs) -> None:
        """Other settings from now on."""
        self._costs = costs
        self._line.reconfigure(line)

    # -- what may spill ------------------------------------------------------------------------------------

    def hindrance(self, cls: str, now: float) -> Skip | None:
        """Why a request of class `cls` may not spill at once. Looks only."""
        if self._line.waiting:
            return Skip(SkipReason.NO_SPARE_CAPACITY, f"{self._line.waiting} requests wait to spill to {self._pool}")
        return self._full(cls) or self._spill.hindrance(cls, now)

    def _full(self, cls: str) -> Skip | None:
        held, there = self._gate.core.seats()
        most = there * self._part * (_BATCH_PART if cls == RequestClass.BATCH else 1.0)
        if not there or held + 1 <= most or (not held and cls != RequestClass.BATCH):
            return None  # an idle target takes one whatever its size
        reason = SkipReason.SHED_FIRST if held + 1 <= there * self._part else SkipReason.NO_SPARE_CAPACITY
        return Skip(reason, f"{held} of {there} seats of {self._pool} are held, {most:.0f} may be for this class")

    async def enter(self, item: Item) -> float:
        """Waits until `item` may spill; its cost, for `settle`. Raises QueueRefused as a pool's queue does."""
        cost = self._cost_of(item)
        if not self._line.waiting and self._take(item, cost):
            return cost
        if item.cls is not RequestClass.BATCH:
            self._tell()
        while True:
            ticket = await self._line.admit(item)
            turn = False
            try:
                while not (passed := self._take(item, cost)):
                    if item.cls is RequestClass.BATCH and self._others_first():
                        break  # who waits for its turn must not stand in the way of a higher class
                    await self._pause(item)
                turn = True
            finally:
                # A turn counts although nothing came of it, or the next one would be its again.
                demand = item.demand
                self._line.release(
                    ticket,
                    prompt_tokens=demand.prompt_tokens,
                    cached_tokens=demand.cached_tokens,
                    output_tokens=demand.output_tokens,
                    served=turn,
                )
            if passed:
                return cost

    def _take(self, item: Item, cost: float) -> bool:
        return self._full(item.cls) is None and self._spill.take(item.cls, cost, self._clock.monotonic())

    def _others_first(self) -> bool:
        waiting = self._line.core.snapshot(self._clock.monotonic()).waiting_by_class
        return waiting[RequestClass.INTERACTIVE] > 0

    async def _pause(self, item: Item) -> None:
        """Until it is worth looking again. Raises QueueRefused when the item may not wait any longer."""
        now = self._clock.monotonic()
        left = item.expires - now
        if left <= 0.0:
            detail = f"waited {now - item.arrived:.1f} s for room to spare in pool {self._pool}"
            raise QueueRefused(Refusal(item, Reason.QUEUE_TIMEOUT, 1.0, detail))
        skip = self._spill.hindrance(item.cls, now)
        until = now + _LOOK_S if skip is None or skip.until is None else skip.until
        self._told = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._told], timeout=min(max(until - now, 0.001), left, _LOOK_S))

    def _tell(self) -> None:
        if self._told is not None and not self._told.done():
            self._told.set_result(None)

    # -- what becomes of it --------------------------------------------------------------------------------

    def settle(self, reserved: float, tokens: tuple[int, int, int] | None) -> None:
        """The end of a spilled request: `tokens` are its prompt, cached and output tokens, None if it took nothing."""
        actual = 0.0 if tokens is None else self._cost(*tokens)
        self._spill.settle(reserved, actual, self._clock.monotonic())

    def own(self, item: Item) -> None:
        """A request of the pool's ordinary traffic was sent to it."""
        self._spill.served(self._cost_of(item), self._clock.monotonic())

    def overloaded(self) -> None:
        """The target refused spilled work for want of capacity."""
        self._spill.overloaded(self._clock.monotonic())

    def measured(self, capacity: float | None, reserved: float) -> None:
        """What the pool's servers carry, and what of it is sold (cost units a second); None is not known."""
        if not self._account:
            self._spill.configure(capacity, reserved)

    def heard(self, credential: str, headers: Iterable[tuple[str, str]]) -> None:
        """An account's answer: its headers, by lower-case names, may say how much it takes a minute."""
        now = self._clock.monotonic()
        if credential in self._account and now - self._heard_at < _LISTEN_S:
            return
        self._heard_at = now
        hints = limit_hints(dict(headers))
        requests = _limit(hints, "requests")
        tokens = _limit(hints, "tokens") or _limit(hints, "input_tokens")
        if requests is None and tokens is None:
            return
        self._account[credential] = hints
        tokens = sum(_limit(h, "tokens") or _limit(h, "input_tokens") or 0 for h in self._account.values())
        requests = sum(_limit(h, "requests") or 0 for h in self._account.values())
        self._by_tokens = tokens > 0
        self._tokens_per_request = tokens / requests if tokens and requests else None
        self._spill.configure((tokens or requests) / 60.0)

    def _cost_of(self, item: Item) -> float:
        demand = item.demand
        if not self._account:
            return self._costs.of(demand.prompt_tokens, demand.cached_tokens, demand.output_tokens)
        # An account counts what a request may take at most when it comes.
        output = demand.output_cap if demand.output_cap < 1 << 20 else demand.output_tokens
        return self._cost(demand.prompt_tokens, 0, output)

    def _cost(self, prompt: int, cached: int, output: int) -> float:
        if not self._account:
            return self._costs.of(prompt, cached, output)
        if not self._by_tokens:
            return 1.0
        return max(float(prompt + output), self._tokens_per_request or 0.0)

    # -- seen from outside ---------------------------------------------------------------------------------

    def snapshot(self, now: float) -> SpillSnapshot:
        """The figures of the bound."""
        return self._spill.snapshot(now)

    @property
    def waiting(self) -> int:
        """Requests in the line, whoever is next included."""
        return self._line.waiting + self._line.core.seats()[0]

    def close(self) -> None:
        """Stops the line's timer."""
        self._line.close()


def _limit(hints: LimitHints, window: str) -> int | None:
    found = getattr(hints, window)
    return None if found is None else found.limit
