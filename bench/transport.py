"""CPU time of the upstream leg per request and per event: `python -m bench.transport [seconds]`.

A server process on loopback answers every request with one fixed piece; this process sends requests in a closed loop
and divides its own CPU time (user and system, event loop included) by what it did. Two yardsticks: a bare protocol that
writes ready bytes and takes the first read for the answer (what the loop and the kernel cost), and aiohttp's client.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import cast

import aiohttp
import uvloop

from providers.origin import Heads
from providers.sse import Framer
from providers.transport import Origin, Timers, Transport

EVENTS = 64
CONCURRENCY = 32
_EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" a"}}]}\n\n'
)
_BODY = b'{"id":"chatcmpl-1","object":"chat.completion","choices":[' + b" " * 500 + b"]}"
_WHOLE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: today\r\nServer: bench\r\nContent-Length: %d\r\n\r\n%b"
    % (
        len(_BODY),
        _BODY,
    )
)
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNK = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
_HEADERS = [
    ("content-type", "application/json"),
    ("authorization", "Bearer sk-0123456789abcdef0123456789abcdef"),
    ("x-request-id", "0123456789abcdef"),
    ("user-agent", "weighbridge"),
]


class _Server(asyncio.Protocol):
    """Answers without parsing: a request ends where its read ends. One write for each event."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if b"/whole" not in data[:64]:
            self.transport.write(_HEAD)
            self._event(EVENTS)
        else:
            self.transport.write(_WHOLE)

    def _event(self, left: int) -> None:
        if left:
            self.transport.write(_CHUNK)
            asyncio.get_running_loop().call_soon(self._event, left - 1)
        else:
            self.transport.write(b"0\r\n\r\n")


class _Bare(asyncio.Protocol):
    """The floor: no pool, no parser, no deadline."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.answer.set_result(len(data))

    def ask(self, request: bytes) -> asyncio.Future[int]:
        """Write a request; its answer is the next read."""
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answer


def _serve(pipe: Connection) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(_Server, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    uvloop.run(main())


async def _measure(once: Callable[[], Awaitable[int]], seconds: float) -> tuple[float, float, int]:
    """Run `once` in a closed loop; gives calls a second, CPU seconds a call, and the sum of what it gave."""
    calls = total = 0
    end = time.monotonic() + seconds

    async def loop() -> None:
        nonlocal calls, total
        while time.monotonic() < end:
            total += await once()
            calls += 1

    cpu, wall = time.process_time(), time.monotonic()
    await asyncio.gather(*[loop() for _ in range(CONCURRENCY)])
    return calls / (time.monotonic() - wall), (time.process_time() - cpu) / calls, total


async def _run(port: int, seconds: float) -> None:
    origin, _ = Origin.parse(f"http://127.0.0.1:{port}")
    timers = Timers(connect_s=2, head_s=120, idle_s=30)
    body = b"x" * 400

    async with Transport() as transport, aiohttp.ClientSession() as session:
        create = asyncio.get_running_loop().create_connection
        bare = [(await create(_Bare, origin.host, origin.port))[1] for _ in range(CONCURRENCY)]
        request = Heads(origin).build("POST", "/whole", _HEADERS, len(body)) + body

        async def floor() -> int:
            protocol = bare.pop()
            size = await protocol.ask(request)
            bare.append(protocol)
            return size

        async def whole() -> int:
            answer = await transport.send(origin, "POST", "/whole", _HEADERS, body, timers)
            return len(await answer.read_all(1 << 20))

        async def stream() -> int:
            frames = 0
            framer = Framer()
            with await transport.send(origin, "POST", "/stream", _HEADERS, body, timers) as answer:
                while data := await answer.read():
                    frames += len(framer.feed(data))
            return frames

        async def other() -> int:
            async with session.post(f"{origin}/whole", headers=dict(_HEADERS), data=body) as answer:
                return len(await answer.read())

        for name, once in (
            ("whole answer, bare protocol", floor),
            ("whole answer", whole),
            ("stream", stream),
            ("whole answer, aiohttp's client", other),
        ):
            await _measure(once, 0.3)
            best = min([await _measure(once, seconds) for _ in range(3)], key=lambda m: m[1])
            per_event = f", {best[1] * 1e6 / EVENTS:5.2f} us an event" if once is stream else ""
            print(f"{name:32} {best[0]:9,.0f} a second, {best[1] * 1e6:7.1f} us of CPU each{per_event}")


def main() -> None:
    """Start the server, measure, stop it."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    try:
        uvloop.run(_run(ours.recv(), seconds))
    finally:
        ours.send(None)
        server.join()


if __name__ == "__main__":
    main()
