"""Builds every part from a config and joins them; the only file that knows them all.

`App.start` serves; `App.reload` swaps in another config under load: gates, limits, breakers and
connections outlive it, requests under way keep the world they began with.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import secrets
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import aiohttp
import uvloop
from aiohttp import web
from prometheus_client.core import Metric
from redis.asyncio import Redis

from fairqueue.admission import Admission, Choose, PoolSettings, PoolSnapshot
from gateway import config as config_file
from gateway import values
from gateway.accept import Doorman
from gateway.api.admin import Parts, add_admin
from gateway.api.admin_auth import Guard
from gateway.api.admin_fleet import Fleet
from gateway.api.ops import Readiness, add_routes
from gateway.api.server import DataServer
from gateway.clock import Clock
from gateway.condition import condition
from gateway.dispatch import Dispatcher
from gateway.estimate import Estimator
from gateway.gate import Gate
from gateway.isolation import Salts
from gateway.isolation_probe import Probes
from gateway.leaving import Leaving
from gateway.lifecycle import Lifecycle
from gateway.lora import Loras
from gateway.polled import Polled
from gateway.record import numbered
from gateway.registry.bell import Bell
from gateway.registry.database import MEMORY, Database
from gateway.registry.ledger import ledger_of
from gateway.registry.registry import Registry
from gateway.routing import Routing
from gateway.settings import Config
from gateway.settings_models import Model
from gateway.settings_pools import Pool
from gateway.settle import Settler
from gateway.spillway import Spillway
from gateway.strangers import Strangers
from gateway.telemetry import families, logs, routes
from gateway.telemetry.instruments import Instruments
from gateway.telemetry.page import Page
from gateway.tenancy import Tenancy
from gateway.world import ModelEntry, ModelPrices, PoolEntry, World
from providers.adapters import Adapters
from providers.balance import BalanceSettings, Chooser
from providers.breaker import Breakers
from providers.ejection import Replicas
from providers.kinds import kind_named
from providers.prefix import PrefixIndex
from providers.retry import RetryRatios
from providers.spill import Spill
from providers.transport import Transport
from providers.watch import Watcher, WatchSettings, aiohttp_get, aiohttp_post
from ratelimit.redis_connect import connect
from ratelimit.redis_store import RedisLimiter
from ratelimit.store import LocalLimiter

log = logging.getLogger("weighbridge")

_HOUSEKEEPING_S = 5.0
_FIRST_PROBE_S = 3.0  # nor before salted pools were probed, or this long
_FIRST_POLL_S = 1.0  # ready is not said before replicas were polled once, or this long

MakeAdmission = Callable[[PoolSettings, Choose], Admission]


@dataclass(slots=True)
class _Parts:
    """What of a pool outlives a reload."""

    gate: Gate
    members: Replicas
    polled: Polled
    watcher: Watcher
    session: aiohttp.ClientSession
    settings: PoolSettings  # of the gate, as last told


class App:
    """One gateway process. Make it inside a running loop."""

    def __init__(
        self,
        config: Config,
        *,
        path: Path | None = None,
        request_log: IO[bytes] | None = None,
        admission: MakeAdmission = Admission,
    ) -> None:
        """`path` is read again on reload; `admission` makes each pool's, which benchmarks replace to compare."""
        self.config = config  # what the file says
        self.clock = Clock()
        self.database = Database(config.store.get_secret_value() if config.store is not None else MEMORY)
        self.tenancy = Tenancy(config, self.clock, lambda: {name: it.gate.core for name, it in self.pools.items()})
        self.registry = Registry(self.database, config, now_us=self.clock.unix_us, changed=self.tenancy.follow)
        self._make_admission = admission
        self.path = path
        self.instruments = Instruments()
        self.estimator = Estimator()
        # The shared limit store, if one is asked for; the limiter speaks to it, it is ours to close.
        self._store = connect(config.redis.get_secret_value()) if config.redis is not None else None
        self.limiter: LocalLimiter | RedisLimiter = (
            RedisLimiter(self._store, instance=secrets.token_hex(6)) if self._store is not None else LocalLimiter()
        )
        self.ledger = ledger_of(config, self.database, self.clock)
        self._bell: Bell | None = None
        if isinstance(self._store, Redis) and not self.database.memory:
            self._bell = Bell(self._store, self.registry.wake)
            self.registry.announce = self._bell.ring
        self.transport = Transport()
        self.leaving = Leaving()
        given = config.salt_secret
        salts = Salts(given.get_secret_value().encode() if given is not None else secrets.token_bytes(32))
        self.probes = Probes(
            self.clock, self.transport, salts, lambda: self.lifecycle.world, lambda pool: self.pools[pool].watcher
        )
        self.strangers = Strangers(config.unauthenticated.requests_per_minute, config.unauthenticated.burst)
        self.breakers = Breakers(random.random, values.breaker(config.failover))
        self.pools: dict[str, _Parts] = {}
        self.port = self.admin_port = 0
        self._log = logs.RequestLog(request_log)
        self._started = int(self.clock.unix())
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._admin: web.AppRunner | None = None
        self._ready = False
        settler = Settler(
            clock=self.clock,
            limiter=self.limiter,
            estimator=self.estimator,
            instruments=self.instruments,
            log=self._log,
            ledger=self.ledger,
        )
        retry = values.retry(config.failover)
        self.routing = Routing(
            clock=self.clock,
            uniform=random.random,
            breakers=self.breakers,
            ratios=RetryRatios(retry, self.clock.monotonic()),
            retry=retry,
            salts=salts,
        )
        self.lifecycle = Lifecycle(
            self._world(config),
            clock=self.clock,
            doorman=Doorman(clock=self.clock, estimator=self.estimator, strangers=self.strangers),
            dispatcher=Dispatcher(
                clock=self.clock,
                transport=self.transport,
                routing=self.routing,
                settler=settler,
                instruments=self.instruments,
                leaving=self.leaving,
            ),
            settler=settler,
            instruments=self.instruments,
            readiness=self.readiness,
            new_id=numbered("req_" + secrets.token_hex(6)),
        )
        self._server = DataServer(self.lifecycle.serve, config.listen.server)
        self._page = Page(self.instruments, self._snapshots, self._extra_metrics)

    # -- life ----------------------------------------------------------------------------------------

    async def start(self) -> App:
        """Listens and becomes ready. Raises OSError when a port is taken."""
        config = self.config
        if isinstance(self.limiter, RedisLimiter):
            await self.limiter.start()
        await self.registry.start()
        self.ledger.start()
        if self._bell is not None:
            self._bell.start()
        self.port = await self._server.start(
            config.listen.host, config.listen.port, values.server_tls(config.listen.tls)
        )
        admin = web.Application()
        add_routes(admin, self.readiness, self._page.render)
        add_admin(admin, self._admin_parts())
        self._admin = web.AppRunner(admin, access_log=None, shutdown_timeout=1.0)
        await self._admin.setup()
        site = web.TCPSite(
            self._admin, config.admin.host, config.admin.port, ssl_context=values.server_tls(config.admin.tls)
        )
        await site.start()
        self.admin_port = self._admin.addresses[0][1]
        for parts in self.pools.values():
            await parts.watcher.start()
        await self._first_polls()
        await self.probes.first(_FIRST_PROBE_S)
        self._spawn(self.probes.run())
        self._spawn(self._keep_house())
        self._ready = True
        log.info("ready: data on port %d, admin on port %d", self.port, self.admin_port)
        return self

    def handle_signals(self) -> None:
        """SIGTERM and SIGINT stop, SIGHUP reloads."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self.reload_file)

    async def wait(self) -> None:
        """Until a signal to stop."""
        await self._stop.wait()

    async def close(self) -> None:
        """Not ready, no new requests, running ones finish (bounded), then everything is closed."""
        self._ready = False
        cut = await self.lifecycle.drain(self.config.listen.drain_s)
        if cut:
            log.warning("%d requests were cut at the end of the drain time", cut)
        for task in self._tasks:
            task.cancel()
        await self._server.close()
        if self._admin is not None:
            await self._admin.cleanup()
        for parts in self.pools.values():
            await self._close_parts(parts)
        await self.ledger.close()
        await self.registry.close()
        if self._bell is not None:
            await self._bell.close()
        await self.database.close()
        if isinstance(self.limiter, RedisLimiter):
            await self.limiter.close()
        if self._store is not None:
            await self._store.aclose()
        await self.transport.close()
        self._log.close()

    @staticmethod
    async def _close_parts(parts: _Parts) -> None:
        await parts.watcher.stop()
        await parts.session.close()
        parts.gate.close()
        parts.polled.spillway.close()

    async def _first_polls(self) -> None:
        """Waits until every watched replica was polled once, so that the first request meets known capacity."""
        until = self.clock.monotonic() + _FIRST_POLL_S
        while self.clock.monotonic() < until:
            waiting = [
                replica.name
                for name, pool in self.config.pools.items()
                for replica in pool.replicas
                if replica.name not in self.pools[name].polled.seen
            ]
            if not waiting:
                return
            await asyncio.sleep(0.01)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def reload_file(self) -> None:
        """Reads the config file again; a bad one changes nothing and says why in the log."""
        if self.path is None:
            return
        try:
            loaded = config_file.read(self.path)
        except config_file.ConfigErrors as errors:
            self.instruments.reloads["refused"] += 1
            for problem in errors.problems:
                log.error("config not reloaded: %s", problem)
            return
        self.reload(loaded.config)

    def reload(self, config: Config) -> None:
        """Swaps in another config. Listeners and process-wide settings keep what they started with."""
        self.registry.book.declare(config)
        self.tenancy.declare(self.registry.book)
        self.lifecycle.world = self._world(config)
        self.routing.retain(self.lifecycle.world)
        self.strangers.resize(config.unauthenticated.requests_per_minute, config.unauthenticated.burst)
        self.config = config
        self.instruments.reloads["applied"] += 1
        log.info("config reloaded, version %s", config.digest())

    def _admin_parts(self) -> Parts:
        """What the admin API may ask and change."""
        given, clock = self.config.unauthenticated, self.clock
        strangers = Strangers(given.requests_per_minute, given.burst)
        return Parts(
            self.registry,
            Guard(self.registry.book, strangers, now=clock.monotonic, unix_us=clock.unix_us),
            Fleet(
                config=lambda: self.tenancy.known,
                unix_us=clock.unix_us,
                snapshots=lambda: {pool.name: pool for pool in self._snapshots()},
                breakers=lambda: self.breakers.snapshot(clock.monotonic()).items(),
                sellable=self.tenancy.sellable,
                separations=lambda: self.probes.pools,
                last_used=lambda: self.ledger.last_used,
            ),
        )

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            self.clock.resync()
            self.tenancy.keep_reservations()
            for parts in self.pools.values():
                parts.polled.keep(self.clock.monotonic())
            if isinstance(self.limiter, LocalLimiter):
                self.limiter.sweep_now(self.clock.unix_us())

    # -- the world of a config -------------------------------------------------------------------------

    def _world(self, config: Config) -> World:
        now = self.clock.monotonic()
        pools = {name: self._pool(name, pool, config, now) for name, pool in config.pools.items()}
        for name in [name for name in self.pools if name not in pools]:
            self._retire(name, now)
        self.tenancy.keep_reservations()
        prices = values.prices(config)
        models = {name: self._model(name, model, config, prices[name]) for name, model in config.models.items()}
        for alias, name in config.names().items():
            models.setdefault(alias, models[name])
        return World(
            digest=config.digest(),
            directory=self.tenancy.directory,
            models=models,
            pools=pools,
            limits=values.limits_of(config),
            compile=self.limiter.group,
            max_body_bytes=config.listen.max_body_bytes,
            body_timeout_s=config.listen.body_timeout_ms / 1000,
        )

    def _pool(self, name: str, pool: Pool, config: Config, now: float) -> PoolEntry:
        settings = values.pool_settings(name, pool, config)
        parts = self.pools.get(name)
        if parts is None:
            parts = self.pools[name] = self._new_parts(name, pool, settings)
        elif parts.settings != settings:
            parts.watcher.every(settings.scrape_interval_s)
            parts.gate.reconfigure(settings)
            parts.polled.spillway.reconfigure(values.line(settings), settings.costs)
            parts.settings = settings
        addresses, polled = values.places(pool), parts.polled
        for gone in {replica.name for replica in parts.gate.core.snapshot(now).replicas} - addresses.keys():
            polled.remove(gone, now)
            self._spawn(parts.watcher.remove(gone))
        for replica in addresses:
            polled.add(replica, values.capacity(pool), now)
        polled.chooser.set_replicas(list(addresses))
        values.equip(polled.loras, pool)
        for watched in values.watched(pool):
            parts.watcher.add(watched)
        return PoolEntry(
            name=name,
            kind=kind_named(pool.kind),
            gate=parts.gate,
            members=parts.members,
            chooser=polled.chooser,
            replicas=addresses,
            credentials=values.credentials(pool),
            region=pool.domain()[1],
            timers=values.timers(pool),
            first_token_s=pool.timeouts.first_token_ms / 1000,
            stall_s=pool.timeouts.stall_ms / 1000,
            total_s=pool.timeouts.total_ms / 1000,
            ttft_slo_s=settings.ttft_slo_s,
            isolation=pool.isolation,
            separation=self.probes.of(name, pool),
            gather=pool.gather,
            priorities=pool.priority,
            bills_on=values.bills_on(pool),
            adapters=values.adapters(pool),
            extra=pool.extra(),
            loras=polled.loras if pool.adapters else None,
            spillway=polled.spillway if name in values.spilled_to(config) else None,
        )

    def _new_parts(self, name: str, pool: Pool, settings: PoolSettings) -> _Parts:
        key = pool.key.get_secret_value() if pool.key is not None else None
        headers = {"authorization": f"Bearer {key}"} if key is not None else None
        session, clock = aiohttp.ClientSession(), self.clock
        members, index, held = Replicas(random.random, ttft_slo_s=settings.ttft_slo_s), PrefixIndex(), Adapters()
        balance = BalanceSettings(instances=1 if self.config.redis is None else 2)
        chooser = Chooser(random.random, balance, index=index, replicas=members, adapters=held)
        gate = Gate(self._make_admission(settings, chooser), clock.monotonic)
        line = Gate(Admission(values.line(settings)), clock.monotonic)
        polled = Polled(
            name=name,
            clock=clock,
            routing=self.routing,
            gate=gate,
            members=members,
            chooser=chooser,
            index=index,
            loras=Loras(name, held, aiohttp_post(session, headers), clock, self._spawn),
            spillway=Spillway(name, Spill(), line, gate, clock, settings.costs),
            balance=balance,
        )
        watch = WatchSettings(interval_s=settings.scrape_interval_s)
        watcher = Watcher(aiohttp_get(session, headers), polled.take, random.random, watch, clock.monotonic)
        if self._ready:  # a pool that a reload brings
            self._spawn(watcher.start())
        return _Parts(gate, members, polled, watcher, session, settings)

    def _retire(self, name: str, now: float) -> None:
        """A pool is gone from the config: no new work there, its tickets end as usual."""
        parts = self.pools.pop(name)
        for replica in parts.gate.core.snapshot(now).replicas:
            parts.gate.core.remove_replica(replica.name, now)
        self._spawn(self._close_parts(parts))

    def _model(self, name: str, model: Model, config: Config, prices: ModelPrices) -> ModelEntry:
        return ModelEntry(
            name=name,
            context=model.context,
            max_output=model.max_output_tokens,
            route=values.route(name, model, config),
            prices=prices,
            owned_by="weighbridge",
            created=self._started,
            continuation=model.continuation,
        )

    # -- what is seen from outside -----------------------------------------------------------------------

    def readiness(self) -> Readiness:
        """Whether new requests may come, and what the instance goes on without."""
        idle = None if self._ready else ("draining" if self.lifecycle.draining else "starting")
        return condition(
            idle=idle,
            limiter=self.limiter,
            registry=self.registry,
            ledger=self.ledger.degraded(),
            pools={name: parts.polled for name, parts in self.pools.items()},
            breakers=self.breakers,
            probes=self.probes,
            now=self.clock.monotonic(),
        )

    def _snapshots(self) -> Iterable[PoolSnapshot]:
        now = self.clock.monotonic()
        return [parts.gate.core.snapshot(now) for parts in self.pools.values()]

    def _extra_metrics(self) -> Iterable[Metric]:
        yield from families.limits(self.limiter)
        yield from families.leaving(self.leaving)
        yield from families.isolation(self.probes)
        now = self.clock.monotonic()
        yield from families.breakers(self.breakers, now)
        yield from routes.spill({name: parts.polled.spillway for name, parts in self.pools.items()}, now)
        yield from routes.adapters({name: parts.polled.loras for name, parts in self.pools.items()})
        yield from routes.continuations(self.instruments)


def serve(config: Config, path: Path | None = None) -> None:
    """Serves in the foreground until SIGTERM or SIGINT; returns once running requests have ended."""
    logs.set_up(config.telemetry.log_level)

    async def main() -> None:
        app = await App(config, path=path, request_log=sys.stdout.buffer).start()
        app.handle_signals()
        # What was built at start lives as long as the process: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 100)
        try:
            await app.wait()
        finally:
            await app.close()

    uvloop.run(main())
