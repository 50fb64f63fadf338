"""Calendar money: integer micro-USD per UTC day or calendar month.

A budget is not a bucket. It does not refill by the second; it starts whole at a calendar boundary, in UTC.

    free = amount - spent - held        `held` is what open requests may still cost, `spent` what ended ones did
    admit iff the worst case of the request <= free
    hold   the estimate, while at least `near` (a tenth of the amount) would still be free afterwards,
           else the worst case

So one call alone can never pass the budget, however large its output grows. What can pass it is many calls
admitted far from the end, each holding an estimate: the overshoot is at most the sum, over requests open at
once, of (actual - held), less the tenth that was kept. An `exact` limit always holds the worst case: its
overshoot is zero as long as the worst case is one.

A period never goes back: when a clock steps back over midnight the new day goes on, so a step can never make
a budget start twice. A request is charged to the period in which it was reserved; one that ends after its
period changes nothing in the next.
"""

from __future__ import annotations

from ratelimit.limit import MICROSECONDS, Dimension, Limit

DAY_US = 86_400 * MICROSECONDS
NEAR_DIVISOR = 10
"""A budget is near its end when less than one part in this many would stay free."""


def month_of(day: int) -> int:
    """Months since year 0 of a day counted from 1970-01-01 (Gregorian; eras of 400 years, years from March)."""
    day += 719_468
    era = day // 146_097
    of_era = day - era * 146_097
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    march_month = (5 * of_year + 2) // 153
    return (year + era * 400) * 12 + march_month + 2


def first_day(month: int) -> int:
    """The day, counted from 1970-01-01, on which a month of `month_of` begins; its inverse."""
    year, march_month = divmod(month - 2, 12)
    era = year // 400
    of_era = year - era * 400
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + (153 * march_month + 2) // 5 - 719_468


def period_of(now: int, *, monthly: bool) -> int:
    """The number of the UTC day or calendar month in which `now` (Unix microseconds) lies."""
    day = now // DAY_US
    return month_of(day) if monthly else day


def period_end(period: int, *, monthly: bool) -> int:
    """Unix microseconds at which a period ends and the next begins."""
    return (first_day(period + 1) if monthly else period + 1) * DAY_US


class Budget:
    """One money limit's state, in micro-USD. `held` is the sum of the holds of this period's open requests."""

    __slots__ = ("amount", "ends", "exact", "held", "limit", "monthly", "near", "period", "refused", "spent", "starts")

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.monthly = limit.dimension is Dimension.MONEY_MONTH
        self.amount = limit.amount
        self.near = limit.amount // NEAR_DIVISOR
        self.exact = limit.exact
        self.spent = 0
        self.held = 0
        self.period = 0
        self.starts = 0
        self.ends = 0
        self.refused = 0

    def roll(self, now: int) -> None:
        """Enter the period of `now` if it is a later one. Call when `now` is outside [starts, ends)."""
        period = period_of(now, monthly=self.monthly)
        if period > self.period:
            self.spent = self.held = 0
        elif period == self.period - 1:
            return  # a clock that stepped back over the boundary: the new period goes on
        # More than one period back: the clock had been far ahead. Keep what was spent, return to today.
        self.period = period
        self.ends = period_end(period, monthly=self.monthly)
        self.starts = (first_day(period) if self.monthly else period) * DAY_US

    def hold_for(self, estimate: int, worst: int, now: int) -> int:
        """What a request would hold: -1 if it does not pass."""
        if not self.starts <= now < self.ends:
            self.roll(now)
        free = self.amount - self.spent - self.held
        if worst > free:
            return -1
        return estimate if free - estimate >= self.near and not self.exact else worst

    def free(self, now: int) -> int:
        """Micro-USD neither spent nor held."""
        if not self.starts <= now < self.ends:
            self.roll(now)
        return max(0, self.amount - self.spent - self.held)

    def wait_us(self, worst: int, now: int) -> int | None:
        """0 if `worst` passes; a second if only open holds stand against it; else until the period ends."""
        if worst > self.amount:
            return None
        if worst <= self.free(now):
            return 0
        if worst <= self.amount - self.spent:
            return MICROSECONDS
        return self.ends - now

    def settle(self, hold: int, actual: int, period: int) -> None:
        """Replace a hold by what was paid, if its period is still the current one."""
        if period == self.period:
            self.held -= hold
            self.spent += actual

    def seed(self, spent: int, now: int) -> None:
        """At least so much was spent in the period of `now`: a restart forgot it, a ledger did not."""
        self.free(now)
        self.spent = max(self.spent, spent)

    def reshape(self, limit: Limit) -> None:
        """Follow a changed limit: what was spent and held stays so."""
        self.limit = limit
        self.amount = limit.amount
        self.near = limit.amount // NEAR_DIVISOR
        self.exact = limit.exact

    def forgettable(self, now: int) -> bool:
        """Whether a new budget would behave the same: nothing spent or held in the current period."""
        return self.free(now) == self.amount
