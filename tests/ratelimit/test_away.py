"""The store away: each limit's mode, the agreed shares and their bound, the journal, the breaker and what it costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ratelimit import outbox
from ratelimit.limit import Amounts, Level, Limit, Mode, Reason, Refusal
from ratelimit.redis_calls import CALL_BUDGET_S
from ratelimit.redis_connect import connect, disconnect
from ratelimit.redis_store import RedisLimiter
from ratelimit.reservation import Decider, Reservation
from ratelimit.store import StoreMode
from tests.ratelimit.cases import CONC, HOUR, ITPM, NOON, ONE, OTPM, RPM, SECOND, USD_DAY, limit, tok
from tests.ratelimit.fleets import FleetUnderTest
from tests.ratelimit.servers import Server


def admitted(decided: Reservation | Refusal) -> Reservation:
    assert isinstance(decided, Reservation), decided
    return decided


async def cut_fleet(instances: int, **settings: Any) -> FleetUnderTest:
    fleet = FleetUnderTest(instances, leasing=False, **settings)
    await fleet.settle_in()
    fleet.cut()
    return fleet


@pytest.mark.asyncio
async def test_shares_of_all_instances_stay_within_half_of_burst_and_rate() -> None:
    fleet = await cut_fleet(4)
    of = [limit(RPM, 480, 80)]  # eight a second
    passed = [await fleet.spend_all(n, of, ONE) for n in range(4)]
    assert passed == [10] * 4  # half of the burst, cut by four
    for _ in range(20):
        fleet.now += SECOND // 2
        for n in range(4):
            await fleet.spend_all(n, of, ONE)
    total = len(fleet.granted)
    assert (80 + 8 * 10) / 2 - 4 <= total <= (80 + 8 * 10) / 2
    await fleet.close()


@pytest.mark.asyncio
async def test_a_limit_smaller_than_the_fleet_is_still_bounded() -> None:
    fleet = await cut_fleet(4)
    assert sum([await fleet.spend_all(n, [limit(RPM, 3, 3)], ONE) for n in range(4)]) == 0, "3/8 of a request each"
    fleet.now += 160 * SECOND  # half of three a minute, a quarter each: the first whole one is earned after 100 s
    assert sum([await fleet.spend_all(n, [limit(RPM, 3, 3)], ONE) for n in range(4)]) == 4
    await fleet.close()


@pytest.mark.asyncio
async def test_a_request_larger_than_a_share_passes_once_the_share_has_grown() -> None:
    fleet = await cut_fleet(2)
    of = [limit(ITPM, 60_000, 10_000)]
    refused = await fleet.ask(0, of, tok(10_000))
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.EXCEEDED
    assert refused.wait_us == 30 * SECOND  # it has a quarter, and earns 250 a second
    fleet.now += refused.wait_us
    assert admitted(await fleet.ask(0, of, tok(10_000))).by is Decider.LOCAL
    await fleet.close()


@pytest.mark.asyncio
async def test_many_short_outages_admit_no_more_than_one_long() -> None:
    fleet = await cut_fleet(1)
    of = [limit(RPM, 60, 10)]
    passed = await fleet.spend_all(0, of, ONE)
    for _ in range(9):
        fleet.mend()
        await fleet.limiters[0].tick(fleet.now)
        fleet.now += SECOND
        await fleet.limiters[0].tick(fleet.now)
        assert fleet.limiters[0].status().mode is StoreMode.SHARED
        fleet.cut()
        passed += await fleet.spend_all(0, of, ONE)
    assert passed <= (10 + 9) / 2
    await fleet.close()


@pytest.mark.asyncio
async def test_closed_refuses_and_open_passes_and_is_charged_afterwards() -> None:
    fleet = await cut_fleet(1)
    closed = [limit(RPM, 600, 100, mode=Mode.CLOSED), limit(ITPM, 60_000, 10_000)]
    refused = await fleet.ask(0, closed, tok(1))
    assert isinstance(refused, Refusal)
    assert (refused.limit.dimension, refused.reason, refused.retry_after_s) == (RPM, Reason.STORE_UNAVAILABLE, 1.0)
    free = [Limit(Level.KEY, "k", RPM, 60, burst=10, mode=Mode.OPEN, organisation="acme")]
    taken = [admitted(await fleet.ask(0, free, ONE)) for _ in range(15)]
    assert {r.by for r in taken} == {Decider.OPEN}
    for r in taken:
        await fleet.limiters[0].settle(r, ONE, fleet.now)
    status = fleet.limiters[0].status()
    assert (status.mode, status.ready, status.journalled) == (StoreMode.AWAY, True, 16)
    fleet.mend()
    fleet.now += SECOND
    await fleet.tick()
    assert fleet.limiters[0].status().journalled == 0
    debt = await fleet.ask(0, free, ONE)
    assert isinstance(debt, Refusal)
    assert debt.wait_us == 6 * SECOND  # 15 taken of a burst of 10, and one to come
    await fleet.close()


@pytest.mark.asyncio
async def test_money_lets_a_part_of_what_was_left_pass_and_nothing_if_nothing_is_known() -> None:
    fleet = FleetUnderTest(2, leasing=False)
    await fleet.settle_in()
    budget = [limit(USD_DAY, 1_000)]
    await fleet.limiters[0].settle(admitted(await fleet.ask(0, budget, tok(1, 1, 200))), tok(1, 1, 200), fleet.now)
    fleet.cut()
    assert await fleet.spend_all(0, budget, tok(1, 1, 10)) == 20  # 800 left, half of it, cut by two
    refused = await fleet.ask(0, budget, tok(1, 1, 10))
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.STORE_UNAVAILABLE, "the budget is not known to be spent"
    assert await fleet.spend_all(1, budget, tok(1, 1, 10)) == 0
    fleet.now += 12 * HOUR
    assert await fleet.spend_all(1, budget, tok(1, 1, 10)) == 25  # a new day: half of it, cut by two
    await fleet.close()


@pytest.mark.asyncio
async def test_slots_of_running_requests_count_while_the_store_is_away() -> None:
    fleet = FleetUnderTest(1, leasing=False)
    await fleet.settle_in()
    of = [limit(CONC, 10)]
    running = [admitted(await fleet.ask(0, of, ONE)) for _ in range(4)]
    fleet.cut()
    local = admitted(await fleet.ask(0, of, ONE))  # the fifth: half of ten
    assert local.by is Decider.LOCAL
    refused = await fleet.ask(0, of, ONE)
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.CONCURRENCY
    await fleet.limiters[0].settle(running[0], ONE, fleet.now)
    again = admitted(await fleet.ask(0, of, ONE))
    await fleet.limiters[0].settle(local, ONE, fleet.now)
    await fleet.limiters[0].settle(again, ONE, fleet.now)
    admitted(await fleet.ask(0, of, ONE))
    admitted(await fleet.ask(0, of, ONE))
    assert isinstance(await fleet.ask(0, of, ONE), Refusal)
    fleet.mend()
    fleet.now += SECOND
    await fleet.tick()
    assert await fleet.clients[0].zcard("weighbridge:limit:{o:acme}:tenant:acme:concurrency") == 5
    await fleet.close()


@pytest.mark.asyncio
async def test_leases_in_hand_are_spent_first_and_owed_use_is_charged_on_return() -> None:
    fleet = FleetUnderTest(1)
    await fleet.settle_in()
    of = [limit(OTPM, 600_000, 100_000, period_s=3_600)]
    admitted(await fleet.ask(0, of, tok(0, 100)))
    await fleet.tick()
    fleet.cut()
    by = [admitted(await fleet.ask(0, of, tok(0, 5_000))) for _ in range(7)]
    assert [r.by for r in by] == [Decider.LEASE] * 5 + [Decider.LOCAL] * 2  # a lease of 25,000
    for r in by:
        await fleet.limiters[0].progress(r, tok(0, 6_000), fleet.now)
        await fleet.limiters[0].settle(r, tok(0, 7_000), fleet.now)
    fleet.mend()
    fleet.now += SECOND
    await fleet.tick()
    refused = await fleet.ask(0, of, tok(0, 100_000))
    assert isinstance(refused, Refusal)
    earned = 166
    left = [s.remaining for s in fleet.limiters[0].standings(refused, fleet.now)]
    assert left == [100_000 - 100 - 7 * 7_000 + earned]
    await fleet.close()


@pytest.mark.asyncio
async def test_ceilings_owe_what_passed_while_away() -> None:
    fleet = await cut_fleet(1)
    ceiling = limit(RPM, 60, 10, Level.MODEL)
    taken = [admitted(await fleet.ask(0, [ceiling], ONE)) for _ in range(5)]
    assert isinstance(await fleet.ask(0, [ceiling], ONE), Refusal)
    for r in taken:
        await fleet.limiters[0].progress(r, ONE, fleet.now)
        await fleet.limiters[0].settle(r, ONE, fleet.now)
    fleet.mend()
    await fleet.limiters[0].tick(fleet.now + SECOND)
    assert await fleet.spend_all(0, [ceiling], ONE) == 5
    await fleet.close()


Send = Callable[..., Awaitable[tuple[Any, int]]]


def lose_replies(limiter: RedisLimiter) -> None:
    """From now on the store does what it is told, and its answers are lost."""
    calls = limiter._calls
    send: Send = calls._send

    async def lossy(*args: Any) -> tuple[Any, int]:
        await send(*args)
        raise OSError("reply lost")

    calls._send = lossy  # type: ignore[method-assign]


def find_replies(limiter: RedisLimiter) -> None:
    del limiter._calls._send  # type: ignore[method-assign]


@pytest.mark.asyncio
async def test_what_was_done_although_its_answer_was_lost_is_not_charged_twice() -> None:
    fleet = FleetUnderTest(1, leasing=False)
    await fleet.settle_in()
    of = [limit(ITPM, 60, 10_000), limit(CONC, 20), limit(USD_DAY, 100_000)]
    admitted(await fleet.ask(0, of, Amounts()))  # now it knows what is left of the budget
    lose_replies(fleet.limiters[0])
    taken = admitted(await fleet.ask(0, of, tok(1_000, 0, 500)))
    assert taken.by is Decider.LOCAL
    await fleet.limiters[0].settle(taken, tok(300, 0, 100), fleet.now)
    for _ in range(3):
        await fleet.limiters[0].flush(fleet.now)  # arrives each time
    refused = await fleet.ask(0, of, tok(9_000, 0, 500))
    assert isinstance(refused, Refusal), "more than the share; the store had taken it"
    find_replies(fleet.limiters[0])
    await fleet.limiters[0].tick(fleet.now + SECOND)
    probe = admitted(await fleet.ask(0, of, Amounts()))
    left = [s.remaining for s in fleet.limiters[0].standings(probe, fleet.now)]
    assert left == [10_000 - 300, 18, 100_000 - 100]
    await fleet.close()


@pytest.mark.asyncio
async def test_an_id_that_was_refused_without_the_store_can_be_used_again_and_is_charged() -> None:
    fleet = FleetUnderTest(1, leasing=False)
    await fleet.settle_in()
    limiter = fleet.limiters[0]
    of = [limit(ITPM, 1, 10_000, period_s=86_400)]
    lose_replies(limiter)
    assert isinstance(await limiter.reserve("x", of, tok(6_000), fleet.now), Refusal), "above its share"
    await limiter.flush(fleet.now)
    retried = admitted(await limiter.reserve("x", of, tok(4_000), fleet.now))
    await limiter.settle(retried, tok(3_000), fleet.now)
    find_replies(limiter)
    await limiter.tick(fleet.now + SECOND)
    probe = admitted(await fleet.ask(0, of, Amounts()))
    assert [s.remaining for s in limiter.standings(probe, fleet.now)] == [7_000]
    await fleet.close()


@pytest.mark.asyncio
async def test_the_journal_is_bounded_and_nothing_in_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST", 50)
    fleet = await cut_fleet(1)
    of = [limit(ITPM, 60, 100_000, mode=Mode.OPEN), limit(USD_DAY, 10**6, mode=Mode.OPEN)]
    for n in range(700):
        taken = admitted(await fleet.ask(0, of, tok(50, 0, 50)))
        await fleet.limiters[0].settle(taken, tok(40, 0, 30), fleet.now)
        assert fleet.limiters[0].status().journalled <= 54 * (1 if n <= 300 else 2)
        if n == 300:  # what may have arrived is not added up any more
            fleet.mend()
            lose_replies(fleet.limiters[0])
            await fleet.limiters[0].flush(fleet.now)
            find_replies(fleet.limiters[0])
            fleet.cut()
    fleet.mend()
    await fleet.limiters[0].tick(fleet.now + SECOND)
    probe = admitted(await fleet.ask(0, of, Amounts()))
    left = [s.remaining for s in fleet.limiters[0].standings(probe, fleet.now)]
    assert left == [100_000 - 700 * 40, 10**6 - 700 * 30]
    await fleet.close()


@pytest.mark.asyncio
async def test_a_cancelled_reserve_leaves_nothing_behind(valkey: Server) -> None:
    client = connect(valkey.url)
    limiter = RedisLimiter(client, instance="one", leasing=False, budget_s=5.0)
    await limiter.start()
    ceiling = limit(RPM, 60_000, 50_000, Level.MODEL)
    group = limiter.group([limit(RPM, 60, 10_000), limit(CONC, 10_000), limit(USD_DAY, 10**9), ceiling])
    now = time.time_ns() // 1_000
    tasks = []
    for n in range(400):
        task = asyncio.create_task(limiter.reserve(f"c{n}", group, tok(1, 0, 10), now))
        tasks.append(task)
        if n % 3 == 0:
            await asyncio.sleep(0)
        if n % 7 == 0:
            await asyncio.sleep(0.001)
        tasks[n * 7 // 8].cancel()
        task.cancel()
    for decided in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(decided, Reservation):
            await limiter.settle(decided, Amounts(), now)
    await limiter.flush(now)
    probe = admitted(await limiter.reserve("probe", group, Amounts(), now))
    assert [s.remaining for s in limiter.standings(probe, now)][:3] == [10_000, 9_999, 10**9]
    assert limiter.snapshot().open == 1
    await limiter.close()
    await disconnect(client)


@pytest.mark.asyncio
async def test_a_store_that_hangs_delays_no_request_by_more_than_its_budget_and_then_none(valkey: Server) -> None:
    client = connect(valkey.url)
    limiter = RedisLimiter(client, instance="one", leasing=False)
    await limiter.start()
    assert limiter.status().ready
    group = limiter.group([limit(RPM, 6_000, 1_000)])
    valkey.pause()
    try:
        waits = []
        for n in range(40):
            start = time.perf_counter()
            decided = await limiter.reserve(f"h{n}", group, ONE, time.time_ns() // 1_000)
            waits.append(time.perf_counter() - start)
            assert admitted(decided).by is Decider.LOCAL
        slow = [wait for wait in waits if wait > CALL_BUDGET_S / 2]
        assert len(slow) <= 4, "after three failures nobody waits"
        assert max(waits) < CALL_BUDGET_S + 0.2, "the budget, and the scheduling of a busy machine"
        assert limiter.status().mode is StoreMode.AWAY
    finally:
        valkey.resume()
    await asyncio.wait_for(_until_shared(limiter), 10)
    assert admitted(await limiter.reserve("after", group, ONE, time.time_ns() // 1_000)).by is Decider.STORE
    await limiter.close()
    await disconnect(client)


async def _until_shared(limiter: RedisLimiter) -> None:
    while limiter.status().mode is not StoreMode.SHARED:
        await limiter.tick(time.time_ns() // 1_000 + 2 * SECOND)
        await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_store_that_is_absent_at_the_start_makes_the_limiter_not_ready() -> None:
    fleet = FleetUnderTest(1)
    fleet.cut()
    await fleet.limiters[0].start()
    status = fleet.limiters[0].status()
    assert (status.mode, status.ready, status.reason) == (StoreMode.AWAY, False, "limit_store_unreachable")
    fleet.mend()
    fleet.now += SECOND
    await fleet.limiters[0].tick(fleet.now)
    assert fleet.limiters[0].status().ready
    await fleet.close()


@pytest.mark.asyncio
async def test_a_store_without_scripts_makes_the_limiter_not_ready(valkey: Server) -> None:
    admin = valkey.sync()
    admin.execute_command("ACL", "SETUSER", "mute", "on", "nopass", "~*", "+@all", "-@scripting")
    client = connect(valkey.url.replace("redis://", "redis://mute:x@"))
    limiter = RedisLimiter(client, instance="one", budget_s=5.0)
    await limiter.start()
    status = limiter.status()
    assert not status.ready
    assert status.reason.startswith("limit_store_unusable: ")
    admin.execute_command("ACL", "DELUSER", "mute")
    await limiter.close()
    await disconnect(client)


@pytest.mark.asyncio
async def test_limits_changed_during_an_outage_keep_their_share_sensible() -> None:
    fleet = await cut_fleet(1)
    assert await fleet.spend_all(0, [limit(RPM, 60, 10)], ONE) == 5
    fleet.mend()
    await fleet.limiters[0].tick(fleet.now + SECOND)
    fleet.cut()
    assert await fleet.spend_all(0, [limit(RPM, 120, 20)], ONE) <= 6, "the five are remembered"
    assert fleet.now == NOON + SECOND
    await fleet.close()
