"""A cancelled wait closes its connection at once, in every phase, and nothing is left behind."""

import asyncio
import gc
import socket
import ssl
from collections.abc import Awaitable

import pytest

from providers.http1 import Connection
from providers.transport import Answer, ConnectFailed, Cut, Origin, Timers, Transport
from tests.transport.scripted import OK, Peer, Upstream, always, only, post, silent, until

STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def _cancelled(task: "asyncio.Task[Answer] | asyncio.Task[bytes]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _soon(event: Awaitable[object]) -> None:
    async with asyncio.timeout(1):
        await event


@pytest.mark.asyncio
async def test_cancelled_while_the_system_connects() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:  # fill the backlog, so that further connects hang
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        async with Transport() as transport:
            task = asyncio.create_task(post(transport, Origin("http", *full.getsockname())))
            await until(lambda: bool(transport.stats()) and only(transport).connecting == 1)
            await asyncio.sleep(0.01)
            await _cancelled(task)
            assert only(transport).connecting == only(transport).open == 0
        for filler in fillers:
            filler.close()


@pytest.mark.asyncio
async def test_cancelled_while_tls_shakes_hands() -> None:
    async def script(peer: Peer) -> None:
        await peer.wait_closed()  # reads the hello, says nothing

    async with Upstream(script) as upstream, Transport(tls=ssl.create_default_context()) as transport:
        task = asyncio.create_task(post(transport, Origin("https", "127.0.0.1", upstream.origin.port)))
        await until(lambda: bool(upstream.peers))
        await asyncio.sleep(0.01)
        await _cancelled(task)
        await _soon(upstream.peers[0].gone.wait())
        assert only(transport).connecting == only(transport).open == 0


@pytest.mark.asyncio
async def test_cancelled_while_a_large_request_is_sent() -> None:
    cancelled = asyncio.Event()
    received = 0

    async def script(peer: Peer) -> None:
        nonlocal received
        await peer.head_only()
        await cancelled.wait()
        received = await peer.wait_closed()

    body = b"x" * 50_000_000
    async with Upstream(script) as upstream, Transport() as transport:
        task = asyncio.create_task(post(transport, upstream.origin, body=body))
        await until(lambda: bool(upstream.peers))
        await asyncio.sleep(0.02)
        await _cancelled(task)
        assert only(transport).open == 0
        cancelled.set()
        await _soon(upstream.peers[0].gone.wait())
        assert received < len(body)


@pytest.mark.asyncio
@pytest.mark.parametrize("before", [b"", b"HTTP/1.1 200 O", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_cancelled_before_the_head_has_come(before: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(before)
        await peer.wait_closed()

    async with Upstream(script) as upstream, Transport() as transport:
        task = asyncio.create_task(post(transport, upstream.origin))
        await until(lambda: bool(upstream.peers and upstream.peers[0].requests))
        await asyncio.sleep(0.01)
        await _cancelled(task)
        assert only(transport).open == 0
        await _soon(upstream.peers[0].gone.wait())


@pytest.mark.asyncio
@pytest.mark.parametrize("body", [b"", b"5\r\nhello\r\n", b"ff\r\nhel"])
async def test_cancelled_while_the_body_comes(body: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM, body)
        await peer.wait_closed()

    async with Upstream(script) as upstream, Transport() as transport:
        answer = await post(transport, upstream.origin)

        async def read_on() -> bytes:
            while True:
                await answer.read()

        task = asyncio.create_task(read_on())
        await asyncio.sleep(0.01)
        await _cancelled(task)
        assert only(transport).open == 0
        await _soon(upstream.peers[0].gone.wait())
        with pytest.raises(Cut):
            await answer.read()


@pytest.mark.asyncio
async def test_an_answer_closed_unread_closes_its_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM, b"5\r\nhello\r\n")
        await peer.wait_closed()

    async with Upstream(script) as upstream, Transport() as transport:
        with await post(transport, upstream.origin) as answer:
            pass
        answer.close()
        await _soon(upstream.peers[0].gone.wait())
        assert only(transport).open == 0
        with pytest.raises(Cut):
            await answer.read()


@pytest.mark.asyncio
async def test_closing_a_complete_answer_keeps_the_connection() -> None:
    async with Upstream(always(OK)) as upstream, Transport() as transport:
        for turn in range(3):
            with await post(transport, upstream.origin) as answer:
                assert answer.complete
                assert answer.reused == (turn > 0)
            assert await answer.read() == b""
        assert len(upstream.peers) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(("raw", "kept"), [(OK, 1), (STREAM, 0)])
async def test_cancelled_in_the_moment_the_answer_comes(raw: bytes, kept: int) -> None:
    """The wait is over and the task has not run yet: the cancellation wins, and the connection is not lost count of."""
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await go.wait()
        await peer.send(raw)
        await peer.wait_closed()

    async with Upstream(script) as upstream, Transport() as transport:
        task = asyncio.create_task(post(transport, upstream.origin))
        await until(lambda: bool(upstream.peers and upstream.peers[0].requests))
        (connection,) = transport._pools[upstream.origin]._connections
        received = connection.data_received

        class Meddler:
            """Cancels right after the bytes have been taken in."""

            def __call__(self, data: bytes) -> None:
                received(data)
                task.cancel()

        connection._transport.set_protocol(_Deliver(connection, Meddler()))  # type: ignore[union-attr]
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert only(transport).in_use == 0
        assert only(transport).open == kept


class _Deliver(asyncio.Protocol):
    """Stands before a connection and lets a test act right after the bytes have been taken in."""

    def __init__(self, connection: asyncio.Protocol, deliver: object) -> None:
        self.data_received = deliver  # type: ignore[method-assign, assignment]
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.eof_received = connection.eof_received  # type: ignore[method-assign]


@pytest.mark.asyncio
async def test_a_total_time_is_a_cancellation_by_the_caller() -> None:
    async with Upstream(silent) as upstream, Transport() as transport:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await post(transport, upstream.origin)
        await _soon(upstream.peers[0].gone.wait())


@pytest.mark.asyncio
async def test_many_abandoned_streams_leave_nothing() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM, b"5\r\nhello\r\n")
        await peer.wait_closed()

    async with Upstream(script) as upstream, Transport() as transport:
        for _ in range(20):
            answers = await asyncio.gather(*[post(transport, upstream.origin) for _ in range(20)])
            assert only(transport).in_use == 20
            for answer in answers:
                answer.close()
            assert only(transport).open == 0
        await _soon(asyncio.gather(*[peer.gone.wait() for peer in upstream.peers]))
        assert len(upstream.peers) == 400


@pytest.mark.asyncio
async def test_closed_connections_are_freed_without_the_garbage_collector() -> None:
    """Objects in a ring wait for the collector, whose pauses grow with what it finds."""
    closing = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"

    async def script(peer: Peer) -> None:
        head, _ = await peer.request()
        await peer.send(closing if b"/close" in head else STREAM)  # a read after this head waits
        await peer.wait_closed()

    def left() -> int:
        return sum(isinstance(thing, Connection | Answer) for thing in gc.get_objects())

    async with Upstream(script) as upstream, Transport() as transport:
        gc.collect()
        gc.disable()
        try:
            before = left()
            for _ in range(10):
                assert await (await post(transport, upstream.origin, path="/close")).read_all(2) == b"ok"
                (await post(transport, upstream.origin)).close()
                reading = asyncio.create_task((await post(transport, upstream.origin)).read())
                await asyncio.sleep(0)
                await _cancelled(reading)
            del reading
            await until(lambda: left() == before)
        finally:
            gc.enable()


@pytest.mark.asyncio
async def test_cancelled_before_it_began() -> None:
    async with Upstream(silent) as upstream, Transport() as transport:
        task = asyncio.create_task(post(transport, upstream.origin, timers=Timers(1, 1, 1)))
        await _cancelled(task)
        assert not transport.stats()
        assert not upstream.peers


@pytest.mark.asyncio
async def test_an_answer_that_abides_is_read_on_after_a_cancelled_read() -> None:
    told = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM + b"5\r\nfirst\r\n")
        await told.wait()
        await peer.send(b"4\r\nrest\r\n0\r\n\r\n")

    async with Upstream(script) as upstream, Transport() as transport:
        answer = await post(transport, upstream.origin)
        answer.abides = True
        assert await answer.read() == b"first"
        reading = asyncio.create_task(answer.read())
        await asyncio.sleep(0)
        await _cancelled(reading)
        assert only(transport).in_use == 1
        told.set()
        assert await answer.read() == b"rest"
        assert await answer.read() == b""
        assert only(transport).idle == 1  # it went back to the pool like any other


@pytest.mark.asyncio
async def test_who_asks_is_told_when_a_request_is_about_to_go() -> None:
    told: list[str] = []

    def sending() -> None:
        told.append("sending")

    async with Upstream(always(OK)) as upstream, Transport() as transport:
        timers = Timers(1.0, 1.0, 1.0)
        answer = await transport.send(upstream.origin, "POST", "/", (), b"", timers, sending)
        answer.close()
        assert told == ["sending"]
        told.clear()
        with pytest.raises(ConnectFailed):  # nothing can have been worked on
            await transport.send(Origin("http", "127.0.0.1", 1), "POST", "/", (), b"", timers, sending)
        assert told == []
