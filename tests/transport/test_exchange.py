"""One exchange: every framing of an answer, what is sent, and when the connection is kept."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from providers.transport import Cut, Malformed, Phase, Timers, Transport
from tests.transport.scripted import OK, Peer, Upstream, always, drained, once, only, pieces, post, until

HEAD = b"HTTP/1.1 200 OK\r\n"

WHOLE = {  # an answer, its body, and whether the connection may be used again
    "length": (HEAD + b"content-length: 5\r\n\r\nhello", b"hello", True),
    "length zero": (HEAD + b"content-length: 0\r\n\r\n", b"", True),
    "chunked": (HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", b"hello", True),
    "chunked, case": (HEAD + b"Transfer-Encoding: Chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", b"x", True),
    "chunk extension": (HEAD + b"transfer-encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0;c\r\n\r\n", b"hello", True),
    "trailers": (HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-t: 1\r\n\r\n", b"hello", True),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", b"", True),
    "asked to close": (HEAD + b"connection: close\r\ncontent-length: 5\r\n\r\nhello", b"hello", False),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", b"hello", False),
    "HTTP/1.0 kept": (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\nx", b"x", True),
    "interim": (b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + HEAD + b"content-length: 1\r\n\r\nx", b"x", True),
    "interims": (b"HTTP/1.1 100 Continue\r\n\r\n" * 8 + HEAD + b"content-length: 1\r\n\r\nx", b"x", True),
    "no reason": (b"HTTP/1.1 200\r\ncontent-length: 1\r\n\r\nx", b"x", True),
    "error status": (b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy", b"busy", True),
    "coded body": (HEAD + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\n\x1f\x8b\x00", b"\x1f\x8b\x00", True),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", WHOLE)
async def test_every_framing_of_an_answer_gives_its_body(name: str) -> None:
    raw, body, kept = WHOLE[name]
    async with Upstream(always(raw)) as upstream, Transport() as transport:
        for turn in range(2):
            answer = await post(transport, upstream.origin)
            assert await drained(answer) == body
            assert answer.complete
            assert answer.reused == (turn == 1 and kept)
            assert await answer.read() == b""
        assert len(upstream.peers) == (1 if kept else 2)
        assert only(transport).in_use == 0


@pytest.mark.asyncio
async def test_a_body_without_length_ends_where_the_connection_ends() -> None:
    async with Upstream(once(HEAD + b"\r\n", b"hel", b"lo")) as upstream, Transport() as transport:
        answer = await post(transport, upstream.origin)
        assert await drained(answer) == b"hello"
        assert answer.complete
        assert only(transport).open == 0


@pytest.mark.asyncio
async def test_an_answer_to_head_has_no_body_and_keeps_the_connection() -> None:
    async with Upstream(always(HEAD + b"content-length: 5\r\n\r\n")) as upstream, Transport() as transport:
        for turn in range(3):
            answer = await post(transport, upstream.origin, method="HEAD", body=b"")
            assert answer.complete
            assert await answer.read() == b""
            assert answer.reused == (turn > 0)


@pytest.mark.asyncio
async def test_the_request_arrives_as_it_was_meant() -> None:
    async with Upstream(always(OK)) as upstream, Transport() as transport:
        headers = [("content-type", "application/json"), ("Authorization", "Bearer k"), ("x-latin", "é")]
        await post(transport, upstream.origin, path="/v1/chat?a=b%20c", headers=headers, body=b'{"a":1}')
        await post(transport, upstream.origin, method="GET", body=b"")
        await post(transport, upstream.origin, body=b"")
        (post_head, post_body), (get_head, _), (empty_head, _) = upstream.peers[0].requests
    assert post_head == (
        b"POST /v1/chat?a=b%%20c HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept-encoding: identity\r\n"
        b"content-type: application/json\r\nAuthorization: Bearer k\r\nx-latin: \xe9\r\ncontent-length: 7\r\n\r\n"
        % upstream.origin.port
    )
    assert post_body == b'{"a":1}'
    assert b"content-length" not in get_head
    assert empty_head.endswith(b"content-length: 0\r\n\r\n")


@pytest.mark.asyncio
async def test_header_names_are_lower_case_and_values_and_order_as_sent() -> None:
    raw = HEAD + b"X-B: Two\r\nSet-Cookie: a=1\r\nset-cookie: b=\xe9\r\nEmpty:\r\nContent-Length: 0\r\n\r\n"
    async with Upstream(always(raw)) as upstream, Transport() as transport:
        for _ in range(2):
            answer = await post(transport, upstream.origin)
            assert answer.headers == [
                ("x-b", "Two"),
                ("set-cookie", "a=1"),
                ("set-cookie", "b=é"),
                ("empty", ""),
                ("content-length", "0"),
            ]
            assert answer.header("set-cookie") == "a=1"
            assert answer.header("x-c") is None


@pytest.mark.asyncio
async def test_trailers_and_interim_headers_are_not_headers_of_the_answer() -> None:
    raw = (
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        b"1\r\nx\r\n0\r\nx-trailer: 1\r\n\r\n"
    )
    async with Upstream(always(raw)) as upstream, Transport() as transport:
        for _ in range(2):
            answer = await post(transport, upstream.origin)
            assert await drained(answer) == b"x"
            assert answer.headers == [("transfer-encoding", "chunked")]


@pytest.mark.asyncio
async def test_stream_bytes_are_given_when_they_come() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        for number in range(5):
            await peer.send(b"2\r\n%02d\r\n" % number)
            await go_on.wait()
            go_on.clear()
        await peer.send(b"0\r\n\r\n")

    async with Upstream(script) as upstream, Transport() as transport:
        answer = await post(transport, upstream.origin)
        assert not answer.complete
        seen = []
        async for piece in pieces(answer):
            seen.append(piece)
            go_on.set()
        assert seen == [b"00", b"01", b"02", b"03", b"04"]


@pytest.mark.asyncio
async def test_bytes_that_came_together_are_read_together() -> None:
    raw = HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n"
    async with Upstream(always(raw)) as upstream, Transport() as transport:
        answer = await post(transport, upstream.origin)
        assert answer.unread == 4
        assert answer.take() == b"abcd"
        assert answer.take() == b""
        assert await answer.read() == b""


@pytest.mark.asyncio
async def test_a_large_request_body_arrives_whole() -> None:
    body = bytes(range(256)) * 40_000
    async with Upstream(always(OK)) as upstream, Transport() as transport:
        for _ in range(2):
            answer = await post(transport, upstream.origin, body=body)
            assert await answer.read_all(10) == b"ok"
        assert [sent for _, sent in upstream.peers[0].requests] == [body, body]
        assert only(transport).idle == 1


@pytest.mark.asyncio
async def test_an_answer_before_the_end_of_the_request_is_given_and_the_connection_not_kept() -> None:
    async def script(peer: Peer) -> None:
        await peer.head_only()
        await peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        await peer.gone.wait()

    async with Upstream(script) as upstream, Transport() as transport:
        answer = await post(transport, upstream.origin, body=b"x" * 50_000_000)
        assert answer.status == 413
        assert await answer.read_all(10) == b"big"
        assert only(transport).open == 0


@pytest.mark.asyncio
async def test_a_body_longer_than_the_reader_wants_is_refused_and_closed() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD + b"content-length: 1000000\r\n\r\n" + b"x" * 1000)
        await peer.wait_closed()

    async with Upstream(script) as upstream, Transport() as transport:
        answer = await post(transport, upstream.origin)
        with pytest.raises(Malformed, match="longer than 99 bytes"):
            await answer.read_all(99)
        await upstream.peers[0].gone.wait()


@pytest.mark.asyncio
async def test_two_readers_of_one_answer_are_an_error_of_the_caller() -> None:
    async with Upstream(always(HEAD + b"content-length: 2\r\n\r\n")) as upstream, Transport() as transport:
        answer = await post(transport, upstream.origin)
        first = asyncio.create_task(answer.read())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError):
            await answer.read()
        answer.close()
        with pytest.raises(Cut):
            await first


@pytest.mark.asyncio
async def test_the_connect_time_is_told_and_zero_on_a_kept_connection() -> None:
    async with Upstream(always(OK)) as upstream, Transport() as transport:
        first = await post(transport, upstream.origin)
        second = await post(transport, upstream.origin)
        assert 0 < first.connect_s < 5
        assert second.connect_s == 0


@pytest.mark.asyncio
async def test_small_writes_leave_at_once_and_a_dead_machine_is_noticed() -> None:
    async with Upstream(always(OK)) as upstream, Transport() as transport:
        await post(transport, upstream.origin)
        (connection,) = transport._pools[upstream.origin]._connections
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def _contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with the test certificate (for the name localhost), and a client's that trusts it."""
    pem = Path(__file__).parent / "localhost.pem"
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cafile=str(pem))


