"""Prefill waiting inside one engine: at most one chunk of it, and no faster than decode can bear.

An engine prefills in the order it received requests and knows no tenants, so prefill that waits inside it is outside
all fairness: with 26 prompts let in at once, seconds of prefill stand in front of the next tenant whatever its rank.
Two gates keep it small.

The line: a request may enter while the unfinished uncached prompt tokens of granted requests are at most one chunk,
so the engine always has its next chunk at hand and never much more. A first token tells that a prompt is through.
Between first tokens the progress of the oldest is taken from the clock at the known speed; what is credited so is
bounded by the oldest prompt and one chunk, so a wrong speed lets at most that much in. With neither chunk nor speed
known the bound is one request at a time; once a speed is learned it is a share of the TTFT objective in engine time.
A request whose answer comes whole shows no first token: it is taken to be through after the time its prompt needs.

The pace: in a second of wall time prefill takes d * rate (d = seconds per prefill token), the rest is decode steps of
`base` seconds, so TPOT = base / (1 - d * rate), and keeping it within its objective asks

    rate <= (1 - base / tpot_slo) / d

with a burst of two chunks. A request passes while the level is not negative and may take it below zero: size does
not decide who may enter.
"""

from __future__ import annotations

_MEMORY_S = 20.0  # engine-busy seconds over which the learned speed forgets
_ROUNDING = 1e-3  # tokens; times computed as the moment of opening must be open
_GRACE_S = 0.2  # a prompt this much later than it should be is not in prefill, but waits for room
_FORGET_LATENCY = 1.01  # per answer
_FORGET_BEST = 0.998  # per window
_FIRST_SAMPLE_S = 0.005  # busy time below which a speed is not yet believed


