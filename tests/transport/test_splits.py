"""However an answer is cut into reads, it is the same answer."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.answer import Answer, TransportError
from providers.http1 import Limits
from providers.transport import Cut, Malformed
from tests.transport.virtual import Bench, VirtualLoop, outcome, run

NAMES = st.sampled_from([b"x-a", b"X-B", b"server", b"Date", b"cache-control"])
VALUES = st.text("abc ,;=1\t\x80\xff", max_size=12).map(lambda text: text.strip().encode("latin-1"))
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=4)
BODY = st.binary(max_size=60)


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, int, list[tuple[str, str]], bytes, bool]:
    """A valid answer: raw bytes, status, headers, body, and whether its end is the end of the connection."""
    headers = draw(HEADERS)
    body = draw(BODY)
    status = draw(st.sampled_from([200, 200, 404, 503, 599]))
    kind = draw(st.sampled_from(["length", "chunked", "end"]))
    raw = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\nx-i: 1\r\n\r\n"]))
    if kind == "length":
        headers.append((b"Content-Length", b"%d" % len(body)))
    elif kind == "chunked":
        headers.append((b"transfer-encoding", b"chunked"))
    raw += b"HTTP/1.1 %d Whatever\r\n" % status
    raw += b"".join(b"%b:%b%b\r\n" % (name, draw(st.sampled_from([b" ", b""])), value) for name, value in headers)
    raw += b"\r\n"
    if kind == "chunked":
        rest = body
        while rest:
            size = draw(st.integers(1, len(rest)))
            raw += b"%x%b\r\n%b\r\n" % (size, draw(st.sampled_from([b"", b";e=1"])), rest[:size])
            rest = rest[size:]
        raw += b"0\r\n" + draw(st.sampled_from([b"", b"x-trailer: 1\r\n"])) + b"\r\n"
    else:
        raw += body
    expected = [(name.lower().decode(), value.decode("latin-1")) for name, value in headers]
    return raw, status, expected, body, kind == "end"


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    """The bytes in pieces, cut at these places."""
    edges = [0, *sorted({place % (len(raw) + 1) for place in places}), len(raw)]
    return [raw[a:b] for a, b in pairwise(edges) if a < b]


CUTS = st.one_of(st.lists(st.integers(0, 1 << 16), max_size=8), st.just(list(range(1 << 10))))


@settings(max_examples=150, deadline=None)
@given(answers(), CUTS, st.booleans())
def test_any_cut_of_a_valid_answer_gives_the_same_answer(
    made: tuple[bytes, int, list[tuple[str, str]], bytes, bool], places: list[int], eager: bool
) -> None:
    raw, status, headers, body, ends = made

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        answer = Answer(idle_s=30, reused=False, connect_s=0, is_head=False)
        waiter = bench.connection.begin(answer, b"POST / HTTP/1.1\r\n\r\n", b"{}", 120)
        received = b""
        for piece in cut(raw, places):
            bench.connection.data_received(piece)
            if eager:
                received += answer.take()
        if ends:
            bench.connection.eof_received()
        await waiter
        assert answer.begun() is None
        rest, error = await outcome(answer)
        assert error is None
        assert (answer.status, answer.headers, received + rest) == (status, headers, body)
        assert answer.complete
        assert (bench.kept, bench.closed) == ((0, 1) if ends else (1, 0))

    run(main)


@settings(max_examples=100, deadline=None)
@given(answers(), st.integers(0, 1 << 16), CUTS)
def test_any_truncated_answer_is_a_cut(
    made: tuple[bytes, int, list[tuple[str, str]], bytes, bool], place: int, places: list[int]
) -> None:
    raw, _, _, body, ends = made
    head = raw.index(b"\r\n\r\n", raw.index(b"Whatever")) + 4
    short = raw[: place % (head if ends else len(raw))]  # without a length every body is a whole one

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        answer = Answer(idle_s=30, reused=False, connect_s=0, is_head=False)
        waiter = bench.connection.begin(answer, b"POST / HTTP/1.1\r\n\r\n", b"{}", 120)
        for piece in cut(short, places):
            bench.connection.data_received(piece)
        bench.connection.eof_received()
        await waiter
        if answer.complete:  # the body was empty or whole already, and only its framing was cut off
            assert body == answer.take()
            return
        received, error = await outcome(answer)
        assert error is Cut
        assert body.startswith(received)
        assert (bench.kept, bench.closed) == (0, 1)

    run(main)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), answers(), CUTS, st.integers(0, 1 << 16))
def test_any_bytes_end_in_an_answer_or_a_named_error(
    noise: bytes, made: tuple[bytes, int, list[tuple[str, str]], bytes, bool], places: list[int], place: int
) -> None:
    at = place % (len(made[0]) + 1)
    raw = made[0][:at] + noise + made[0][at:]

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, Limits(head_bytes=500, headers=5, interim=1, high_water=50))
        answer = Answer(idle_s=30, reused=False, connect_s=0, is_head=False)
        waiter = bench.connection.begin(answer, b"POST / HTTP/1.1\r\n\r\n", b"{}", 120)
        for piece in cut(raw, places):
            if bench.socket.aborted:
                break
            bench.connection.data_received(piece)
        if not bench.socket.aborted:
            bench.connection.eof_received()
        await waiter
        error = answer.begun()
        assert error is None or isinstance(error, TransportError)
        if error is None:
            await outcome(answer)
        assert bench.closed == 1
        assert bench.kept <= 1

    run(main)


def test_every_place_of_one_cut_in_a_head_over_its_bound_is_refused_alike() -> None:
    """The bound on a head counts bytes, not reads."""
    head = b"HTTP/1.1 200 OK\r\nx-a: " + b"b" * 100 + b"\r\ncontent-length: 2\r\n\r\n"

    async def main(loop: VirtualLoop) -> None:
        for bound, accepted in ((len(head), True), (len(head) - 1, False)):
            for place in range(len(head) + 2):
                bench = Bench(loop, Limits(head_bytes=bound))
                raw = head + b"ok"
                if accepted:
                    assert (await bench.exchange(*cut(raw, [place]))).take() == b"ok"
                else:
                    with pytest.raises(Malformed):
                        await bench.exchange(*cut(raw, [place]))

    run(main)


def test_bytes_before_the_first_request_close_the_connection() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        bench.connection.data_received(b"HTTP/1.1 200 OK\r\n")
        assert bench.socket.aborted
        with pytest.raises(Cut) as cut_off:
            await bench.exchange()
        assert (cut_off.value.phase, cut_off.value.sent) == ("send", False)
        assert bench.socket.written == []

    run(main)


def test_reading_stops_at_the_high_water_mark_and_goes_on_when_read() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, Limits(high_water=10))
        answer = await bench.exchange(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")
        bench.connection.data_received(b"x" * 10)
        assert bench.socket.reading
        bench.connection.data_received(b"x")
        assert not bench.socket.reading
        assert answer.take() == b"x" * 11
        assert bench.socket.reading
        bench.connection.data_received(b"x" * 89)
        assert bench.socket.reading  # complete: there is nothing more to hold back
        assert answer.complete
        assert bench.kept == 1
        await asyncio.sleep(0)

    run(main)


def test_an_answer_that_ends_while_reading_is_stopped_leaves_it_going() -> None:
    """TLS may hand over what it has decrypted already; the next exchange on the connection must still be heard."""

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, Limits(high_water=10))
        answer = await bench.exchange(b"HTTP/1.1 200 OK\r\ncontent-length: 30\r\n\r\n")
        bench.connection.data_received(b"x" * 20)
        assert not bench.socket.reading
        bench.connection.data_received(b"x" * 10)
        assert bench.socket.reading
        assert answer.take() == b"x" * 30
        assert bench.kept == 1

    run(main)
