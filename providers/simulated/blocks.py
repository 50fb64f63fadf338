"""Paged cache of one engine: blocks held by sequences, and full blocks kept for prompts that start alike.

A block is counted, never numbered: nothing here depends on where it lies. It is in one of three states:

- blank: holds nothing worth keeping;
- held: some sequence needs it. Either private (one sequence, partly filled or not shareable), or published under a key
  with a count of the sequences that hold it;
- idle: published, held by nobody, kept until room is needed. The one idle for longest goes first.

blank + held + idle is always the size of the pool. Idle blocks count as free, as engines report it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence


class BlockPool:
    """The blocks of one engine. Every block taken or acquired must be given back by `release`, once."""

    __slots__ = ("_blank", "_holders", "_idle", "evictions", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self._blank = total
        # Published blocks by key, and how many sequences hold each. Zero exactly for the keys in `_idle`.
        self._holders: dict[Hashable, int] = {}
        # Published blocks that nobody holds, longest idle first (a dict keeps the order in which keys came).
        self._idle: dict[Hashable, None] = {}
        self.evictions = 0

    @property
    def available(self) -> int:
        """Blocks that could be taken now, evicting idle ones."""
        return self._blank + len(self._idle)

    @property
    def held(self) -> int:
        """Blocks that sequences hold; a shared block counts once."""
        return self.total - self._blank - len(self._idle)

    @property
    def published(self) -> int:
        """Blocks that have a key, held or idle."""
        return len(self._holders)

    def match(self, keys: Sequence[Hashable]) -> tuple[int, int]:
        """(how many leading keys are here, how many of these are idle)."""
        holders = self._holders
        hits = idle = 0
        for key in keys:
            count = holders.get(key)
            if count is None:
                break
            hits += 1
            if count == 0:
                idle += 1
        return hits, idle

    def acquire(self, keys: Iterable[Hashable]) -> None:
        """Hold published blocks once more. Every key must have matched."""
        for key in keys:
            count = self._holders[key]
            if count == 0:
                del self._idle[key]
            self._holders[key] = count + 1

    def take(self, count: int) -> bool:
        """Turn `count` blank blocks into private ones, evicting idle blocks if need be; False takes nothing."""
        if count > self._blank:
            if count > self._blank + len(self._idle):
                return False
            for _ in range(count - self._blank):
                key = next(iter(self._idle))
                del self._idle[key]
                del self._holders[key]
                self._blank += 1
                self.evictions += 1
        self._blank -= count
        return True

    def publish(self, key: Hashable) -> bool:
        """Give a private block a key, so that others find it. False: the key exists already, the block stays private.

        After True the caller holds the block by its key and no longer as a private one.
        """
        if key in self._holders:
            return False
        self._holders[key] = 1
        return True

    def release(self, keys: Sequence[Hashable], private: int) -> None:
        """Give back one sequence's blocks. The end of a prompt is evicted before its beginning, which more share."""
        self._blank += private
        holders = self._holders
        for key in reversed(keys):
            count = holders[key] - 1
            holders[key] = count
            if count == 0:
                self._idle[key] = None

    def forget(self) -> None:
        """Drop every idle block."""
        for key in self._idle:
            del self._holders[key]
        self._blank += len(self._idle)
        self._idle.clear()
