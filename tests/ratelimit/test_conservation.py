"""Whatever instances do, lose, repeat and miss: what was reserved is what stays charged plus what was refunded."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from ratelimit.limit import Amounts, Level, Limit, Mode
from ratelimit.reservation import Reservation
from tests.ratelimit.cases import CONC, ITPM, OTPM, RPM, USD_DAY, USD_MONTH, tok
from tests.ratelimit.fleets import FleetUnderTest
from tests.ratelimit.test_away import find_replies, lose_replies

HUGE = 10**7


def limits() -> list[Limit]:
    tenant = {"level": Level.TENANT, "subject": "t", "organisation": "o", "mode": Mode.OPEN}
    return [
        Limit(Level.ORGANISATION, "o", ITPM, 200_000, burst=100_000, max_debt=HUGE, organisation="o", mode=Mode.LOCAL),
        Limit(**tenant, dimension=OTPM, amount=100_000, burst=50_000, max_debt=HUGE),  # type: ignore[arg-type]
        Limit(**tenant, dimension=RPM, amount=6_000, burst=600, max_debt=HUGE),  # type: ignore[arg-type]
        Limit(**tenant, dimension=CONC, amount=240),  # type: ignore[arg-type]
        Limit(**tenant, dimension=USD_DAY, amount=1_000_000),  # type: ignore[arg-type]
        Limit(**tenant, dimension=USD_MONTH, amount=3_000_000, exact=False),  # type: ignore[arg-type]
        Limit(Level.MODEL, "m", RPM, 9_000, burst=900, max_debt=HUGE, mode=Mode.OPEN),
    ]


class SharedConservation(RuleBasedStateMachine):
    """Three instances over one store; time stands still, so that nothing is earned back and debts are sums."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.fleet = FleetUnderTest(3)
        self.limits = limits()
        self.open: list[tuple[int, Reservation]] = []
        self.kept: list[Amounts] = []
        self.lossy: set[int] = set()
        self.ever_lossy = False
        self.run(self.fleet.settle_in())

    def run(self, awaitable: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(awaitable)

    @rule(who=st.integers(0, 2), i=st.integers(0, 900), o=st.integers(0, 400), usd=st.integers(0, 2_000),
          more=st.integers(0, 900), count=st.integers(1, 9))  # fmt: skip
    def reserve(self, who: int, i: int, o: int, usd: int, more: int, count: int) -> None:
        for _ in range(count):
            decided = self.run(self.fleet.ask(who, self.limits, tok(i, o, usd, usd + more)))
            if isinstance(decided, Reservation):
                self.open.append((who, decided))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), o=st.integers(0, 4_000), usd=st.integers(0, 30_000))
    def progress(self, data: st.DataObject, o: int, usd: int) -> None:
        who, reservation = data.draw(st.sampled_from(self.open))
        self.run(self.fleet.limiters[who].progress(reservation, tok(10, o, usd), self.fleet.now))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), usd=st.integers(0, 30_000), more=st.integers(0, 9_000))
    def reprice(self, data: st.DataObject, usd: int, more: int) -> None:
        who, reservation = data.draw(st.sampled_from(self.open))
        self.run(self.fleet.limiters[who].reprice(reservation, usd, usd + more, self.fleet.now))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), i=st.integers(0, 5_000), o=st.integers(0, 4_000), usd=st.integers(0, 30_000))
    def settle(self, data: st.DataObject, i: int, o: int, usd: int) -> None:
        at = data.draw(st.integers(0, len(self.open) - 1))
        who, reservation = self.open.pop(at)
        actual = tok(i, o, usd)
        self.run(self.fleet.limiters[who].settle(reservation, actual, self.fleet.now))
        self.run(self.fleet.limiters[who].settle(reservation, tok(1, 1, 1), self.fleet.now))
        self.kept.append(actual)

    @rule(who=st.integers(0, 2))
    def tick(self, who: int) -> None:
        self.run(self.fleet.limiters[who].tick(self.fleet.now))

    @rule(who=st.integers(0, 2))
    def beat(self, who: int) -> None:
        """What a second would bring: the probe that ends an outage."""
        self.run(self.fleet.limiters[who]._upkeep.beat(self.fleet.now))

    @rule(who=st.integers(0, 2))
    def flush(self, who: int) -> None:
        self.run(self.fleet.limiters[who].flush(self.fleet.now))

    @rule(what=st.integers(0, 9), who=st.integers(0, 2))
    def fault(self, what: int, who: int) -> None:
        """The store goes or comes, an instance's answers are lost or arrive again; mostly things are mended."""
        if what == 0:
            self.fleet.cut()
        elif what == 1 and who not in self.lossy:
            self.lossy.add(who)
            self.ever_lossy = True
            lose_replies(self.fleet.limiters[who])
        else:
            self.fleet.mend()
            if who in self.lossy:
                self.lossy.remove(who)
                find_replies(self.fleet.limiters[who])

    def teardown(self) -> None:
        """Everything ends: the store holds exactly what was kept, no slot and no hold."""
        try:
            self.run(self._end())
        finally:
            self.loop.close()

    async def _end(self) -> None:
        self.fleet.mend()
        for who in sorted(self.lossy):
            find_replies(self.fleet.limiters[who])
        for who, reservation in self.open:
            await self.fleet.limiters[who].settle(reservation, tok(7, 5, 3), self.fleet.now)
            self.kept.append(tok(7, 5, 3))
        for limiter in self.fleet.limiters:
            await limiter._upkeep.beat(self.fleet.now)
            await limiter.close()
            assert limiter.status().journalled == 0
            assert limiter.snapshot().open == 0
        store, prefix = self.fleet.clients[0], "weighbridge:limit:"
        kept = [sum(column) for column in zip(*self.kept, strict=True)] or [0] * 6
        # A lease granted by a call whose answer was lost is forfeited: at most one chunk per loss, never less charged.
        for key, units, unit in (
            ("{o:o}:organisation:o:input_tokens:60", kept[1], 300),
            ("{o:o}:tenant:t:output_tokens:60", kept[2], 600),
            ("{o:o}:tenant:t:requests:60", kept[0], 10_000),
            ("{m:m}:model:m:requests:60", kept[0], 20_000),
        ):
            value = await store.get(prefix + key)
            debt = int(value.split()[0]) if value else 0
            assert debt >= units * unit
            if not self.ever_lossy:
                assert debt == units * unit
        assert await store.zcard(prefix + "{o:o}:tenant:t:concurrency") == 0
        for name in ("money_day", "money_month"):
            value = await store.get(f"{prefix}{{o:o}}:tenant:t:{name}")
            spent, held = (int(n) for n in value.split()[1:]) if value else (0, 0)
            assert (spent, held) == (kept[4], 0)
        assert await store.zcard(prefix + "{o:o}:sweep") == 0
        for client in self.fleet.clients:
            await client.aclose()


TestSharedConservation = SharedConservation.TestCase
TestSharedConservation.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, phases=[Phase.generate]
)
