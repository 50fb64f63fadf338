"""What spills to a target stays within what it has to spare, comes gradually, and the lowest class goes first."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.route import SkipReason
from providers.spill import Rate, Spill


def busy(spill: Spill, per_s: float, start: float, end: float) -> None:
    """Ordinary traffic of the target, ten requests a second."""
    for n in range(int((end - start) * 10)):
        spill.served(per_s / 10.0, start + n / 10.0)


def test_a_rate_settles_at_what_is_counted_and_fades() -> None:
    rate = Rate(5.0)
    for n in range(1000):
        rate.add(10.0, n * 0.1)
    assert rate.per_s(99.9) == pytest.approx(100.0, rel=0.03)
    assert rate.per_s(104.9) == pytest.approx(100.0 / math.e, rel=0.03)


def test_the_spare_is_capacity_less_headroom_reservations_and_own_traffic() -> None:
    spill = Spill()
    spill.configure(1000.0, reserved=100.0)
    busy(spill, 500.0, 0.0, 60.0)
    assert spill.spare(60.0) == pytest.approx(850.0 - 100.0 - 500.0, abs=15.0)


def test_an_unknown_capacity_bounds_nothing_until_it_refuses() -> None:
    spill = Spill()
    assert spill.hindrance("batch", 0.0) is None
    assert spill.spare(0.0) is None
    for n in range(600):
        assert spill.take("interactive", 10.0, n * 0.1)
    spill.overloaded(60.0)
    assert spill.spare(60.0) == pytest.approx(70.0, rel=0.05)
    spill.overloaded(60.5)
    assert spill.spare(60.5) == pytest.approx(49.5, rel=0.05)
    assert spill.spare(95.0) == pytest.approx(98.0, rel=0.1)


def test_spill_begins_with_a_tenth_and_grows_a_fifth_a_second() -> None:
    spill = Spill()
    spill.configure(1000.0)
    taken = [sum(spill.take("interactive", 1.0, second + n / 1000) for n in range(1000)) for second in range(8)]
    assert taken[0] == pytest.approx(0.2 * 850 + 85, rel=0.1)  # the mean of the ramp's first second, and the burst
    assert taken[1] == pytest.approx(0.4 * 850, rel=0.1)
    assert taken[3] == pytest.approx(0.8 * 850, rel=0.1)
    assert taken[6] == pytest.approx(850, rel=0.02)


def test_after_a_pause_the_ramp_begins_anew() -> None:
    spill = Spill()
    spill.configure(1000.0)
    for n in range(100):
        spill.take("interactive", 1.0, n / 10)
    assert spill.snapshot(10.0).allowed == pytest.approx(850.0)
    assert spill.snapshot(30.0).allowed == pytest.approx(85.0)


def test_looking_does_not_start_the_ramp() -> None:
    spill = Spill()
    spill.configure(1000.0)
    for n in range(1000):
        assert spill.hindrance("interactive", n * 0.1) is None
    assert spill.snapshot(100.0).allowed == pytest.approx(85.0)


def test_the_lowest_class_is_shed_first_and_told_so() -> None:
    spill = Spill()
    spill.configure(100.0)
    spill.take("interactive", 5.0, 0.0)  # 8.5 in the bucket at first
    skip = spill.hindrance("batch", 0.0)
    assert skip is not None
    assert skip.reason is SkipReason.SHED_FIRST
    assert spill.hindrance("interactive", 0.0) is None
    spill.take("interactive", 5.0, 0.0)
    skip = spill.hindrance("interactive", 0.0)
    assert skip is not None
    assert skip.reason is SkipReason.NO_SPARE_CAPACITY
    assert skip.until == pytest.approx(1.5 / 8.5)
    assert not spill.take("batch", 1.0, 0.0)
    assert spill.snapshot(0.0).shed == {"batch": 1, "interactive": 0}


def test_a_full_target_takes_nothing() -> None:
    spill = Spill()
    spill.configure(100.0)
    busy(spill, 100.0, 0.0, 60.0)
    skip = spill.hindrance("interactive", 60.0)
    assert skip is not None
    assert (skip.reason, skip.detail) == (SkipReason.NO_SPARE_CAPACITY, "nothing to spare")


def test_a_dead_primary_at_full_load_leaves_the_secondary_below_85_percent() -> None:
    """Both hold 10,000 units/s; the primary ran at 100 %, the secondary at 60 %, a third of it all is batch."""
    rng = random.Random(5)
    spill = Spill()
    spill.configure(10_000.0)
    load = Rate(5.0)
    wanted = {"batch": 0.0, "interactive": 0.0}
    served = {"batch": 0.0, "interactive": 0.0}
    now, worst, own = 0.0, 0.0, 0.0
    while now < 180.0:
        now += rng.expovariate(64.0)
        cost = rng.expovariate(1 / 250.0)
        if rng.random() < 6.0 / 16.0:
            spill.served(cost, now)
            load.add(cost, now)
            own += cost if now > 60.0 else 0.0
        elif now > 60.0:
            cls = "batch" if rng.random() < 1 / 3 else "interactive"
            wanted[cls] += cost
            if spill.take(cls, cost, now):
                served[cls] += cost
                load.add(cost, now)
        if now > 30.0:
            worst = max(worst, load.per_s(now))
    assert (own + sum(served.values())) / 120.0 <= 0.85 * 10_000.0
    assert sum(served.values()) / 120.0 >= 0.20 * 10_000.0
    assert served["batch"] < 0.05 * wanted["batch"]
    assert served["interactive"] > 0.3 * wanted["interactive"]
    assert worst <= 10_000.0


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.1, 50.0), st.booleans()), min_size=1, max_size=150),
    st.floats(10.0, 500.0),
)
def test_no_more_spills_in_any_time_than_the_spare_of_that_time_a_burst_and_one_request(
    steps: list[tuple[float, float, bool]], capacity: float
) -> None:
    spill = Spill()
    spill.configure(capacity)
    spare = 0.85 * capacity
    now = 0.0
    taken: list[tuple[float, float]] = []
    for wait, cost, batch in steps:
        now += wait
        if spill.take("batch" if batch else "interactive", cost, now):
            taken.append((now, cost))
    for i in range(len(taken)):
        total = 0.0
        for at, cost in taken[i:]:
            total += cost
            assert total <= spare * (at - taken[i][0]) + spare + 50.0 + 1e-6
