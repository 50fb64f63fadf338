"""LoRA adapters: which replica holds which, where one may be loaded, and one load at a time instead of a stampede.

An adapter runs only where it is resident; a replica has a few slots. A request whose adapter is resident somewhere goes
there. Otherwise one replica is asked to load it, once: every further request for it waits for that load. A replica
loads one adapter at a time; a second adapter that needs it stands in its queue, in order of arrival. When no slot is
free, the adapter that was used longest ago and serves nobody now makes room; when all serve somebody, it must wait.

A load that failed is remembered with its cause: the replica is not asked again for that adapter until a pause has
passed (5 s, doubled with each failure, at most 5 minutes), and the cause is there to be read.

A hot adapter may be spread: when requests for it outnumber what its replicas run by `spread`, one more may load it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Residency(StrEnum):
    """How an adapter stands on one replica, best first."""

    ACTIVE = "active"
    LOADABLE = "loadable"
    """A slot is free, or an idle adapter can make room."""
    WAITING = "waiting"
    """Being loaded, or queued behind another load."""
    FULL = "full"
    """All slots serve other adapters now."""
    FAILED = "failed"
    """A load failed and the pause is not over."""
    IMPOSSIBLE = "impossible"
    """The replica takes no adapters, or does not know this one."""


SCORE: dict[Residency, float] = {
    Residency.ACTIVE: 1.0,
    Residency.LOADABLE: 0.8,
    Residency.WAITING: 0.6,
    Residency.FULL: 0.0,
    Residency.FAILED: 0.0,
    Residency.IMPOSSIBLE: 0.0,
}
"""How much a replica is worth to a request for the adapter. 0 is never sent there."""


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """The numbers of one pool's adapters. Times in seconds."""

    slots: int = 4
    """Per replica, where the engine does not say."""
    pause_s: float = 5.0
    pause_cap_s: float = 300.0
    patience_s: float = 120.0
    """A load not reported on after this counts as failed."""
    spread: int = 16
    """Running requests per resident replica above which one more may load it."""
    queue: int = 32
    """Adapters that may wait for one replica's loads."""
    remembered: int = 256
    """Adapters whose failed loads one replica remembers; the oldest is forgotten first."""


DEFAULT = AdapterSettings()


class Load(NamedTuple):
    """Tell `replica` to load `adapter`, after unloading `evict` where one is named. Report by `loaded` or `failed`."""

    replica: str
    adapter: str
    evict: str | None


class Ready(NamedTuple):
    """Send it: these replicas hold the adapter."""

    replicas: frozenset[str]


class Wait(NamedTuple):
    """Not yet: a load is running or queued on `replica`; `expected_s` is the usual load time times its place."""

    replica: str
    expected_s: float


class Cannot(NamedTuple):
    """No replica can take it now. `until` is when one may be tried again, None when that is not a matter of time."""

    cause: str
    until: float | None


