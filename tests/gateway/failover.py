"""What the tests of failover share: simulated servers behind a config of the test's own, and clean slates."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from gateway import config, keys
from gateway.app import App
from providers.simulated.server import SimulatedServer
from providers.simulated.service import Flavour, ServiceSettings
from providers.simulated.settings import EngineSettings
from tests.gateway.stack import ALICE, BOB, FAST, MODEL, Stack

HEAD = """
listen: {port: 0, drain_s: 5}
admin: {port: 0, key: admin-key-for-tests}
failover: {backoff_ms: 2, backoff_max_ms: 10}
"""
TENANTS = f"""
tenants:
  alice:
    LIMITS
    keys: [{{id: alice1, hash: "{keys.digest(ALICE)}"}}]
  bob:
    class: batch
    keys: [{{id: bob1, hash: "{keys.digest(BOB)}"}}]
"""


def engine(settings: EngineSettings = FAST, **more: Any) -> ServiceSettings:
    """A self-hosted engine."""
    return ServiceSettings(settings, **more)


def account(*accepted: str, settings: EngineSettings = FAST, **more: Any) -> ServiceSettings:
    """A provider account that takes the keys named."""
    return ServiceSettings(settings, flavour=Flavour.ACCOUNT, api_keys=frozenset(accepted), **more)


@asynccontextmanager
async def serving(
    settings: Sequence[ServiceSettings], text: Callable[..., str], *, limits: str = "limits: {}"
) -> AsyncIterator[Stack]:
    """The gateway over `settings`' servers; `text` is given their URLs and makes the pools and models of the config."""
    servers = [SimulatedServer(one) for one in settings]
    for server in servers:
        await server.start()
    whole = HEAD + text(*(server.url for server in servers)) + TENANTS.replace("LIMITS", limits)
    log = io.BytesIO()
    app = await App(config.parse(whole, "test.yaml", {}).config, request_log=log).start()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        stack = Stack(app, servers, None, log, session)
        try:
            yield stack
        finally:
            for client in stack.clients:
                await client.close()
            await app.close()
            for server in servers:
                await server.close()


def forget(stack: Stack) -> None:
    """A clean slate: no breaker, replica or bucket of retries remembers anything, and no fault is on."""
    app, now = stack.app, stack.app.clock.monotonic()
    for server in stack.engines:
        server.clear_faults()
    app.breakers.retain(())
    for name, entry in app.lifecycle.world.pools.items():
        entry.breakers.clear()
        members = app.pools[name].members
        for replica in entry.replicas:
            members.remove(replica, now)
            members.add(replica, now)
        entry.gate.usable(members.usable(now))
    app.routing._ratios.fleet._level = 100.0
    app.routing._back.clear()


@dataclass
class Heard:
    """One stream as a client gets it."""

    status: int
    text: str
    chunks: list[dict[str, Any]]
    done: bool
    error: dict[str, Any] | None

    @property
    def usage(self) -> dict[str, Any] | None:
        return next((chunk["usage"] for chunk in reversed(self.chunks) if chunk.get("usage")), None)

    @property
    def finish(self) -> str | None:
        reasons = [choice["finish_reason"] for chunk in self.chunks for choice in chunk["choices"]]
        return next((reason for reason in reasons if reason), None)


def hear(status: int, body: bytes) -> Heard:
    """Reads the bytes of a stream."""
    chunks, error, done = [], None, False
    for frame in body.split(b"\n\n"):
        if frame == b"data: [DONE]":
            done = True
        elif frame.startswith(b"data: "):
            value = orjson.loads(frame[6:])
            if "error" in value:
                error = value["error"]
            else:
                assert not done, "something came after the end"
                chunks.append(value)
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    return Heard(status, text, chunks, done, error)


def route(pools: str, tiers: str, more: str = "") -> str:
    """Pools, and one model with these tiers."""
    return f"""
pools:
{pools}
models:
  {MODEL}:
    context: 16000
    {more}
    tiers:
{tiers}
"""
