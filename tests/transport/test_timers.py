"""The timers, in virtual time: what each covers, to the millisecond, and what none of them may hurt."""

import asyncio
import ssl

import pytest

from providers.answer import Answer
from providers.http1 import SLICE
from providers.transport import ConnectFailed, HeadTimeout, Origin, Phase, Silence, Timers, Transport
from tests.transport.scripted import Peer, Upstream, post
from tests.transport.virtual import Bench, VirtualLoop, run

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LATE = 0.01  # seconds a timer may be late: one look at the socket before giving up


def test_the_head_has_its_time_and_no_more() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        start = loop.now
        with pytest.raises(HeadTimeout) as late:
            await bench.exchange(head_s=120)
        assert 120 <= loop.now - start <= 120 + LATE
        assert (late.value.phase, late.value.sent) == ("head", True)
        assert bench.socket.aborted
        assert bench.closed == 1

    run(main)


def test_bytes_of_a_head_do_not_buy_time() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        for number, byte in enumerate(OK[:-6]):
            bench.later(3.0 * number, bytes([byte]))
        start = loop.now
        with pytest.raises(HeadTimeout):
            await bench.exchange(head_s=60)
        assert loop.now - start <= 60 + LATE

    run(main)


def test_a_head_in_the_last_moment_is_in_time() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        bench.later(119.999, OK)
        answer = await bench.exchange(head_s=120)
        assert answer.take() == b"ok"

    run(main)


def test_silence_in_the_body_after_the_idle_time() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        answer = await bench.exchange(STREAM + b"2\r\nok\r\n", idle_s=30)
        assert await answer.read() == b"ok"
        start = loop.now
        with pytest.raises(Silence) as silence:
            await answer.read()
        assert 30 <= loop.now - start <= 30 + LATE
        assert (silence.value.phase, silence.value.sent) == ("body", True)
        assert bench.socket.aborted

    run(main)


def test_framing_without_body_bytes_is_silence() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        for number in range(100):
            bench.later(number, b"1;" if number == 0 else b"x")
        answer = await bench.exchange(STREAM, idle_s=30)
        start = loop.now
        with pytest.raises(Silence):
            await answer.read()
        assert loop.now - start <= 30 + LATE

    run(main)


def test_a_healthy_stream_of_ten_hours_is_left_alone() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        for number in range(1, 1241):
            bench.later(29.0 * number, b"1\r\nx\r\n")
        bench.later(29.0 * 1241, b"0\r\n\r\n")
        start = loop.now
        answer = await bench.exchange(STREAM, idle_s=30)
        count = 0
        while data := await answer.read():
            count += len(data)
        assert count == 1240
        assert answer.complete
        assert loop.now - start > 36_000 - 60
        assert bench.kept == 1

    run(main)


def test_a_reader_that_does_not_read_is_never_told_of_silence() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        answer = await bench.exchange(STREAM, idle_s=30)
        bench.connection.data_received(b"2\r\nok\r\n")
        await asyncio.sleep(3600)  # virtual: a client that takes nothing for an hour
        assert not bench.socket.aborted
        assert await answer.read() == b"ok"
        bench.later(29, b"2\r\nay\r\n0\r\n\r\n")
        assert await answer.read() == b"ay"
        assert await answer.read() == b""

    run(main)


def test_the_idle_time_of_one_wait_does_not_shorten_the_next() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        bench.later(29, b"1\r\na\r\n")
        answer = await bench.exchange(STREAM, idle_s=30)
        assert await answer.read() == b"a"
        await asyncio.sleep(20)
        bench.later(29, b"1\r\nb\r\n")
        assert await answer.read() == b"b"

    run(main)


def test_a_request_of_which_nothing_is_taken() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        bench.socket.full = bench.connection.pause_writing
        loop.call_later(25, bench.connection.resume_writing)
        start = loop.now
        with pytest.raises(Silence) as silence:
            await bench.exchange(body=b"x" * (5 * SLICE), idle_s=30)
        assert 55 <= loop.now - start <= 55 + LATE  # the slice taken after 25 s began the time anew
        assert (silence.value.phase, silence.value.sent) == ("send", True)
        assert len(bench.socket.written) == 2

    run(main)