class Adapters:
    """The adapters of one pool."""

    __slots__ = ("_known", "_replicas", "_settings", "_took")

    def __init__(self, known: Iterable[str] | None = None, settings: AdapterSettings = DEFAULT) -> None:
        """`known` are the adapters the pool may serve; None is any."""
        self._known = None if known is None else frozenset(known)
        self._settings = settings
        self._replicas: dict[str, _Slots] = {}
        self._took = 5.0
        """The usual time of a load, seconds."""

    def set_replica(self, name: str, slots: int | None = None, resident: Iterable[str] = ()) -> None:
        """A replica joined with these adapters loaded; `slots` 0 takes none."""
        replica = _Slots(self._settings.slots if slots is None else slots)
        replica.resident = OrderedDict((adapter, 0) for adapter in resident)
        self._replicas[name] = replica

    def remove(self, name: str) -> None:
        """A replica left, and its loads with it."""
        self._replicas.pop(name, None)

    def observe(self, name: str, resident: Iterable[str], slots: int | None = None) -> None:
        """What the engine itself says is loaded. Adapters that serve somebody are kept whatever it says."""
        replica = self._replicas.get(name)
        if replica is None:
            return
        seen = set(resident)
        for adapter in [a for a, running in replica.resident.items() if a not in seen and not running]:
            del replica.resident[adapter]
        for adapter in sorted(seen - replica.resident.keys()):
            if adapter != replica.loading:
                replica.resident[adapter] = 0
        if slots is not None:
            replica.slots = slots

    def standing(self, name: str, adapter: str, now: float) -> Residency:
        """How `adapter` stands on replica `name`."""
        replica = self._replicas.get(name)
        if replica is None or replica.slots <= 0 or (self._known is not None and adapter not in self._known):
            return Residency.IMPOSSIBLE
        if adapter in replica.resident:
            return Residency.ACTIVE
        if replica.loading == adapter or adapter in replica.queue:
            return Residency.WAITING
        failure = replica.failures.get(adapter)
        if failure is not None and now < failure.until:
            return Residency.FAILED
        if replica.loading is not None:
            return Residency.WAITING if len(replica.queue) < self._settings.queue else Residency.FULL
        return Residency.LOADABLE if replica.room() else Residency.FULL

    def score(self, name: str, adapter: str, now: float) -> float:
        """What `name` is worth to a request for `adapter`: 1 resident to 0 impossible."""
        return SCORE[self.standing(name, adapter, now)]

    def want(self, adapter: str, among: Iterable[str], now: float) -> Ready | Load | Wait | Cannot:
        """Decide for a request for `adapter` that may use the replicas `among` (best first). A `Load` has begun when it
        is returned; asking again for the same adapter while it runs gives `Wait`.
        """
        names = [name for name in among if name in self._replicas]
        for name in names:
            self._give_up_late(name, now)
        stands = {name: self.standing(name, adapter, now) for name in names}
        ready = frozenset(name for name in names if stands[name] is Residency.ACTIVE)
        running = sum(self._replicas[name].resident[adapter] for name in ready)
        if ready and running < self._settings.spread * len(ready):
            return Ready(ready)
        under_way = [
            name for name in names if self._replicas[name].loading == adapter or adapter in self._replicas[name].queue
        ]
        if under_way:
            return Ready(ready) if ready else self._wait(under_way[0], adapter)
        for name in names:
            if stands[name] is Residency.LOADABLE and self._replicas[name].loading is None:
                return self._begin(name, adapter, now)
        if ready:
            return Ready(ready)
        queued = min(
            (name for name in names if stands[name] is Residency.WAITING),
            key=lambda name: len(self._replicas[name].queue),
            default=None,
        )
        if queued is None:
            return self._cannot(adapter, names, stands)
        self._replicas[queued].queue.append(adapter)
        return self._wait(queued, adapter)

    def next_load(self, name: str, now: float) -> Load | None:
        """The load whose turn has come on `name`, after a load ended or an adapter fell idle. None: nothing to do."""
        self._give_up_late(name, now)
        replica = self._replicas.get(name)
        if replica is None or replica.loading is not None or not replica.queue or not replica.room():
            return None
        return self._begin(name, replica.queue.popleft(), now)

    def loaded(self, name: str, adapter: str, now: float) -> None:
        """The load succeeded: the adapter is resident and its failures are forgotten."""
        replica = self._replicas.get(name)
        if replica is None or replica.loading != adapter:
            return
        self._took += 0.2 * (now - replica.began - self._took)
        replica.loading = None
        replica.resident[adapter] = 0
        replica.failures.pop(adapter, None)

    def failed(self, name: str, adapter: str, now: float, cause: str) -> None:
        """The load failed; `cause` is the engine's own words."""
        replica = self._replicas.get(name)
        if replica is None or replica.loading != adapter:
            return
        replica.loading = None
        before = replica.failures.get(adapter)
        times = 1 if before is None else before.times + 1
        pause = min(self._settings.pause_s * 2.0 ** (times - 1), self._settings.pause_cap_s)
        replica.failures.pop(adapter, None)
        replica.failures[adapter] = Failed(cause, times, now + pause)
        if len(replica.failures) > self._settings.remembered:
            del replica.failures[next(iter(replica.failures))]

    def begin(self, name: str, adapter: str) -> None:
        """A request runs on `name` with `adapter`; end it with `end` on every way out."""
        replica = self._replicas.get(name)
        if replica is not None and adapter in replica.resident:
            replica.resident[adapter] += 1
            replica.resident.move_to_end(adapter)

    def end(self, name: str, adapter: str) -> None:
        """That request is over."""
        replica = self._replicas.get(name)
        if replica is not None and replica.resident.get(adapter, 0) > 0:
            replica.resident[adapter] -= 1

    def snapshot(self) -> dict[str, AdapterSnapshot]:
        """All replicas as they are."""
        return {
            name: AdapterSnapshot(
                slots=replica.slots,
                resident=dict(replica.resident),
                loading=replica.loading,
                queue=tuple(replica.queue),
                failures=dict(replica.failures),
            )
            for name, replica in self._replicas.items()
        }

    def _begin(self, name: str, adapter: str, now: float) -> Load:
        replica = self._replicas[name]
        evict = None
        if len(replica.resident) >= replica.slots:
            evict = next(a for a, running in replica.resident.items() if not running)
            del replica.resident[evict]
        replica.loading = adapter
        replica.began = now
        return Load(name, adapter, evict)

    def _wait(self, name: str, adapter: str) -> Wait:
        replica = self._replicas[name]
        place = 1 if replica.loading == adapter else 2 + replica.queue.index(adapter)
        return Wait(name, self._took * place)

    def _cannot(self, adapter: str, names: list[str], stands: dict[str, Residency]) -> Cannot:
        if not names or all(stand is Residency.IMPOSSIBLE for stand in stands.values()):
            return Cannot(f"no replica takes adapter {adapter}", None)
        failures = [self._replicas[name].failures[adapter] for name in names if stands[name] is Residency.FAILED]
        if failures and not any(stand is Residency.FULL for stand in stands.values()):
            soonest = min(failures, key=lambda failure: failure.until)
            return Cannot(f"loading {adapter} failed {soonest.times} times: {soonest.cause}", soonest.until)
        return Cannot(f"all adapter slots serve others, {adapter} must wait", None)

    def _give_up_late(self, name: str, now: float) -> None:
        replica = self._replicas.get(name)
        if replica is not None and replica.loading is not None:
            late = now - replica.began
            if late > self._settings.patience_s:
                self.failed(name, replica.loading, now, f"no answer to the load for {late:.0f} s")


class Failed(NamedTuple):
    """A load that failed: why, how often in a row, and when it may be tried again."""

    cause: str
    times: int
    until: float


@dataclass(frozen=True, slots=True)
class AdapterSnapshot:
    """A replica's adapters as seen from outside: running requests by resident adapter, and what waits."""

    slots: int
    resident: dict[str, int]
    loading: str | None
    queue: tuple[str, ...]
    failures: dict[str, Failed]


class _Slots:
    __slots__ = ("began", "failures", "loading", "queue", "resident", "slots")

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.resident: OrderedDict[str, int] = OrderedDict()
        """Adapter to running requests, least recently begun first; with `loading`, at most `slots`."""
        self.loading: str | None = None
        self.began = 0.0
        self.queue: deque[str] = deque()
        self.failures: dict[str, Failed] = {}
        """By adapter, oldest first."""

    def room(self) -> bool:
        """A slot is free or can be freed."""
        return len(self.resident) < self.slots or not all(self.resident.values())
