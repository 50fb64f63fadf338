"""A scripted upstream: plays the answers of one kind over HTTP/1.1, checks how it is asked, can fail at any byte."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from tests.kinds.scripts import answers, without_usage
from tests.providers.scripted import JSON, Script, compact

OPENAI_FAMILY = frozenset(
    {"vllm", "sglang", "llamacpp", "ollama", "tgi", "trtllm", "openai", "azure", "gemini-openai", "openai-compatible"}
)


@dataclass(slots=True)
class Seen:
    """One request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    raw: bytes
    body: Any = None
    left: bool = False
    """The gateway closed the connection before the answer's end."""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


@dataclass(frozen=True, slots=True)
class Play:
    """How an answer is played. Without `cut` all of it, to its proper end."""

    script: Script
    cut: int | None = None
    """Bytes of the body after which `then` happens."""
    then: str = "end"
    """`end`: the body ends properly there. `close`: the connection does. `reset`: it is aborted. `hold`: silence until
    `Upstream.release`, then the rest; `hold-close` and `hold-reset` end the rest otherwise.
    """
    piece: int | None = None
    """Bytes of one write; None writes all at once."""
    late: bool = False
    """Not even the head comes before `Upstream.release`."""


@dataclass(slots=True)
class Upstream:
    """A server of one kind. `plays` are the next answers; without any the request decides."""

    kind: str
    authorised: Callable[[Seen], bool] = lambda _: True
    seen: list[Seen] = field(default_factory=list)
    plays: deque[Play] = field(default_factory=deque)
    health: int = 200
    metrics: str = ""
    release: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0
    says: dict[str, Script] = field(default_factory=dict)
    _server: asyncio.Server | None = None

    async def start(self) -> Upstream:
        """Listens on a port of its own."""
        self.says = self.says or answers(self.kind)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        """Stops listening."""
        assert self._server is not None
        self._server.close()
        await asyncio.sleep(0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def last(self) -> Seen:
        """The last request that was no poll."""
        return self.seen[-1]

    def next(self, *plays: Play | Script) -> None:
        """What the next requests are answered with."""
        self.plays.extend(play if isinstance(play, Play) else Play(play) for play in plays)

    def reset(self) -> None:
        """As if it had just been started."""
        self.plays.clear()
        self.seen.clear()
        self.health = 200
        self.release = asyncio.Event()

    def answer(self, seen: Seen) -> Play:
        """What a request is answered with."""
        if seen.method == "GET":
            if seen.path.endswith("metrics"):
                return Play(Script(200, (("content-type", "text/plain"),), self.metrics.encode()))
            return Play(Script(self.health, JSON, b"{}"))
        self.seen.append(seen)
        if not self.authorised(seen):
            error = {"message": "bad key", "type": "invalid_request_error", "param": None, "code": "invalid_api_key"}
            return Play(Script(401, JSON, compact({"error": error})))
        if self.plays:
            return self.plays.popleft()
        return Play(self._asked(seen))

    def _asked(self, seen: Seen) -> Script:
        body, says = seen.body, self.says
        if seen.path.endswith("/embeddings"):
            return says["embeddings"]
        streams = seen.path.endswith((":streamGenerateContent", "converse-stream")) or body.get("stream") is True
        tools = bool(body.get("tools") or body.get("toolConfig"))
        if not streams:
            return says["whole_tools" if tools and "whole_tools" in says else "whole"]
        name = "tools" if tools else "thinking" if _thinks(body) and "thinking" in says else "text"
        script = says[name]
        if self.kind in OPENAI_FAMILY and not (body.get("stream_options") or {}).get("include_usage"):
            return replace(script, body=without_usage(script.body))
        return script


def _thinks(body: dict[str, Any]) -> bool:
    config = body.get("generationConfig") or {}
    output = body.get("output_config") or body.get("outputConfig") or {}
    return bool(body.get("reasoning_effort") or output.get("effort") or config.get("thinkingConfig"))


class _Connection(asyncio.Protocol):
    """One connection: requests one after the other, each answered before the next is read."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._buffer = b""
        self._now: Seen | None = None  # the request being answered
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._now is not None:
            self._now.left = True
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        raw = rest[:length]
        seen = self._now = Seen(method, target, headers, raw, orjson.loads(raw) if raw else None)
        self._task = asyncio.get_running_loop().create_task(self._play(self._upstream.answer(seen)))

    async def _play(self, play: Play) -> None:
        script, write = play.script, self._transport.write
        if play.late:
            await self._upstream.release.wait()
        whole = play.cut is None and play.piece is None
        framing = b"content-length: %d" % len(script.body) if whole else b"transfer-encoding: chunked"
        lines = b"".join(b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in script.headers)
        write(b"HTTP/1.1 %d x\r\n%b%b\r\n\r\n" % (script.status, lines, framing))
        if whole:
            write(script.body)
            self._now = None
            return
        cut = len(script.body) if play.cut is None else play.cut
        await self._pieces(script.body[:cut], play.piece)
        if play.then.startswith("hold"):
            await self._upstream.release.wait()
            await self._pieces(script.body[cut:], play.piece)
        if play.then in ("end", "hold"):
            write(b"0\r\n\r\n")
            self._now = None
            return
        self._now = None
        await asyncio.sleep(0.005)  # what was written must not be lost with the connection
        if play.then.endswith("close"):
            self._transport.close()
        else:
            self._transport.abort()

    async def _pieces(self, body: bytes, size: int | None) -> None:
        for at in range(0, len(body), size or len(body) or 1):
            piece = body[at : at + size] if size else body
            self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if size:
                await asyncio.sleep(0)
