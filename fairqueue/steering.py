"""What a window of a replica's traffic says: how fast to let prefill in, how many seats, how much cache, what capacity.

With a fitted (or configured) speed the pace follows from the formula of `prefill.py` at today's KV use. Without one the
pace is found by trial: while tokens come too slowly it falls to 0.9 of what was let in, and rises by 2 % a window once
they come in time (more below), until it binds no more. The trial also gives the fit the variation that it learns from.

All aim a little inside the objective, as what is steered by a mean spreads around it. An engine whose empty step
already misses the objective is not steered: fewer requests would not help it.

An engine may also be slow for reasons outside (a neighbour on its machine, heat, a hiccup of the network), which looks
like too much load and is none: restraint then costs work and mends nothing. So restraint is bounded by what was lately
carried within the objectives, `good`: neither pace nor seats go below half of it. Where nothing ever was, they may fall
until the engine is nearly empty; if tokens still come too slowly then, that is the engine's own time `alone`, and only
what is half as slow again counts as slow. And restraint ends in seconds: while tokens come well within the objective,
the pace rises by a quarter a window, and seats by one an answer, up to `good`.
"""

from __future__ import annotations

from fairqueue.learn import SafetyNet
from fairqueue.meter import Meter, WindowSeen
from fairqueue.prefill import Pace, PrefillLine, pace_rate

_AIM = 0.95  # of the TPOT objective
_WELL = 0.8  # of it: no restraint is needed
_LEAST = 0.5  # of what was carried within the objectives
_FORGET = 0.995  # of `good`, per window: half in five minutes
_FEW = 2.0  # sequences side by side, and
_LITTLE = 0.1  # of the best prefill speed: an engine with less than both is nearly empty
_SLOWER = 1.5  # than alone
_LEAST_OF_BEST = 0.05  # of the best prefill speed, where nothing was ever carried within the objectives


class Steering:
    """Limits of one replica that follow from what its requests experience."""

    __slots__ = (
        "_tpot_slo_s",
        "alone_s",
        "good_prefill",
        "good_seats",
        "kv_net",
        "meter",
        "net",
        "pace",
        "preempted",
        "sequences",
    )

    def __init__(self, tpot_slo_s: float) -> None:
        self._tpot_slo_s = tpot_slo_s
        self.meter = Meter()
        self.pace = Pace()
        self.net = SafetyNet()  # on seats and pace
        self.kv_net = SafetyNet(0.5, 1.0)  # on KV tokens
        self.preempted = False  # the engine preempted since the last window
        self.sequences: float | None = None  # side by side, that the fit says meet the objective; None = not known
        self.alone_s = 0.0  # between tokens when it was nearly empty; more load has not been quicker since
        self.good_prefill = 0.0  # tokens/s, the most lately seen in a window within the objectives
        self.good_seats = 0.0  # seats held, likewise

    @property
    def least_seats(self) -> int:
        """Seats below which slowness alone never takes it."""
        return int(_LEAST * self.good_seats)

    def aim_at(self, tpot_slo_s: float, now: float) -> None:
        """Another objective. What was found out under a stricter one no longer holds, and is found out anew."""
        if tpot_slo_s > self._tpot_slo_s:
            self.pace.set_rate(None, 0.0, now)
            self.net.factor = max(self.net.factor, 1.0)
            self.sequences = None
        self._tpot_slo_s = tpot_slo_s

    def close_window(
        self,
        now: float,
        line: PrefillLine,
        *,
        engine: bool,
        kv_used: int,
        kv_tokens: int | None,
        seats: float | None,
        used: float,
        kv_used_part: float,
        seats_held: int,
    ) -> bool:
        """Draw the conclusions. `used`: the fuller of seats and cache, 0..1. Returns whether tokens came too slowly."""
        slo = self._tpot_slo_s
        meter = self.meter
        line.window_over()
        seen = meter.close(now, line.done(now))
        if seen is None:
            return False
        if not engine:  # a vendor's pace is not ours to steer: it says itself when it is full
            return False
        speed = meter.fit.speed
        hopeless = speed is not None and speed.a >= _AIM * slo
        bearable = max(slo, _SLOWER * self._alone(seen, line))
        slow = seen.token_s is not None and seen.token_s > bearable and not hopeless
        close = seen.token_s is not None and seen.token_s > _AIM * bearable
        well = seen.token_s is not None and seen.token_s <= _WELL * slo and seen.late <= 0.1
        self.net.window(breached=slow or seen.late > 0.5, used=0.0 if close else used, well=well)
        self.good_prefill *= _FORGET
        self.good_seats *= _FORGET
        if seen.token_s is not None and not slow and seen.late <= 0.1:
            self.good_prefill = max(self.good_prefill, seen.prefill_per_s)
            self.good_seats = max(self.good_seats, float(seats_held))
        self.kv_net.window(breached=self.preempted, used=kv_used_part)
        self.preempted = False
        rate = None if hopeless else self._rate(seen, line, slow=slow, close=close, well=well, kv_used=kv_used)
        if rate is not None:
            least = _LEAST * self.good_prefill or _LEAST_OF_BEST * (line.best or 0.0)
            rate = max(rate, least)
        self.pace.set_rate(rate, 2.0 * line.budget, now)
        load = meter.load(_AIM * slo, None, None)
        self.sequences = None if load is None else load.sequences * self.net.factor
        full = meter.load(slo, kv_tokens, seats)
        if full is not None:
            meter.sample(full.requests_per_s * meter.cost, now)
        return slow

    def _alone(self, seen: WindowSeen, line: PrefillLine) -> float:
        """Seconds between tokens when the engine is nearly empty; 0 = not known."""
        if seen.token_s is not None:
            few = seen.sequences <= _FEW and seen.prefill_per_s <= _LITTLE * (line.best or 0.0)
            if few and self.alone_s:
                self.alone_s += 0.2 * (seen.token_s - self.alone_s)
            elif few or seen.token_s < self.alone_s:
                self.alone_s = seen.token_s
        return self.alone_s

    def _rate(
        self, seen: WindowSeen, line: PrefillLine, *, slow: bool, close: bool, well: bool, kv_used: int
    ) -> float | None:
        """Prefill tokens/s to let in; None = no pace."""
        aim = _AIM * self._tpot_slo_s
        speed = self.meter.fit.speed
        slowest = 0.0 if line.ceiling is None else 1.0 / line.ceiling
        if speed is not None:
            return pace_rate(speed.step(kv_used), aim, max(speed.d, slowest)) * self.net.factor
        if slowest and seen.token_s is not None:
            base = seen.token_s * (1.0 - min(slowest * seen.prefill_per_s, 0.95))
            return pace_rate(base, aim, slowest) * self.net.factor
        rate = self.pace.rate
        if slow and seen.prefill_per_s > 0.0:
            return 0.9 * (seen.prefill_per_s if rate is None else min(rate, seen.prefill_per_s))
        if rate is None or close:
            return rate
        if rate >= 2.0 * seen.prefill_per_s > 0.0:
            return None
        return rate * (1.25 if well else 1.02)
