"""A plain client of the chat dialect for engines and gateway alike, and a bounded wait for another process."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from providers.engines import EngineFigures, parse_metrics
from providers.sse import Framer, data_of


@dataclass(slots=True)
class Answer:
    """A whole answer, streamed or not."""

    status: int
    headers: dict[str, str]
    text: str = ""
    usage: dict[str, Any] | None = None
    finish: str | None = None
    done: bool = False  # a stream's terminator came
    error: dict[str, Any] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)  # of a stream
    body: Any = None  # of an answer that is not a stream


class Client:
    """Calls one base URL as one tenant. Requests are not repeated and not limited in time, except by `within`."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str, key: str = "none", model: str = "tiny") -> None:
        self.session = session
        self.base_url = base_url
        self.model = model
        self._headers = {"authorization": f"Bearer {key}"}

    def chat(self, content: str, tokens: int, **more: Any) -> Any:
        """The request context of a chat of one message, answered with exactly so many tokens."""
        messages = [{"role": "user", "content": content}]
        return self.post("/v1/chat/completions", {"messages": messages, "max_tokens": tokens, **more})

    def post(self, path: str, fields: dict[str, Any]) -> Any:
        """The request context of any call."""
        body = {"model": self.model, **fields}
        return self.session.post(self.base_url + path, json=body, headers=self._headers)

    async def ask(self, content: str, tokens: int, **more: Any) -> Answer:
        """A chat, to its end."""
        async with self.chat(content, tokens, **more) as response:
            return await read(response)

    async def call(self, path: str, fields: dict[str, Any]) -> Answer:
        """Any call, to its end."""
        async with self.post(path, fields) as response:
            return await read(response)

    async def text(self, path: str) -> str:
        """A page."""
        async with self.session.get(self.base_url + path, headers=self._headers) as response:
            return await response.text()

    async def figures(self, kind: str) -> EngineFigures:
        """What the engine says of itself now."""
        return parse_metrics(kind, await self.text("/metrics"))


@asynccontextmanager
async def client(base_url: str, key: str = "none", model: str = "tiny") -> AsyncIterator[Client]:
    """A client with connections of its own."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        yield Client(session, base_url, key, model)


async def read(response: aiohttp.ClientResponse) -> Answer:
    """Read an answer to its end."""
    answer = Answer(response.status, {name.lower(): value for name, value in response.headers.items()})
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        answer.body = orjson.loads(await response.read())
        answer.error = answer.body.get("error")
        answer.usage = answer.body.get("usage")
        for choice in answer.body.get("choices") or ():
            answer.text += choice["text"] if "text" in choice else choice["message"]["content"]
            answer.finish = choice["finish_reason"]
        return answer
    async for event in events(response):
        if event is None:
            answer.done = True
            continue
        answer.events.append(event)
        answer.error = event.get("error") or answer.error
        answer.usage = event.get("usage") or answer.usage
        for choice in event.get("choices") or ():
            answer.text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            answer.finish = choice.get("finish_reason") or answer.finish
    return answer


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any] | None]:
    """The events of a stream as they come; None is its terminator."""
    framer = Framer()
    async for data in response.content.iter_any():
        for frame in framer.feed(data):
            payload = data_of(frame)
            if payload is not None:
                yield None if payload == b"[DONE]" else orjson.loads(payload)


async def first_tokens(response: aiohttp.ClientResponse, count: int = 3) -> None:
    """Read a stream until it has given so many pieces of text."""
    seen = 0
    async for event in events(response):
        for choice in (event or {}).get("choices") or ():
            seen += bool(choice.get("text") or (choice.get("delta") or {}).get("content"))
        if seen >= count:
            return
    raise AssertionError(f"the stream ended after {seen} pieces")


async def until(what: Callable[[], Awaitable[bool]], within_s: float) -> float:
    """Ask again and again until it is so; the seconds it took. AssertionError when the time is over."""
    began = time.perf_counter()
    while not await what():
        if time.perf_counter() - began > within_s:
            raise AssertionError(f"not so after {within_s} s")
        await asyncio.sleep(0.01)
    return time.perf_counter() - began
