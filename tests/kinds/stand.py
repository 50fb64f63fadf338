"""One gateway in front of an upstream of every case, and short ways to ask it."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import openai
import orjson

from gateway import config, keys
from gateway.app import App
from tests.gateway.stack import ALICE, until
from tests.kinds.cases import CASES, MODEL, Case
from tests.kinds.upstream import Upstream

MESSAGES: Any = [{"role": "user", "content": "weigh this"}]


@dataclass
class Stand:
    """The gateway, its upstreams by case, and what it has written."""

    app: App
    upstreams: dict[str, Upstream]
    log: io.BytesIO
    session: aiohttp.ClientSession
    sdk: openai.AsyncOpenAI
    _read: int = field(default=0)

    def at(self, case: Case) -> Upstream:
        """The upstream of a case."""
        return self.upstreams[case.name]

    def reset(self) -> None:
        """A clean slate: no upstream has anything to play, no breaker remembers anything."""
        app, now = self.app, self.app.clock.monotonic()
        for upstream in self.upstreams.values():
            upstream.reset()
        app.breakers.retain(())
        for name, entry in app.lifecycle.world.pools.items():
            entry.breakers.clear()
            members = app.pools[name].members
            for replica in entry.replicas:
                members.remove(replica, now)
                members.add(replica, now)
            entry.gate.usable(members.usable(now))
        app.routing._ratios.fleet._level = 100.0
        app.leaving.ends.clear()

    def ask(self, case: Case, **fields: Any) -> Any:
        """A chat by the SDK; a stream with `stream=True`."""
        return self.sdk.chat.completions.create(**{"model": case.model, "messages": MESSAGES, **fields})

    async def post(
        self, case: Case, path: str = "/chat/completions", **fields: Any
    ) -> tuple[int, dict[str, str], bytes]:
        """A raw POST: status, headers, body."""
        body: dict[str, Any] = {"model": case.model, "messages": MESSAGES, **fields}
        url = f"http://127.0.0.1:{self.app.port}/v1{path}"
        async with self.session.post(url, data=orjson.dumps(body)) as answer:
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}, await answer.read()

    async def line(self) -> dict[str, Any]:
        """The log line of the request that was settled last, once every request is."""
        await until(lambda: self.app.lifecycle.in_flight == 0)
        self.app._log.flush()
        line: dict[str, Any] = orjson.loads(self.log.getvalue().splitlines()[-1])
        return line

    async def at_rest(self) -> None:
        """Asserts that nothing is held anywhere."""
        await until(lambda: self.app.lifecycle.in_flight == 0)
        for parts in self.app.pools.values():
            snapshot = parts.gate.core.snapshot(self.app.clock.monotonic())
            assert (snapshot.inflight, snapshot.waiting, snapshot.seats_held) == (0, 0, 0)
        assert self.app.limiter.snapshot().open == 0
        assert self.app.leaving.running == 0


def text_of(cases: dict[Case, str], more: str = "") -> str:
    """A config with a pool and a model for each case, given the URLs."""
    pools = "\n".join(case.pool(url) for case, url in cases.items())
    models = "\n".join(
        f"  {case.model}: {{context: 100000, tiers: [{{targets: [{{pool: {case.name}, model: {MODEL}}}]}}]}}"
        for case in cases
    )
    return f"""
listen: {{port: 0, drain_s: 1}}
admin: {{port: 0, key: admin-key-for-tests}}
failover: {{backoff_ms: 1, backoff_max_ms: 2}}
pools:
{pools}
models:
{models}
{more}tenants:
  alice: {{keys: [{{id: alice1, hash: "{keys.digest(ALICE)}"}}]}}
"""


@asynccontextmanager
async def standing(cases: tuple[Case, ...] = CASES, more: str = "") -> AsyncIterator[Stand]:
    """The gateway over an upstream of each of `cases`; `more` are further models as YAML."""
    upstreams = {case: await Upstream(case.kind, case.authorised).start() for case in cases}
    text = text_of({case: upstream.url for case, upstream in upstreams.items()}, more)
    log = io.BytesIO()
    app = await App(config.parse(text, "test.yaml", {}).config, request_log=log).start()
    sdk = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{app.port}/v1", api_key=ALICE, max_retries=0)
    headers = {"authorization": f"Bearer {ALICE}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:
        try:
            yield Stand(app, {case.name: upstream for case, upstream in upstreams.items()}, log, session, sdk)
        finally:
            await sdk.close()
            await app.close()
            for upstream in upstreams.values():
                await upstream.close()