@pytest.mark.asyncio
async def test_tls_carries_small_and_large_exchanges() -> None:
    server, client = _contexts()
    raw = HEAD + b"content-length: 3000000\r\n\r\n" + b"y" * 3_000_000
    async with (
        Upstream(always(raw), tls=server, host="localhost") as upstream,
        Transport(tls=client) as transport,
    ):
        for turn in range(2):
            answer = await post(transport, upstream.origin, body=b"x" * 2_000_000)
            assert answer.reused == (turn == 1)
            assert len(await answer.read_all(3_000_000)) == 3_000_000
        assert upstream.peers[0].requests[1][1] == b"x" * 2_000_000
        (connection,) = transport._pools[upstream.origin]._connections
        low, high = connection._transport.get_read_buffer_limits()  # type: ignore[union-attr]
        assert low < 17_000 < high <= 64_000  # a TLS record fits, and little more is held besides the body


@pytest.mark.asyncio
@pytest.mark.parametrize("sent", [b"", HEAD + b"content-length: 9\r\n\r\nab"])
async def test_cancelling_over_tls_closes_the_connection(sent: bytes) -> None:
    server, client = _contexts()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)
        await peer.wait_closed()

    async with Upstream(script, tls=server, host="localhost") as upstream, Transport(tls=client) as transport:

        async def exchange() -> bytes:
            return await drained(await post(transport, upstream.origin))

        task = asyncio.create_task(exchange())
        await until(lambda: bool(upstream.peers and upstream.peers[0].requests))
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        async with asyncio.timeout(1):
            await upstream.peers[0].gone.wait()
        assert only(transport).open == 0


@pytest.mark.asyncio
async def test_a_certificate_for_another_name_is_a_failed_connect() -> None:
    server, client = _contexts()
    async with Upstream(always(OK), tls=server, host="127.0.0.1") as upstream, Transport(tls=client) as transport:
        with pytest.raises(Exception, match="certificate") as failed:
            await post(transport, upstream.origin)
        assert failed.value.phase == Phase.CONNECT  # type: ignore[attr-defined]
        assert only(transport).open == only(transport).connecting == 0


@pytest.mark.asyncio
async def test_a_tls_stream_cut_without_its_farewell_is_not_a_proper_end() -> None:
    server, client = _contexts()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD + b"\r\nhel")
        peer.abort()  # TCP ends, TLS does not

    async with Upstream(script, tls=server, host="localhost") as upstream, Transport(tls=client) as transport:
        answer = await post(transport, upstream.origin, timers=Timers(5, 5, 5))
        with pytest.raises(Cut):
            await drained(answer)
