"""Minutes of traffic against simulated engines, in virtual time: the promises of admission as figures."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from bench.scenario import measure as m
from bench.scenario.curves import POLICIES, curves
from bench.scenario.matrix import Finding, beside_a_flood, neighbours, noisy_neighbour, overload, reclaim, trickle
from bench.scenario.policies import PlainGate
from bench.scenario.predict import Exact, Learned
from bench.scenario.traffic import Ask, even, poisson
from bench.scenario.world import World
from fairqueue.admission import Admission, PoolSettings
from fairqueue.capacity import Capacity
from fairqueue.item import RequestClass
from providers.simulated.settings import NOISY, REFERENCE_70B, SMALL, AdmissionMode, EngineSettings


def met(findings: list[Finding]) -> None:
    missed = [f"{f.row}: {f.what} is {f.figure:.4f}, should be {f.goal}" for f in findings if not f.ok]
    assert missed == []


@pytest.mark.parametrize("mode", list(AdmissionMode))
def test_a_tenfold_flood_does_not_touch_a_quiet_tenant_and_costs_the_engine_nothing(mode: AdmissionMode) -> None:
    met(neighbours(mode=mode))


def test_two_replicas_protect_a_quiet_tenant_as_well_as_one() -> None:
    met(neighbours(replicas=2))


@pytest.mark.parametrize("reserved", [False, True])
def test_a_tenant_that_uses_most_of_its_share_keeps_its_objectives_as_if_alone_on_it(reserved: bool) -> None:
    # Attainment and the seconds of wait a lent seat costs; the *ratio* of waits is the bench's to show.
    met(beside_a_flood(reserved=reserved, seconds=100.0)[:2])


def test_batch_gets_its_hundredth_however_long_interactive_work_floods_in() -> None:
    met(trickle())


def test_goodput_beyond_capacity_is_kept_and_small_tenants_keep_theirs_unlike_by_order_of_arrival() -> None:
    found = curves(None, seconds=45.0, loads=(0.5, 2.0))
    ours = found.at("weighbridge", 2.0)
    for policy in POLICIES[1:]:
        other = found.at(policy, 2.0)
        assert ours.good_per_s >= 0.97 * other.good_per_s, policy
        assert found.at("weighbridge", 0.5).good_per_s >= 0.99 * found.at(policy, 0.5).good_per_s, policy
    assert found.at("no limit", 2.0).good_per_s < 0.2 * ours.good_per_s
    for blind in ("FIFO", "fixed 128", "no limit"):
        assert found.at(blind, 2.0).light_in_time < ours.light_in_time - 0.2, blind


@pytest.mark.parametrize(
    "told",
    [
        Capacity(),
        Capacity(kv_tokens=60_000),
        Capacity(seats=32),
        Capacity(seats=64, kv_tokens=60_000, chunk_tokens=256),
    ],
    ids=["nothing", "cache", "seats", "too many seats"],
)
def test_the_quiet_tenant_is_safe_whatever_is_known_of_the_engine_beforehand(told: Capacity) -> None:
    asks = [
        *even(1.0, 40, tenant="quiet", prompt=300, output=50, cap=50),
        *poisson(Random(1), 23.0, 40, tenant="noisy", prompt=2000, output=300, cap=300),
    ]
    world = World(Admission(PoolSettings(name="p")), {"r0": NOISY}, asks, Exact(), until=52.0, tell=lambda _: told)
    outcome = world.run()
    assert all(m.within_slo(r, 1.0, 0.06) for r in m.of_tenant(outcome, "quiet"))
    assert m.output_rate(outcome, 5, 40) > 0.94 * 664


def test_without_admission_the_quiet_tenant_gets_nothing() -> None:
    outcome = noisy_neighbour(lambda _: PlainGate(None))
    assert sum(m.within_slo(r, 1.0, 0.06) for r in m.of_tenant(outcome, "quiet")) <= 2


def test_service_follows_weights_within_two_percent_at_twice_the_load_with_estimates_off_by_three() -> None:
    findings, _ = overload(seconds=110.0, window=(20.0, 110.0), capacity_rps=60.0, medians=(200.0, 20.0))
    met(findings)


def test_room_lent_to_batch_is_back_within_a_second() -> None:
    met(reclaim(seconds=80.0))


def test_the_same_seed_gives_the_same_decisions_and_another_seed_others() -> None:
    first, again, other = (noisy_neighbour(seed=s).digest for s in (1, 1, 2))
    assert first == again
    assert first != other


def saturated(rate: float, seconds: float, seed: int = 3) -> list[Ask]:
    rng = Random(seed)
    return [
        replace(
            ask,
            prompt=min(2000, max(16, int(rng.lognormvariate(5.5, 0.6)))),
            output=min(2000, max(8, int(rng.lognormvariate(5.0, 0.6)))),
        )
        for ask in poisson(rng, rate, seconds, tenant="t", prompt=1, output=1, cap=4000)
    ]


SHORT_OF_CACHE = replace(REFERENCE_70B, kv_tokens=16_000)


def play(gate: Admission | PlainGate, *, overstated: float = 1.0) -> World:
    def tell(engine: EngineSettings) -> Capacity:
        return Capacity(engine.max_seqs, int(engine.kv_tokens * overstated), None, engine.chunk_tokens)

    world = World(
        gate,
        {"r0": SHORT_OF_CACHE},
        saturated(14.0, 100.0),
        Exact(),
        until=100.0,
        tell=tell,
        scrape_s=None,
    )
    world.run()
    return world


def test_the_cliff_lies_just_above_the_whole_cache() -> None:
    """With exact predictions 0.95 of the cache never preempts; 1.05 of it brings the storm."""
    timeouts = dict.fromkeys(RequestClass, 1e9)
    below = play(Admission(PoolSettings(name="p", queue_timeouts_s=timeouts))).outcome
    above = play(Admission(PoolSettings(name="p", queue_timeouts_s=timeouts)), overstated=1.05 / 0.95).outcome
    bare = play(PlainGate(None)).outcome
    assert below.samples[-1].preemptions == 0
    assert above.samples[-1].preemptions > 300
    assert m.output_rate(below, 20, 100) >= 0.99 * m.output_rate(bare, 20, 100)


def test_nothing_idles_while_something_waits() -> None:
    """The engine alone against the engine behind admission, one tenant, more than enough work."""
    asks = saturated(30.0, 60.0)
    timeouts = dict.fromkeys(RequestClass, 1e9)
    engine = replace(REFERENCE_70B, kv_tokens=100_000, max_seqs=64)
    ours = World(
        Admission(PoolSettings(name="p", tpot_slo_s=10.0, queue_timeouts_s=timeouts)),
        {"r0": engine},
        asks,
        Exact(),
        until=60.0,
    ).run()
    bare = World(PlainGate(64), {"r0": engine}, asks, Exact(), until=60.0).run()
    assert m.output_rate(ours, 10, 60) >= 0.98 * m.output_rate(bare, 10, 60)


def test_pacing_keeps_time_per_token_within_its_objective_when_prompts_flood_in() -> None:
    asks = [
        *even(2.0, 120, tenant="chat", prompt=200, output=200, cap=400),
        *poisson(Random(5), 30.0, 120, tenant="readers", prompt=2000, output=4, cap=4),
    ]
    engine = replace(REFERENCE_70B, chunk_tokens=512)
    outcome = World(
        Admission(PoolSettings(name="p", tpot_slo_s=0.03, ttft_slo_s=2.0)), {"r0": engine}, asks, Exact(), until=130.0
    ).run()
    late = [r for r in m.of_tenant(outcome, "chat") if r.ask.at > 60 and r.tpot is not None]
    assert m.percentile([r.tpot or 0.0 for r in late], 0.5) <= 0.03
    bare = World(PlainGate(None), {"r0": engine}, asks, Exact(), until=130.0).run()
    unpaced = [r for r in m.of_tenant(bare, "chat") if r.ask.at > 60 and r.tpot is not None]
    assert m.percentile([r.tpot or 0.0 for r in unpaced], 0.5) > 0.03


def test_the_fit_finds_the_engine_and_its_capacity_within_ten_percent() -> None:
    rng = Random(7)
    asks = [
        replace(ask, prompt=rng.randint(100, 1500), output=rng.randint(20, 200))
        for start, rate in ((0, 3.0), (60, 9.0), (120, 5.0), (180, 12.0))
        for ask in poisson(rng, rate, 60.0, start=start, tenant="t", prompt=1, output=1, cap=400)
    ]
    gate = Admission(PoolSettings(name="p"))
    World(gate, {"r0": replace(REFERENCE_70B, jitter=0.05)}, asks, Exact(), until=250.0).run()
    speed = gate._replicas["r0"].meter.fit.speed
    assert speed is not None
    assert speed.d == pytest.approx(REFERENCE_70B.d_s, rel=0.1)
    for kv in (10_000, 60_000):
        batch = kv / 850
        truth = REFERENCE_70B.a_s + REFERENCE_70B.b_s * batch + REFERENCE_70B.c_s * kv
        assert speed.step(kv) == pytest.approx(truth, rel=0.1)


def test_clients_that_leave_free_their_place_everywhere() -> None:
    rng = Random(9)
    asks = [replace(ask, leaves_after=rng.uniform(0.0, 3.0)) for ask in saturated(20.0, 30.0)]
    gate = Admission(PoolSettings(name="p"))
    world = World(gate, {"r0": replace(SMALL, kv_tokens=16_000)}, asks, Learned(), until=60.0)
    world.run()
    rest = gate.snapshot(60.0)
    assert (rest.inflight, rest.waiting, rest.seats_held, rest.kv_tokens_held, rest.prefill_tokens) == (0, 0, 0, 0, 0)
    assert not world.engines["r0"].live