def test_the_head_time_begins_when_the_request_is_sent() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        bench.socket.full = bench.connection.pause_writing
        for number in range(1, 6):
            loop.call_later(20 * number, bench.connection.resume_writing)
        start = loop.now
        with pytest.raises(HeadTimeout):
            await bench.exchange(body=b"x" * (5 * SLICE), idle_s=30, head_s=10)
        assert 110 <= loop.now - start <= 110 + LATE  # the last slice left after 100 s

    run(main)


def test_infinite_times_set_no_timer() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        armed = loop.armed
        bench.later(1_000_000, STREAM)
        bench.later(2_000_000, b"1\r\nx\r\n")
        answer = await bench.exchange(head_s=float("inf"), idle_s=float("inf"))
        assert await answer.read() == b"x"
        assert loop.armed == armed + 2  # those of the test itself

    run(main)


def test_an_idle_connection_closes_after_its_time() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, keep_s=30)
        await bench.exchange(OK)
        await asyncio.sleep(29)
        assert not bench.socket.aborted
        await bench.exchange(OK)  # used again: the time begins anew
        await asyncio.sleep(29)
        assert not bench.socket.aborted
        await asyncio.sleep(1 + LATE)
        assert bench.socket.aborted
        assert (bench.kept, bench.closed) == (2, 1)

    run(main)


@pytest.mark.parametrize(("value", "seconds"), [(b"timeout=5", 4), (b"max=9, Timeout=10", 9), (b"timeout=x", 30)])
def test_an_upstream_may_name_a_shorter_idle_time(value: bytes, seconds: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, keep_s=30)
        await bench.exchange(b"HTTP/1.1 200 OK\r\nKeep-Alive: %b\r\ncontent-length: 0\r\n\r\n" % value)
        await asyncio.sleep(seconds - 0.1)
        assert not bench.socket.aborted
        await asyncio.sleep(0.1 + LATE)
        assert bench.socket.aborted

    run(main)


def test_what_lay_in_the_socket_while_the_loop_was_held_up_is_in_time() -> None:
    """Timers run before sockets are read: a loop held up for long must look once more before it gives up."""

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        answer = Answer(idle_s=30, reused=False, connect_s=0, is_head=False)
        waiter = bench.connection.begin(answer, b"GET / HTTP/1.1\r\n\r\n", b"", 10)
        await asyncio.sleep(5)
        loop.now += 60  # something computed for a minute
        loop.call_later(0.0005, bench.connection.data_received, OK)  # the poll after the timers
        await waiter
        assert answer.begun() is None
        assert answer.take() == b"ok"

    run(main)


def test_deadlines_cost_few_timers() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        for _ in range(1000):
            answer = await bench.exchange(STREAM)
            for _ in range(5):
                read = asyncio.ensure_future(answer.read())
                await asyncio.sleep(0)
                bench.connection.data_received(b"1\r\nx\r\n")
                assert await read == b"x"
            bench.connection.data_received(b"0\r\n\r\n")
            loop.now += 0.1
        assert bench.kept == 1000
        assert loop.armed < 20

    run(main)


@pytest.mark.asyncio
async def test_connecting_has_its_time() -> None:
    async def script(peer: Peer) -> None:
        await peer.wait_closed()  # never answers the TLS hello

    async with Upstream(script) as upstream, Transport(tls=ssl.create_default_context()) as transport:
        with pytest.raises(ConnectFailed, match=r"within 0\.03 s") as failed:
            await post(transport, Origin("https", "127.0.0.1", upstream.origin.port), timers=Timers(0.03, 9, 9))
        assert (failed.value.phase, failed.value.sent) == (Phase.CONNECT, False)
        await upstream.peers[0].gone.wait()
        (stats,) = transport.stats().values()
        assert stats.open == stats.connecting == 0
