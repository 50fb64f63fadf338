"""GCRA arithmetic in integers: one debt and the time it was true.

The generic cell rate algorithm keeps a bucket as one moving figure instead of a level and a refill job. Here
the figure is the *debt*: what has been taken and not yet earned back. Time pays it off.

    debt(now)   = max(0, debt - (now - at) * leak)
    admit k     iff  debt(now) + k * unit <= cap          then debt = that sum
    remaining   = (cap - debt) // unit                     units that would pass now
    wait for k  = ceil((debt + k * unit - cap) / leak)     never, if k * unit > cap
    reset       = ceil(debt / leak)

`unit` and `leak` are the limit's period in microseconds and its amount, divided by their greatest common
divisor: one unit weighs `unit` ticks and a microsecond pays `leak` ticks. Everything is an integer and no
division is ever rounded into the state, so no residue can gather. The textbook keeps an arrival time instead
of a debt; the debt survives a clock that jumps back (nothing is paid, nothing is lost), and a jump forward
pays at most what was owed.

A debt may pass `cap` when a request took more than it had reserved, but not `cap + max_debt`; what is cut off
there is counted. The shared store's script does the same sums in doubles, which hold integers exactly up to
2**53: a limit whose figures would not fit there gets a coarser tick, rounded so that it is slower, never faster
(by less than one part in a million for any plausible limit).
"""

from __future__ import annotations

from math import gcd

from ratelimit.limit import MAX_INTEGER, MICROSECONDS, Limit


def ticks(amount: int, period_s: int, span: int) -> tuple[int, int]:
    """(ticks one unit weighs, ticks a microsecond pays) such that `span` units still fit an exact double."""
    if amount == 0:
        return 1, 0
    period_us = period_s * MICROSECONDS
    divisor = gcd(period_us, amount)
    unit, leak = period_us // divisor, amount // divisor
    coarser = -(-(span * unit + leak) // (MAX_INTEGER >> 1))
    if coarser > 1:
        leak = max(1, leak // coarser)
        unit = -(-period_us * leak // amount)
    return unit, leak


class Bucket:
    """One rate limit's state. `debt` is in ticks and true at `at`; 0 <= debt <= ceiling always."""

    __slots__ = ("at", "cap", "ceiling", "cut", "debt", "leak", "limit", "refused", "unit")

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.unit, self.leak = ticks(limit.amount, limit.period_s, limit.burst + limit.max_debt)
        self.cap = limit.burst * self.unit
        self.ceiling = self.cap + limit.max_debt * self.unit
        self.debt = 0
        self.at = 0
        self.cut = 0  # units that could not be charged because the debt was at its ceiling
        self.refused = 0  # only of a shadow limit: how often it would have refused

    def owed(self, now: int) -> int:
        """The debt in ticks at `now`, without changing anything."""
        elapsed = now - self.at
        if elapsed <= 0:
            return self.debt
        debt = self.debt - elapsed * self.leak
        return max(0, debt)

    def wait_us(self, units: int, now: int) -> int | None:
        """Microseconds until `units` would pass: 0 if now, None if never."""
        cost = units * self.unit
        if cost > self.cap:
            return None
        over = self.owed(now) + cost - self.cap
        return -(-over // self.leak) if over > 0 else 0

    def remaining(self, now: int) -> int:
        """Units that would pass now; 0 when in debt."""
        room = self.cap - self.owed(now)
        return room // self.unit if room > 0 else 0

    def reset_us(self, now: int) -> int:
        """Microseconds until the bucket is full."""
        owed = self.owed(now)
        return -(-owed // self.leak) if owed else 0

    def charge(self, units: int, now: int) -> None:
        """Take `units` whether or not they are there, up to the ceiling."""
        debt = self.owed(now) + units * self.unit
        if debt > self.ceiling:
            self.cut += -(-(debt - self.ceiling) // self.unit)
            debt = self.ceiling
        self.debt = debt
        self.at = now

    def refund(self, units: int) -> None:
        """Give `units` back. Needs no time: paying off and giving back commute, both stop at zero."""
        debt = self.debt - units * self.unit
        self.debt = max(0, debt)

    def refund_unearned(self, units: int, since: int, now: int) -> None:
        """Give back only what the bucket cannot have refilled since `since` (a strict limit)."""
        ticks_back = units * self.unit - max(0, now - since) * self.leak
        if ticks_back > 0:
            debt = self.owed(now) - ticks_back
            self.debt = max(0, debt)
            self.at = now

    def reshape(self, limit: Limit) -> None:
        """Follow a changed limit: the units owed stay owed, at the new price of a unit."""
        old_unit, owed = self.unit, self.debt
        self.limit = limit
        self.unit, self.leak = ticks(limit.amount, limit.period_s, limit.burst + limit.max_debt)
        self.cap = limit.burst * self.unit
        self.ceiling = self.cap + limit.max_debt * self.unit
        if self.unit != old_unit:
            owed = -(-owed // old_unit) * self.unit
        self.debt = min(owed, self.ceiling)

    def forgettable(self, now: int) -> bool:
        """Whether a new bucket would behave the same: it owes nothing."""
        return self.owed(now) == 0
