"""Prefill inside an engine: one chunk waits, the clock fills in between first tokens, and pacing protects decode."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqueue.prefill import Pace, PrefillLine, pace_rate


def line(chunk: int | None = 256, ceiling: float | None = None) -> PrefillLine:
    x = PrefillLine(0.05)
    x.chunk = chunk
    x.ceiling = ceiling
    return x


def test_a_request_enters_while_at_most_one_chunk_is_unfinished() -> None:
    x = line()
    assert x.is_open(0.0)
    x.enter("small", 256, 0.0)
    assert x.is_open(0.0)
    x.enter("large", 2000, 0.0)
    assert not x.is_open(0.0)
    assert x.opens_at(0.0) is None
    x.leave("large", 0.1, finished=False)
    assert x.is_open(0.1)


def test_with_a_known_speed_the_next_prompt_enters_one_chunk_before_the_last_is_through() -> None:
    x = line(chunk=256, ceiling=10_000.0)
    x.enter("a", 2000, 1.0)
    assert x.unfinished(1.1) == pytest.approx(1000.0)
    opens = x.opens_at(1.0)
    assert opens == pytest.approx(1.0 + (2000 - 256) / 10_000)
    assert not x.is_open(opens - 0.001)
    assert x.is_open(opens)


def test_a_wrong_speed_lets_in_the_oldest_prompt_and_one_chunk_and_no_more() -> None:
    x = line(chunk=256, ceiling=1e9)
    entered = 0
    for n in range(100):
        if x.is_open(float(n)):
            x.enter(n, 2000, float(n))
            entered += 1
    assert entered == 2


def test_speed_is_learned_from_grant_to_first_token_and_capped_by_what_is_configured() -> None:
    x = line(chunk=None)
    assert (x.budget, x.speed) == (0.0, None)
    x.enter("a", 2000, 0.0)
    x.leave("a", 0.4, finished=True)
    assert x.speed == pytest.approx(5000.0)
    assert x.budget == pytest.approx(250.0)
    x.ceiling = 4000.0
    assert x.speed == 4000.0


def test_small_prompts_that_are_batched_teach_a_higher_speed() -> None:
    x = line(chunk=None)
    now = 0.0
    for _ in range(200):
        inside = []
        while x.is_open(now) and len(inside) < 50:
            key = object()
            x.enter(key, 20, now)
            inside.append(key)
        now += 0.03  # the engine answers all it has in one step
        for key in inside:
            x.leave(key, now, finished=True)
    assert x.budget > 1000.0


def test_a_prompt_that_should_long_be_through_is_stalled() -> None:
    x = line(chunk=256, ceiling=10_000.0)
    assert not x.stalled(5.0)
    x.enter("a", 2000, 5.0)
    assert not x.stalled(5.4)
    assert x.stalled(5.6)
    x.answered(0.3)  # a far-away engine answers nothing sooner than this
    assert not x.stalled(5.6)
    assert x.stalled(5.9)


@given(st.lists(st.tuples(st.sampled_from(["enter", "first", "abort"]), st.integers(0, 5000)), max_size=60))
@settings(max_examples=100, deadline=None)
def test_the_line_never_counts_what_is_not_there(events: list[tuple[str, int]]) -> None:
    x = line(ceiling=8000.0)
    now = 0.0
    inside: dict[int, int] = {}
    for n, (what, tokens) in enumerate(events):
        now += 0.05
        if what == "enter":
            x.enter(n, tokens, now)
            inside[n] = tokens
        elif inside:
            key = next(iter(inside)) if what == "first" else tokens % (n + 1)
            x.leave(key, now, finished=what == "first")
            inside.pop(key, None)
        assert x.tokens == sum(inside.values())
        assert x.unfinished(now) + 256 >= 0.0
        assert x.unfinished(now) <= x.tokens
        opens = x.opens_at(now)
        assert (opens == now) == x.is_open(now)
        if opens is not None:
            assert x.is_open(opens)


def test_prompts_of_no_token_teach_no_speed() -> None:
    """A prompt found whole in the cache has nothing to prefill; a speed of zero would close the line for ever."""
    x = PrefillLine(0.05)
    x.enter("cached", 0, 0.0)
    x.leave("cached", 0.1, finished=True)
    assert x.learned is None
    x.enter("ordinary", 257, 0.1)
    assert x.opens_at(0.15) is None or x.opens_at(0.15) >= 0.15


def test_pace_lets_a_burst_in_and_then_keeps_the_rate_whatever_the_sizes() -> None:
    pace = Pace()
    assert pace.is_open(0.0)
    pace.set_rate(1000.0, 512.0, 0.0)
    let_in, now = 0, 0.0
    while now < 100.0:
        while pace.is_open(now):
            tokens = 2000 if let_in % 3 else 100
            pace.take(tokens, now)
            let_in += tokens
        opens = pace.opens_at(now)
        assert opens > now
        now = opens
    assert 100_000 <= let_in <= 100_000 + 512 + 2 * 2000


def test_the_pace_is_what_leaves_decode_its_objective() -> None:
    rate = pace_rate(0.021, 0.06, 1e-4)
    assert rate == pytest.approx(6500.0)
    assert 0.021 / (1 - 1e-4 * rate) == pytest.approx(0.06)
    assert pace_rate(0.08, 0.06, 1e-4) == pytest.approx(500.0)  # past the objective: slowed, never stopped
