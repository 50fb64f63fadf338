"""Well-formed requests in every shape: one answer each, in order, whole, framed as the client's version allows."""

from __future__ import annotations

import asyncio

import pytest

from gateway.api.seam import Exchange, path_of
from tests.lean.wire import HOST, Client, answers, echo, post, running

CHUNKED = (
    b"POST /v1/x HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n"
    b"3;name=value\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nx: from a trailer\r\n\r\n"
)


async def streamed(http: Exchange) -> None:
    """An answer in three pieces, one of them empty."""
    await http.body(100, 1.0)
    await http.head(200, (("content-type", "text/event-stream"),))
    for piece in (b"data: 1\n\n", b"", b"data: 2\n\n"):
        await http.write(piece)
    await http.end()


@pytest.mark.parametrize("step", [None, 1, 2, 3, 7])
@pytest.mark.parametrize("message", [post(b"hello", b"X: y"), CHUNKED], ids=["length", "chunked"])
def test_a_request_cut_anywhere_is_the_same_request(message: bytes, step: int | None) -> None:
    async def main() -> None:
        client = Client(echo)
        await client.send(message * 2, step)
        first, second = answers(client.wire.read_by_client())
        assert first == second
        assert first.status == 200
        said = first.json()
        assert (said["method"], said["path"]) == ("POST", "/v1/x")
        assert (said["body"], said["x"]) in [("hello", "y"), ("abc0123456789abcdef", None)]
        assert first.headers["content-length"] == str(len(first.body))
        assert first.headers["date"].endswith("GMT")
        assert "connection" not in first.headers
        assert not client.wire.closed

    running(main)


def test_the_first_of_two_headers_counts_and_names_have_no_case() -> None:
    async def main() -> None:
        client = Client(echo)
        await client.send(post(b"", b"x: first", b"X: second"))
        (answer,) = answers(client.wire.read_by_client())
        assert answer.json()["x"] == "first"

    running(main)


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v1/models?limit=2", "/v1/models"),
        ("/a%20b", "/a%20b"),
        ("http://host:80/v1/models?x", "/v1/models"),
        ("HTTPS://host/v1", "/v1"),
        ("http://host", "/"),
        ("http://host?x/y", "/"),
        ("*", "*"),
        ("ftp://host/x", ""),
        ("host:80", ""),
        ("", ""),
    ],
)
def test_the_path_of_a_target(target: str, path: str) -> None:
    assert path_of(target) == path


def test_an_absolute_target_is_served_by_its_path() -> None:
    async def main() -> None:
        client = Client(echo)
        await client.send(b"GET http://gateway.example/v1/models?x=1 HTTP/1.1\r\n" + HOST + b"\r\n")
        (answer,) = answers(client.wire.read_by_client())
        assert answer.json()["path"] == "/v1/models"

    running(main)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", True),
    ],
)
def test_who_may_send_another_request_is_told(line: bytes, kept: bool) -> None:
    async def main() -> None:
        client = Client(echo)
        await client.send(line)
        (answer,) = answers(client.wire.read_by_client())
        assert answer.status == 200
        assert answer.headers.get("connection") == (("keep-alive" if b"1.0" in line else None) if kept else "close")
        assert client.wire.closed is not kept
        assert not client.wire.aborted

    running(main)


def test_a_head_request_gets_the_length_and_no_body() -> None:
    async def main() -> None:
        client = Client(echo)
        await client.send(b"HEAD / HTTP/1.1\r\n" + HOST + b"\r\n" + post(b"next"))
        head, full = answers(client.wire.read_by_client(), heads=1)
        assert int(head.headers["content-length"]) > 10
        assert full.json()["body"] == "next"

    running(main)


def test_a_stream_ends_by_its_last_chunk_or_for_old_clients_by_the_connection() -> None:
    async def main() -> None:
        client = Client(streamed)
        await client.send(post() + post())
        for answer in answers(client.wire.read_by_client()):
            assert (answer.body, answer.whole) == (b"data: 1\n\ndata: 2\n\n", True)
            assert "content-length" not in answer.headers
        assert not client.wire.closed

        client = Client(streamed)
        await client.send(b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        (answer,) = answers(client.wire.read_by_client())
        assert answer.body == b"data: 1\n\ndata: 2\n\n"
        assert answer.headers["connection"] == "close"
        assert "transfer-encoding" not in answer.headers
        assert client.wire.closed
        assert not client.wire.aborted

    running(main)


def test_100_continue_is_said_when_the_body_is_asked_for() -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def later(http: Exchange) -> None:
            await asked.wait()
            await echo(http)

        client = Client(later)
        await client.send(
            b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\ncontent-length: 5\r\n\r\n",
        )
        assert client.wire.read_by_client() == b""
        asked.set()
        await client.turns()
        assert client.wire.read_by_client() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"hello")
        (answer,) = answers(client.wire.read_by_client())
        assert answer.json()["body"] == "hello"
        assert "connection" not in answer.headers

    running(main)


def test_a_refusal_before_the_body_says_no_continue_and_ends_the_connection() -> None:
    async def main() -> None:
        async def refuse(http: Exchange) -> None:
            await http.respond(401, (), b"no")

        client = Client(refuse)
        await client.send(b"POST / HTTP/1.1\r\n" + HOST + b"expect: 100-continue\r\ncontent-length: 5\r\n\r\n")
        (answer,) = answers(client.wire.read_by_client())
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        assert client.wire.eof

    running(main)


def test_nobody_is_upgraded_and_nothing_is_lost() -> None:
    async def main() -> None:
        client = Client(echo)
        upgrade = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABk")
        await client.send(post(b"with a body", *upgrade) + post(b"the next"))
        first, second = answers(client.wire.read_by_client())
        assert (first.status, first.json()["body"]) == (200, "with a body")
        assert second.json()["body"] == "the next"

    running(main)


def test_requests_sent_ahead_are_answered_one_after_the_other_in_order() -> None:
    async def main() -> None:
        under_way = 0

        async def slow(http: Exchange) -> None:
            nonlocal under_way
            under_way += 1
            assert under_way == 1
            await asyncio.sleep(0.01)
            under_way -= 1
            await echo(http)

        client = Client(slow)
        await client.send(b"".join(post(b"%d" % number) for number in range(500)))
        await asyncio.sleep(500 * 0.01 + 1.0)  # of virtual time
        found = answers(client.wire.read_by_client())
        assert [answer.json()["body"] for answer in found] == [str(number) for number in range(500)]

    running(main)


@pytest.mark.parametrize("value", ["a\r\nset-cookie: b", "a\nb", "a\rb", "a\0b"])
def test_a_header_value_cannot_become_two(value: str) -> None:
    async def main() -> None:
        async def inject(http: Exchange) -> None:
            with pytest.raises(ValueError, match="CR, LF or NUL"):
                await http.respond(200, (("x", value),), b"")
            await http.respond(200, (), b"")

        client = Client(inject)
        await client.send(post())
        (answer,) = answers(client.wire.read_by_client())
        assert set(answer.headers) == {"date", "content-length"}

    running(main)
