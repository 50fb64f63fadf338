"""Which replicas of a pool may get work: alive, freshly seen, and no outlier.

Three separate memories, all of which outlive the request that made them:

*Liveness*, from health polls, is a small table (`ALIVE`): one failed poll makes doubt, a second one takes the replica
out, one good poll brings it back. A poll without an answer about health changes nothing.

*Outliers*, from traffic, are the breaker's machine with a replica's numbers: it also opens after five failures in a
row and comes back without the long clean hold. At most a third of the pool is out at a time, though one may always go
when there are two or more. Where more look bad the fault is not theirs (overload, a bad model): nobody else is taken
out, and the pool's own breaker decides.

*Shunning* begins with the first failure: for a moment, doubling with each failure in a row, the replica is chosen only
if no other fits. So the next request does not walk into what the last one has just found.

A replica not seen for ten poll intervals gets no new work while a peer is fresh; when none is, staleness says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from providers.breaker import Breaker, Permit
from providers.health import BreakerSettings, BreakerSnapshot, State
from providers.route import Skip, SkipReason

REPLICA = replace(
    BreakerSettings(),
    failures_in_a_row=5,
    ramp_hold_s=0.0,
    ramp_start=0.1,
    ramp_per_s=0.1,
    probe_steps=(1, 2, 4),
    probe_lifetime_s=60.0,
)
"""A replica's numbers: runs count, and it comes back over ten seconds at once after seven good probes."""


class Alive(StrEnum):
    """What health polls say of a replica."""

    UP = "up"
    DOUBTED = "doubted"
    DOWN = "down"


ALIVE: dict[tuple[Alive, bool], Alive] = {
    (Alive.UP, False): Alive.DOUBTED,
    (Alive.DOUBTED, False): Alive.DOWN,
    (Alive.DOUBTED, True): Alive.UP,
    (Alive.DOWN, True): Alive.UP,
}
"""From a state and whether the poll was good; a missing pair changes nothing."""


@dataclass(frozen=True, slots=True)
class EjectionSettings:
    """The numbers of one pool's replicas. Times in seconds."""

    breaker: BreakerSettings = REPLICA
    most_out: float = 1.0 / 3.0
    """The part of the pool that may be out as outliers."""
    shun_s: float = 0.5
    """After one failure; doubled for each further one in a row."""
    shun_cap_s: float = 8.0
    stale_s: float = 10.0
    """Without any word from its polls. Ten poll intervals."""


DEFAULT = EjectionSettings()


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """A replica as seen from outside."""

    alive: Alive
    seen_at: float
    """When a poll last got an answer; minus infinity when none has."""
    breaker: BreakerSnapshot
    shunned_until: float
    out: bool


