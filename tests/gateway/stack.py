"""A gateway in front of simulated engines, over real HTTP on loopback, for tests that look from outside."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import openai
import orjson

from gateway import config, keys
from gateway.app import App
from providers.simulated.server import SimulatedServer
from providers.simulated.service import Flavour, ServiceSettings
from providers.simulated.settings import EngineSettings

MODEL = "chat-large"
ALICE = keys.mint("alice1", bytes(range(32)))
BOB = keys.mint("bob1", bytes(range(32, 64)))
VENDOR_KEY = "vendor-key"

FAST = EngineSettings(a_s=0.002, d_s=1e-5, kv_tokens=32_000, max_seqs=32)
"""2 ms a token: quick enough that a test of 50 tokens takes a tenth of a second."""


def settings_text(
    engines: list[SimulatedServer],
    vendor: SimulatedServer | None,
    *,
    pool: str = "",
    ttft_ms: int = 2000,
    limits: str = "{}",
    key_limits: str = "{}",
    extra: str = "",
    model: str = "",
) -> str:
    """The config of the stack as YAML; `pool`, `model` and `extra` are lines to add where they say."""
    replicas = ", ".join(f'{{name: r{n}, url: "{engine.url}"}}' for n, engine in enumerate(engines))
    second = "" if vendor is None else "\n      - targets: [{pool: vendor, model: sim-large}]"
    account = (
        ""
        if vendor is None
        else f"""
  vendor:
    kind: openai-compatible
    account: {{url: "{vendor.url}/v1", credentials: [{{name: main, key: {VENDOR_KEY}}}]}}
    capacity: {{seats: 16}}
    failure_domain: {{vendor: elsewhere}}"""
    )
    return f"""
listen: {{port: 0, drain_s: 5}}
admin: {{port: 0, key: admin-key-for-tests}}
pools:
  local:
    kind: simulated
    replicas: [{replicas}]
    poll_ms: 200
    slo: {{ttft_ms: {ttft_ms}, tpot_ms: 100}}
    {pool}{account}
models:
  {MODEL}:
    context: 16000
    aliases: [gpt-alias]
    {model}
    tiers:
      - targets: [{{pool: local, model: sim-large}}]{second}
tenants:
  alice:
    limits: {limits}
    keys: [{{id: alice1, hash: "{keys.digest(ALICE)}", limits: {key_limits}}}]
  bob:
    models: []
    keys: [{{id: bob1, hash: "{keys.digest(BOB)}"}}]
{extra}"""


@dataclass
class Stack:
    """The running parts and short ways to use them."""

    app: App
    engines: list[SimulatedServer]
    vendor: SimulatedServer | None
    log: io.BytesIO
    session: aiohttp.ClientSession
    clients: list[openai.AsyncOpenAI] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.app.port}/v1"

    def client(self, key: str = ALICE, **options: Any) -> openai.AsyncOpenAI:
        """The official SDK, which does not retry unless asked to, so that each test sees its one answer."""
        client = openai.AsyncOpenAI(base_url=self.base_url, api_key=key, **{"max_retries": 0, **options})
        self.clients.append(client)
        return client

    def chat(self, **fields: Any) -> dict[str, Any]:
        """A chat body."""
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "weigh this"}],
            "max_tokens": 8,
        }
        return {**body, **fields}

    async def post(
        self,
        body: Any,
        *,
        path: str = "/chat/completions",
        key: str | None = ALICE,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """A raw POST; status, headers by lower-case name, body."""
        sent = {"authorization": f"Bearer {key}"} if key is not None else {}
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        async with self.session.post(self.base_url + path, data=data, headers={**sent, **(headers or {})}) as answer:
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}, await answer.read()

    async def raw(self, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A chat request on a socket of its own, whose end the test decides."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.app.port)
        data = orjson.dumps(body)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (ALICE.encode(), len(data), data)
        )
        await writer.drain()
        return reader, writer

    async def metric(self, name: str) -> float:
        """The sum of all samples of a metric on the page."""
        async with self.session.get(f"http://127.0.0.1:{self.app.admin_port}/metrics") as answer:
            page = await answer.text()
        lines = [line for line in page.splitlines() if line.startswith((name + " ", name + "{"))]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def lines(self) -> list[dict[str, Any]]:
        """The request log so far."""
        self.app._log.flush()
        return [orjson.loads(line) for line in self.log.getvalue().splitlines()]

    async def at_rest(self) -> None:
        """Waits until every request is settled and asserts that nothing is held anywhere."""
        await until(lambda: self.app.lifecycle.in_flight == 0)
        await until(lambda: all(e.engine.running + e.engine.waiting == 0 for e in self.engines))
        for parts in self.app.pools.values():
            snapshot = parts.gate.core.snapshot(self.app.clock.monotonic())
            assert (snapshot.seats_held, snapshot.kv_tokens_held, snapshot.prefill_tokens) == (0, 0, 0)
            assert (snapshot.inflight, snapshot.waiting, parts.gate.waiting) == (0, 0, 0)
        assert self.app.limiter.snapshot().open == 0
        for engine in self.engines:
            assert engine.engine.snapshot().kv_blocks_held == 0


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> float:
    """Waits for a condition of other tasks; fails after `seconds`. Returns how long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() - began < seconds, "the condition was not met in time"
        await asyncio.sleep(0.002)
    return loop.time() - began


@asynccontextmanager
async def running(
    replicas: int = 1,
    *,
    engine: EngineSettings = FAST,
    vendor: bool = False,
    config_changes: dict[str, Any] | None = None,
) -> AsyncIterator[Stack]:
    """A stack of `replicas` engines, with a simulated provider as second tier if asked for."""
    engines = [SimulatedServer(ServiceSettings(engine)) for _ in range(replicas)]
    account = (
        SimulatedServer(ServiceSettings(engine, flavour=Flavour.ACCOUNT, api_keys=frozenset({VENDOR_KEY})))
        if vendor
        else None
    )
    for server in [*engines, *([account] if account is not None else [])]:
        await server.start()
    text = settings_text(engines, account, **(config_changes or {}))
    log = io.BytesIO()
    app = await App(config.parse(text, "test.yaml", {}).config, request_log=log).start()
    async with aiohttp.ClientSession() as session:
        stack = Stack(app, engines, account, log, session)
        try:
            yield stack
        finally:
            for client in stack.clients:
                await client.close()
            await app.close()
            for server in [*engines, *([account] if account is not None else [])]:
                await server.close()
