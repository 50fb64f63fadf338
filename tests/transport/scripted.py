"""An upstream that does exactly what a test's script says, byte by byte."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Self

from providers.transport import Answer, Origin, OriginStats, Timers, Transport

SOON = 10.0  # seconds after which a test that waits for something that ought to come is given up
TIMERS = Timers(connect_s=SOON, head_s=SOON, idle_s=SOON)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

Script = Callable[["Peer"], Awaitable[None]]


class Peer:
    """The upstream's end of one connection."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number  # 0 for the first connection the upstream accepted
        self._reader = reader
        self._writer = writer
        self.requests: list[tuple[bytes, bytes]] = []  # (head, body) of each request read
        self.gone = asyncio.Event()  # the other end has closed, seen by `wait_closed`

    async def request(self) -> tuple[bytes, bytes]:
        """Read one request, framed by content-length."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        lengths = [line.partition(b":")[2] for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
        body = await self._reader.readexactly(int(lengths[0])) if lengths else b""
        self.requests.append((head, body))
        return head, body

    async def send(self, *pieces: bytes) -> None:
        """Write the pieces one by one, each in a segment of its own as far as that can be had."""
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(0)

    async def head_only(self) -> bytes:
        """Read the head of a request and leave its body where it is."""
        return await self._reader.readuntil(b"\r\n\r\n")

    async def exactly(self, count: int) -> bytes:
        """Read so many bytes of what the other end sends."""
        return await self._reader.readexactly(count)

    async def wait_closed(self) -> int:
        """Read on until the other end has closed or reset the connection; gives the number of bytes read."""
        count = 0
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(1 << 16):
                count += len(data)
        self.gone.set()
        return count

    def close(self) -> None:
        """Close in the ordinary way."""
        self._writer.close()

    def abort(self) -> None:
        """Close the socket below whatever runs over it."""
        self._writer.transport.abort()

    def reset(self) -> None:
        """Close with a TCP reset."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


class Upstream:
    """Listens on a free port and runs the script once for each connection. An error in a script fails the test."""

    def __init__(self, script: Script, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self._script = script
        self._tls = tls
        self._host = host
        self._tasks: list[asyncio.Task[None]] = []
        self.peers: list[Peer] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls, limit=1 << 20)
        port = self._server.sockets[0].getsockname()[1]
        scheme = "https" if self._tls else "http"
        self.origin = Origin(scheme, self._host, port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in self.peers:
            peer.abort()
        for error in ended:
            if isinstance(error, Exception) and not isinstance(error, ConnectionError | asyncio.IncompleteReadError):
                raise error

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(len(self.peers), reader, writer)
        self.peers.append(peer)
        self._tasks.append(asyncio.create_task(self._run(peer)))

    async def _run(self, peer: Peer) -> None:
        await self._script(peer)


def always(*pieces: bytes) -> Script:
    """Answer every request of every connection with the same bytes."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(*pieces)

    return script


def once(*pieces: bytes) -> Script:
    """Answer the first request with these bytes, then close."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(*pieces)
        peer.close()

    return script


async def silent(peer: Peer) -> None:
    """Take the request and say nothing; notes when the other end closes."""
    await peer.request()
    await peer.wait_closed()


async def post(
    transport: Transport,
    origin: Origin,
    *,
    path: str = "/v1/x",
    body: bytes = b"{}",
    method: str = "POST",
    headers: Iterable[tuple[str, str]] = (),
    timers: Timers = TIMERS,
) -> Answer:
    """Send a request with what a test does not care about filled in."""
    return await transport.send(origin, method, path, tuple(headers), body, timers)


async def drained(answer: Answer) -> bytes:
    """The whole body, in as many reads as it takes."""
    return b"".join([piece async for piece in pieces(answer)])


async def pieces(answer: Answer) -> AsyncIterator[bytes]:
    """Each read of the body."""
    while data := await answer.read():
        yield data


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds."""
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110 - most conditions are the kernel's to bring about
            await asyncio.sleep(0.001)


def only(transport: Transport) -> OriginStats:
    """The figures of the one origin a test uses."""
    (stats,) = transport.stats().values()
    return stats