class PrefillLine:
    """Granted requests whose first token has not come, oldest first, on one replica."""

    __slots__ = (
        "_busy",
        "_done",
        "_since",
        "allowance_s",
        "best",
        "ceiling",
        "chunk",
        "entered",
        "latency",
        "silent",
        "tokens",
        "waiting",
    )

    def __init__(self, allowance_s: float) -> None:
        self.waiting: dict[object, int] = {}  # ticket -> uncached prompt tokens; insertion order is grant order
        self.tokens = 0  # sum of `waiting`
        self.silent: set[object] = set()  # of those waiting, the ones whose first token will not be seen
        self.chunk: int | None = None  # tokens an engine step prefills; None = unknown
        self.ceiling: float | None = None  # configured tokens/s; the learned speed never exceeds it
        self.allowance_s = allowance_s  # engine seconds that may wait when the chunk is unknown
        self.entered = 0  # tokens ever entered, less those that left unfinished
        self._since = 0.0  # when the oldest became the oldest
        self.latency = 0.0  # the least time seen from grant to first token, slowly forgotten: the way there and back
        self.best: float | None = None  # tokens/s at its best, slowly forgotten
        self._busy = 0.0  # decayed seconds and tokens of finished prefills
        self._done = 0.0

    @property
    def learned(self) -> float | None:
        """Tokens/s seen from grant to first token while prefill was the only thing between them; None = not yet."""
        if self._busy > _FIRST_SAMPLE_S and self._done > 0.0:  # prompts of no uncached token teach no speed
            return self._done / self._busy
        return None

    @property
    def speed(self) -> float | None:
        """Tokens/s to reckon with: learned, never above the ceiling; the ceiling until something is learned."""
        learned = self.learned
        if learned is None:
            return self.ceiling
        return learned if self.ceiling is None else min(learned, self.ceiling)

    @property
    def budget(self) -> float:
        """Unfinished tokens at or under which one more request may enter."""
        if self.chunk is not None:
            return self.chunk
        speed = self.speed
        return 0.0 if speed is None else speed * self.allowance_s

    def enter(self, key: object, tokens: int, now: float, *, silent: bool = False) -> None:
        if silent:
            self.silent.add(key)
        if not self.waiting:
            self._since = now
        self.waiting[key] = tokens
        self.tokens += tokens
        self.entered += tokens

    def leave(self, key: object, now: float, *, finished: bool) -> None:
        """Its first token came (`finished`) or it ended without one. Unknown keys are ignored."""
        tokens = self.waiting.get(key)
        if tokens is None:
            return
        if finished:
            # Prefill is in order, so this one had the engine's prefill since the last first token.
            spent = now - self._since
            keep = 1.0 - min(spent / _MEMORY_S, 1.0)
            self._busy = self._busy * keep + spent
            self._done = self._done * keep + tokens
            self._since = now
        else:
            self.entered -= tokens
            if next(iter(self.waiting)) is key:
                self._since = now
        del self.waiting[key]
        self.tokens -= tokens
        self.silent.discard(key)

    def _let_silent_through(self, now: float) -> None:
        """Silent requests leave when their time is over, oldest first; none of them teaches a speed."""
        while self.waiting:
            key, tokens = next(iter(self.waiting.items()))
            speed = self.speed
            over = self._since + (tokens / speed if speed else _GRACE_S)
            if key not in self.silent or now < over:
                return
            del self.waiting[key]
            self.silent.discard(key)
            self.tokens -= tokens
            self._since = over

    def unfinished(self, now: float) -> float:
        """Prefill tokens still to be done by the engine, estimated."""
        if not self.waiting:
            return 0.0
        speed = self.speed
        if speed is None:
            return float(self.tokens)
        return self.tokens - min(speed * (now - self._since), self._credit_bound())

    def done(self, now: float) -> float:
        """Prefill tokens done so far, estimated. Differences of it are work done."""
        return self.entered - self.unfinished(now)

    def stalled(self, now: float) -> bool:
        """The oldest should long have been through: it is not prefill that it waits for."""
        if not self.waiting:
            return False
        speed = self.best or self.speed
        expected = next(iter(self.waiting.values())) / speed if speed else 1.0
        return now - self._since > 1.5 * expected + self.latency + _GRACE_S

    def answered(self, took_s: float) -> None:
        """A first token came `took_s` after its grant."""
        self.latency = min(took_s, self.latency * _FORGET_LATENCY) if self.latency else took_s

    def window_over(self) -> None:
        """Compare the learned speed with the best one. Prompts held up in the engine spoil the former only."""
        learned = self.learned
        if learned is not None:
            self.best = max(learned, (self.best or 0.0) * _FORGET_BEST)

    def _credit_bound(self) -> float:
        return next(iter(self.waiting.values())) + (self.chunk or 0)

    def is_open(self, now: float) -> bool:
        if self.silent:
            self._let_silent_through(now)
        return not self.waiting or self.unfinished(now) <= self.budget + _ROUNDING

    def opens_at(self, now: float) -> float | None:
        """When time alone opens the line (now if it is open); None = only a first token can."""
        if not self.waiting:
            return now
        excess = self.tokens - self.budget
        if excess <= _ROUNDING:
            return now
        speed = self.speed
        if self.silent and next(iter(self.waiting)) in self.silent:
            return max(now, self._since + (next(iter(self.waiting.values())) / speed if speed else _GRACE_S))
        if speed is None or excess > self._credit_bound():
            return None
        return max(now, self._since + excess / speed)


class Pace:
    """A leaky level of prefill tokens for one replica; `rate` None = no pacing."""

    __slots__ = ("_at", "_level", "burst", "rate")

    def __init__(self) -> None:
        self.rate: float | None = None  # tokens/s
        self.burst = 0.0  # tokens: two chunks
        self._level = 0.0
        self._at = 0.0

    def set_rate(self, rate: float | None, burst: float, now: float) -> None:
        fresh = self.rate is None
        self._settle(now)
        self.rate = rate
        self.burst = burst
        self._level = burst if fresh else min(self._level, burst)

    def _settle(self, now: float) -> None:
        if self.rate is not None and now > self._at:
            self._level = min(self.burst, self._level + self.rate * (now - self._at))
        self._at = max(self._at, now)

    def take(self, tokens: int, now: float) -> None:
        if self.rate is not None:
            if now > self._at:
                self._settle(now)
            self._level -= tokens

    def is_open(self, now: float) -> bool:
        if self.rate is None:
            return True
        if now > self._at:
            self._settle(now)
        return self._level >= -_ROUNDING

    def opens_at(self, now: float) -> float:
        if self.is_open(now) or not self.rate:
            return now
        return now - self._level / self.rate


def pace_rate(base_s: float, tpot_slo_s: float, seconds_per_token: float) -> float:
    """Prefill tokens/s that keep TPOT within its objective; never less than 5 % of the engine's own rate.

    `base_s` is the decode step without prefill. The floor keeps a replica that is past its objective moving."""
    return max(1.0 - base_s / tpot_slo_s, 0.05) / seconds_per_token
