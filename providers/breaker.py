"""Circuit breaker as a table: when a target is left alone, tried again, and trusted again.

One machine per (provider, region, model, credential); the replicas of a pool use the same machine with other numbers
(see `ejection.py`). Everything that changes a machine's state is in this file, and every change goes through `TABLE`.

What trips it, judged on the call that crosses the line, over a rolling window of 30 s:

    n >= 20 and (failures / n >= 0.5 or slow / n >= 0.8), or 5 connect errors in a row

and, so that half a minute of good answers does not hide that a target has just died, also when the newest 3 to 6 s
alone have 20 answers of which half failed, or when ten in a row failed. A connect error counts twice, since nothing
was even tried. *Slow* is judged on the time to first token of answers of
the same prompt size, never on raw latency, which follows length. The caller's own faults, cancels and rate limits never
count: 429s only set a time before which the target is left alone, and the later of two such times stands.

OPEN lasts min(5 s * 2^k, 300 s) * U(0.8, 1.2). Then real requests of the lowest class probe, 1, 2, 4 and 8 at a time;
a step needs all of them well, one failure opens it again with k + 1. After those 15 it is RAMPING: a small share of the
traffic until it has been clean for a while, then 10 % more each second, so that a target which comes back meets no wave
and one that flaps is not switched to and fro. k falls by one for every five clean minutes.

BARRED is apart from health: our key is refused or the upstream does not know the model. Requests go elsewhere, an
operator is told, one request a minute tries again, and nothing is counted against the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Protocol

from providers.health import DEFAULT, BreakerKey, BreakerSettings, BreakerSnapshot, Event, State
from providers.probes import Probes
from providers.route import Skip, SkipReason
from providers.window import Baseline, Window


class Move(StrEnum):
    """What moves a breaker from state to state."""

    TRIP = "trip"
    """The window, or a run of connect errors, crossed the line."""
    ELAPSE = "elapse"
    """The time in this state is over."""
    PASS = "pass"  # noqa: S105  (a trial that went well, not a password)
    """All probes went well, or the trial of a barred target did."""
    FAIL = "fail"
    """A probe failed."""
    BAR = "bar"
    """The upstream says that our own configuration is wrong."""


TABLE: dict[tuple[State, Move], State] = {
    (State.CLOSED, Move.TRIP): State.OPEN,
    (State.CLOSED, Move.BAR): State.BARRED,
    (State.OPEN, Move.ELAPSE): State.HALF_OPEN,
    (State.OPEN, Move.BAR): State.BARRED,
    (State.HALF_OPEN, Move.PASS): State.RAMPING,
    (State.HALF_OPEN, Move.FAIL): State.OPEN,
    (State.HALF_OPEN, Move.BAR): State.BARRED,
    (State.RAMPING, Move.ELAPSE): State.CLOSED,
    (State.RAMPING, Move.TRIP): State.OPEN,
    (State.RAMPING, Move.BAR): State.BARRED,
    (State.BARRED, Move.PASS): State.RAMPING,
    (State.BARRED, Move.BAR): State.BARRED,
}
"""The whole machine. A pair that is missing is an illegal move and leaves the state as it was."""


class Guard(Protocol):
    """Who a group of breakers answers to (the replicas of a pool)."""

    def may_open(self, breaker: Breaker) -> bool:
        """Whether one more of the group may be left alone."""

    def changed(self, breaker: Breaker, now: float) -> None:
        """A failure was counted, a pause was set, or the state changed."""


class Permit:
    """One attempt that a breaker let through. End it exactly once, on every way out; later ends do nothing.

    `answered` may be called at the first token: a probe is then decided at once and need not wait for the last token,
    and a failure after it still counts.
    """

    __slots__ = ("_answered", "_breaker", "_ended", "_epoch", "at", "probe")

    def __init__(self, breaker: Breaker, epoch: int, probe: bool, at: float) -> None:
        self._breaker = breaker
        self._epoch = epoch
        self._answered = False
        self._ended = False
        self.probe = probe
        self.at = at

    @property
    def current(self) -> bool:
        """The breaker has not changed its state since."""
        return self._epoch == self._breaker._epoch

    def answered(self, now: float, ttft: float, prompt_tokens: int) -> None:
        """The first token came `ttft` seconds after sending."""
        if not (self._answered or self._ended):
            self._answered = True
            self._breaker._settle(self, Event.OK, now, ttft, prompt_tokens, None, "")

    def end(
        self,
        event: Event,
        now: float,
        ttft: float | None = None,
        prompt_tokens: int = 0,
        retry_after_s: float | None = None,
        cause: str = "",
    ) -> None:
        """How the attempt ended. `retry_after_s` is the upstream's hint, `cause` a few words for people."""
        if self._ended:
            return
        self._ended = True
        breaker = self._breaker
        if event is Event.OK and breaker.state is State.CLOSED and self._epoch == breaker._epoch:
            if not self._answered:
                breaker._good(now, ttft, prompt_tokens)
        elif not self._answered or event is not Event.OK:
            breaker._settle(self, event, now, ttft, prompt_tokens, retry_after_s, cause)


