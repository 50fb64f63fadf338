"""The waiting line of one engine, by arrival or by priority and then arrival; a preempted sequence keeps its place."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from providers.simulated.sequence import Phase, Sequence


class WaitingLine:
    """A heap in which dropped sequences stay until they come up or until they are half of it."""

    __slots__ = ("_by_priority", "_heap", "_size")

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._heap: list[tuple[int, int, Sequence]] = []
        # Sequences in the heap that still wait; never more than its length.
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, sequence: Sequence) -> None:
        """Put a sequence in its place: before everything that arrived after it."""
        priority = sequence.request.priority if self._by_priority else 0
        heappush(self._heap, (priority, sequence.arrival, sequence))
        self._size += 1

    def pop(self) -> Sequence | None:
        """The next sequence, or None when nobody waits."""
        while self._heap:
            sequence = heappop(self._heap)[2]
            if sequence.phase is Phase.WAITING:
                self._size -= 1
                return sequence
        return None

    def drop(self, sequence: Sequence) -> None:
        """A waiting sequence leaves; the caller gives it another phase before it calls anything else here."""
        self._size -= 1
        if len(self._heap) > 64 and 2 * self._size < len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2] is not sequence and entry[2].phase is Phase.WAITING]
            heapify(self._heap)
