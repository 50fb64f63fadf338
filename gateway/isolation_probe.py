"""The isolation probe: asks every replica that is to part its tenants by a salt whether it does.

Three requests a path and a trial, with one token of output each, through the pool's gate like any other. Salts and
prompt are made anew each time, so that nothing found in a cache can have another origin. A replica is asked at the
start, every hour, and when it comes back; a pool that fails is asked again every minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import orjson

from fairqueue.item import Demand, Item, RequestClass
from gateway.clock import Clock
from gateway.gate import QueueRefused
from gateway.isolation import Salts, Separation, Trial, Verdict, judge
from gateway.settings_pools import Pool
from gateway.world import PoolEntry, World
from providers.engines import FACTS
from providers.exchange import Call, Dialect, Endpoint, Unsupported, Upstream, Usage
from providers.transport import Transport, TransportError
from providers.watch import Watcher

log = logging.getLogger("weighbridge.isolation")

TENANT = "!isolation"  # no tenant can have this name
_PATHS = (Endpoint.CHAT, Endpoint.COMPLETIONS)
_TICK_S = 1.0
_EVERY_S = 3600.0
_DOUBTED_S = 60.0  # until a replica that failed, or proved nothing, is asked again
_BUSY_S = 15.0  # until one that could not be asked is; sooner while nothing is known of it
_PATIENCE_S = 20.0  # for one request, its wait for a ticket included
_MOST_TRIALS = 3  # where only a counter tells, which others move too
_LEAST_BYTES, _MOST_BYTES = 256, 4096


class _NotAsked(Exception):
    """The replica could not be asked; says nothing of its cache."""


@dataclass(slots=True)
class Probes:
    """The separations of all pools, and the task that keeps them true."""

    clock: Clock
    transport: Transport
    salts: Salts
    world: Callable[[], World]
    watchers: Callable[[str], Watcher]
    pools: dict[str, Separation] = field(default_factory=dict)
    runs: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By (pool, verdict)."""
    _due: dict[tuple[str, str], float] = field(default_factory=dict)
    _away: set[tuple[str, str]] = field(default_factory=set)  # replicas that were not usable when last looked at
    _seen: str = ""  # digest of the world whose tenants were looked through

    def of(self, name: str, pool: Pool) -> Separation:
        """The separation of a pool, made when it is first heard of."""
        salts = FACTS[pool.kind].salt
        shares = bool(pool.replicas) and not salts and pool.isolation != "dedicated"
        found = self.pools.get(name)
        if found is None or (found.salts, found.shares) != (salts, shares):
            found = self.pools[name] = Separation(name, salts, shares)
        found.wanted |= salts and pool.isolation == "salted"
        return found

    def problems(self) -> list[str]:
        """What an operator should know."""
        return [problem for separation in self.pools.values() for problem in separation.problems()]

    async def run(self) -> None:
        """Asks whom it is time to ask, for ever."""
        while True:
            try:
                await self.round()
            except Exception:
                log.exception("the isolation probe failed")
            await asyncio.sleep(_TICK_S)

    async def first(self, seconds: float) -> None:
        """One round, or as much of it as `seconds` allow."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.round()

    async def round(self) -> None:
        """Every replica that is due, pools side by side."""
        world, now = self.world(), self.clock.monotonic()
        self._look_through(world)
        for gone in self.pools.keys() - world.pools.keys():
            del self.pools[gone]
        due = {name: self._replicas_due(entry, now) for name, entry in world.pools.items() if self._asks(name)}
        await asyncio.gather(*(self._pool(world, name, replicas) for name, replicas in due.items() if replicas))

    def _asks(self, name: str) -> bool:
        found = self.pools.get(name)
        return found is not None and found.salts and found.wanted

    def _look_through(self, world: World) -> None:
        """Pools that a tenant who requires salted isolation may come to are asked before it does."""
        if world.digest == self._seen:
            return
        self._seen = world.digest
        for record in world.directory.records():
            principal = record.principal
            if principal.isolation == "salted":
                for name, separation in self.pools.items():
                    separation.wanted |= principal.pools is None or name in principal.pools

    def _replicas_due(self, entry: PoolEntry, now: float) -> list[str]:
        separation, usable = self.pools[entry.name], entry.members.usable(now)
        for gone in separation.verdicts.keys() - entry.replicas.keys():
            del separation.verdicts[gone]
        due = []
        for replica in entry.replicas:
            key = (entry.name, replica)
            separation.verdicts.setdefault(replica, (Verdict.PENDING, "not asked yet"))
            if not usable.get(replica, False):
                self._away.add(key)
            elif key in self._away or now >= self._due.get(key, 0.0):
                self._away.discard(key)
                due.append(replica)
        return due

    async def _pool(self, world: World, name: str, replicas: list[str]) -> None:
        entry, separation = world.pools[name], self.pools[name]
        for replica in replicas:
            try:
                verdict, detail = await self._replica(world, entry, replica)
            except _NotAsked as why:
                pending = separation.verdicts[replica][0] is Verdict.PENDING
                self._due[name, replica] = self.clock.monotonic() + (_TICK_S if pending else _BUSY_S)
                self.runs[name, "not_asked"] += 1
                log.info("isolation of %s in pool %s could not be probed: %s", replica, name, why)
                continue
            wait = _EVERY_S if verdict is Verdict.SEPARATE else _DOUBTED_S
            self._due[name, replica] = self.clock.monotonic() + wait
            self.runs[name, verdict] += 1
            if separation.verdicts[replica][0] is not verdict:
                level = logging.ERROR if verdict is Verdict.LEAKING else logging.INFO
                log.log(level, "isolation of %s in pool %s: %s (%s)", replica, name, verdict, detail)
            separation.verdicts[replica] = (verdict, detail)

    async def _replica(self, world: World, entry: PoolEntry, replica: str) -> tuple[Verdict, str]:
        """All trials of one replica. Raises _NotAsked."""
        model, context = _model_of(world, entry)
        trials: list[Trial] = []
        for path in _PATHS:
            if path not in entry.kind.facts.endpoints:
                continue
            for _ in range(_MOST_TRIALS):
                trial = await self._trial(entry, replica, path, model, context)
                if trial is None:
                    break  # the path is not served there: no chat template, for one
                trials.append(trial)
                if trial.sure or trial.other == 0:
                    break
        if not trials:
            return Verdict.UNPROVED, "no path of it answers the probe"
        return judge(trials)

    async def _trial(
        self, entry: PoolEntry, replica: str, path: Endpoint, model: str, context: int | None
    ) -> Trial | None:
        """Three requests with one prompt: a tenant, the same again, another. None when the engine refuses them."""
        length = min(max((context or _MOST_BYTES) // 2, _LEAST_BYTES), _MOST_BYTES)
        prompt = secrets.token_hex(length // 2)
        mine, other = (self.salts.of(f"{TENANT} {secrets.token_hex(16)}") for _ in range(2))
        told: list[int | None] = []
        sure = True
        for salt in (mine, mine, other):
            before = None if sure else await self._hits(entry.name, replica)
            usage = await self._ask(entry, replica, path, model, prompt, salt)
            if usage is None:
                return None
            if usage.cached_tokens is not None:
                told.append(usage.cached_tokens)
                continue
            sure = False
            after = await self._hits(entry.name, replica)
            told.append(None if before is None or after is None else max(0, after - before))
        return Trial(path.value, told[0], told[1], told[2], sure)

    async def _hits(self, pool: str, replica: str) -> int | None:
        """Prompt tokens the replica has ever found in its cache, by its metrics."""
        seen = await self.watchers(pool).look(replica)
        return seen.figures.prefix_hits_total if seen is not None and seen.figures is not None else None

    async def _ask(
        self, entry: PoolEntry, replica: str, path: Endpoint, model: str, prompt: str, salt: str
    ) -> Usage | None:
        """One request; its usage, or None when the engine refuses it as wrong. Raises _NotAsked."""
        item = self._item(entry, replica, prompt)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                ticket = await entry.gate.admit(item)
                usage: Usage | None = None
                try:
                    usage = await self._exchange(entry, replica, _call(path, prompt), model, salt)
                finally:
                    entry.gate.release(
                        ticket,
                        prompt_tokens=usage.prompt_tokens if usage is not None else None,
                        output_tokens=1,
                        served=usage is not None,
                    )
                return usage
        except QueueRefused as refused:
            raise _NotAsked(str(refused)) from None
        except TimeoutError:
            raise _NotAsked(f"no answer within {_PATIENCE_S:g} s") from None
        except TransportError as error:
            raise _NotAsked(str(error)) from None

    async def _exchange(self, entry: PoolEntry, replica: str, call: Call, model: str, salt: str) -> Usage | None:
        upstream = Upstream(
            kind=entry.kind.name,
            base_url=entry.replicas[replica].base_url,
            model=model,
            credential=entry.credentials[0].secret,
            extra=entry.extra,
            cache_salt=salt,
            gather=entry.gather,
            at=int(self.clock.unix()),
        )
        try:
            outgoing = entry.kind.prepare(call, upstream)
        except Unsupported:
            return None
        origin = entry.replicas[replica].origin
        answer = await self.transport.send(
            origin, outgoing.method, outgoing.url_path, outgoing.headers, outgoing.body, entry.timers
        )
        with answer:
            if answer.status >= 500 or answer.status in (401, 403, 408, 429):
                raise _NotAsked(f"it answered {answer.status}")
            if not 200 <= answer.status < 300:
                return None
            reader = entry.kind.reader(call, upstream, answer.status, answer.headers)
            while True:
                data = await answer.read()
                part = reader.feed(data) if data else reader.end()
                if part.failure is not None:
                    raise _NotAsked(part.failure.message)
                if part.done or not data:
                    return reader.usage

    def _item(self, entry: PoolEntry, replica: str, prompt: str) -> Item:
        now = self.clock.monotonic()
        return Item(
            request_id=f"isolation-{secrets.token_hex(4)}",
            tenant=TENANT,
            cls=RequestClass.INTERACTIVE,
            demand=Demand(prompt_tokens=len(prompt) // 2, output_tokens=1, output_cap=1),
            arrived=now,
            deadline=now + _PATIENCE_S,
            remaining=lambda _: 1,
            replicas=frozenset({replica}),
        )


def _call(path: Endpoint, prompt: str) -> Call:
    body: dict[str, object] = {"model": "probe", "max_tokens": 1, "temperature": 0}
    if path is Endpoint.CHAT:
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    return Call(path, Dialect.OPENAI, orjson.dumps(body), body, "probe", stream=False, wants_usage=False)


def _model_of(world: World, entry: PoolEntry) -> tuple[str, int | None]:
    """The base model of a pool and its context, by the first target that names it. Raises _NotAsked."""
    adapters: Mapping[str, object] = entry.adapters
    for model in world.models.values():
        for target in model.route.targets():
            if target.pool == entry.name and target.model not in adapters:
                return target.model, target.context
    raise _NotAsked("no model is served there")
