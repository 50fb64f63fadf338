"""What the requests of one replica experience, by windows, and what follows from it: speed, pace, capacity.

Everything here comes from events that the gateway sees anyway (grants, first tokens, progress, ends). A window is
closed by the first event after its end. It feeds the fit and tells the safety net whether the objectives were met.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairqueue.capacity import Figure, Source
from fairqueue.fit import Load, SpeedFit, solve_load
from fairqueue.item import Costs

WINDOW_S = 2.0
_ENOUGH_TOKENS = 20  # in a window, before its mean says anything
_MIX = 0.02  # weight of the newest request in the mean sizes
_DAY_S = 86_400.0
_SLOT_S = 600.0  # one capacity sample is kept per so many seconds


@dataclass(frozen=True, slots=True)
class WindowSeen:
    """A closed window. Seconds; tokens; None = not seen."""

    token_s: float | None  # mean time between tokens
    kv_tokens: float
    prefill_per_s: float
    sequences: float  # decoding side by side, mean
    late: float  # part of the first tokens that came later than they should, 0..1


class Meter:
    """Sums of the open window, mean sizes, and the capacity measured over a day."""

    __slots__ = (
        "_began",
        "_done",
        "_first",
        "_kv_seconds",
        "_late",
        "_samples",
        "_seconds",
        "_started",
        "_tokens",
        "cost",
        "ends",
        "fit",
        "output",
        "prompt",
    )

    def __init__(self) -> None:
        self.fit = SpeedFit()
        self.ends = float("-inf")  # of the open window; no window is open before the first event
        self._began = 0.0
        self._done = 0.0  # prefill tokens done when it began
        self._tokens = 0
        self._seconds = 0.0  # sum of times between tokens
        self._kv_seconds = 0.0  # KV tokens in use, weighted by those times
        self._first = 0
        self._late = 0
        self.prompt = 0.0  # mean uncached prompt tokens of a request; 0 = none seen
        self.output = 0.0
        self.cost = 0.0  # mean cost units
        self._started: float | None = None  # first capacity sample
        self._samples: dict[int, float] = {}  # cost units/s by slot of the last day: the least seen in it

    def tokens(self, count: int, seconds: float, kv_tokens: int) -> None:
        """`count` more tokens of one sequence came in `seconds`."""
        self._tokens += count
        self._seconds += seconds
        self._kv_seconds += seconds * kv_tokens

    def first_token(self, *, late: bool) -> None:
        self._first += 1
        if late:
            self._late += 1

    def ended(self, prompt: int, output: int, cost: float) -> None:
        """A request was served: it counts in the mean sizes."""
        if not self.cost:
            self.prompt, self.output, self.cost = float(prompt), float(output), cost
            return
        self.prompt += _MIX * (prompt - self.prompt)
        self.output += _MIX * (output - self.output)
        self.cost += _MIX * (cost - self.cost)

    def close(self, now: float, prefill_done: float) -> WindowSeen | None:
        """Close the open window and open the next; None if it was the first or nothing ran in it."""
        began, done, tokens, seconds = self._began, self._done, self._tokens, self._seconds
        kv_seconds, first, late = self._kv_seconds, self._first, self._late
        opened = self.ends > float("-inf")
        self._began, self.ends, self._done = now, now + WINDOW_S, prefill_done
        self._tokens = self._first = self._late = 0
        self._seconds = self._kv_seconds = 0.0
        # A window that stayed open long past its end saw a pause, and says little about any load.
        if not opened or now - began > 3.0 * WINDOW_S or not (tokens or first):
            return None
        token_s = seconds / tokens if tokens >= _ENOUGH_TOKENS else None
        seen = WindowSeen(
            token_s,
            kv_seconds / seconds if seconds > 0 else 0.0,
            max(0.0, prefill_done - done) / (now - began),
            seconds / (now - began),
            late / first if first else 0.0,
        )
        if token_s is not None and token_s > 0:
            self.fit.add(token_s, seen.kv_tokens, seen.prefill_per_s)
        return seen

    def load(self, tpot_slo_s: float, kv_tokens: float | None, seats: float | None) -> Load | None:
        """The most load within the objective at the mix seen, if speed and mix are known."""
        speed = self.fit.speed
        if speed is None or not self.cost:
            return None
        return solve_load(
            speed,
            tpot_slo_s=tpot_slo_s,
            prompt_tokens=self.prompt,
            output_tokens=self.output,
            kv_tokens=kv_tokens,
            seats=seats,
        )

    def reprice(self, old: Costs, new: Costs) -> None:
        """Costs are counted otherwise from now on: what was measured in the old units, in the new, at the mix seen."""
        if not self.cost:
            return
        prompt, output = round(self.prompt), round(self.output)
        factor = new.of(prompt, 0, output) / old.of(prompt, 0, output)
        self.cost *= factor
        self._samples = {slot: rate * factor for slot, rate in self._samples.items()}

    def sample(self, cost_rate: float, now: float) -> None:
        """Capacity measured at this moment, cost units/s."""
        if self._started is None:
            self._started = now
        slot = int(now / _SLOT_S)
        self._samples[slot] = min(self._samples.get(slot, cost_rate), cost_rate)
        if len(self._samples) > _DAY_S / _SLOT_S + 1:
            oldest = slot - int(_DAY_S / _SLOT_S)
            self._samples = {k: v for k, v in self._samples.items() if k >= oldest}

    def capacity(self, now: float) -> Figure:
        """Cost units/s that were there 90 % of the last day; provisional before a day of data."""
        if not self._samples or self._started is None:
            return Figure(None, Source.UNKNOWN)
        ordered = sorted(self._samples.values())
        return Figure(ordered[len(ordered) // 10], Source.FIT, provisional=now - self._started < _DAY_S)
