"""What is kept of limits that nobody uses: nothing, a few at a time.

A group can be forgotten when none of its requests is open and every state in it is what a new one would be: a full
bucket, an untouched budget, a free slot. Looking at all of them at once would hold everybody up, so each new group
pays for looking at two old ones, in a ring. If g groups come a second and each stays needed for T seconds, the ring
holds  n = 2 * g * T  in the steady state, whatever came before. A thousand are kept without a look, so that the
principals of an ordinary day are not made anew after every pause.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from ratelimit.group import Group

LOOKS_PER_GROUP = 2
LOOKS_AT_ONCE = 16
KEPT = 1_024

G = TypeVar("G", bound=Group)


class Forgetting(Generic[G]):
    """Every live group, and how many of them refer to each state, by its limit's key."""

    def __init__(self) -> None:
        self._ring: deque[G] = deque()
        self._referred: Counter[str] = Counter()
        self.owed = 0  # looks that new groups have yet to pay for; 0 while there are few

    def __len__(self) -> int:
        return len(self._ring)

    def add(self, group: G) -> None:
        """A new group, or one that had been forgotten."""
        self._ring.append(group)
        self._referred.update(limit.key for limit in group.limits)
        if len(self._ring) > KEPT:
            self.owed += LOOKS_PER_GROUP

    def pay(self, needless: Callable[[G], bool]) -> Iterator[tuple[G, list[str]]]:
        """A few of the looks that are owed."""
        count = min(self.owed, LOOKS_AT_ONCE)
        self.owed = self.owed - count if len(self._ring) > KEPT else 0
        return self.look(count, needless)

    def look(self, count: int, needless: Callable[[G], bool]) -> Iterator[tuple[G, list[str]]]:
        """Look at `count` groups. Gives each that is forgotten with the keys no group refers to any more."""
        for _ in range(min(count, len(self._ring))):
            group = self._ring.popleft()
            if group.open or not needless(group):
                self._ring.append(group)
                continue
            group.live = False
            freed = []
            for limit in group.limits:
                self._referred[limit.key] -= 1
                if not self._referred[limit.key]:
                    del self._referred[limit.key]
                    freed.append(limit.key)
            yield group, freed
