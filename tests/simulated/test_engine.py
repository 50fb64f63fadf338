"""One engine in virtual time: what a step costs, who gets a seat, who is thrown out, what is computed again."""

from __future__ import annotations

import pytest

from providers.simulated.engine import Engine
from providers.simulated.sequence import ContextTooLong, Phase, Refused, Step
from providers.simulated.settings import AdmissionMode, EngineSettings, Scheduling, preset
from tests.simulated.checks import ask, assert_sound, ids, run


def test_step_time_is_the_formula_by_value() -> None:
    engine = Engine(EngineSettings(a_s=0.01, b_s=0.002, c_s=1e-5, d_s=1e-4, chunk_tokens=100, prefix_cache=False))
    engine.submit(ask("one", 150, 3), 0.0)
    steps: list[Step] = []
    end = run(engine, see=steps.append)
    # 100 prompt tokens; the other 50 on top of 100 cached ones, with the first output token; then two decodes.
    expected = [
        0.01 + 0.002 + 0.0 + 100 * 1e-4,
        0.01 + 0.002 + 100 * 1e-5 + 50 * 1e-4,
        0.01 + 0.002 + 150 * 1e-5,
        0.01 + 0.002 + 151 * 1e-5,
    ]
    assert [s.duration_s for s in steps] == pytest.approx(expected)
    assert end == pytest.approx(sum(expected))
    assert [ids(s.produced) for s in steps] == [[], ["one"], ["one"], ["one"]]
    assert [ids(s.first) for s in steps] == [[], ["one"], [], []]
    assert ids(steps[-1].finished) == ["one"]


def test_slow_factor_stretches_every_step() -> None:
    engine = Engine(preset("small"))
    engine.slow = 3.0
    engine.submit(ask("one", 100, 2), 0.0)
    assert run(engine) == pytest.approx(3 * ((0.005 + 100 * 1e-4) + 0.005))


def test_jitter_stays_in_its_bounds_and_repeats() -> None:
    def durations() -> list[float]:
        engine = Engine(preset("small", jitter=0.1, d_s=0.0, seed=4))
        engine.submit(ask("one", 10, 200), 0.0)
        steps: list[Step] = []
        run(engine, see=steps.append)
        return [s.duration_s for s in steps]

    first = durations()
    assert first == durations()
    assert 0.0045 <= min(first) < 0.0047
    assert 0.0053 < max(first) <= 0.0055


def test_decodes_come_first_and_prompts_share_what_is_left() -> None:
    engine = Engine(preset("small", chunk_tokens=64))
    engine.submit(ask("old", 10, 50), 0.0)
    engine.step(0.0)
    engine.submit(ask("new", 150, 1), 0.0)
    chunks = [engine.step(0.0) for _ in range(3)]
    # One of 64 goes to the decoding sequence in each step.
    assert [s.prefill_tokens for s in chunks if s] == [63, 63, 24]
    assert [ids(s.produced) for s in chunks if s] == [["old"], ["old"], ["old", "new"]]


def test_a_budget_for_prompts_alone_is_not_lessened_by_decodes() -> None:
    engine = Engine(preset("small", chunk_tokens=64, decode_in_budget=False))
    engine.submit(ask("old", 10, 50), 0.0)
    engine.step(0.0)
    engine.submit(ask("new", 150, 1), 0.0)
    assert [s.prefill_tokens for s in (engine.step(0.0) for _ in range(3)) if s] == [64, 64, 22]


def test_prompts_are_served_in_order_and_may_share_a_step() -> None:
    engine = Engine(preset("small", chunk_tokens=100))
    for name, prompt in (("a", 60), ("b", 60), ("c", 60)):
        engine.submit(ask(name, prompt, 5), 0.0)
    step = engine.step(0.0)
    assert step is not None
    assert [(s.id, n) for s, n in step.chunks] == [("a", 60), ("b", 40)]
    assert engine.waiting == 1


def test_seats_bound_the_batch() -> None:
    engine = Engine(preset("small", max_seqs=2))
    for name in "abc":
        engine.submit(ask(name, 10, 3), 0.0)
    engine.step(0.0)
    assert (engine.running, engine.waiting) == (2, 1)
    run(engine)
    assert (engine.running, engine.waiting) == (0, 0)


def test_blocks_are_taken_as_tokens_come() -> None:
    engine = Engine(preset("small", prefix_cache=False))
    engine.submit(ask("one", 16, 40), 0.0)
    engine.step(0.0)
    held = [engine.snapshot().kv_blocks_held]
    for _ in range(33):
        engine.step(0.0)
        held.append(engine.snapshot().kv_blocks_held)
    # The newest token has no cache yet: 16 tokens stand for the prompt, then 17 ... 32 need two blocks, 33 needs three.
    assert held == [1] + [2] * 16 + [3] * 16 + [4]


