"""What a target did lately: rolling counts, and its usual time to first token by prompt size.

Two small measures the breaker stands on. Both cost a few additions per request and hold a fixed amount of memory.

*Window*: `span` seconds cut into equal slots; a slot is cleared when time reaches it again, so the sums always cover
between `span - slot` and `span` seconds.

*Baseline*: the time to first token follows the prompt's length, so one figure for all requests would call long prompts
slow and never notice short ones. Prompts are sorted by the power of two of their length; each size keeps a histogram
of times in quarter octaves (a step is 19 %) and reads its 95th percentile from it. Old counts are halved as new ones
come, so a size remembers about its last `MEMORY` answers. A slow answer weighs only an eighth: a bad spell must not
become the norm before it trips the breaker, while a lasting change does become the norm after some hundreds of answers.
"""

from __future__ import annotations

import math

SIZES = 22
"""Prompt sizes told apart: 0, 1, 2-3, 4-7, … and everything from 2^20 tokens."""
BINS = 80
"""Quarter octaves from 1 ms to 2^20 ms."""
MEMORY = 1024.0
ENOUGH = 20.0
"""Answers a size needs before its percentile is believed."""
REFRESH = 16
"""Answers between two readings of a percentile."""
SLOW_WEIGHT = 0.125


class Window:
    """Answers, failures and slow answers of the last `span` seconds."""

    __slots__ = ("_fails", "_ns", "_per_s", "_slots", "_slows", "_tick", "fails", "n", "slow")

    def __init__(self, span: float = 30.0, slots: int = 10) -> None:
        self._slots = slots
        self._per_s = slots / span
        self._tick = -(1 << 62)
        self._ns = [0] * slots
        self._fails = [0] * slots
        self._slows = [0] * slots
        self.n = 0
        """Sum of all slots, answers and failures alike."""
        self.fails = 0
        self.slow = 0

    def add(self, now: float, n: int, fails: int, slow: int) -> None:
        """Count `n` answers, of them `fails` failures and `slow` slow ones, at `now`."""
        tick = int(now * self._per_s)
        if tick > self._tick:
            self._turn(tick)
        at = self._tick % self._slots
        self._ns[at] += n
        self.n += n
        if fails:
            self._fails[at] += fails
            self.fails += fails
        if slow:
            self._slows[at] += slow
            self.slow += slow

    def fresh(self) -> tuple[int, int]:
        """Answers and failures of the newest two slots alone."""
        at, before = self._tick % self._slots, (self._tick - 1) % self._slots
        return self._ns[at] + self._ns[before], self._fails[at] + self._fails[before]

    def age(self, now: float) -> None:
        """Drop what is older than the span, without counting anything."""
        tick = int(now * self._per_s)
        if tick > self._tick:
            self._turn(tick)

    def clear(self) -> None:
        """Forget everything."""
        self._ns = [0] * self._slots
        self._fails = [0] * self._slots
        self._slows = [0] * self._slots
        self.n = self.fails = self.slow = 0

    def _turn(self, tick: int) -> None:
        if tick - self._tick >= self._slots:
            self.clear()
        else:
            for passed in range(self._tick + 1, tick + 1):
                at = passed % self._slots
                self.n -= self._ns[at]
                self.fails -= self._fails[at]
                self.slow -= self._slows[at]
                self._ns[at] = self._fails[at] = self._slows[at] = 0
        self._tick = tick


class Baseline:
    """The usual (95th percentile) time to first token of one target, by prompt size."""

    __slots__ = ("_factor", "_floor", "_rows", "_since", "_totals", "limits")

    def __init__(self, factor: float, floor_s: float | None) -> None:
        """`factor` times the percentile, and never under `floor_s` (the target's own TTFT goal), is slow."""
        self._factor = factor
        self._floor = floor_s
        self._rows: list[list[float] | None] = [None] * SIZES
        self._totals = [0.0] * SIZES
        self._since = [0] * SIZES
        self.limits = [math.inf] * SIZES
        """Seconds above which an answer is slow, by size. Never, before a size has `ENOUGH` answers: nobody knows yet
        what is usual there, and the goal alone says nothing about a prompt of 50,000 tokens.
        """

    def add(self, ttft: float, prompt_tokens: int) -> bool:
        """Learn from one answer (`ttft` seconds); True if it was slow for its size."""
        size = prompt_tokens.bit_length()
        if size >= SIZES:
            size = SIZES - 1
        slow = ttft > self.limits[size]
        row = self._rows[size]
        if row is None:
            row = self._rows[size] = [0.0] * BINS
        row[bin_of(ttft)] += SLOW_WEIGHT if slow else 1.0
        self._totals[size] += SLOW_WEIGHT if slow else 1.0
        self._since[size] += 1
        if self._since[size] >= REFRESH:
            self._refresh(size, row)
        return slow

    def usual(self, prompt_tokens: int) -> float | None:
        """The 95th percentile for this size in seconds, None while too few answers are known."""
        size = min(prompt_tokens.bit_length(), SIZES - 1)
        row = self._rows[size]
        return None if row is None or self._totals[size] < ENOUGH else _percentile(row, self._totals[size])

    def _refresh(self, size: int, row: list[float]) -> None:
        self._since[size] = 0
        if self._totals[size] >= MEMORY:
            row[:] = [count * 0.5 for count in row]
            self._totals[size] *= 0.5
        if self._totals[size] >= ENOUGH:
            usual = _percentile(row, self._totals[size])
            self.limits[size] = max(self._factor * usual, self._floor or 0.0)


def bin_of(seconds: float) -> int:
    """The quarter octave of a time: bin b holds [2^(b/4), 2^((b+1)/4)) milliseconds."""
    if seconds <= 0.001:
        return 0
    return min(int(4.0 * math.log2(seconds * 1000.0)), BINS - 1)


def _percentile(row: list[float], total: float, share: float = 0.95) -> float:
    wanted = total * share
    for at, count in enumerate(row):
        wanted -= count
        if wanted <= 1e-9:
            return float(2.0 ** ((at + 1) / 4.0)) / 1000.0
    return float(2.0 ** (BINS / 4.0)) / 1000.0
