"""Weights between classes, with a trickle: start-time fair queuing over the classes' cost.

Interactive goes before batch by a wide ratio (100:1 by default), not strictly: each class has a counter of granted
cost divided by its weight, the waiting class with the least counter goes next. So while both wait, batch keeps
w_batch / (w_batch + w_interactive) of the work, whatever interactive offers; that is its trickle. A class that starts
to wait is lifted to the virtual time, so it earns nothing while it has nothing to do.
"""

from __future__ import annotations

from collections.abc import Sequence


class ClassClock:
    """Counters of the classes, by class index."""

    __slots__ = ("counters", "virtual", "weights")

    def __init__(self, weights: Sequence[float]) -> None:
        self.reweigh(weights)
        self.counters = [0.0] * len(weights)
        self.virtual = 0.0

    def reweigh(self, weights: Sequence[float]) -> None:
        """Weights from now on; what was charged stays as it was."""
        if any(w <= 0 for w in weights):
            raise ValueError("class weights must be above 0")
        self.weights = tuple(weights)

    def activate(self, index: int) -> None:
        """The class starts to wait."""
        if self.counters[index] < self.virtual:
            self.counters[index] = self.virtual

    def follow(self, least: int) -> None:
        """`least` is the waiting class with the least counter."""
        if self.counters[least] > self.virtual:
            self.virtual = self.counters[least]

    def charge(self, index: int, cost: float, weight: float) -> None:
        """Cost granted, or a correction of it, at the weight that the class had at the grant."""
        self.counters[index] += cost / weight