def test_newest_is_preempted_and_recomputes_its_output_too() -> None:
    engine = Engine(preset("small", kv_tokens=160, prefix_cache=False, chunk_tokens=1000))
    engine.submit(ask("old", 64, 40), 0.0)
    engine.submit(ask("new", 64, 40), 0.0)
    steps: list[Step] = []
    run(engine, see=steps.append)
    preempting = [s for s in steps if s.preempted]
    assert [ids(s.preempted) for s in preempting] == [["new"]]
    counts = engine.snapshot()
    # Two blocks were left after the prompts (4 + 4 of 10): each took one, at the 17th token beyond it none was left.
    victim_had = 17
    assert counts.recomputed_tokens_total == 64 + victim_had
    assert counts.preemptions_total == 1
    assert counts.generation_tokens_total == 80
    assert counts.prompt_tokens_total == 128
    old, new = (next(s for step in steps for s in step.finished if s.id == name) for name in ("old", "new"))
    assert (old.preemptions, new.preemptions) == (0, 1)
    assert old.ended_at is not None
    assert new.ended_at is not None
    assert old.ended_at < new.ended_at


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    engine = Engine(preset("small", kv_tokens=160, prefix_cache=False, chunk_tokens=1000))
    for name in ("a", "b", "c"):
        engine.submit(ask(name, 64, 40), 0.0)
    steps: list[Step] = []
    run(engine, see=steps.append)
    assert any(s.preempted for s in steps)
    assert not any(s.preempted and s.admitted for s in steps)


def test_reserved_admission_never_preempts() -> None:
    engine = Engine(preset("small", admission=AdmissionMode.RESERVED, kv_tokens=320, prefix_cache=False))
    for number in range(5):
        engine.submit(ask(str(number), 64, 30, max_tokens=96), 0.0)
    engine.step(0.0)
    # 64 + 96 tokens are ten blocks of twenty, though only 30 will come.
    assert (engine.running, engine.waiting, engine.snapshot().kv_usage) == (2, 3, 1.0)
    run(engine)
    assert engine.snapshot().preemptions_total == 0


def test_first_chunk_admits_what_the_whole_prompt_would_not() -> None:
    def running_after_one_step(whole: bool) -> int:
        engine = Engine(preset("small", kv_tokens=1600, chunk_tokens=200, prefix_cache=False, whole_prompt=whole))
        engine.submit(ask("long", 1000, 10), 0.0)
        for _ in range(5):
            engine.step(0.0)
        engine.submit(ask("longer", 1000, 10), 0.0)
        engine.step(0.0)
        return engine.running

    assert running_after_one_step(whole=False) == 2
    assert running_after_one_step(whole=True) == 1


@pytest.mark.parametrize(("prompt", "output"), [(7_999, 2), (8_000, 1), (8_001, 0), (100, 7_901)])
def test_what_can_never_fit_is_refused_with_the_figures(prompt: int, output: int) -> None:
    engine = Engine(preset("small"))
    with pytest.raises(ContextTooLong, match="maximum context length is 8000 tokens") as caught:
        engine.submit(ask("x", prompt, output), 0.0)
    assert (caught.value.prompt_tokens, caught.value.output_tokens) == (prompt, output)
    assert engine.live == {}


def test_the_longest_that_fits_is_served_alone() -> None:
    engine = Engine(preset("small"))
    engine.submit(ask("x", 7_999, 1), 0.0)
    engine.submit(ask("y", 4_000, 4_000), 0.0)
    run(engine)
    assert engine.snapshot().generation_tokens_total == 4_001


def test_a_maximum_beyond_the_context_is_refused_even_if_the_answer_would_be_short() -> None:
    with pytest.raises(ContextTooLong):
        Engine(preset("small")).submit(ask("x", 100, 5, max_tokens=8_000), 0.0)


def test_an_embedding_ends_with_its_prompt_and_yields_no_token() -> None:
    engine = Engine(preset("small"))
    engine.submit(ask("e", 100, 0), 0.0)
    step = engine.step(0.0)
    assert step is not None
    assert (ids(step.produced), ids(step.first), ids(step.finished)) == ([], [], ["e"])
    assert engine.snapshot().prompt_tokens_total == 100


def test_priority_orders_the_line_and_picks_the_victim() -> None:
    engine = Engine(
        preset("small", scheduling=Scheduling.PRIORITY, kv_tokens=160, prefix_cache=False, chunk_tokens=1000)
    )
    engine.submit(ask("later", 64, 40, priority=5), 0.0)
    engine.submit(ask("sooner", 64, 40, priority=1), 0.0)
    steps: list[Step] = []
    run(engine, see=steps.append)
    assert ids(steps[0].admitted) == ["sooner", "later"]
    assert {name for s in steps for name in ids(s.preempted)} == {"later"}


def test_without_priority_scheduling_arrival_decides() -> None:
    engine = Engine(preset("small", max_seqs=1))
    engine.submit(ask("first", 10, 5, priority=5), 0.0)
    engine.submit(ask("second", 10, 5, priority=1), 0.0)
    step = engine.step(0.0)
    assert step is not None
    assert ids(step.admitted) == ["first"]