class Replicas:
    """The replicas of one pool."""

    __slots__ = ("_all", "_settings", "_slo", "_stale_at", "_trouble_until", "_uniform")

    def __init__(
        self, uniform: Callable[[], float], settings: EjectionSettings = DEFAULT, ttft_slo_s: float | None = None
    ) -> None:
        """`uniform` and `ttft_slo_s` are for the replicas' breakers."""
        self._uniform = uniform
        self._settings = settings
        self._slo = ttft_slo_s
        self._all: dict[str, _Replica] = {}
        self._trouble_until = -math.inf
        """Until then a choice must look at each replica; infinity while one is not plainly well."""
        self._stale_at = math.inf
        """When the replica that was seen longest ago grows stale; infinity before the first poll of the pool."""

    def add(self, name: str, now: float) -> None:
        """A replica joined. It counts as up and as seen now until polls say otherwise."""
        if name not in self._all:
            self._all[name] = _Replica(name, now, Breaker(self._uniform, self._settings.breaker, self._slo, self))

    def remove(self, name: str, now: float) -> None:
        """A replica left."""
        self._all.pop(name, None)
        self._look(now)

    def polled(self, name: str, healthy: bool | None, now: float) -> None:
        """A poll of `name` came back: well, not well, or (None) without a word, which refreshes nothing either."""
        replica = self._all.get(name)
        if replica is None or healthy is None:
            return
        replica.seen_at = now
        self._stale_at = min(r.seen_at for r in self._all.values()) + self._settings.stale_s
        before = replica.alive
        replica.alive = ALIVE.get((before, healthy), before)
        if healthy:
            replica.breaker.reachable(now)
        if replica.alive is not before:
            self._look(now)

    def calm(self, now: float) -> bool:
        """No replica is out, shunned or on trial: a choice needs no further look."""
        return self._trouble_until <= now <= self._stale_at

    def hindrance(self, name: str, cls: str, now: float, pick: float = 0.0) -> Skip | None:
        """Why `name` should get no request of class `cls` now; soft where it should merely be the last resort."""
        replica = self._all.get(name)
        if replica is None:
            return None
        if replica.alive is Alive.DOWN:
            return Skip(SkipReason.NO_REPLICA, "its health polls fail")
        if now - replica.seen_at > self._settings.stale_s and self._fresh(now):
            return Skip(SkipReason.NO_REPLICA, f"not seen for {now - replica.seen_at:.0f} s", None)
        skip = replica.breaker.hindrance(cls, now, pick, claim=False)
        if skip is None and now < self._shunned_until(replica.breaker):
            return Skip(SkipReason.JUST_FAILED, replica.breaker.cause, self._shunned_until(replica.breaker), True)
        return skip

    def chosen(self, name: str, cls: str, now: float) -> None:
        """`name` was chosen for a request that will come to `enter` a little later: a probe's place is taken now."""
        replica = self._all.get(name)
        if replica is not None and replica.breaker.state is not State.CLOSED:
            permit = replica.breaker.enter(cls, now)
            if permit is not None and permit.probe:
                replica.booked.append(permit)

    def enter(self, name: str, cls: str, now: float) -> Permit:
        """Begin an attempt on a replica that was chosen. Never refuses: the choice has been made. The caller ends it
        exactly once. Raises KeyError for an unknown replica.
        """
        replica = self._all[name]
        while replica.booked:
            permit = replica.booked.pop()
            if permit.current:
                return permit
        return replica.breaker.enter(cls, now) or replica.breaker.passenger(now)

    def usable(self, now: float) -> dict[str, bool]:
        """For the admission of the pool: which replicas may get anything at all now. A shunned or ramping replica may,
        a probing one too (the choice sees to the number of probes).
        """
        return {
            name: (skip := self.hindrance(name, "", now, 0.0)) is None or skip.soft or _probing(skip)
            for name in self._all
        }

    def any_usable(self, now: float) -> bool:
        """Whether the pool can serve at all."""
        return self._trouble_until <= now or any(self.usable(now).values())

    def any_well(self) -> bool:
        """Whether some replica is up, closed, and its last answer was a good one. None is: what fails is the pool."""
        return any(
            replica.alive is Alive.UP and replica.breaker.state is State.CLOSED and not replica.breaker.row
            for replica in self._all.values()
        )

    def next_change(self, now: float) -> float | None:
        """When time alone will next let a replica in; None when nothing is pending."""
        times = [r.breaker.until for r in self._all.values() if r.breaker.state in (State.OPEN, State.BARRED)]
        times += [r.breaker.not_before for r in self._all.values()]
        return min((at for at in times if at > now), default=None)

    def snapshot(self, now: float) -> dict[str, ReplicaSnapshot]:
        """All replicas as they are."""
        return {
            name: ReplicaSnapshot(
                alive=replica.alive,
                seen_at=replica.seen_at,
                breaker=replica.breaker.snapshot(now),
                shunned_until=self._shunned_until(replica.breaker),
                out=replica.alive is Alive.DOWN or replica.breaker.state in (State.OPEN, State.HALF_OPEN),
            )
            for name, replica in self._all.items()
        }

    # -- the guard of the replicas' breakers --------------------------------------------------------------------------

    def may_open(self, breaker: Breaker) -> bool:
        """At most a third are out; one may always go when there are two or more."""
        out = sum(r.breaker.state in (State.OPEN, State.HALF_OPEN) for r in self._all.values())
        most = 0 if len(self._all) < 2 else max(1, int(len(self._all) * self._settings.most_out + 1e-9))
        return out < most

    def changed(self, breaker: Breaker, now: float) -> None:
        """A failure, a pause or a change of state: look again how long choices must be careful."""
        self._look(now)

    def _look(self, now: float) -> None:
        until = -math.inf
        for replica in self._all.values():
            if replica.alive is not Alive.UP or replica.breaker.state is not State.CLOSED:
                until = math.inf
                break
            until = max(until, self._shunned_until(replica.breaker), replica.breaker.not_before)
        self._trouble_until = until

    def _shunned_until(self, breaker: Breaker) -> float:
        if not breaker.row:
            return -math.inf
        settings = self._settings
        return breaker.failed_at + min(settings.shun_s * 2.0 ** min(breaker.row - 1, 8), settings.shun_cap_s)

    def _fresh(self, now: float) -> bool:
        return any(now - replica.seen_at <= self._settings.stale_s for replica in self._all.values())


class _Replica:
    __slots__ = ("alive", "booked", "breaker", "name", "seen_at")

    def __init__(self, name: str, now: float, breaker: Breaker) -> None:
        self.name = name
        self.alive = Alive.UP
        self.seen_at = now
        self.breaker = breaker
        self.booked: list[Permit] = []


def _probing(skip: Skip) -> bool:
    return skip.reason is SkipReason.PROBE_LIMIT
