"""Bytes that are no request, or two at once: refused with the status that says why, and never served as anything."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.lean_connection import Limits
from gateway.api.seam import Exchange
from tests.lean.wire import HOST, Client, answers, echo, post, running

GET = b"GET / HTTP/1.1\r\n"
POST = b"POST / HTTP/1.1\r\n" + HOST
SMALL = Limits(target_bytes=100, field_bytes=200, head_bytes=1000, fields=10)


@pytest.mark.parametrize(
    ("message", "status"),
    [
        # Two opinions about where the message ends.
        (POST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n", 400),
        (POST + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd", 400),
        (POST + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc", 400),
        (POST + b"content-length: 3, 3\r\n\r\nabc", 400),
        (POST + b"content-length: +3\r\n\r\nabc", 400),
        (POST + b"content-length: -3\r\n\r\nabc", 400),
        (POST + b"content-length: 0x3\r\n\r\nabc", 400),
        (POST + b"content-length: 99999999999999999999\r\n\r\nabc", 400),
        (POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding: identity\r\n\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        # Lines that others would read otherwise.
        (GET + HOST + b"a: b\r\n c\r\n\r\n", 400),
        (GET + b" host: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nhost: x\n\n", 400),
        (GET + HOST + b"a: b\0c\r\n\r\n", 400),
        (GET + HOST + b"a: b\rc\r\n\r\n", 400),
        (GET + HOST + b"a\x01: b\r\n\r\n", 400),
        (GET + HOST + b"no colon\r\n\r\n", 400),
        (GET + HOST + b": no name\r\n\r\n", 400),
        # For whom, and what.
        (GET + b"\r\n", 400),
        (GET + HOST + b"Host: y\r\n\r\n", 400),
        (b"GET\x20\x20\r\n\r\n", 400),
        (b"GET nowhere HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET ftp://x/y HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"BREW / HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (GET + HOST + b"expect: tea\r\n\r\n", 417),
        # Another protocol, or another version of this one.
        (b"GET / HTTP/2.0\r\nhost: x\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 505),
        (b"GET / HTTP/1.2\r\nhost: x\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"SSH-2.0-OpenSSH_9.6\r\n", 400),
        # Too much of it.
        (b"GET /" + b"a" * 200 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 414),
        (b"GET /" + b"a" * 2000, 414),
        (GET + HOST + b"a: " + b"b" * 300 + b"\r\n\r\n", 431),
        (GET + HOST + b"a" * 300 + b": b\r\n\r\n", 431),
        (GET + HOST + b"".join(b"a%d: b\r\n" % n for n in range(20)) + b"\r\n", 431),
        (GET + HOST + b"a: " + b"b" * 9_000, 431),
        (b"\r\n" * 5_000, 431),
    ],
)
@pytest.mark.parametrize("step", [None, 1])
def test_what_is_no_request_is_told_why_and_the_connection_ends(message: bytes, status: int, step: int | None) -> None:
    async def main() -> None:
        served: list[str] = []

        async def handler(http: Exchange) -> None:
            served.append(http.path)
            await echo(http)

        client = Client(handler, SMALL)
        await client.send(message, step)
        (answer,) = answers(client.wire.read_by_client())
        assert answer.status == status
        error = answer.json()["error"]
        assert isinstance(error, dict)
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        assert answer.headers["connection"] == "close"
        assert client.wire.eof
        assert served == [] or b"xchunked" in message or b"identity" in message
        await client.send(post(b"what follows is thrown away"))
        assert client.wire.read_by_client() == b""

    running(main)


@pytest.mark.parametrize(
    "body", [b"zz\r\nabc\r\n", b"3\nabc\n0\n\n", b"-3\r\nabc\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"f" * 20 + b"\r\n"]
)
def test_a_body_that_breaks_off_into_nonsense_is_a_400(body: bytes) -> None:
    async def main() -> None:
        client = Client(echo)
        await client.send(POST + b"transfer-encoding: chunked\r\n\r\n", None)
        await client.send(body)
        (answer,) = answers(client.wire.read_by_client())
        assert (answer.status, answer.headers["connection"]) == (400, "close")

    running(main)


def test_framing_without_a_body_has_a_bound() -> None:
    async def main() -> None:
        client = Client(echo, SMALL)
        await client.send(POST + b"transfer-encoding: chunked\r\n\r\n")
        await client.send(b"1;" + b"x" * 5_000 + b"\r\n", 100)
        (answer,) = answers(client.wire.read_by_client())
        assert answer.status == 431

        client = Client(echo, SMALL)
        await client.send(POST + b"transfer-encoding: chunked\r\n\r\n0\r\n")
        await client.send(b"trailer: x\r\n" * 500)
        (answer,) = answers(client.wire.read_by_client())
        assert answer.status == 431

    running(main)


def test_a_good_request_before_a_bad_one_is_answered_and_nothing_after_it() -> None:
    async def main() -> None:
        client = Client(echo)
        await client.send(post(b"good") + b"nonsense\r\n\r\n")
        (answer,) = answers(client.wire.read_by_client())
        assert answer.json()["body"] == "good"
        assert answer.headers["connection"] == "close"
        assert client.wire.eof

        client = Client(echo)
        await client.send(post(b"last", b"connection: close") + post(b"never"))
        (answer,) = answers(client.wire.read_by_client())
        assert answer.json()["body"] == "last"

    running(main)


def test_many_tiny_requests_in_one_read_are_not_all_parsed_at_once() -> None:
    async def main() -> None:
        most = 0

        async def handler(http: Exchange) -> None:
            nonlocal most
            most = max(most, len(client.connection._waiting))
            await http.respond(200, (), b"")

        client = Client(handler)
        tiny = b"GET / HTTP/1.1\r\nhost:\r\n\r\n"
        await client.send(tiny * 10_000)
        await client.turns(12_000)
        assert len(answers(client.wire.read_by_client())) == 10_000
        assert 0 < most <= 8192 // len(tiny)

    running(main)


_PIECES = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\n", b"POST /x HTTP/1.1\r\n", b"HTTP/1.0", b"\r\n", b"\n", b"\r\n\r\n", b"host: x\r\n",
        b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b"expect: 100-continue\r\n", b"5\r\nhello\r\n",
        b"0\r\n\r\n", b"hello", b"connection: close\r\n", b"connection: upgrade\r\nupgrade: h2c\r\n", b": ", b"\0",
    ]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(_PIECES, st.binary(max_size=12)), max_size=14), st.sampled_from([None, 1, 5]))
def test_whatever_comes_every_answer_is_whole_and_the_connection_ends_in_time(
    pieces: list[bytes], step: int | None
) -> None:
    async def main() -> None:
        client = Client(echo)
        await client.send(b"".join(pieces), step)
        for _ in range(30):
            await asyncio.sleep(10.0)  # of virtual time
        assert client.wire.closed
        for answer in answers(client.wire.read_by_client()):
            assert answer.whole
            assert answer.status in {100, 200, 400, 408, 413, 414, 417, 431, 505}
        assert client.server.connections == set()

    running(main)
