"""The online fit: true constants recovered under noise and drift, capacity solved from them, and nothing guessed."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqueue.capacity import Source
from fairqueue.fit import EngineSpeed, SpeedFit, solve_linear, solve_load
from fairqueue.meter import Meter

A, C, D = 0.012, 2.1e-8, 4e-5


def window(rng: Random, noise: float, *, slow: float = 1.0) -> tuple[float, float, float]:
    kv, u = rng.uniform(50_000, 1_000_000), rng.uniform(500, 12_000)
    y = slow * (A + C * kv) / (1 - slow * D * u)
    return y * (1 + noise * rng.uniform(-1, 1)), kv, u


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_constants_are_recovered_within_ten_percent_under_noise(seed: int) -> None:
    rng = Random(seed)
    fit = SpeedFit()
    for _ in range(150):
        fit.add(*window(rng, 0.05))
    assert fit.speed is not None
    mix = {"tpot_slo_s": 0.04, "prompt_tokens": 8000, "output_tokens": 350}
    truth = solve_load(EngineSpeed(A, C, D), **mix, kv_tokens=None, seats=None)
    found = solve_load(fit.speed, **mix, kv_tokens=None, seats=None)
    assert truth is not None
    assert found is not None
    assert found.requests_per_s == pytest.approx(truth.requests_per_s, rel=0.1)


def test_an_engine_that_becomes_slower_is_followed() -> None:
    rng = Random(5)
    fit = SpeedFit()
    for _ in range(300):
        fit.add(*window(rng, 0.02))
    for _ in range(150):  # 5 minutes
        fit.add(*window(rng, 0.02, slow=1.5))
    assert fit.speed is not None
    assert fit.speed.step(500_000) == pytest.approx(1.5 * (A + C * 500_000), rel=0.1)


def test_nothing_is_claimed_of_what_was_not_seen() -> None:
    fit = SpeedFit()
    for _ in range(5):
        fit.add(0.02, 1e5, 3000.0)
    assert fit.speed is None  # too little
    rng = Random(1)
    fit = SpeedFit()
    for _ in range(100):
        fit.add(0.02 * rng.uniform(0.9, 1.1), 1e5 * rng.uniform(0.99, 1.01), 0.0)
    assert fit.speed is None  # no prefill, no telling what prefill costs
    fit = SpeedFit()
    for _ in range(100):
        fit.add(0.02 * rng.uniform(0.5, 1.5), 1e5 * rng.uniform(0.99, 1.01), 3000 * rng.uniform(0.99, 1.01))
    assert fit.speed is None  # all windows alike: the parts cannot be told apart


def test_the_most_load_within_the_objective() -> None:
    speed = EngineSpeed(0.010, 2e-7, 1e-4)
    load = solve_load(speed, tpot_slo_s=0.06, prompt_tokens=2000, output_tokens=300, kv_tokens=None, seats=None)
    assert load is not None
    assert load.token_s == pytest.approx(0.06)
    assert load.requests_per_s == pytest.approx(load.sequences / (300 * 0.06))
    bounded = solve_load(speed, tpot_slo_s=0.06, prompt_tokens=2000, output_tokens=300, kv_tokens=60_000, seats=None)
    assert bounded is not None
    assert bounded.sequences == pytest.approx(0.9 * 60_000 / 2150)
    seated = solve_load(speed, tpot_slo_s=0.06, prompt_tokens=2000, output_tokens=300, kv_tokens=60_000, seats=8)
    assert seated is not None
    assert seated.sequences == 8
    hopeless = solve_load(speed, tpot_slo_s=0.01, prompt_tokens=2000, output_tokens=300, kv_tokens=None, seats=None)
    assert hopeless is None


def test_linear_systems() -> None:
    assert solve_linear([[2.0, 0.0], [0.0, 4.0]], [2.0, 2.0]) == [1.0, 0.5]
    assert solve_linear([[0.0, 1.0], [1.0, 0.0]], [3.0, 5.0]) == [5.0, 3.0]
    assert solve_linear([[1.0, 2.0], [2.0, 4.0]], [1.0, 2.0]) is None


def test_capacity_is_what_was_there_nine_tenths_of_the_day_and_provisional_before_a_day() -> None:
    meter = Meter()
    assert meter.capacity(0.0).source is Source.UNKNOWN
    for hour in range(24):
        for slot in range(6):
            meter.sample(1000.0 if hour >= 2 else 500.0, hour * 3600 + slot * 600)
        if hour == 12:
            assert meter.capacity(hour * 3600.0).provisional
    figure = meter.capacity(86_400.0)
    assert (figure.value, figure.source, figure.provisional) == (1000.0, Source.FIT, False)
    for hour in range(24, 28):
        for slot in range(6):
            meter.sample(800.0, hour * 3600 + slot * 600)
    assert meter.capacity(28 * 3600.0).value == 800.0
    assert len(meter._samples) <= 146


def test_a_window_with_a_pause_in_it_says_nothing() -> None:
    meter = Meter()
    assert meter.close(0.0, 0.0) is None
    meter.tokens(100, 2.0, 5000)
    seen = meter.close(2.0, 3000.0)
    assert seen is not None
    assert (seen.token_s, seen.kv_tokens, seen.prefill_per_s) == (0.02, 5000.0, 1500.0)
    assert meter.close(4.0, 3000.0) is None
    meter.tokens(100, 2.0, 5000)
    assert meter.close(100.0, 3000.0) is None