class Breaker:
    """One machine. Ask `hindrance` (looks), `enter` (takes a probe's place if need be), report by the permit."""

    # fmt: off
    __slots__ = (
        "_baseline", "_connects", "_epoch", "_guard", "_probes", "_ramp_at", "_rates", "_settings", "_uniform",
        "_was_slow", "_window", "cause", "failed_at", "not_before", "row", "since", "state", "trips", "until",
    )
    # fmt: on

    def __init__(
        self,
        uniform: Callable[[], float],
        settings: BreakerSettings = DEFAULT,
        ttft_slo_s: float | None = None,
        guard: Guard | None = None,
    ) -> None:
        """`uniform` gives numbers in [0, 1) for the jitter of OPEN times; `ttft_slo_s` is the target's TTFT goal;
        `guard` may forbid a breaker of its group to open.
        """
        self._settings = settings
        self._guard = guard
        self._uniform = uniform
        self._window = Window(settings.window_s)
        self._baseline = Baseline(settings.slow_factor, ttft_slo_s)
        self._epoch = 0
        """Grows with each change of state but the last one of the ramp; reports of an older epoch say nothing new."""
        self._connects = 0
        self._rates = 0
        self._probes = Probes(settings)
        self._ramp_at = 0.0
        self._was_slow = False
        self.state = State.CLOSED
        self.since = -math.inf
        self.until = 0.0
        self.row = 0
        """Failures since the last good answer."""
        self.failed_at = -math.inf
        self.not_before = 0.0
        self.cause = ""
        self.trips = 0

    def hindrance(self, cls: str, now: float, pick: float = 0.0, *, claim: bool = True) -> Skip | None:
        """Why a request of class `cls` may not go now, None if it may. `pick` is uniform in [0, 1) and decides who
        belongs to the share of a ramping target (a hash of the session keeps sessions together).

        Where only probes may go, None holds a probe's place for a second, so that not everybody who asks before the
        first has entered comes and is turned away; `claim` False only looks.
        """
        if self.state is State.CLOSED:
            return None if now >= self.not_before else self._cooling()
        return self._hindrance(cls, now, pick, claim)

    def allows(self, cls: str, now: float, pick: float = 0.0) -> bool:
        """Whether a request of class `cls` may go now. Holds no place."""
        return self.hindrance(cls, now, pick, claim=False) is None

    def enter(self, cls: str, now: float, pick: float = 0.0, *, last_resort: bool = True) -> Permit | None:
        """Begin an attempt; None if it may not. As the last resort a soft hindrance is passed over."""
        if self.state is State.CLOSED and now >= self.not_before:
            return Permit(self, self._epoch, False, now)
        skip = self.hindrance(cls, now, pick, claim=False)
        if skip is not None:
            return Permit(self, self._epoch, False, now) if last_resort and skip.soft else None
        permit = Permit(self, self._epoch, self.state in (State.HALF_OPEN, State.BARRED), now)
        if permit.probe:
            self._probes.begin(permit)
        return permit

    def passenger(self, now: float) -> Permit:
        """An attempt that goes in any case, for a caller whose choice was already made."""
        return Permit(self, self._epoch, False, now)

    def record(
        self,
        event: Event,
        now: float,
        ttft: float | None = None,
        prompt_tokens: int = 0,
        retry_after_s: float | None = None,
        cause: str = "",
    ) -> None:
        """Evidence that does not come from a permit. It trips, cools and bars, but is never a probe."""
        if event is Event.OK and self.state is State.CLOSED:
            self._good(now, ttft, prompt_tokens)
        else:
            self._settle(None, event, now, ttft, prompt_tokens, retry_after_s, cause)

    def reachable(self, now: float) -> None:
        """A health probe got through: an OPEN that came from connect errors may be tested now. Nothing else is
        shortened, since a health page answers while generation hangs.
        """
        if self.state is State.OPEN and self._connects >= self._settings.connect_errors:
            self.until = min(self.until, now)

    def trip(self, now: float, cause: str) -> None:
        """Open because of something known from elsewhere: no replica is left, or another instance has tripped. So the
        return is as gradual as after failures; `reachable` may shorten it.
        """
        if self.state in (State.CLOSED, State.RAMPING):
            self._connects = self._settings.connect_errors
            self._open(now, cause, False)

    def reset(self, now: float) -> None:
        """The operator changed something: forget why it was barred or open and probe at once."""
        self.not_before = 0.0
        if self.state in (State.OPEN, State.BARRED):
            self.until = now

    def snapshot(self, now: float) -> BreakerSnapshot:
        """The machine as it is, for metrics, the debug page and tests."""
        self._window.age(now)
        return BreakerSnapshot(
            state=self.state,
            since=self.since,
            until=self.until if self.state in (State.OPEN, State.BARRED) else None,
            not_before=self.not_before,
            cause=self.cause,
            answers=self._window.n,
            failures=self._window.fails,
            slow=self._window.slow,
            trips=self.trips,
            share=self.share(now),
            probes=len(self._probes),
        )

    def share(self, now: float) -> float:
        """The part of ordinary traffic this target should get now, 0 to 1."""
        if self.state is State.CLOSED:
            return 1.0
        if self.state is not State.RAMPING:
            return 0.0
        grown = now - self._ramp_at - self._settings.ramp_hold_s
        return min(1.0, self._settings.ramp_start + self._settings.ramp_per_s * max(0.0, grown))

    # -- what changes the machine ------------------------------------------------------------------------------------

    def _hindrance(self, cls: str, now: float, pick: float, claim: bool) -> Skip | None:
        if now < self.not_before:
            return self._cooling()
        if self.state is State.OPEN:
            if now < self.until:
                return Skip(SkipReason.BREAKER_OPEN, self.cause, self.until, self._was_slow)
            self._move(Move.ELAPSE, now)
        if self.state is State.RAMPING:
            share = self.share(now)
            if share < 1.0:
                # Another digit range of the same number than the weighted draw uses, so that the two are independent.
                if (pick * 8191.0) % 1.0 < share:
                    return None
                return Skip(SkipReason.SLOW_START, f"{share:.0%} of the traffic is back", None, True)
            self._move(Move.ELAPSE, now)
            return None
        if self.state is State.BARRED and now < self.until:
            return Skip(SkipReason.MISCONFIGURED, self.cause, self.until)
        return self._probes.hindrance(cls, now, single=self.state is State.BARRED, claim=claim)

    def _cooling(self) -> Skip:
        return Skip(SkipReason.COOLING_DOWN, self.cause, self.not_before)

    def _good(self, now: float, ttft: float | None, prompt_tokens: int) -> None:
        slow = 0 if ttft is None else int(self._baseline.add(ttft, prompt_tokens))
        window = self._window
        window.add(now, 1, 0, slow)
        self._connects = self.row = self._rates = 0
        if slow or window.fails:
            self._judge(now)

    def _judge(self, now: float) -> None:
        """Trip if the window is beyond the line. Called on every call that may have crossed it."""
        settings, window = self._settings, self._window
        enough = settings.min_samples if self.state is State.CLOSED else settings.ramp_samples
        if window.n >= enough and window.fails >= settings.failure_ratio * window.n:
            self._open(now, f"{window.fails} of {window.n} answers failed", False)
        elif window.n >= settings.min_samples and window.slow >= settings.slow_ratio * window.n:
            self._open(now, f"{window.slow} of {window.n} answers were slow", True)
        elif self._connects >= settings.connect_errors:
            self._open(now, f"{self._connects} connect errors in a row", False)
        elif self.row >= settings.failures_in_a_row:
            self._open(now, f"{self.row} failures in a row", False)
        elif self.row and (fresh := window.fresh())[0] >= enough and fresh[1] >= settings.failure_ratio * fresh[0]:
            self._open(now, f"{fresh[1]} of the newest {fresh[0]} answers failed", False)
        elif self.state is State.RAMPING and window.fails > settings.clean_ratio * window.n:
            self._ramp_at = now

    def _settle(
        self,
        permit: Permit | None,
        event: Event,
        now: float,
        ttft: float | None,
        prompt_tokens: int,
        retry_after_s: float | None,
        cause: str,
    ) -> None:
        if permit is None or permit._epoch == self._epoch:
            if permit is None or not permit.probe:
                self._count(event, now, ttft, prompt_tokens, permit is not None and permit._answered)
            else:
                self._probed(permit, event, now, ttft, prompt_tokens)
        if event in (Event.OK, Event.NEUTRAL):
            return
        if event is Event.MISCONFIGURED:
            # Whatever the epoch: it is a fact about our configuration, not a measure of the target.
            self._bar(now, cause or "our configuration is refused upstream")
        elif event is Event.RATE:
            wait = retry_after_s or min(self._settings.rate_s * 2.0**self._rates, self._settings.rate_cap_s)
            self._rates = min(self._rates + 1, 16)
            self._cool(now, min(wait, self._settings.hint_cap_s), cause or "rate limited")
        elif event is Event.QUOTA:
            wait = min(retry_after_s or self._settings.quota_s, self._settings.quota_cap_s)
            self._cool(now, wait, cause or "quota used up")
        elif retry_after_s:
            self._cool(now, min(retry_after_s, self._settings.hint_cap_s), cause or "asked to be left alone")

    def _count(self, event: Event, now: float, ttft: float | None, prompt_tokens: int, answered: bool) -> None:
        """An answer of ordinary traffic, in CLOSED or RAMPING."""
        if event is Event.OK:
            if self.state in (State.CLOSED, State.RAMPING):
                self._good(now, ttft, prompt_tokens)
            elif ttft is not None:
                self._baseline.add(ttft, prompt_tokens)  # served as a last resort: so the usual time is learned anew
            return
        if event not in (Event.FAILURE, Event.CONNECT, Event.TIMEOUT):
            return
        if self.state not in (State.CLOSED, State.RAMPING):
            return
        weight = 2 if event is Event.CONNECT else 1
        self._connects = self._connects + 1 if event is Event.CONNECT else 0
        self.row += 1
        # After `answered` the attempt stands in the window already; now it turns out to be a failure.
        self._window.add(now, 0 if answered else weight, weight, int(event is Event.TIMEOUT))
        self.failed_at = now
        self._judge(now)
        if self._guard is not None:
            self._guard.changed(self, now)

    def _probed(self, permit: Permit, event: Event, now: float, ttft: float | None, prompt_tokens: int) -> None:
        """A probe of this epoch (HALF_OPEN), or the trial of a barred target, came to its end or its first token."""
        running = self._probes.take_out(permit)
        slow = event is Event.OK and ttft is not None and self._baseline.add(ttft, prompt_tokens)
        if event is Event.OK and not slow:
            if self.state is State.BARRED or (running and self._probes.went_well(now)):
                self._move(Move.PASS, now)
        elif event in (Event.FAILURE, Event.CONNECT, Event.TIMEOUT) or slow:
            if self.state is State.HALF_OPEN:
                self.trips = min(self.trips + 1, 16)
                self._connects = self._settings.connect_errors if event is Event.CONNECT else 0
                self._was_slow = slow
                self._move(Move.FAIL, now)
                self.cause = "a probe was slow" if slow else "a probe failed"
            else:
                self.until = now + self._settings.barred_s
                self._probes.restart(now)
        elif running:
            self._probes.give_back(now)

    def _open(self, now: float, cause: str, slow: bool) -> None:
        if self._guard is not None and not self._guard.may_open(self):
            return
        if self.state is State.RAMPING:
            self.trips = min(self.trips + 1, 16)
        elif self.trips:
            self.trips = max(0, self.trips - int((now - self.since) / self._settings.forgive_s))
        self._was_slow = slow
        self._move(Move.TRIP, now)
        self.cause = cause

    def _bar(self, now: float, cause: str) -> None:
        self._move(Move.BAR, now)
        self.cause = cause

    def _cool(self, now: float, wait: float, cause: str) -> None:
        if now + wait > self.not_before:
            self.not_before = now + wait
            if self.state is State.CLOSED:
                self.cause = cause
            if self._guard is not None:
                self._guard.changed(self, now)

    def _move(self, move: Move, now: float) -> None:
        """The only place where `state` changes."""
        following = TABLE.get((self.state, move))
        if following is None:
            return
        self.state = following
        self.since = now
        self._ramp_at = now
        self._probes.restart(now)
        if following is not State.CLOSED:
            self._epoch += 1
            self._window.clear()
        if following is State.OPEN:
            settings = self._settings
            spread = 1.0 + settings.open_jitter * (2.0 * self._uniform() - 1.0)
            self.until = now + min(settings.open_base_s * 2.0**self.trips, settings.open_cap_s) * spread
        elif following is State.BARRED:
            self.until = now + self._settings.barred_s
        else:
            self._connects = self.row = 0
        if self._guard is not None:
            self._guard.changed(self, now)


