"""Leases: few calls far from a limit, the exact call near it, and a bound that is reached and never passed."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratelimit.lease import LONGEST_LEASE_US, chunk, floor, lease_us
from ratelimit.limit import Amounts, Level, Limit, Reason, Refusal
from ratelimit.reservation import Decider, Reservation
from tests.ratelimit.cases import CONC, HOUR, ITPM, NOON, ONE, OTPM, RPM, SECOND, TPM, USD_DAY, limit, tok
from tests.ratelimit.fleets import FleetUnderTest
from tests.ratelimit.servers import Server


def admitted(decided: Reservation | Refusal) -> Reservation:
    assert isinstance(decided, Reservation), decided
    return decided


@pytest.mark.parametrize(
    ("of", "instances", "q", "least"),
    [
        (limit(RPM, 6_000, 500), 4, 31, 248),  # a quarter of the burst, cut by four
        (limit(RPM, 600, 600), 1, 30, 60),  # a twentieth of a minute's amount
        (limit(RPM, 10, 10), 1, 0, 0),  # too small to be leased
        (limit(CONC, 50), 1, 6, 12),
        (limit(USD_DAY, 10_000_000), 2, 250_000, 1_000_000),  # never below a tenth
        (limit(RPM, 6_000, 500, exact=True), 4, 0, 0),
    ],
)
def test_size_of_a_lease(of: Limit, instances: int, q: int, least: int) -> None:
    assert (chunk(of, instances), floor(of, instances)) == (q, least)


def test_a_lease_lasts_two_refills_within_bounds() -> None:
    assert lease_us(0) == 5 * SECOND
    assert lease_us(7 * SECOND) == 14 * SECOND
    assert lease_us(HOUR) == LONGEST_LEASE_US


LIMITS = [limit(RPM, 6_000, 1_000), limit(ITPM, 600_000, 100_000), limit(OTPM, 60_000, 10_000), limit(CONC, 100)]


@pytest.mark.asyncio
async def test_fifty_requests_far_from_every_limit_take_few_calls() -> None:
    fleet = FleetUnderTest(1)
    await fleet.settle_in()
    admitted(await fleet.ask(0, LIMITS, tok(100, 50)))
    await fleet.tick()
    before = fleet.limiters[0].calls
    for _ in range(50):
        fleet.now += SECOND // 200
        taken = admitted(await fleet.ask(0, LIMITS, tok(100, 50)))
        assert taken.by is Decider.LEASE
        await fleet.limiters[0].settle(taken, tok(100, 30), fleet.now)
        await fleet.limiters[0].tick(fleet.now)
    assert fleet.limiters[0].calls - before <= 2
    await fleet.close()


@pytest.mark.asyncio
async def test_a_slow_principal_is_served_by_lease_too() -> None:
    fleet = FleetUnderTest(1)
    await fleet.settle_in()
    by = []
    for _ in range(30):  # one request every two seconds
        taken = admitted(await fleet.ask(0, LIMITS, tok(100, 50)))
        by.append(taken.by)
        await fleet.limiters[0].settle(taken, tok(100, 30), fleet.now)
        await fleet.tick()
        fleet.now += 2 * SECOND
    assert by.count(Decider.LEASE) >= 25
    await fleet.close()


@pytest.mark.asyncio
async def test_near_the_limit_every_request_asks_and_the_burst_is_exact() -> None:
    fleet = FleetUnderTest(3)
    await fleet.settle_in()
    passed = 0
    for instance in (0, 1, 2):  # no time passes: leases and exact calls together admit the burst, no more, no less
        passed += await fleet.spend_all(instance, [limit(RPM, 600, 100)], ONE, most=40 if instance < 2 else 1_000)
        await fleet.tick()
    # What the others still hold in leases is pre-debited: it is theirs to spend.
    for instance in (0, 1, 2):
        passed += await fleet.spend_all(instance, [limit(RPM, 600, 100)], ONE)
    assert passed == 100
    await fleet.close()


@pytest.mark.asyncio
async def test_an_adversary_reaches_the_bound_and_does_not_pass_it(valkey: Server) -> None:
    instances, of = 4, [limit(RPM, 6_000, 500)]
    q = chunk(of[0], instances)
    fleet = FleetUnderTest(instances, valkey.url)
    await fleet.settle_in()
    for instance in range(instances):
        admitted(await fleet.ask(instance, of, Amounts()))
        await fleet.tick()
    start = len(fleet.granted)
    fleet.now += 3 * SECOND  # sits on the leases while the store refills what they took
    passed = 0
    for instance in range(instances):
        passed += await fleet.spend_all(instance, of, ONE)
    assert passed == 500 + instances * q == len(fleet.granted) - start
    await fleet.close()


steps = st.tuples(st.integers(0, 7), st.integers(0, 40), st.integers(0, 800_000), st.booleans())


@given(instances=st.integers(1, 8), script=st.lists(steps, min_size=5, max_size=25))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_window_admits_more_than_the_bound(
    valkey: Server, instances: int, script: list[tuple[int, int, int, bool]]
) -> None:
    of = limit(RPM, 6_000, 100)  # a hundred a second

    async def run() -> None:
        valkey.sync().flushall()
        fleet = FleetUnderTest(instances, valkey.url)
        await fleet.settle_in()
        for who, count, wait, tick in script:
            who %= instances
            for _ in range(count):
                if isinstance(await fleet.ask(who, [of], ONE), Refusal):
                    break
            fleet.now += wait
            if tick:
                await fleet.limiters[who].tick(fleet.now)
        extra = instances * chunk(of, instances)
        for i, (start, _) in enumerate(fleet.granted):
            for count, (at, _) in enumerate(fleet.granted[i:], 1):
                assert count <= 100 + 100 * (at - start) / SECOND + extra
        await fleet.close()

    asyncio.run(run())


@pytest.mark.asyncio
async def test_idle_leases_are_given_back_and_the_tag_falls_silent() -> None:
    fleet = FleetUnderTest(1)
    await fleet.settle_in()
    taken = admitted(await fleet.ask(0, LIMITS, tok(100, 50)))
    await fleet.tick()
    await fleet.limiters[0].settle(taken, tok(0), fleet.now)
    for _ in range(40):
        fleet.now += SECOND
        await fleet.tick()
    before = fleet.limiters[0].calls
    fleet.now += SECOND
    await fleet.tick()
    assert fleet.limiters[0].calls == before + 1, "the heartbeat only"
    other = fleet.clients[0]
    assert await other.zcard("weighbridge:limit:{o:acme}:tenant:acme:concurrency") == 0
    await fleet.close()


@pytest.mark.asyncio
async def test_a_clock_that_steps_back_voids_leases() -> None:
    fleet = FleetUnderTest(1)
    await fleet.settle_in()
    admitted(await fleet.ask(0, LIMITS, tok(1)))
    await fleet.tick()
    assert admitted(await fleet.ask(0, LIMITS, tok(1))).by is Decider.LEASE
    fleet.now -= HOUR
    assert admitted(await fleet.ask(0, LIMITS, tok(1))).by is Decider.STORE
    await fleet.close()


@pytest.mark.asyncio
async def test_slots_are_never_over_admitted_by_leases_and_come_back_when_their_holder_dies() -> None:
    fleet = FleetUnderTest(2)
    await fleet.settle_in()
    of = [limit(CONC, 24)]
    taken = [admitted(await fleet.ask(0, of, ONE))]
    await fleet.tick()
    taken += [admitted(await fleet.ask(0, of, ONE)) for _ in range(5)]
    assert [r.by for r in taken].count(Decider.LEASE) >= 1
    assert len(taken) + await fleet.spend_all(1, of, ONE) <= 24
    held = await fleet.clients[0].zcard("weighbridge:limit:{o:acme}:tenant:acme:concurrency")
    assert held == 24
    # Instance 0 is never heard of again; instance 1 keeps telling that its requests run.
    mine = len(fleet.granted) - 6
    for _ in range(70):
        fleet.now += SECOND
        await fleet.limiters[1].tick(fleet.now)
    free = 24 - mine
    assert await fleet.spend_all(1, of, ONE) == free
    refused = await fleet.ask(1, of, ONE)
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.CONCURRENCY
    await fleet.close()


@pytest.mark.asyncio
async def test_money_leased_by_a_dead_instance_comes_back_but_not_what_it_spent() -> None:
    fleet = FleetUnderTest(2)
    await fleet.settle_in()
    of = [limit(USD_DAY, 10_000_000)]
    for _ in range(3):
        taken = admitted(await fleet.ask(0, of, tok(1, 1, 10_000)))
        await fleet.limiters[0].settle(taken, tok(1, 1, 8_000), fleet.now)
        await fleet.tick()
    assert taken.by is Decider.LEASE
    fleet.now += 4 * SECOND
    admitted(await fleet.ask(0, of, tok(1, 1, 10_000)))  # renews, and reports what was spent
    await fleet.limiters[0].tick(fleet.now)
    assert await fleet.clients[0].hlen("weighbridge:limit:{o:acme}:tenant:acme:money_day:leases") == 1
    fleet.now += 120 * SECOND  # instance 0 is dead
    await fleet.limiters[1].tick(fleet.now)
    # One request was running in the dead one's lease: what is not known to be spent is free again.
    almost = 10_000_000 - 3 * 8_000
    first = await fleet.ask(1, of, tok(1, 1, almost, almost))
    if isinstance(first, Refusal):  # a lease of the dead stood against it, and is looked into now
        await fleet.limiters[1].tick(fleet.now)
        first = await fleet.ask(1, of, tok(1, 1, almost, almost))
    admitted(first)
    assert isinstance(await fleet.ask(1, of, tok(1, 1, 1, 1)), Refusal)
    await fleet.close()


@pytest.mark.asyncio
async def test_a_lease_does_not_outlive_its_day() -> None:
    fleet = FleetUnderTest(1)
    fleet.now = NOON + 12 * HOUR - 2 * SECOND
    await fleet.settle_in()
    of = [limit(USD_DAY, 10_000_000)]
    admitted(await fleet.ask(0, of, tok(1, 1, 10_000)))
    await fleet.tick()
    running = admitted(await fleet.ask(0, of, tok(1, 1, 10_000)))
    assert running.by is Decider.LEASE
    fleet.now += 2 * SECOND
    fresh = admitted(await fleet.ask(0, of, tok(1, 1, 10_000)))
    await fleet.limiters[0].settle(running, tok(1, 1, 9_000), fleet.now)
    await fleet.tick()
    assert [s.remaining for s in fleet.limiters[0].standings(fresh, fleet.now)] == [9_990_000]
    await fleet.close()


CEILING = limit(RPM, 600, 100, Level.MODEL)


@pytest.mark.asyncio
async def test_a_model_wide_ceiling_is_spent_by_lease_across_organisations() -> None:
    fleet = FleetUnderTest(2)
    await fleet.settle_in()
    red = [CEILING, Limit(Level.TENANT, "red", RPM, 60_000, burst=5_000, organisation="red")]
    blue = [CEILING, Limit(Level.TENANT, "blue", RPM, 60_000, burst=5_000, organisation="blue")]
    passed = await fleet.spend_all(0, red, ONE, most=30)
    passed += await fleet.spend_all(1, blue, ONE)
    passed += await fleet.spend_all(0, red, ONE)
    assert passed == 100, "no time passed: the burst, to the last one"
    refused = await fleet.ask(1, blue, ONE)
    assert isinstance(refused, Refusal)
    assert refused.limit == CEILING
    assert refused.wait_us == 100_000
    left = {s.limit.level: s.remaining for s in fleet.limiters[1].standings(refused, fleet.now)}
    assert left[Level.MODEL] == 0
    assert left[Level.TENANT] > 4_800, "what the ceiling refused has cost the tenant nothing"
    fleet.now += 100_000
    admitted(await fleet.ask(1, blue, ONE))
    await fleet.close()


@pytest.mark.asyncio
async def test_a_request_that_takes_nothing_of_a_ceiling_does_not_wait_for_it() -> None:
    fleet = FleetUnderTest(1)
    await fleet.settle_in()
    before = fleet.limiters[0].calls
    embedding = await fleet.ask(0, [limit(OTPM, 600, 100, Level.MODEL), limit(RPM, 60, 5)], tok(10))
    assert admitted(embedding).by is Decider.STORE
    assert fleet.limiters[0].calls == before + 1
    await fleet.close()


@pytest.mark.asyncio
async def test_a_ceiling_gets_back_what_an_organisation_s_limit_refused() -> None:
    fleet = FleetUnderTest(1)
    await fleet.settle_in()
    red = [CEILING, Limit(Level.TENANT, "red", RPM, 60, burst=5, organisation="red")]
    blue = [CEILING, Limit(Level.TENANT, "blue", RPM, 60_000, burst=5_000, organisation="blue")]
    assert await fleet.spend_all(0, red, ONE) == 5
    assert isinstance(await fleet.ask(0, red, ONE), Refusal)
    assert await fleet.spend_all(0, blue, ONE) == 95
    await fleet.close()


@pytest.mark.asyncio
async def test_waiting_requests_share_one_call_for_a_ceiling() -> None:
    fleet = FleetUnderTest(1)
    await fleet.settle_in()
    only = [CEILING]
    before = fleet.limiters[0].calls
    group = fleet.limiters[0].group(only)
    decided = await asyncio.gather(*(fleet.limiters[0].reserve(f"w{n}", group, ONE, fleet.now) for n in range(120)))
    assert sum(isinstance(d, Reservation) for d in decided) == 100
    assert fleet.limiters[0].calls - before <= 4
    for d in decided:
        if isinstance(d, Reservation):
            await fleet.limiters[0].progress(d, ONE, fleet.now)
            await fleet.limiters[0].settle(d, Amounts(), fleet.now)
    assert await fleet.spend_all(0, only, ONE) == 100
    await fleet.close()


@pytest.mark.asyncio
async def test_a_changed_limit_reaches_leases_and_other_principals() -> None:
    fleet = FleetUnderTest(1)
    await fleet.settle_in()
    organisation = limit(TPM, 600_000, 100_000, Level.ORGANISATION)
    red = fleet.limiters[0].group([organisation, limit(RPM, 6_000, 1_000)])
    taken = admitted(await fleet.limiters[0].reserve("a", red, tok(20_000), fleet.now))
    await fleet.tick()
    leased = admitted(await fleet.limiters[0].reserve("b", red, tok(1_000), fleet.now))
    assert leased.by is Decider.LEASE
    # The organisation now has 700,000 a minute (another price of a unit) and a burst of 70,000.
    changed = limit(TPM, 700_000, 70_000, Level.ORGANISATION)
    blue = fleet.limiters[0].group([changed, Limit(Level.TENANT, "blue", RPM, 6_000, burst=1_000, organisation="acme")])
    refused = await fleet.limiters[0].reserve("c", red, tok(60_000), fleet.now)
    assert isinstance(refused, Refusal)
    assert refused.limit == changed
    await fleet.limiters[0].settle(taken, tok(10_000), fleet.now)
    await fleet.limiters[0].settle(leased, tok(0), fleet.now)
    await fleet.limiters[0].close()
    after = admitted(await fleet.limiters[0].reserve("d", blue, tok(1), fleet.now))
    assert fleet.limiters[0].standings(after, fleet.now)[0].remaining == 70_000 - 10_000 - 1
    await fleet.close()


@pytest.mark.asyncio
async def test_the_same_request_twice_at_once_gets_one_verdict() -> None:
    fleet = FleetUnderTest(1)
    await fleet.settle_in()
    limiter, of = fleet.limiters[0], [limit(CONC, 5), CEILING]
    group = limiter.group(of)
    one, two, three = await asyncio.gather(*(limiter.reserve("same", group, ONE, fleet.now) for _ in range(3)))
    assert one is two is three
    assert isinstance(one, Reservation)
    await limiter.settle(one, Amounts(), fleet.now)
    await limiter.flush(fleet.now)
    again = admitted(await limiter.reserve("same", group, ONE, fleet.now))
    assert again is not one, "settled before: another request under the same id"
    assert [s.remaining for s in limiter.standings(again, fleet.now)] == [4, 99]
    await fleet.close()


@pytest.mark.asyncio
async def test_an_abandoned_reservation_is_settled_with_what_it_streamed() -> None:
    fleet = FleetUnderTest(1, leasing=False)
    await fleet.settle_in()
    of = [limit(OTPM, 1, 10_000, period_s=86_400), limit(CONC, 5)]
    lost = admitted(await fleet.ask(0, of, tok(0, 5_000)))
    await fleet.limiters[0].progress(lost, tok(0, 700), fleet.now)
    for _ in range(73):
        fleet.now += 50 * SECOND
        await fleet.tick()
    assert lost.settled
    assert fleet.limiters[0].snapshot().abandoned == 1
    assert fleet.limiters[0].snapshot().open == 0
    probe = admitted(await fleet.ask(0, of, Amounts()))
    assert [s.remaining for s in fleet.limiters[0].standings(probe, fleet.now)] == [10_000 - 700, 4]
    await fleet.close()


@pytest.mark.asyncio
async def test_what_nobody_uses_is_forgotten_and_can_be_used_again() -> None:
    fleet = FleetUnderTest(1)
    await fleet.settle_in()
    limiter = fleet.limiters[0]
    kept = limiter.group(LIMITS)
    admitted(await limiter.reserve("kept", kept, tok(1), fleet.now))
    for n in range(60):
        address = Limit(Level.KEY, f"k{n}", RPM, 600, burst=100, organisation=f"o{n}")
        group = limiter.group([address, CEILING])
        await limiter.settle(admitted(await limiter.reserve(f"n{n}", group, ONE, fleet.now)), ONE, fleet.now)
        fleet.now += SECOND // 5
    assert limiter.snapshot().groups == 61
    for _ in range(240):
        fleet.now += SECOND
        await fleet.tick()
    assert (limiter.snapshot().groups, limiter.snapshot().leases) == (1, len(LIMITS)), "an open request keeps its own"
    first = await limiter.reserve("again", group, ONE, fleet.now)
    twin = limiter.group(group.limits)
    assert twin is group
    assert [s.remaining for s in limiter.standings(first, fleet.now)] == [99, 99]
    await fleet.close()


@pytest.mark.asyncio
async def test_clocks_of_one_process_may_differ_a_little() -> None:
    fleet = FleetUnderTest(1)
    await fleet.settle_in()
    admitted(await fleet.ask(0, LIMITS, tok(1)))
    await fleet.tick()
    fleet.now -= SECOND // 10
    assert admitted(await fleet.ask(0, LIMITS, tok(1))).by is Decider.LEASE
    await fleet.close()


@pytest.mark.asyncio
async def test_a_shadow_limit_is_counted_across_instances_and_refuses_nothing() -> None:
    fleet = FleetUnderTest(2)
    await fleet.settle_in()
    of = [limit(RPM, 60, 10, shadow=True), limit(ITPM, 600_000, 100_000), limit(RPM, 60, 5, Level.MODEL, shadow=True)]
    for n in range(30):
        admitted(await fleet.ask(n % 2, of, tok(1)))
    counts = [limiter.snapshot().shadow_refused for limiter in fleet.limiters]
    assert sum(count[of[0].key] for count in counts) == 20
    assert sum(count[of[2].key] for count in counts) == 25
    await fleet.close()
