"""The lean listener on real sockets and both event loops: what only a kernel can show."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from gateway.api.lean import LeanServer
from gateway.api.lean_connection import Limits
from gateway.api.seam import BodyTooLarge, Exchange, Handler
from tests.lean.wire import HOST, answers, echo, post

PEM = Path(__file__).parent.parent / "transport" / "localhost.pem"


@asynccontextmanager
async def listening(handler: Handler, limits: Limits | None = None) -> AsyncIterator[tuple[LeanServer, int]]:
    """A server on loopback, closed at the end."""
    server = LeanServer(handler, limits)
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.close()
        assert server.connections == set()


async def until(condition: Callable[[], bool]) -> None:
    """Waits for other tasks, at most five seconds."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() - began < 5.0, "the condition was not met in time"
        await asyncio.sleep(0.001)


class Counting:
    """A handler that never answers and counts who is there."""

    def __init__(self) -> None:
        self.running = 0
        self.cancelled = 0

    async def __call__(self, http: Exchange) -> None:
        self.running += 1
        try:
            await asyncio.sleep(3600.0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


@pytest.mark.asyncio
@pytest.mark.parametrize("ahead", [0, 1, 50])
@pytest.mark.parametrize("how", ["close", "reset", "half"])
async def test_a_client_that_leaves_is_noticed_whatever_it_sent_ahead(how: str, ahead: int) -> None:
    handler = Counting()
    async with listening(handler) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(b"body") + post(b"ahead") * ahead)
        await until(lambda: handler.running == 1)
        if how == "reset":
            raw: socket.socket = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "half":
            writer.write_eof()
        else:
            writer.close()
        await until(lambda: handler.cancelled == 1)
        assert handler.running == 0
        writer.close()
        del reader


@pytest.mark.asyncio
async def test_a_refused_upload_gets_its_answer_although_it_is_still_being_sent() -> None:
    async def refuse(http: Exchange) -> None:
        with pytest.raises(BodyTooLarge):
            await http.body(1000, 5.0)
        await http.respond(413, (), b"too large, and said so")

    async with listening(refuse) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 20000000\r\n\r\n")
        for _ in range(200):
            writer.write(b"x" * 100_000)
            await writer.drain()
        (answer,) = answers(await reader.read())
        assert (answer.status, answer.body) == (413, b"too large, and said so")
        writer.close()


@pytest.mark.asyncio
async def test_a_slow_reader_holds_its_handler_back() -> None:
    written = 0

    async def handler(http: Exchange) -> None:
        nonlocal written
        await http.head(200, ())
        for _ in range(300):
            await http.write(b"x" * 100_000)
            written += 1
        await http.end()

    async with listening(handler) as (server, port):
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=raw, limit=32_768)
        writer.write(post())
        await until(lambda: any(connection.full for connection in server.connections))
        assert written < 200
        received = await reader.read(100_000_000)
        while part := await reader.read(1_000_000):
            received += part
            if received.endswith(b"\r\n0\r\n\r\n"):
                break
        (answer,) = answers(received)
        assert (len(answer.body), answer.whole, written) == (30_000_000, True, 300)
        writer.close()


@pytest.mark.asyncio
async def test_a_client_library_is_served_over_tls_and_keeps_its_connection() -> None:
    server = LeanServer(echo)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(PEM)
    port = await server.start("127.0.0.1", 0, context)
    trusted = ssl.create_default_context(cafile=PEM)
    trusted.check_hostname = False
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted)) as session:
        for number in range(3):
            async with session.post(f"https://127.0.0.1:{port}/v1/x", data=b"%d" % number) as answer:
                said = await answer.json()
            assert (said["body"], said["peer"]) == (str(number), "127.0.0.1")
        assert len(server.connections) == 1
        async with session.post(f"https://127.0.0.1:{port}/v1/x", data=b"x" * 9_999, chunked=True) as answer:
            assert len((await answer.json())["body"]) == 9_999
    await server.close()


@pytest.mark.asyncio
async def test_closing_lets_an_answer_end_and_cuts_what_does_not() -> None:
    go = asyncio.Event()

    async def soon(http: Exchange) -> None:
        await go.wait()
        await http.respond(200, (), b"in time")

    server = LeanServer(soon)
    port = await server.start("127.0.0.1", 0)
    idle_reader, idle = await asyncio.open_connection("127.0.0.1", port)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post())
    await until(lambda: any(c.task is not None for c in server.connections))
    closing = asyncio.create_task(server.close())
    assert await idle_reader.read() == b""
    go.set()
    (answer,) = answers(await reader.read())
    assert (answer.body, answer.headers["connection"]) == (b"in time", "close")
    await closing
    with pytest.raises(OSError, match=r"(?i)connect"):
        await asyncio.open_connection("127.0.0.1", port)
    idle.close()
    writer.close()

    handler = Counting()
    server = LeanServer(handler)
    port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post())
    await until(lambda: handler.running == 1)
    await server.close()
    assert (handler.running, handler.cancelled) == (0, 1)
    writer.close()
