"""A gateway in front of one scripted upstream of every kind, on sockets, for the official SDKs to judge.

The upstream model's name says which answer is played: the model `vllm:tools` goes to the pool of kind vllm and its
model `tools`. A request that holds the result of a tool is answered with the text, so tool runners come to an end.
"""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import anthropic
import openai
import orjson
from aiohttp import web

from gateway import config, keys
from gateway.app import App
from tests.clients.answers import CHAT_DIALECT, script

KEY = keys.mint("alice1", bytes(range(32)))
KINDS = (*(kind for kind in CHAT_DIALECT if kind != "simulated"), "anthropic", "gemini", "bedrock")
ENGINES = ("vllm", "sglang", "tgi", "llamacpp", "trtllm", "ollama")
SCENARIOS = ("text", "thinking", "tools", "json", "cut", "failing")
_RESULT = re.compile(rb'"role":\s*"tool"|tool_result|toolResult|functionResponse|function_call_output')


@dataclass
class Seen:
    """One request as an upstream got it."""

    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        value: dict[str, Any] = orjson.loads(self.raw)
        return value


@dataclass(repr=False)
class Upstreams:
    """Every scripted upstream behind one port; the first part of a path names the kind."""

    seen: dict[str, list[Seen]] = field(default_factory=dict)
    port: int = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        kind, _, path = request.raw_path.removeprefix("/").partition("/")
        if request.method == "GET":
            return web.Response(status=200, text="")
        raw = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.setdefault(kind, []).append(Seen("/" + path, headers, raw))
        path = path.partition("?")[0]
        if path.endswith("/count_tokens"):
            return web.json_response({"input_tokens": 42})
        if path.endswith(("rerank", "moderations", "images/generations", "tokenize")):
            usage = {"total_tokens": 11} if path.endswith("/rerank") else {}
            return web.json_response({"results": [], "usage": usage})
        if path.endswith("/embeddings"):
            data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
            counted = {"prompt_tokens": 11, "total_tokens": 11}
            return web.json_response({"object": "list", "model": "m", "data": data, "usage": counted})
        scenario = _scenario(kind, path, raw)
        if scenario == "failing":
            return web.json_response({"error": {"message": "down", "type": "server_error"}}, status=503)
        if scenario == "tools" and _RESULT.search(raw):
            scenario = "text"
        played = script(kind, path, scenario)
        response = web.StreamResponse(status=played.status, headers=dict(played.headers))
        await response.prepare(request)
        await response.write(played.body)
        await response.write_eof()
        return response

    def last(self, kind: str) -> Seen:
        """The last request to this kind."""
        return self.seen[kind][-1]


def _scenario(kind: str, path: str, raw: bytes) -> str:
    if kind == "gemini":
        return path.rpartition("models/")[2].partition(":")[0]
    if kind == "bedrock":
        return unquote(path.split("model/")[1].partition("/")[0])
    model: str = orjson.loads(raw)["model"]
    return model


def _config(port: int, limits: str) -> str:
    pools, models = [], []
    for kind in KINDS:
        url = f"http://127.0.0.1:{port}/{kind}/v1"
        if kind in ENGINES:
            place = f'replicas: [{{name: a, url: "{url}"}}]'
        else:
            where = ", region: eu-central-1" if kind == "bedrock" else ""
            sign = ", access_key_id: AKIDEXAMPLE" if kind == "bedrock" else ""
            place = f'account: {{url: "{url}"{where}, credentials: [{{name: main, key: upstream-secret{sign}}}]}}'
        pools.append(f"  {kind}:\n    kind: {kind}\n    {place}\n    capacity: {{seats: 16}}")
        for scenario in SCENARIOS:
            target = f"{{pool: {kind}, model: {scenario}}}"
            models.append(f'  "{kind}:{scenario}":\n    context: 100000\n    tiers: [{{targets: [{target}]}}]')
    newline = "\n"
    return f"""
listen: {{port: 0, drain_s: 5}}
admin: {{port: 0, key: admin-key-for-tests}}
failover: {{max_attempts: 1}}
pools:
{newline.join(pools)}
models:
{newline.join(models)}
tenants:
  alice:
    limits: {limits}
    keys: [{{id: alice1, hash: "{keys.digest(KEY)}"}}]
"""


@dataclass(repr=False)
class Clients:
    """The gateway's address, both SDKs on it, and what the upstreams got."""

    base_url: str
    upstreams: Upstreams
    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic
    app: App
    log: io.BytesIO

    def lines(self) -> list[dict[str, Any]]:
        """The request log so far."""
        self.app._log.flush()
        return [orjson.loads(line) for line in self.log.getvalue().splitlines()]


@asynccontextmanager
async def clients(limits: str = "{}") -> AsyncIterator[Clients]:
    """Everything, running."""
    upstreams = Upstreams()
    application = web.Application(client_max_size=1 << 26)
    application.router.add_route("*", "/{rest:.*}", upstreams.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    upstreams.port = site._server.sockets[0].getsockname()[1]
    log = io.BytesIO()
    app = await App(config.parse(_config(upstreams.port, limits), "test.yaml", {}).config, request_log=log).start()
    root = f"http://127.0.0.1:{app.port}"
    async with (
        openai.AsyncOpenAI(base_url=root + "/v1", api_key=KEY, max_retries=0) as chat,
        anthropic.AsyncAnthropic(base_url=root, api_key=KEY, max_retries=0) as messages,
    ):
        try:
            yield Clients(root, upstreams, chat, messages, app, log)
        finally:
            await app.close()
            await runner.cleanup()
