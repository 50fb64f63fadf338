"""An engine that is slow for reasons outside: admission holds back at most by half, and is itself again in seconds."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from bench.scenario import measure as m
from bench.scenario.policies import PlainGate
from bench.scenario.predict import Exact
from bench.scenario.traffic import Ask, poisson
from bench.scenario.world import Outcome, World
from fairqueue.admission import Admission, PoolSettings
from fairqueue.capacity import Capacity
from fairqueue.learn import SafetyNet, SeatLearner
from providers.simulated.settings import REFERENCE_70B, EngineSettings

QUICK = EngineSettings(a_s=0.002, d_s=1e-5, kv_tokens=32_000, max_seqs=32)


def asks(engine: EngineSettings) -> list[Ask]:
    rng = Random(1)
    rate, prompt, output = (200.0, 20, 15) if engine is QUICK else (18.0, 600, 150)
    return [
        replace(
            ask,
            prompt=max(2, int(rng.lognormvariate(0, 0.5) * prompt)),
            output=max(1, int(rng.lognormvariate(0, 0.6) * output)),
        )
        for ask in poisson(rng, rate, 65.0, tenant="t", prompt=1, output=1, cap=4096)
    ]


def play(gate: Admission | PlainGate, engine: EngineSettings, told: Capacity, times: float) -> Outcome:
    """A minute of traffic on two engines, which from second 20 to 30 need `times` as long for everything."""
    world = World(gate, {"r0": engine, "r1": engine}, asks(engine), Exact(), until=65.0, tell=lambda _: told)
    for at, factor in ((20.0, times), (30.0, 1.0)):
        for one in world.engines.values():
            world.at(at, lambda e=one, f=factor: setattr(e, "slow", f))  # type: ignore[misc]
    return world.run()


@pytest.mark.parametrize(
    ("engine", "told", "times"),
    [
        (QUICK, Capacity(32, 32_000, 100_000.0, 512), 60.0),
        (QUICK, Capacity(kv_tokens=32_000), 60.0),
        (REFERENCE_70B, Capacity(256, 1_257_324, None, 2048), 5.0),
        (REFERENCE_70B, Capacity(kv_tokens=1_257_324), 5.0),
    ],
)
def test_a_spell_of_slowness_from_outside_leaves_no_mark(engine: EngineSettings, told: Capacity, times: float) -> None:
    settings = PoolSettings(name="p", tpot_slo_s=0.1 if engine is QUICK else 0.06)
    slowed = play(Admission(settings), engine, told, times)
    never = play(Admission(settings), engine, told, 1.0)
    # Ten seconds after the spell it serves all that comes, and when what had to wait is through, in time.
    assert m.output_rate(slowed, 40, 50) >= 0.95 * m.output_rate(never, 40, 50)
    slowed_in_time, never_in_time = (
        [m.within_slo(r, 1.0, settings.tpot_slo_s) for r in outcome.records if 55.0 < r.ask.at < 60.0]
        for outcome in (slowed, never)
    )
    assert sum(slowed_in_time) >= 0.95 * sum(never_in_time) >= 0.9 * len(never_in_time)


def test_half_of_what_was_carried_in_time_is_carried_whatever_happens() -> None:
    told = Capacity(32, 32_000, 100_000.0, 512)
    ours = play(Admission(PoolSettings(name="p", tpot_slo_s=0.1)), QUICK, told, 200.0)
    bare = play(PlainGate(32), QUICK, told, 200.0)
    assert m.output_rate(ours, 20, 30) >= 0.5 * m.output_rate(bare, 20, 30)


def test_a_known_pace_never_falls_below_half_of_what_was_served_in_time() -> None:
    gate = Admission(PoolSettings(name="p"))
    world = World(
        gate, {"r0": REFERENCE_70B}, asks(REFERENCE_70B)[::3], Exact(), until=40.0, tell=lambda _: Capacity(256)
    )
    world.at(20.0, lambda: setattr(world.engines["r0"], "slow", 40.0))
    world.run()
    steering = gate._replicas["r0"].steering
    assert steering.good_prefill > 1_000
    assert steering.pace.rate is None or steering.pace.rate >= 0.5 * steering.good_prefill


def test_learned_seats_are_cut_to_half_of_what_is_good_and_no_further_and_grow_back_by_one_an_answer() -> None:
    learner = SeatLearner()
    learner.value, learner.good, learner.least = 40.0, 40.0, 20
    for second in range(30):
        learner.congested(float(second), None)
    assert learner.limit == 20
    for _ in range(20):
        learner.accepted(learner.limit, 30.0)
    assert learner.limit == 40
    learner.accepted(40, 30.0)
    assert learner.limit == 40  # and from here slowly


def test_the_safety_net_lets_go_in_five_windows_once_all_is_well() -> None:
    net = SafetyNet()
    for _ in range(20):
        net.window(breached=True, used=1.0)
    assert net.factor == 0.5
    for _ in range(5):
        net.window(breached=False, used=0.2, well=True)
    assert net.factor == pytest.approx(1.0)
    net.window(breached=False, used=0.2, well=True)
    assert net.factor == pytest.approx(1.0)  # more than whole takes use
