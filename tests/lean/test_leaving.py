"""Clients that are slow, that stop, that leave: time limits, bounds on what is held, and cancellation at once."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from gateway.api.lean_connection import Limits
from gateway.api.seam import BodyTooLarge, BodyTooSlow, ClientGone, Exchange
from tests.lean.wire import HOST, Client, answers, echo, post, running

LIMITS = Limits(ahead_bytes=2_000, unread_bytes=2_000, head_s=30.0, idle_s=75.0, linger_s=10.0)
CHUNKED = b"POST / HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n"


class Held:
    """A handler that goes on when it is told to, and knows when it was cancelled."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self.go = asyncio.Event()

    async def __call__(self, http: Exchange) -> None:
        self.started += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        await echo(http)


@pytest.mark.parametrize("behind", [b"", post(b"next"), post(b"next")[:20], post(b"x" * 500) * 3])
def test_a_client_that_leaves_cancels_its_request_at_once_whatever_it_sent_ahead(behind: bytes) -> None:
    async def main() -> None:
        held = Held()
        client = Client(held, LIMITS)
        await client.send(post(b"body") + behind)
        client.leave()
        await client.turns(3)
        assert (held.started, held.cancelled) == (1, 1)
        assert client.connection.lost
        assert client.server.connections == set()
        assert client.wire.read_by_client() == b""

    running(main)


def test_a_client_that_leaves_in_the_middle_of_its_body_is_noticed_at_once() -> None:
    async def main() -> None:
        outcomes: list[str] = []

        async def handler(http: Exchange) -> None:
            try:
                await http.body(100, 60.0)
            except BaseException as error:
                outcomes.append(type(error).__name__)
                raise

        client = Client(handler)
        await client.send(post(b"0123456789")[:-4])
        client.leave()
        await client.turns(3)
        assert outcomes == ["CancelledError"]

    running(main)


@pytest.mark.parametrize("how", ["its side", "both sides"])
def test_what_a_handler_does_because_its_client_left_is_not_cut_short(how: str) -> None:
    async def main() -> None:
        done: list[str] = []

        async def handler(http: Exchange) -> None:
            try:
                await asyncio.sleep(60.0)
            finally:
                await asyncio.sleep(1.0)
                done.append("settled")

        client = Client(handler)
        await client.send(post() + post(b"never served"))
        if how == "its side":
            client.leave()
        else:
            client.wire.abort()
        await client.turns()
        assert client.connection.lost
        assert len(client.server.tasks) == 1
        await asyncio.sleep(2.0)
        assert done == ["settled"]
        assert client.server.tasks == set()

    running(main)


def test_a_client_that_leaves_as_its_answer_ends_has_nothing_more_started() -> None:
    async def main() -> None:
        started = 0
        go = asyncio.Event()

        async def handler(http: Exchange) -> None:
            nonlocal started
            started += 1
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()
            await http.respond(200, (), b"")

        client = Client(handler)
        await client.send(post() + post())
        client.connection.eof_received()
        await client.turns()
        assert started == 1
        assert client.server.tasks == set()

    running(main)


def test_a_client_that_is_gone_is_known_to_be_and_cannot_be_written_to() -> None:
    async def main() -> None:
        seen: list[object] = []

        async def handler(http: Exchange) -> None:
            seen.append(http.gone)
            try:
                await asyncio.sleep(60.0)
            except asyncio.CancelledError:
                seen.append(http.gone)
                for call in (http.respond(200, (), b""), http.head(200, ()), http.write(b"x")):
                    with pytest.raises(ClientGone):
                        await call
                raise

        client = Client(handler)
        await client.send(post())
        client.leave()
        await client.turns()
        assert seen == [False, True]

    running(main)


def test_a_head_that_trickles_in_buys_no_time() -> None:
    async def main() -> None:
        client = Client(echo, LIMITS)
        for byte in post(b"body")[:14]:
            await client.send(bytes([byte]))
            await asyncio.sleep(2.0)
        assert not client.wire.closed
        await asyncio.sleep(3.0)
        (answer,) = answers(client.wire.read_by_client())
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert client.wire.closed

    running(main)


