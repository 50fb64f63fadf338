"""A stand-in for a gateway: answers chat streams as told and remembers what it was asked."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer

Answer = Callable[["Seen"], Awaitable[web.StreamResponse]]


class Seen:
    """One request as it arrived."""

    def __init__(self, request: web.Request, body: dict[str, Any]) -> None:
        self.request = request
        self.body = body
        self.key = request.headers["authorization"].removeprefix("Bearer ")
        self.sent = 0  # content events written before the client left

    async def stream(
        self, tokens: int, *, end: bool = True, headers: dict[str, str] | None = None
    ) -> web.StreamResponse:
        """A stream of so many one-token events, with usage and its terminator unless `end` is False."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **(headers or {})})
        await response.prepare(self.request)
        await self.event(response, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for _ in range(tokens):
            await self.event(response, {"choices": [{"index": 0, "delta": {"content": "word"}}]})
            self.sent += 1
            await asyncio.sleep(0)
        if end:
            text = self.body["messages"][0]["content"]
            usage = {"prompt_tokens": len(text) // 4 + 2, "completion_tokens": tokens}
            await self.event(response, {"choices": [], "usage": usage})
            await response.write(b"data: [DONE]\n\n")
        return response

    async def event(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        """Write one event."""
        await response.write(b"data: " + orjson.dumps(event) + b"\n\n")


@asynccontextmanager
async def gateway(answer: Answer) -> AsyncIterator[tuple[str, list[Seen]]]:
    """A running stand-in: its base URL, and the requests it has seen."""
    seen: list[Seen] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        one = Seen(request, orjson.loads(await request.read()))
        seen.append(one)
        return await answer(one)

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", handle)
    server = TestServer(app)
    await server.start_server()
    try:
        yield str(server.make_url("/v1")), seen
    finally:
        await server.close()
