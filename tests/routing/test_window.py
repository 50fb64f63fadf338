"""Rolling counts against a recount, and the usual time to first token."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.window import MEMORY, Baseline, Window, bin_of


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.integers(0, 2), st.integers(0, 2)), max_size=80))
def test_the_sums_are_those_of_the_slots_still_in_the_span(adds: list[tuple[float, int, int]]) -> None:
    window = Window(30.0, 10)
    now = 0.0
    kept: list[tuple[int, int, int]] = []
    for wait, fails, slow in adds:
        now += wait
        window.add(now, 3, fails, slow)
        kept.append((int(now / 3.0), fails, slow))
        live = [entry for entry in kept if entry[0] > int(now / 3.0) - 10]
        assert window.n == 3 * len(live)
        assert window.fails == sum(entry[1] for entry in live)
        assert window.slow == sum(entry[2] for entry in live)


def test_a_clock_that_steps_back_loses_nothing() -> None:
    window = Window()
    window.add(100.0, 1, 1, 0)
    window.add(50.0, 1, 0, 0)
    assert (window.n, window.fails) == (2, 1)


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, 0), (0.001, 0), (0.002, 4), (1.024, 40), (1e9, 79)])
def test_times_are_kept_in_quarter_octaves(seconds: float, expected: int) -> None:
    assert bin_of(seconds) == expected


def test_the_usual_time_is_the_95th_percentile_within_a_quarter_octave() -> None:
    baseline = Baseline(3.0, None)
    for n in range(1000):
        baseline.add(0.1 if n % 10 else 0.4, 100)
    usual = baseline.usual(100)
    assert usual is not None
    assert 0.4 <= usual <= 0.4 * 1.2
    assert baseline.usual(100_000) is None


def test_a_bad_spell_does_not_become_the_norm_but_a_lasting_change_does() -> None:
    baseline = Baseline(3.0, None)
    for _ in range(300):
        baseline.add(0.1, 100)
    assert all(baseline.add(1.0, 100) for _ in range(60))
    later = [baseline.add(1.0, 100) for _ in range(int(3 * MEMORY))]
    assert not any(later[-100:])


def test_without_answers_of_that_size_nothing_is_slow() -> None:
    baseline = Baseline(3.0, 0.5)
    assert not baseline.add(60.0, 1_000_000)
