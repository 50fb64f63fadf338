"""LoRA slots of one engine: which adapters are in, how many sequences use each, which one makes room for another."""

from __future__ import annotations


class AdapterSlots:
    """At most `slots` adapters are in at once. One in use is never evicted; else the one used longest ago goes."""

    __slots__ = ("_users", "loads", "slots")

    def __init__(self, slots: int) -> None:
        self.slots = slots
        # Adapters that are in, least recently used first, and the running sequences of each.
        self._users: dict[str, int] = {}
        self.loads = 0

    @property
    def in_use(self) -> tuple[str, ...]:
        """Adapters with running sequences, sorted."""
        return tuple(sorted(name for name, users in self._users.items() if users))

    def admits(self, name: str) -> bool:
        """Whether a sequence of this adapter could start now."""
        return name in self._users or len(self._users) < self.slots or 0 in self._users.values()

    def enter(self, name: str) -> bool:
        """A sequence starts; `admits` must hold. True: the adapter had to be brought in."""
        users = self._users.pop(name, None)
        if users is None and len(self._users) >= self.slots:
            idle = next(other for other, count in self._users.items() if count == 0)
            del self._users[idle]
        self._users[name] = (users or 0) + 1
        if users is None:
            self.loads += 1
        return users is None

    def leave(self, name: str) -> None:
        """A sequence of this adapter stops running."""
        self._users[name] -= 1
