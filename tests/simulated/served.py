"""A simulated server under test: started and closed around a test, reached by raw sockets, aiohttp or the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson

from providers.simulated.server import SimulatedServer, serve_simulated
from providers.simulated.service import ServiceSettings
from providers.simulated.settings import EngineSettings

MODEL = "sim-large"
FAST = EngineSettings(a_s=0.001, d_s=1e-6, lora_slots=2)


@asynccontextmanager
async def served(
    engine: EngineSettings = FAST, **settings: Any
) -> AsyncIterator[tuple[SimulatedServer, aiohttp.ClientSession]]:
    """A server and a session whose relative URLs lead to it."""
    server = await serve_simulated(ServiceSettings(engine=engine, **settings))
    try:
        async with aiohttp.ClientSession(server.url) as session:
            yield server, session
    finally:
        await server.close()


def body(**more: Any) -> dict[str, Any]:
    """A chat request of five output tokens."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 5, **more}


async def post(
    session: aiohttp.ClientSession, fields: Any, path: str = "/v1/chat/completions", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers by lower-case name, whole body."""
    data = fields if isinstance(fields, bytes) else orjson.dumps(fields)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with session.post(path, data=data, headers=named) as answer:
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.read()


def events(raw: bytes) -> list[Any]:
    """The data of each event; the terminator as the text it is."""
    blocks = raw.split(b"\n\n")
    assert blocks[-1] == b""
    assert all(block.startswith(b"data: ") for block in blocks[:-1])
    data = [block[6:] for block in blocks[:-1]]
    return [d.decode() if d == b"[DONE]" else orjson.loads(d) for d in data]


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait for something that other tasks bring about; fails when it does not come."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.001)


def at_rest(server: SimulatedServer) -> bool:
    """Nothing waits, runs or holds cache."""
    state = server.state(requests=False)
    return (state["running"], state["waiting"], state["kv_blocks_held"], state["kv_tokens_held"]) == (0, 0, 0, 0)
