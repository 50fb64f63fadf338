"""Output-length predictors for the scenarios: exact, wrong by a factor, and learned per tenant."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable
from random import Random

from bench.scenario.traffic import Ask


class Exact:
    """Knows the future."""

    def expected(self, ask: Ask) -> int:
        return ask.output

    def remaining(self, ask: Ask) -> Callable[[int], int]:
        return lambda n: max(0, ask.output - n)

    def learn(self, ask: Ask) -> None:
        pass


class Wrong:
    """Off by a random factor between 1 / `factor` and `factor`, the same for one request throughout."""

    def __init__(self, seed: int, factor: float = 3.0) -> None:
        self._seed = seed
        self._factor = factor

    def expected(self, ask: Ask) -> int:
        error = Random(f"{self._seed}/{ask.tenant}/{ask.at}").uniform(-1.0, 1.0)
        return max(1, round(ask.output * self._factor**error))

    def remaining(self, ask: Ask) -> Callable[[int], int]:
        guess = self.expected(ask)
        return lambda n: max(1, guess - n)

    def learn(self, ask: Ask) -> None:
        pass


class Learned:
    """The conditional quantile of a tenant's last answers: of those longer than n, the q-quantile less n.

    Before it has 20 of them, of everybody's."""

    def __init__(self, quantile: float = 0.5, window: int = 500, fallback: int = 1024) -> None:
        self._q = quantile
        self._window = window
        self._fallback = fallback
        self._recent: dict[str, deque[int]] = {}
        self._sorted: dict[str, list[int]] = {}

    def expected(self, ask: Ask) -> int:
        return min(ask.cap, self._left(ask.tenant, 0))

    def _left(self, tenant: str, n: int) -> int:
        lengths = self._sorted.get(tenant, [])
        if len(lengths) < 20:
            lengths = self._sorted.get("", [])
        if len(lengths) < 20:
            return max(self._fallback - n, 16)
        at = bisect_right(lengths, n)
        if at == len(lengths):
            return max(16, n // 2)  # longer than all seen: expect half as much again
        return max(1, lengths[at + int(self._q * (len(lengths) - at))] - n)

    def remaining(self, ask: Ask) -> Callable[[int], int]:
        return lambda n: min(max(ask.cap - n, 0), self._left(ask.tenant, n))

    def learn(self, ask: Ask) -> None:
        for whose in (ask.tenant, ""):
            self._add(whose, ask)

    def _add(self, whose: str, ask: Ask) -> None:
        recent = self._recent.setdefault(whose, deque())
        lengths = self._sorted.setdefault(whose, [])
        recent.append(ask.output)
        insort(lengths, ask.output)
        if len(recent) > self._window:
            old = recent.popleft()
            del lengths[bisect_right(lengths, old) - 1]
