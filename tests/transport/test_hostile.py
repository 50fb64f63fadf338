"""What a broken or hostile upstream sends ends in a named error, bounded memory and a closed connection."""

import asyncio
import itertools
from collections.abc import Iterable

import pytest

from providers.transport import Cut, Limits, Malformed, Transport
from tests.transport.scripted import OK, Peer, Script, Upstream, always, drained, once, only, post

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"

MALFORMED_HEADS = {
    "garbage": b"\x00\x01\x02 nonsense\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "HTTP/2 settings": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00",
    "no version": b"200 OK\r\n\r\n",
    "status of two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "status 099": b"HTTP/1.1 099 Odd\r\ncontent-length: 0\r\n\r\n",
    "status 600": b"HTTP/1.1 600 Odd\r\ncontent-length: 0\r\n\r\n",
    "switching protocols": b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "line feeds only": b"HTTP/1.1 200 OK\ncontent-length: 0\n\n",
    "space before colon": HEAD + b"content-length : 2\r\n\r\nok",
    "folded header": HEAD + b"x-a: b\r\n c\r\ncontent-length: 2\r\n\r\nok",
    "NUL in header": HEAD + b"x-a: b\x00c\r\ncontent-length: 2\r\n\r\nok",
    "two lengths": HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\nok",
    "length twice": HEAD + b"content-length: 2, 2\r\n\r\nok",
    "negative length": HEAD + b"content-length: -1\r\n\r\nok",
    "overflowing length": HEAD + b"content-length: 99999999999999999999999\r\n\r\nok",
    "length and chunks": HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "another coding": HEAD + b"transfer-encoding: gzip\r\n\r\nok",
    "coding and chunks": HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "chunks, then coding": HEAD + b"transfer-encoding: chunked, gzip\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "nine interim answers": b"HTTP/1.1 100 Continue\r\n\r\n" * 9 + OK,
    "too many headers": HEAD + b"x-a: b\r\n" * 201 + b"\r\n",
    "head over its bound": HEAD + b"x-a: " + b"b" * 65_536 + b"\r\ncontent-length: 0\r\n\r\n",
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", MALFORMED_HEADS)
async def test_a_head_that_is_none_is_malformed(name: str) -> None:
    async with Upstream(always(MALFORMED_HEADS[name])) as upstream, Transport() as transport:
        with pytest.raises(Malformed) as malformed:
            await post(transport, upstream.origin)
        assert (malformed.value.phase, malformed.value.sent) == ("head", True)
        assert only(transport).open == 0


MALFORMED_BODIES = {
    "no chunk size": b"zz\r\nhello\r\n",
    "overflowing chunk size": b"2\r\nok\r\nffffffffffffffffff\r\n",
    "chunk longer than said": b"2\r\nokay\r\n0\r\n\r\n",
    "chunk without line end": b"2\r\nok0\r\n\r\n",
    "negative chunk size": b"2\r\nok\r\n-2\r\nok\r\n",
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", MALFORMED_BODIES)
async def test_a_broken_chunk_is_malformed(name: str) -> None:
    async with Upstream(always(CHUNKED, MALFORMED_BODIES[name])) as upstream, Transport() as transport:
        answer = await post(transport, upstream.origin)
        assert answer.status == 200
        with pytest.raises(Malformed) as malformed:
            await drained(answer)
        assert malformed.value.phase == "body"
        assert not answer.complete
        assert only(transport).open == 0


HEADLESS = {
    "nothing": b"",
    "part of the status line": b"HTTP/1.1 2",
    "part of a header": HEAD + b"content-le",
    "no empty line": HEAD + b"content-length: 2\r\n",
    "interim only": b"HTTP/1.1 100 Continue\r\n\r\n",
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", HEADLESS)
async def test_an_early_end_before_the_body_is_a_cut(name: str) -> None:
    async with Upstream(once(HEADLESS[name])) as upstream, Transport() as transport:
        with pytest.raises(Cut) as cut:
            await post(transport, upstream.origin)
        assert (cut.value.phase, cut.value.sent) == ("head", True)
        assert only(transport).open == 0


TRUNCATED = {
    "length, nothing": (HEAD + b"content-length: 5\r\n\r\n", b""),
    "length, one short": (HEAD + b"content-length: 5\r\n\r\nhell", b"hell"),
    "chunked, nothing": (CHUNKED, b""),
    "inside a chunk size": (CHUNKED + b"2\r\nok\r\n1", b"ok"),
    "inside a chunk": (CHUNKED + b"5\r\nhel", b"hel"),
    "after a chunk": (CHUNKED + b"5\r\nhello\r\n", b"hello"),
    "inside the last chunk": (CHUNKED + b"5\r\nhello\r\n0\r\n", b"hello"),
    "inside trailers": (CHUNKED + b"5\r\nhello\r\n0\r\nx-t: 1\r\n", b"hello"),
    "chunked HTTP/1.0": (b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n", b"ok"),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", TRUNCATED)
@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_truncated_body_is_a_cut_and_never_an_end(name: str, end: str) -> None:
    raw, body = TRUNCATED[name]
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(raw)
        await go.wait()
        if end == "close":
            peer.close()
        else:
            peer.reset()

    async with Upstream(script) as upstream, Transport() as transport:
        answer = await post(transport, upstream.origin)
        received = b""
        while len(received) < len(body):
            received += await answer.read()
        go.set()
        for _ in range(2):
            with pytest.raises(Cut) as cut:
                await answer.read()
        assert received == body
        assert cut.value.phase == "body"
        assert not answer.complete
        assert only(transport).open == 0


@pytest.mark.asyncio
async def test_a_reset_does_not_end_a_body_without_length() -> None:
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD + b"\r\nhel")
        await go.wait()
        peer.reset()

    async with Upstream(script) as upstream, Transport() as transport:
        answer = await post(transport, upstream.origin)
        assert await answer.read() == b"hel"
        go.set()
        with pytest.raises(Cut):
            await answer.read()


AFTER_THE_END = {
    "more body": HEAD + b"content-length: 2\r\n\r\nokay",
    "a second answer": OK + OK,
    "part of a second answer": OK + b"HTTP/1.1 5",
    "a body with 204": b"HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\nok",
    "more chunks": CHUNKED + b"2\r\nok\r\n0\r\n\r\n2\r\nay\r\n0\r\n\r\n",
    "bytes after close": HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\nokay",
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", AFTER_THE_END)
async def test_bytes_after_the_answer_do_not_reach_the_next_one(name: str) -> None:
    async with Upstream(always(AFTER_THE_END[name])) as upstream, Transport() as transport:
        for number in range(3):
            answer = await post(transport, upstream.origin)
            assert await drained(answer) == (b"" if answer.status == 204 else b"ok")
            assert answer.complete
            assert not answer.reused
            assert len(upstream.peers) == number + 1


@pytest.mark.asyncio
async def test_a_body_after_head_does_not_reach_the_next_answer() -> None:
    async with Upstream(always(OK)) as upstream, Transport() as transport:
        for _ in range(2):
            answer = await post(transport, upstream.origin, method="HEAD", body=b"")
            assert answer.complete
            assert await drained(answer) == b""
            assert not answer.reused


def _endless(start: bytes, pieces: Iterable[bytes]) -> Script:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(start)
        for piece in pieces:
            await peer.send(piece)

    return script


ENDLESS_HEADS = {
    "status line": (b"HTTP/1.1 200 ", b"x" * 1000),
    "header name": (HEAD, b"x" * 1000),
    "header value": (HEAD + b"x-a: ", b"x" * 1000),
    "headers": (HEAD, b"x-a: b\r\n" * 100),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "interim headers": (b"HTTP/1.1 100 Continue\r\n", b"x-a: b\r\n" * 100),
    "line ends": (b"", b"\r\n" * 500),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ENDLESS_HEADS)
async def test_an_endless_head_is_malformed(name: str) -> None:
    start, piece = ENDLESS_HEADS[name]
    async with Upstream(_endless(start, itertools.repeat(piece))) as upstream, Transport() as transport:
        with pytest.raises(Malformed):
            await post(transport, upstream.origin)
        assert only(transport).open == 0


ENDLESS_BODIES = {
    "chunk size": (CHUNKED + b"2\r\nok\r\n", b"0" * 1000),
    "chunk extension": (CHUNKED + b"2\r\nok\r\n1;", b"x" * 1000),
    "trailers": (CHUNKED + b"2\r\nok\r\n0\r\n", b"x-t: 1\r\n" * 100),
    "trailer": (CHUNKED + b"2\r\nok\r\n0\r\nx-t: ", b"x" * 1000),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ENDLESS_BODIES)
async def test_endless_framing_around_no_body_is_malformed(name: str) -> None:
    start, piece = ENDLESS_BODIES[name]
    async with Upstream(_endless(start, itertools.repeat(piece))) as upstream, Transport() as transport:
        answer = await post(transport, upstream.origin)
        with pytest.raises(Malformed):
            await drained(answer)
        assert only(transport).open == 0


@pytest.mark.asyncio
async def test_the_bounds_are_settings() -> None:
    limits = Limits(head_bytes=100, headers=2, interim=0)
    for raw, accepted in (
        (OK, True),
        (HEAD + b"a: b\r\na: b\r\ncontent-length: 2\r\n\r\nok", False),
        (HEAD + b"a: " + b"b" * 60 + b"\r\ncontent-length: 2\r\n\r\nok", False),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, False),
    ):
        async with Upstream(always(raw)) as upstream, Transport(limits=limits) as transport:
            if accepted:
                assert await (await post(transport, upstream.origin)).read_all(2) == b"ok"
            else:
                with pytest.raises(Malformed):
                    await post(transport, upstream.origin)


@pytest.mark.asyncio
async def test_strange_header_names_do_not_pile_up() -> None:
    """Names are remembered to save work; an upstream that invents new ones must not fill memory with them."""
    count = itertools.count()

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            names = b"".join(b"x-%d: 1\r\n" % next(count) for _ in range(150))
            await peer.send(HEAD + names + b"x-" + b"y" * 5000 + b": 1\r\ncontent-length: 2\r\n\r\nok")

    async with Upstream(script) as upstream, Transport() as transport:
        for _ in range(10):
            answer = await post(transport, upstream.origin)
            assert len(answer.headers) == 152
        names = transport._settings.names
        assert len(names) <= 512
        assert max(map(len, names)) < 64
