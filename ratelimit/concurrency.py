"""Leased slots: how many requests of one subject may run at once.

A slot belongs to a reservation and ends with it. A counter would leak when its owner dies, so every slot is
leased: in one process the limiter settles a reservation that nobody has renewed for its lease, and in the shared
store each slot is a member of a sorted set scored by the end of its lease. Nothing here needs the time: the lease
is the reservation's.
"""

from __future__ import annotations

from ratelimit.limit import MICROSECONDS, Limit

RETRY_US = MICROSECONDS
"""When a slot frees is unknown; a second is what a caller is told."""


class Slots:
    """One concurrency limit's state. `used` is the number of open reservations that hold a slot."""

    __slots__ = ("amount", "limit", "refused", "used")

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.amount = limit.amount
        self.used = 0
        self.refused = 0

    def remaining(self) -> int:
        return max(0, self.amount - self.used)

    def wait_us(self) -> int | None:
        """0 if a slot is free, None if there are none at all, else a guess."""
        if self.amount == 0:
            return None
        return 0 if self.used < self.amount else RETRY_US

    def reshape(self, limit: Limit) -> None:
        """Follow a changed limit; who holds a slot keeps it, above a lowered amount too."""
        self.limit = limit
        self.amount = limit.amount

    def forgettable(self) -> bool:
        return self.used == 0
