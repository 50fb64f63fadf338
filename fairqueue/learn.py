"""Seats of a replica that nobody states, learned from what it takes; and the safety net on what is stated.

`SeatLearner`. The limit starts small and grows by one with every first token that comes while the limit is used
(each proves a seat, so it doubles per round trip), until the replica shows that it is full: requests waiting inside
an engine, a 429 from an account. Then it is cut by a tenth, at most once per `calm_s`, and grows by about one per
round trip from there (AIMD), quickly again once nothing was wrong for a while: after a hiccup in the first seconds a
slow climb would take minutes. A slow answer alone, of an engine that says nothing waits in it, cuts but does not end
the quick growth. It never falls below what the engine says it runs, and it does not grow while unused.
An engine is found full by slowness too; that never takes it below `least`, and up to `good` it grows back quickly.

`SafetyNet`. A factor on the dispatch budget of a replica: an SLO breached in a window multiplies it by 0.9, a window
within SLO and at least half used adds 0.02, one well within it 0.1 up to 1, clamped to [0.5, 1.2]. Fits are optimistic
by some percent (queueing is not in them); this is what corrects them. A second one, never above 1, shrinks the KV limit
while the engine preempts: then outputs are longer than predicted, or somebody else uses the engine.
"""

from __future__ import annotations

_START = 2.0
_FORGIVEN = 5.0  # calm times without trouble, after which growth is quick again: what was met may have been a hiccup


class SeatLearner:
    """A limit on sequences in flight, for one replica."""

    __slots__ = ("_calm_until", "_slow_start", "calm_s", "good", "least", "value")

    def __init__(self, calm_s: float = 1.0) -> None:
        self.value = _START
        self.calm_s = calm_s
        self._slow_start = True
        self._calm_until = float("-inf")
        self.good = 0.0  # sequences that were lately carried within the objectives: growth up to here is quick
        self.least = 0  # where slowness stops to cut

    @property
    def limit(self) -> int:
        return max(1, int(self.value))

    def accepted(self, inflight: int, now: float) -> None:
        """The replica began to answer a request while `inflight` sequences were in flight."""
        quick = self._slow_start or self.value < self.good or now > self._calm_until + _FORGIVEN * self.calm_s
        if 2 * inflight >= self.limit if quick else inflight >= self.limit - 1:
            self.value += 1.0 if quick else 1.0 / self.value

    def congested(self, now: float, running: int | None, *, certain: bool = True) -> None:
        """The replica is full. `running` is what it runs, if it says so. Not `certain`: only slow, as in a hiccup."""
        if now < self._calm_until:
            return
        self._calm_until = now + self.calm_s
        if certain:
            self._slow_start = False
        self.value = max(1.0, self.value * 0.9, float(running or 0), float(self.least))


class SafetyNet:
    """A factor on what a replica is given, between `low` and `high`."""

    __slots__ = ("_high", "_low", "factor")

    def __init__(self, low: float = 0.5, high: float = 1.2) -> None:
        self._low = low
        self._high = high
        self.factor = 1.0

    def window(self, *, breached: bool, used: float, well: bool = False) -> None:
        """One window has ended: whether it went wrong or `well`, and what part of the budget was used (0..1)."""
        if breached:
            self.factor = max(self._low, self.factor * 0.9)
        elif well and self.factor < 1.0:
            self.factor = min(1.0, self.factor + 0.1)  # what went wrong is over
        elif used >= 0.5:
            self.factor = min(self._high, self.factor + 0.02)


class CacheLearner:
    """KV tokens of an engine that tells only what part of them is used: own tokens over that part.

    Own tokens can only be too few (others may use the engine, or it sets aside more than is used), so the figure errs
    on the small side."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float | None = None

    def seen(self, own_tokens: float, used_ratio: float) -> None:
        if used_ratio < 0.1 or own_tokens <= 0:
            return
        sample = own_tokens / used_ratio
        self.value = sample if self.value is None else self.value + 0.3 * (sample - self.value)
