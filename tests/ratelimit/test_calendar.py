"""UTC days and calendar months without a clock, against the standard library's calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from ratelimit.budget import DAY_US, Budget, first_day, month_of, period_end, period_of
from ratelimit.limit import Dimension, Level, Limit

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.integers(0, 200_000))
def test_month_of_a_day_is_the_calendar_s(day: int) -> None:
    date = EPOCH + timedelta(days=day)
    assert month_of(day) == date.year * 12 + date.month - 1
    first = date.replace(day=1)
    assert first_day(month_of(day)) == (first - EPOCH).days


def micros(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp()) * 1_000_000  # type: ignore[arg-type]


def test_period_ends_at_the_boundary_and_not_before() -> None:
    leap = micros(2028, 2, 29)
    assert period_end(period_of(leap, monthly=True), monthly=True) == micros(2028, 3, 1)
    assert period_end(period_of(leap, monthly=False), monthly=False) == micros(2028, 3, 1)
    assert period_of(micros(2028, 3, 1) - 1, monthly=True) == period_of(leap, monthly=True)
    assert period_of(micros(2028, 12, 31), monthly=True) + 1 == period_of(micros(2029, 1, 1), monthly=True)


def test_a_clock_that_was_years_ahead_does_not_lock_a_budget_until_then() -> None:
    budget = Budget(Limit(Level.KEY, "k", Dimension.MONEY_MONTH, 100))
    budget.held += budget.hold_for(60, 60, micros(2031, 5, 5))
    assert budget.free(micros(2026, 12, 1)) == 40, "what was spent then stays spent now"
    assert budget.free(micros(2027, 1, 1)) == 100
    assert budget.ends == micros(2027, 2, 1)


def test_wait_for_an_exhausted_budget_ends_with_its_period() -> None:
    budget = Budget(Limit(Level.KEY, "k", Dimension.MONEY_DAY, 100))
    now = micros(2026, 12, 1) + DAY_US - 5
    budget.held += budget.hold_for(100, 100, now)
    assert budget.wait_us(1, now) == 1_000_000, "only held: it may come back when a request ends"
    budget.settle(100, 100, budget.period)
    assert budget.wait_us(1, now) == 5
    assert budget.wait_us(101, now) is None
    assert not budget.forgettable(now)
    assert budget.forgettable(now + 5)
