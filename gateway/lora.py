"""LoRA adapters as requests meet them: where one is resident, who waits while it is loaded, and why a load failed.

Which replica loads what, and what makes room for it, is `providers.adapters`' to decide; this file carries it out and
lets the requests wait. An adapter with a `source` is loaded where it is wanted, through the engine's own endpoint. One
without is the operator's: it is used where the engines say they have it, and never makes room for another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass

from gateway.clock import Clock
from providers.adapters import Adapters, AdapterSnapshot, Cannot, Load, Ready, Residency, Wait
from providers.watch import Served

log = logging.getLogger("weighbridge.adapters")

Post = Callable[[str, dict[str, str]], Awaitable[tuple[int, str]]]
"""Posts JSON to a URL: its status and its text. Raises OSError or TimeoutError."""

_LOOK_S = 0.5  # who waits looks again this often, whatever else happens


class NotHere(Exception):
    """No replica can serve the adapter now; `until` is when one may (monotonic seconds), None when time is no cure."""

    def __init__(self, cause: str, until: float | None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.until = until


@dataclass(frozen=True, slots=True)
class Source:
    """What is known of an adapter. `path` is how the engine finds it; None is an adapter this gateway does not load."""

    path: str | None = None
    base: str | None = None
    replicas: frozenset[str] | None = None  # that may hold it; None is all


class Loras:
    """The adapters of one pool. `began` and `ended` frame every request that uses one."""

    def __init__(
        self,
        pool: str,
        core: Adapters,
        post: Post,
        clock: Clock,
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        self.loads: Counter[tuple[str, str, str]] = Counter()
        """By (replica, adapter, result): `loaded` or `failed`."""
        self._pool = pool
        self._core = core
        self._post = post
        self._clock = clock
        self._spawn = spawn
        self._sources: Mapping[str, Source] = {}
        self._roots: Mapping[str, str] = {}
        self._paths: tuple[str, str] | None = None
        self._slots: int | None = None  # as configured; None is as the engine says
        self._resident: dict[str, frozenset[str]] = {}  # by replica, as it last said itself
        self._pinned: set[tuple[str, str]] = set()  # (replica, adapter) kept from making room
        self._wrong: dict[tuple[str, str], str] = {}  # (replica, adapter) that stands on another base, and how
        self._change: asyncio.Future[None] | None = None  # done when who waits should look again

    def configure(
        self, sources: Mapping[str, Source], roots: Mapping[str, str], paths: tuple[str, str] | None, slots: int | None
    ) -> None:
        """The pool's adapters and the root URL of each of its replicas; `paths` load and unload."""
        for gone in self._roots.keys() - roots.keys():
            self._core.remove(gone)
            self._resident.pop(gone, None)
        for new in roots.keys() - self._roots.keys():
            self._core.set_replica(new, slots)
        self._pinned = {key for key in self._pinned if key[0] in roots}
        self._wrong = {key: why for key, why in self._wrong.items() if key[0] in roots and key[1] in sources}
        self._sources, self._roots, self._paths, self._slots = sources, roots, paths, slots

    # -- for a request ---------------------------------------------------------------------------------------

    async def place(self, adapter: str, usable: Sequence[str], until: float) -> frozenset[str]:
        """The replicas of `usable` with `adapter`, once there is one. Raises NotHere when none will be by `until`."""
        source = self._sources[adapter]
        while True:
            now = self._clock.monotonic()
            names = [
                name
                for name in usable
                if (source.replicas is None or name in source.replicas) and (name, adapter) not in self._wrong
            ]
            if source.path is None or self._paths is None:
                return self._fixed(adapter, names)
            # The fewest adapters first, so that they spread.
            held = self._core.snapshot()
            names.sort(key=lambda name: len(held[name].resident) + len(held[name].queue))
            answer = self._core.want(adapter, names, now)
            if isinstance(answer, Ready):
                return answer.replicas
            if isinstance(answer, Load):
                self._spawn(self._load(answer))
                continue
            if isinstance(answer, Wait) and now + answer.expected_s > until:
                raise NotHere(
                    f"adapter {adapter} is being loaded on {answer.replica}, for about {answer.expected_s:.1f} s",
                    now + answer.expected_s,
                )
            if isinstance(answer, Cannot) and (answer.until is not None or not self._full(adapter, names, now)):
                raise NotHere(answer.cause, answer.until)
            if now >= until:
                cause = answer.cause if isinstance(answer, Cannot) else f"adapter {adapter} is still being loaded"
                raise NotHere(cause, None)
            await self._changed(min(until - now, _LOOK_S))

    def _fixed(self, adapter: str, names: list[str]) -> frozenset[str]:
        """Where an adapter is that is not ours to load: as the replicas say, or as configured before they said."""
        holding = [name for name in names if adapter in self._resident.get(name, (adapter,))]
        if not holding:
            cause = next((why for (_, one), why in self._wrong.items() if one == adapter), None)
            raise NotHere(cause or f"adapter {adapter} is on no usable replica of pool {self._pool}", None)
        return frozenset(holding)

    def _full(self, adapter: str, names: list[str], now: float) -> bool:
        return any(self._core.standing(name, adapter, now) is Residency.FULL for name in names)

    def began(self, replica: str, adapter: str) -> None:
        """A request runs with `adapter` on `replica`."""
        self._core.begin(replica, adapter)

    def ended(self, replica: str, adapter: str) -> None:
        """That request is over: its adapter may make room now."""
        self._core.end(replica, adapter)
        self._next(replica)
        self._wake()

    # -- loading ---------------------------------------------------------------------------------------------

    async def _load(self, load: Load) -> None:
        source, paths = self._sources.get(load.adapter), self._paths
        cause: str | None = None
        try:
            if source is None or source.path is None or paths is None:
                cause = "its configuration is gone"
            else:
                root = self._roots[load.replica]
                if load.evict is not None:
                    await self._post(root + paths[1], {"lora_name": load.evict})
                status, text = await self._post(root + paths[0], {"lora_name": load.adapter, "lora_path": source.path})
                if not 200 <= status < 300 and "already" not in text:
                    cause = f"status {status}: {text[:300].strip()}"
        except (OSError, TimeoutError, KeyError) as error:
            cause = f"{type(error).__name__}: {error}"
        now = self._clock.monotonic()
        if cause is None:
            self._core.loaded(load.replica, load.adapter, now)
            self._resident[load.replica] = self._resident.get(load.replica, frozenset()) | {load.adapter}
        else:
            self._core.failed(load.replica, load.adapter, now, cause)
            log.error("adapter %s was not loaded on %s/%s: %s", load.adapter, self._pool, load.replica, cause)
        self.loads[load.replica, load.adapter, "loaded" if cause is None else "failed"] += 1
        self._next(load.replica)
        self._wake()

    def _next(self, replica: str) -> None:
        following = self._core.next_load(replica, self._clock.monotonic())
        if following is not None:
            self._spawn(self._load(following))

    async def _changed(self, seconds: float) -> None:
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._change], timeout=seconds)

    def _wake(self) -> None:
        if self._change is not None:
            self._change.set_result(None)
            self._change = None

    # -- what the engines say ----------------------------------------------------------------------------------

    def observed(self, replica: str, served: Sequence[Served] | None, slots: int | None) -> None:
        """A replica listed its models and adapters (None: it did not), and how many adapters it runs at once."""
        if served is None:
            return
        names = frozenset(one.name for one in served if one.parent is not None or one.name in self._sources)
        self._resident[replica] = names
        for one in served:
            source = self._sources.get(one.name)
            key = (replica, one.name)
            if source is not None and source.base is not None and one.parent not in (None, source.base):
                self._wrong[key] = f"adapter {one.name} stands on {one.parent} at {replica}, not on {source.base}"
            else:
                self._wrong.pop(key, None)
        for key in [key for key in self._pinned if key[0] == replica and key[1] not in names]:
            self._core.end(*key)
            self._pinned.discard(key)
        self._core.observe(replica, names, slots if self._slots is None else self._slots)
        for name in names:
            source = self._sources.get(name)
            if (source is None or source.path is None) and (replica, name) not in self._pinned:
                self._core.begin(replica, name)
                self._pinned.add((replica, name))
        self._wake()

    def missing(self, replica: str, adapter: str) -> None:
        """The replica answered that it does not have the adapter."""
        self._resident[replica] = self._resident.get(replica, frozenset()) - {adapter}
        self._core.observe(replica, self._resident[replica])

    # -- seen from outside -------------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """What stands against adapters now, for people."""
        now = self._clock.monotonic()
        found = [f"pool {self._pool}: {cause}" for cause in self._wrong.values()]
        for name, replica in self._core.snapshot().items():
            found += [
                f"pool {self._pool}: adapter {adapter} failed to load on {name} ({failure.times}x): {failure.cause}"
                for adapter, failure in replica.failures.items()
                if now < failure.until
            ]
        return found

    def snapshot(self) -> dict[str, AdapterSnapshot]:
        """Slots, residents, loads and failures by replica."""
        return self._core.snapshot()