def test_connections_that_say_nothing_are_closed_in_time_and_silently() -> None:
    async def main() -> None:
        never = Client(echo, LIMITS)
        once = Client(echo, LIMITS)
        await once.send(post())
        once.wire.read_by_client()
        await asyncio.sleep(29.0)
        assert not never.wire.closed
        await asyncio.sleep(2.0)
        assert never.wire.closed
        await asyncio.sleep(42.0)
        assert not once.wire.closed
        await asyncio.sleep(3.0)
        assert once.wire.closed
        assert never.wire.sent == once.wire.sent == b""

    running(main)


def test_a_running_request_has_no_time_limit_of_the_listener() -> None:
    async def main() -> None:
        held = Held()
        client = Client(held, LIMITS)
        await client.send(post(b"body"))
        await asyncio.sleep(3600.0)
        held.go.set()
        await client.turns()
        (answer,) = answers(client.wire.read_by_client())
        assert answer.status == 200

    running(main)


def test_a_body_that_does_not_come_in_time_or_is_too_large_is_said_so() -> None:
    async def main() -> None:
        client = Client(echo)
        await client.send(post(b"0123456789")[:-4])
        await asyncio.sleep(6.0)
        (answer,) = answers(client.wire.read_by_client())
        assert (answer.status, answer.body, answer.headers["connection"]) == (408, b"slow", "close")

        announced = Client(echo)
        await announced.send(b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 10001\r\n\r\n")
        (answer,) = answers(announced.wire.read_by_client())
        assert (answer.status, answer.headers["connection"]) == (413, "close")

        chunked = Client(echo)
        await chunked.send(CHUNKED)
        for _ in range(20):
            await chunked.send(b"400\r\n" + b"x" * 1024 + b"\r\n")
        (answer,) = answers(chunked.wire.read_by_client())
        assert answer.status == 413

    running(main)


def test_the_limits_of_a_body_are_the_handlers_own() -> None:
    async def main() -> None:
        seen: list[object] = []

        async def handler(http: Exchange) -> None:
            try:
                seen.append(await http.body(4, 1.0))
            except BodyTooLarge as error:
                seen.append(error.limit)
            except BodyTooSlow:
                seen.append("slow")
            await http.respond(200, (), b"")

        client = Client(handler)
        await client.send(post(b"1234") + post(b"12345") + CHUNKED + b"5\r\n12345\r\n0\r\n\r\n")
        assert seen == [b"1234", 4, 4]
        assert [a.status for a in answers(client.wire.read_by_client())] == [200, 200, 200]

    running(main)


def test_an_answer_before_the_end_of_an_upload_ends_the_connection_slowly() -> None:
    async def main() -> None:
        async def refuse(http: Exchange) -> None:
            await http.respond(401, (), b"no")

        client = Client(refuse, LIMITS)
        await client.send(b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 1000000\r\n\r\n" + b"x" * 1000)
        (answer,) = answers(client.wire.read_by_client())
        assert (answer.status, answer.headers["connection"]) == (401, "close")
        # The client is still sending: our side is over, its bytes are read and dropped, and there is no reset.
        assert client.wire.eof
        for _ in range(9):
            await client.send(b"x" * 100_000)
            await asyncio.sleep(1.0)
        assert client.wire.reading
        assert not client.wire.closed
        await asyncio.sleep(2.0)
        assert client.wire.aborted

    running(main)


def test_a_body_nobody_asks_for_is_not_taken_in_without_end() -> None:
    async def main() -> None:
        held = Held()
        client = Client(held, LIMITS)
        await client.send(b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 9000\r\n\r\n" + b"x" * 1500)
        assert client.wire.reading
        await client.send(b"x" * 1500)
        assert not client.wire.reading
        held.go.set()
        await client.turns()
        assert client.wire.reading
        await client.send(b"x" * 6000)
        (answer,) = answers(client.wire.read_by_client())
        assert answer.json()["body"] == "x" * 9000
        assert "connection" not in answer.headers

    running(main)


def test_after_a_large_body_that_came_at_once_the_next_request_is_read() -> None:
    async def main() -> None:
        client = Client(echo, LIMITS)
        for size in (9000, 10, 9000):  # the large ones are whole before their handler asks for them
            await client.send(post(b"x" * size))
            (answer,) = answers(client.wire.read_by_client())
            assert answer.json()["body"] == "x" * size
            assert client.wire.reading

    running(main)


def test_what_is_sent_ahead_has_a_bound_and_is_all_answered() -> None:
    async def main() -> None:
        held = Held()
        client = Client(held, LIMITS)
        await client.send(post(b"first"))
        sent = 1
        while client.wire.reading:
            await client.send(post(b"x" * 300))
            sent += 1
        assert len(client.connection._ahead) <= 2_000 + 400
        assert held.started == 1
        held.go.set()
        await client.turns(100)
        assert client.wire.reading
        assert [a.status for a in answers(client.wire.read_by_client())] == [200] * sent
        assert not client.connection._ahead

    running(main)


def test_a_reader_slower_than_the_answer_makes_the_handler_wait() -> None:
    async def main() -> None:
        written = 0

        async def handler(http: Exchange) -> None:
            nonlocal written
            await http.head(200, ())
            for _ in range(100):
                await http.write(b"x" * 1000)
                written += 1
            await http.end()

        client = Client(handler)
        client.wire.room = 10_000
        await client.send(post())
        received = bytearray()
        while written < 100:
            assert written - len(received) // 1010 <= 10
            received += client.wire.read_by_client()
            await client.turns()
        received += client.wire.read_by_client()
        (answer,) = answers(bytes(received))
        assert (len(answer.body), answer.whole) == (100_000, True)

    running(main)


def test_a_handler_cancelled_while_it_waits_for_a_slow_reader_can_go_on_writing() -> None:
    async def main() -> None:
        tasks: list[asyncio.Task[object]] = []

        async def handler(http: Exchange) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)
            await http.head(200, ())
            try:
                await http.write(b"x" * 2000)
            except asyncio.CancelledError:
                task.uncancel()
            await http.write(b"last words")
            await http.end()

        client = Client(handler)
        client.wire.room = 1000
        await client.send(post())
        tasks[0].cancel()
        await client.turns()
        received = client.wire.read_by_client()
        await client.turns()
        (answer,) = answers(received + client.wire.read_by_client())
        assert answer.body == b"x" * 2000 + b"last words"
        assert answer.whole

    running(main)


def test_a_client_that_leaves_frees_a_handler_that_waits_for_it_to_read() -> None:
    async def main() -> None:
        outcomes: list[str] = []

        async def handler(http: Exchange) -> None:
            try:
                await http.head(200, ())
                await http.write(b"x" * 2000)
            except BaseException as error:
                outcomes.append(type(error).__name__)
                raise

        client = Client(handler)
        client.wire.room = 1000
        await client.send(post())
        assert outcomes == []
        client.leave()
        await client.turns(3)
        assert outcomes == ["CancelledError"]

    running(main)


async def _nothing(http: Exchange) -> None:
    pass


async def _half(http: Exchange) -> None:
    await http.head(200, ())
    await http.write(b"data")


async def _cut(http: Exchange) -> None:
    await http.head(200, ())
    await http.write(b"data")
    http.abort()


async def _gone(http: Exchange) -> None:
    raise ClientGone


@pytest.mark.parametrize("handler", [_nothing, _half, _cut, _gone])
def test_what_is_no_whole_answer_never_looks_like_one(handler: object) -> None:
    async def main() -> None:
        client = Client(handler)  # type: ignore[arg-type]
        await client.send(post() + post())
        assert client.wire.aborted
        assert all(not answer.whole for answer in answers(client.wire.read_by_client()))

    running(main)


def test_a_handler_that_fails_is_logged_and_its_client_is_not_left_waiting(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def handler(http: Exchange) -> None:
            raise RuntimeError("a fault of ours")

        client = Client(handler)
        await client.send(post())
        assert client.wire.aborted

    running(main)
    assert "a request failed in its handler" in caplog.text


def test_an_answer_that_is_not_read_does_not_keep_a_closed_connection_for_ever() -> None:
    async def main() -> None:
        class Stuck(Client):
            """A client that reads nothing, so that a close never completes."""

        client = Stuck(echo, replace(LIMITS, idle_s=75.0))
        client.wire.close = lambda: None  # type: ignore[method-assign]
        await client.send(post(b"", b"connection: close"))
        assert not client.wire.aborted
        await asyncio.sleep(80.0)
        assert client.wire.aborted

    running(main)
