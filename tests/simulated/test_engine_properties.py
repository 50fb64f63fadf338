"""Truths of the engine under random traffic: conservation, completion, determinism, figures known from elsewhere."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.simulated.engine import Engine
from providers.simulated.sequence import Request, Step
from providers.simulated.settings import AdmissionMode, EngineSettings, Scheduling, preset
from tests.simulated.checks import ask, assert_sound, digest_of, run

ENGINES = st.builds(
    EngineSettings,
    b_s=st.sampled_from([0.0, 1e-4]),
    c_s=st.sampled_from([0.0, 1e-6]),
    chunk_tokens=st.integers(8, 200),
    decode_in_budget=st.booleans(),
    max_seqs=st.integers(1, 8),
    kv_tokens=st.integers(160, 900),
    block_tokens=st.sampled_from([1, 8, 16]),
    admission=st.sampled_from(AdmissionMode),
    whole_prompt=st.booleans(),
    scheduling=st.sampled_from(Scheduling),
    prefix_cache=st.booleans(),
    lora_slots=st.just(1),
    draft_tokens=st.sampled_from([0, 0, 3]),
    acceptance=st.sampled_from([0.0, 0.6, 1.0]),
)
REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 110),  # prompt
        st.integers(0, 40),  # output
        st.integers(0, 3),  # which prompts start alike
        st.sampled_from([None, None, "a", "b"]),  # adapter
        st.sampled_from([None, "salt"]),
        st.integers(-1, 1),  # priority
        st.integers(0, 12),  # steps before the next request comes
        st.sampled_from([None, None, None, 0, 1, 5]),  # steps after which the client leaves
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(ENGINES, REQUESTS)
def test_blocks_and_seats_are_conserved_and_everybody_is_served(
    engine_settings: EngineSettings, requests: list[tuple[int, int, int, str | None, str | None, int, int, int | None]]
) -> None:
    engine = Engine(engine_settings)
    size = engine_settings.block_tokens
    leaving: list[tuple[int, str]] = []
    finished: dict[str, int] = {}
    tokens: dict[str, int] = {}
    now, turn = 0.0, 0

    def see(step: Step) -> None:
        for sequence in step.produced:
            tokens[sequence.id] = tokens.get(sequence.id, 0) + sequence.fresh
        for sequence in step.finished:
            finished[sequence.id] = sequence.generated

    def advance() -> bool:
        nonlocal now, turn
        for due, name in list(leaving):
            if due <= turn:
                leaving.remove((due, name))
                engine.cancel(name, now)
        step = engine.begin(now)
        turn += 1
        if step is None:
            return False
        # In the middle of a step a client may leave too.
        for due, name in list(leaving):
            if due == turn:
                leaving.remove((due, name))
                engine.cancel(name, now)
        assert_sound(engine)
        now = step.ends_at
        see(engine.finish())
        assert_sound(engine)
        return True

    staying: dict[str, int] = {}
    for number, (prompt, output, kind, adapter, salt, priority, pause, leave) in enumerate(requests):
        name = str(number)
        keys = tuple(f"{kind}/{n}" for n in range(prompt // size))
        engine.submit(Request(name, prompt, output, None, keys, salt, adapter, priority), now)
        if leave is None:
            staying[name] = output
        else:
            leaving.append((turn + leave, name))
        for _ in range(pause):
            advance()
    steps = 0
    while advance():
        steps += 1
        assert steps < 20_000
    assert {name: finished.get(name) for name in staying} == staying
    assert all(tokens.get(name, 0) == count for name, count in finished.items())
    counts = engine.snapshot()
    assert (counts.running, counts.waiting, counts.kv_blocks_held, counts.kv_tokens_held) == (0, 0, 0, 0)
    assert counts.generation_tokens_total == sum(tokens.values())
    assert engine.live == {}
    if engine_settings.admission is AdmissionMode.RESERVED:
        assert counts.preemptions_total == 0


def _traffic(engine: Engine, seed: int) -> str:
    """A minute of overload with cancels; the digest of every step."""
    draw = random.Random(seed)
    steps: list[Step] = []
    now = 0.0
    for number in range(400):
        name = str(number)
        keys = tuple(f"{draw.randrange(5)}/{n}" for n in range(8))
        engine.submit(ask(name, draw.randrange(130, 400), draw.randrange(1, 120), keys=keys), now)
        now = run(engine, now, until=now + draw.expovariate(20), see=steps.append)
        if draw.random() < 0.2:
            engine.cancel(str(draw.randrange(number + 1)), now)
    run(engine, now, see=steps.append)
    return digest_of(steps)


def test_the_same_calls_give_the_same_steps_to_the_last_bit() -> None:
    paged = preset("small", kv_tokens=3_000, jitter=0.05, draft_tokens=2, acceptance=0.7, seed=3)
    assert _traffic(Engine(paged), 1) == _traffic(Engine(paged), 1)
    assert _traffic(Engine(paged), 1) != _traffic(Engine(preset("small", kv_tokens=3_000)), 1)


def test_the_digest_is_the_same_on_every_machine() -> None:
    assert _traffic(Engine(preset("small", kv_tokens=3_000)), 7)[:16] == "e31fd033b185dc3c"


def _flood(engine: Engine, rate: float, prompt: int, output: int, seconds: float, seed: int = 1) -> list[Step]:
    """Poisson arrivals, open loop; the steps that began within so many seconds."""
    draw = random.Random(seed)
    steps: list[Step] = []
    now = arrival = 0.0
    number = 0
    while now < seconds:
        while arrival <= now:
            engine.submit(ask(str(number), prompt, output), arrival)
            number += 1
            arrival += draw.expovariate(rate)
        now = run(engine, now, until=min(arrival, seconds), see=steps.append)
        now = max(now, min(arrival, seconds)) if engine.live == {} else now
    return steps


def test_the_noisy_engine_is_the_one_of_the_comparison() -> None:
    """Measured there: 0.05 s to the first token of a lone quiet request and 10 ms a token; a flood alone gets 660
    output tokens a second from a batch of 26, bound by the cache.
    """
    engine = Engine(preset("noisy"))
    quiet = engine.submit(ask("quiet", 300, 50), 0.0)
    run(engine)
    assert quiet.first_token_at == pytest.approx(0.050, abs=0.001)
    assert quiet.first_token_at is not None
    assert quiet.ended_at is not None
    assert (quiet.ended_at - quiet.first_token_at) / 49 == pytest.approx(0.0102, abs=0.0001)

    steps = _flood(Engine(preset("noisy")), rate=23, prompt=2_000, output=300, seconds=40)
    settled = [s for s in steps if s.ends_at >= 5]
    assert sum(len(s.produced) for s in settled) / 35 == pytest.approx(660, rel=0.01)
    assert settled[-1].batch == 26
    # A flooded engine takes in 2.2 requests a second.
    assert sum(s.prefill_tokens for s in settled) / 35 / 2_000 == pytest.approx(2.2, rel=0.05)


def test_overselling_the_cache_falls_off_a_cliff() -> None:
    """Long prompts are let in as soon as their first chunk fits. With more seats than the cache holds of them, the
    engine throws prompts out and computes them again, five times over, for less than half of the output.
    """

    def flood(seats: int) -> tuple[float, int]:
        engine = Engine(
            preset("reference70b", kv_tokens=40_000, max_seqs=seats, prefix_cache=False, max_model_len=8_000)
        )
        for number in range(100):
            engine.submit(ask(str(number), 4_000, 300), 0.0)
        now = 0.0
        while (step := engine.step(now)) is not None:
            now = step.ends_at
        return 100 * 300 / now, engine.snapshot().recomputed_tokens_total

    fitting, nothing = flood(8)
    oversold, recomputed = flood(64)
    assert nothing == 0
    assert recomputed > 5 * 100 * 4_000
    assert oversold < 0.5 * fitting


def test_simulation_is_fast_enough_for_long_scenarios() -> None:
    engine = Engine(preset("reference70b"))
    for number in range(600):
        engine.submit(ask(str(number), 500, 300), 0.0)
    began = time.process_time()
    now = 0.0
    while (step := engine.step(now)) is not None:
        now = step.ends_at
    took = time.process_time() - began
    assert engine.snapshot().generation_tokens_total == 180_000
    assert 180_000 / took > 100_000