class Breakers:
    """The breakers of all targets, made when first asked for. Keys come from the configuration, never from clients."""

    __slots__ = ("_all", "_settings", "_uniform")

    def __init__(self, uniform: Callable[[], float], settings: BreakerSettings = DEFAULT) -> None:
        self._uniform = uniform
        self._settings = settings
        self._all: dict[BreakerKey, Breaker] = {}

    def of(self, key: BreakerKey, ttft_slo_s: float | None = None) -> Breaker:
        """The breaker of `key`; `ttft_slo_s` matters only the first time. Callers on the hot path may keep it."""
        breaker = self._all.get(key)
        if breaker is None:
            breaker = self._all[key] = Breaker(self._uniform, self._settings, ttft_slo_s)
        return breaker

    def allows(self, key: BreakerKey, cls: str, now: float, pick: float = 0.0) -> bool:
        """Whether a request of class `cls` may go to `key` now."""
        return self.of(key).allows(cls, now, pick)

    def record(
        self, key: BreakerKey, event: Event, now: float, ttft: float | None = None, prompt_tokens: int = 0
    ) -> None:
        """Evidence about `key` outside a permit."""
        self.of(key).record(event, now, ttft, prompt_tokens)

    def of_provider(self, provider: str) -> list[tuple[BreakerKey, Breaker]]:
        """All breakers of one account or pool that have been asked for."""
        return [(key, breaker) for key, breaker in self._all.items() if key.provider == provider]

    def retain(self, keys: Iterable[BreakerKey]) -> None:
        """Forget all keys but these (after a change of the configuration)."""
        kept = set(keys)
        self._all = {key: breaker for key, breaker in self._all.items() if key in kept}

    def barred(self) -> list[tuple[BreakerKey, str]]:
        """What an operator must repair: keys whose configuration the upstream refuses, with its words."""
        return [(key, breaker.cause) for key, breaker in self._all.items() if breaker.state is State.BARRED]

    def snapshot(self, now: float) -> dict[BreakerKey, BreakerSnapshot]:
        """All machines as they are."""
        return {key: breaker.snapshot(now) for key, breaker in self._all.items()}
