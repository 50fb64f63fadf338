"""A fast side waits for a slow one, in both directions, with bounded memory."""

import asyncio
import ssl
from pathlib import Path

import pytest

from providers.transport import Limits, Transport
from tests.transport.scripted import OK, Peer, Script, Upstream, drained, only, post, until

READ = 256 * 1024  # bytes the loop may hand over in one read
PIECE = bytes(range(256)) * 256


def _sender(total: int, sent: list[int], *, chunked: bool) -> Script:
    """Sends `total` bytes as fast as they are taken, and counts them."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % total
            await peer.send(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % framing)
            for _ in range(total // len(PIECE)):
                await peer.send(b"%x\r\n%b\r\n" % (len(PIECE), PIECE) if chunked else PIECE)
                sent[0] += len(PIECE)
            if chunked:
                await peer.send(b"0\r\n\r\n")

    return script


@pytest.mark.asyncio
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_slow_reader_holds_a_fast_upstream(chunked: bool) -> None:
    total, sent = 800 * len(PIECE), [0]
    async with Upstream(_sender(total, sent, chunked=chunked)) as upstream, Transport() as transport:
        answer = await post(transport, upstream.origin)
        await until(lambda: answer.unread > 0)
        before = -1
        while sent[0] != before:  # until no more is taken from the upstream
            before = sent[0]
            await asyncio.sleep(0.02)
        assert 0 < answer.unread <= Limits().high_water + READ
        assert sent[0] < total / 2  # what the kernel holds for both ends is a few MiB
        received = bytearray()
        most = 0
        while data := await answer.read():
            received += data
            most = max(most, len(data))
            await asyncio.sleep(0)
        assert bytes(received) == PIECE * 800
        assert most <= Limits().high_water + READ
        assert only(transport).idle == 1


@pytest.mark.asyncio
async def test_the_same_over_tls() -> None:
    pem = Path(__file__).parent / "localhost.pem"
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    client = ssl.create_default_context(cafile=str(pem))
    total, sent = 400 * len(PIECE), [0]
    async with (
        Upstream(_sender(total, sent, chunked=True), tls=server, host="localhost") as upstream,
        Transport(tls=client) as transport,
    ):
        answer = await post(transport, upstream.origin)
        await until(lambda: answer.unread > 0)
        before = -1
        while sent[0] != before:
            before = sent[0]
            await asyncio.sleep(0.02)
        assert 0 < answer.unread <= Limits().high_water + READ
        assert sent[0] < total / 2
        assert await drained(answer) == PIECE * 400
        assert only(transport).idle == 1


@pytest.mark.asyncio
async def test_a_slow_upstream_holds_a_large_request() -> None:
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.head_only()
        await go.wait()
        await peer.exactly(len(body))
        await peer.send(OK)

    body = bytes(50_000_000)
    async with Upstream(script) as upstream, Transport() as transport:
        task = asyncio.create_task(post(transport, upstream.origin, body=body))
        await until(lambda: bool(transport.stats()) and only(transport).open == 1)
        (connection,) = transport._pools[upstream.origin]._connections
        for _ in range(20):
            await asyncio.sleep(0.001)
            assert connection._transport is not None
            assert connection._transport.get_write_buffer_size() <= 2 * 64 * 1024 + 200
        go.set()
        assert await (await task).read_all(2) == b"ok"


@pytest.mark.asyncio
async def test_an_abandoned_reader_does_not_hold_the_others() -> None:
    sent = [0]
    async with Upstream(_sender(800 * len(PIECE), sent, chunked=False)) as upstream, Transport() as transport:
        stuck = await post(transport, upstream.origin)
        for _ in range(2):
            assert len(await drained(await post(transport, upstream.origin))) == 800 * len(PIECE)
        stuck.close()
        assert stuck.unread == 0
        assert only(transport).open == 1