def test_an_adapter_waits_for_a_slot_and_others_pass_it() -> None:
    engine = Engine(preset("small", lora_slots=1, adapter_load_s=0.5))
    engine.submit(ask("a1", 10, 3, adapter="a"), 0.0)
    engine.submit(ask("b1", 10, 3, adapter="b"), 0.0)
    engine.submit(ask("base", 10, 3), 0.0)
    engine.submit(ask("a2", 10, 3, adapter="a"), 0.0)
    first = engine.step(0.0)
    assert first is not None
    assert ids(first.admitted) == ["a1", "base", "a2"]
    assert first.duration_s == pytest.approx(0.005 + 30 * 1e-4 + 0.5)
    assert (engine.adapters.in_use, engine.adapters_waiting()) == (("a",), ("b",))
    run(engine, 1.0)
    assert engine.adapters.loads == 2
    assert engine.adapters.in_use == ()


def test_an_adapter_without_slots_is_refused() -> None:
    with pytest.raises(Refused, match="no LoRA slots"):
        Engine(preset("small")).submit(ask("x", 10, 1, adapter="a"), 0.0)


def test_speculation_yields_more_tokens_a_step_and_pays_for_drafts() -> None:
    engine = Engine(preset("small", draft_tokens=3, acceptance=0.7, seed=1, chunk_tokens=4000, max_seqs=64))
    for number in range(20):
        engine.submit(ask(str(number), 10, 200), 0.0)
    steps: list[Step] = []
    run(engine, see=steps.append)
    counts = engine.snapshot()
    assert counts.generation_tokens_total == 20 * 200
    # Mean accepted of three drafts: p + p^2 + p^3 = 1.533; a draw past the end of an answer is cut.
    assert counts.accepted_tokens_total / counts.drafts_total == pytest.approx(1.533, abs=0.05)
    assert counts.draft_tokens_total == 3 * counts.drafts_total
    decode = steps[1]
    assert decode.duration_s == pytest.approx(0.005 + 20 * 3 * 1e-4)


@pytest.mark.parametrize(("acceptance", "steps"), [(0.0, 61), (1.0, 21)])
def test_speculation_at_its_ends(acceptance: float, steps: int) -> None:
    engine = Engine(preset("small", draft_tokens=2, acceptance=acceptance))
    engine.submit(ask("one", 10, 61), 0.0)
    run(engine)
    # The prompt gives one token, the other sixty come one or three at a time.
    assert engine.snapshot().steps_total == steps


def test_ids_are_unique_while_they_live() -> None:
    engine = Engine(preset("small"))
    engine.submit(ask("same", 10, 1), 0.0)
    with pytest.raises(ValueError, match="already"):
        engine.submit(ask("same", 10, 1), 0.0)
    run(engine)
    engine.submit(ask("same", 10, 1), 1.0)


def test_begin_and_finish_take_turns() -> None:
    engine = Engine(preset("small"))
    assert engine.begin(0.0) is None
    with pytest.raises(RuntimeError, match="no step"):
        engine.finish()
    engine.submit(ask("x", 10, 1), 0.0)
    engine.begin(0.0)
    with pytest.raises(RuntimeError, match="not finished"):
        engine.begin(0.0)


@pytest.mark.parametrize("moment", ["waiting", "prefill", "decode", "in the middle of a step"])
def test_cancel_frees_everything_at_once(moment: str) -> None:
    engine = Engine(preset("small", max_seqs=1, chunk_tokens=50))
    other = engine.submit(ask("other", 10, 400), 0.0) if moment == "waiting" else None
    sequence = engine.submit(ask("x", 120, 100), 0.0)
    steps = {"waiting": 2, "prefill": 1, "decode": 5, "in the middle of a step": 5}[moment]
    for _ in range(steps):
        engine.step(0.0)
    if moment == "in the middle of a step":
        engine.begin(0.0)
    phases = {"waiting": Phase.WAITING, "prefill": Phase.PREFILL}
    assert sequence.phase is phases.get(moment, Phase.DECODE)
    assert engine.cancel("x", 1.0)
    assert (sequence.phase, sequence.ended_at) == (Phase.CANCELLED, 1.0)
    assert_sound(engine)
    assert engine.running == (other is not None)
    assert engine.waiting == 0
    if engine.stepping:
        assert engine.finish().produced == []
    assert not engine.cancel("x", 1.0)
    if other is not None:
        engine.cancel("other", 1.0)
    assert engine.snapshot().kv_blocks_held == 0
    assert engine.begin(2.0) is None


def test_a_long_line_of_cancelled_requests_is_forgotten() -> None:
    engine = Engine(preset("small", max_seqs=1))
    for number in range(10_000):
        engine.submit(ask(str(number), 10, 5), 0.0)
        if number:
            engine.cancel(str(number), 0.0)
    assert engine.waiting == 1
    assert len(engine._waiting._heap) <= 66


@pytest.mark.parametrize(
    ("field", "value"),
    [("a_s", 0.0), ("b_s", -1.0), ("chunk_tokens", 0), ("kv_tokens", 8), ("max_model_len", 9_000), ("acceptance", 2.0)],
)
def test_settings_that_make_no_sense_name_the_field(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        preset("small", **{field: value})
