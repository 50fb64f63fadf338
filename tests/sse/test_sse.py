"""Event streams: the same frames and events wherever the stream is cut, raw bytes untouched, bounds."""

import json
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from providers.sse import Event, EventTooLarge, Framer, data_of, encode_comment, encode_event, parse

BOM = b"\xef\xbb\xbf"


def frames_of(pieces: Iterable[bytes], limit: int = 1 << 20) -> tuple[list[bytes], bytes]:
    """All frames of a stream that came in these pieces, and its unfinished rest."""
    framer = Framer(limit)
    frames = [frame for piece in pieces for frame in framer.feed(piece)]
    last, rest = framer.end()
    return frames + last, rest


def reference(stream: bytes) -> list[tuple[str | None, bytes | None]]:
    """The events of a whole stream, line by line as the standard tells it; (name, data) of each that has a field."""
    events: list[tuple[str | None, bytes | None]] = []
    name: bytes = b""
    data: list[bytes] = []
    touched = False
    stream = stream.removeprefix(BOM)
    while stream:
        ends = [at for at in (stream.find(b"\n"), stream.find(b"\r")) if at >= 0]
        if not ends:
            break  # an unfinished line belongs to an unfinished event
        at = min(ends)
        line = stream[:at]
        stream = stream[at + (2 if stream[at : at + 2] == b"\r\n" else 1) :]
        if not line:
            if touched:
                events.append((name.decode("utf-8", "replace") or None, b"\n".join(data) if data else None))
            name, data, touched = b"", [], False
            continue
        field, colon, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event" and colon:
            name = value
        touched = touched or bool(field)
    return events


LINES = st.one_of(
    st.sampled_from(
        b"data: {}|data:x|data:  two|data|data:|event: ping|event:e|event: |: note|:|id: 1|retry: 5|unknown"
        b"|data: \xe2\x82\xac \xf0\x9f\x98\x80|database: 1| data: x".split(b"|")
    ),
    st.binary(max_size=8).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b"")),
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A stream of one kind of line end, or of all kinds mixed, with or without an unfinished rest."""
    kind = draw(st.one_of(st.none(), ENDS))
    lines = draw(st.lists(st.one_of(LINES, st.just(b""), st.just(b"")), max_size=14))
    stream = draw(st.sampled_from([b"", b"", BOM]))
    for line in lines:
        stream += line + (kind or draw(ENDS))
    return stream + draw(st.sampled_from([b"", b"", b"data: unfinished"]))


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    """The stream in pieces, empty ones included."""
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


@settings(max_examples=300, deadline=None)
@given(streams(), st.lists(st.integers(0, 1 << 16), max_size=6))
@example(b"data: a\r\n\r\ndata: b\r\n\r\n", [9, 10, 11])
@example(b"data: a\r\rdata: b\n\r\ndata: c\n\n\n\n", [9])
@example(BOM + b"data: a\n\n", [1, 2])
def test_any_cut_gives_the_same_frames_and_loses_no_byte(stream: bytes, places: list[int]) -> None:
    whole = frames_of([stream])
    assert frames_of(cut(stream, places)) == whole
    assert frames_of([stream[at : at + 1] for at in range(len(stream))]) == whole
    frames, rest = whole
    text = stream.removeprefix(BOM)
    joined = b"".join(frames) + rest
    assert text.startswith(joined)
    assert not text[len(joined) :].strip(b"\r\n")  # spare line ends at the end are no rest


@settings(max_examples=300, deadline=None)
@given(streams())
def test_the_events_are_those_of_the_standard(stream: bytes) -> None:
    frames, _ = frames_of([stream])
    events = [parse(frame) for frame in frames]
    assert [(event.name, event.data) for event in events if not event.is_comment] == reference(stream)
    assert [data_of(frame) for frame in frames] == [event.data for event in events]
    assert [event.raw for event in events] == frames


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.lists(st.integers(0, 1 << 16), max_size=6))
def test_any_bytes_cut_anywhere(stream: bytes, places: list[int]) -> None:
    assert frames_of(cut(stream, places)) == frames_of([stream])


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=30), st.one_of(st.none(), st.text(max_size=8)))
def test_what_is_encoded_is_read_again(data: bytes, name: str | None) -> None:
    if name is not None and ("\n" in name or "\r" in name):
        with pytest.raises(ValueError):
            encode_event(data, name)
        return
    try:
        raw = encode_event(data, name)
    except UnicodeEncodeError:
        return
    frames, rest = frames_of([raw, raw])
    assert (frames, rest) == ([raw, raw], b"")
    event = parse(raw)
    assert event.data == data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert event.name == (name or None)
    assert not event.is_comment


def test_frames_are_given_as_soon_as_they_are_whole() -> None:
    framer = Framer()
    assert framer.feed(b"data: 1\n\n") == [b"data: 1\n\n"]
    assert framer.feed(b"data: 2\n\ndata: 3\n\nda") == [b"data: 2\n\n", b"data: 3\n\n"]
    assert framer.feed(b"ta: 4\n") == []
    assert framer.feed(b"\n") == [b"data: 4\n\n"]
    assert framer.feed(b"data: 5\r\n\r\n") == [b"data: 5\r\n\r\n"]
    assert framer.feed(b"data: 6\r\r") == [b"data: 6\r\r"]
    assert framer.feed(b"data: 7\r\n\r") == []  # nearly always the middle of CRLF CRLF
    assert framer.feed(b"\ndata: 8\n\n") == [b"data: 7\r\n\r\n", b"data: 8\n\n"]
    assert framer.feed(b"") == []
    assert framer.end() == ([], b"")


@pytest.mark.parametrize(
    ("stream", "frames", "rest"),
    [
        (b"", [], b""),
        (b"data: a\n\ndata: b", [b"data: a\n\n"], b"data: b"),
        (b"data: a\n\ndata: b\n", [b"data: a\n\n"], b"data: b\n"),
        (b"data: a\r\n\r", [b"data: a\r\n\r"], b""),
        (b"data: a\n\n\n", [b"data: a\n\n"], b""),
        (b"\xef\xbb", [], b"\xef\xbb"),
        (BOM, [], b""),
    ],
)
def test_the_end_tells_a_truncated_stream_from_a_whole_one(stream: bytes, frames: list[bytes], rest: bytes) -> None:
    assert frames_of([stream]) == (frames, rest)


@pytest.mark.parametrize(
    ("frame", "name", "data", "comment"),
    [
        (b"data: x\n\n", None, b"x", False),
        (b"data:x\n\n", None, b"x", False),
        (b"data:  x\n\n", None, b" x", False),
        (b"data:[DONE]\r\n\r\n", None, b"[DONE]", False),
        (b"data\n\n", None, b"", False),
        (b"data: a\ndata: b\ndata:\n\n", None, b"a\nb\n", False),
        (b"event: ping\ndata: {}\n\n", "ping", b"{}", False),
        (b"event: ping\n\n", "ping", None, False),
        (b"event:\ndata: x\n\n", None, b"x", False),
        (b"event: a\nevent: b\ndata: x\n\n", "b", b"x", False),
        (b"event: \xff\ndata: \xff\n\n", "\N{REPLACEMENT CHARACTER}", b"\xff", False),
        (b": PROCESSING\n\n", None, None, True),
        (b": keep-alive\ndata: x\n\n", None, b"x", False),
        (b"id: 1\n\n", None, None, False),
        (b"retry: 5\n\n", None, None, False),
        (b"datax: y\n\n", None, None, False),
        (b"\n\n", None, None, True),
        (b"\ndata: x\n\n", None, b"x", False),
    ],
)
def test_reading_a_frame(frame: bytes, name: str | None, data: bytes | None, comment: bool) -> None:
    assert parse(frame) == Event(frame, name, data, comment)
    assert data_of(frame) == data


def test_events_carry_their_raw_bytes() -> None:
    framer = Framer()
    assert framer.events(b": hi\n\nevent: a\ndata: 1\n\n") == [
        Event(b": hi\n\n", None, None, True),
        Event(b"event: a\ndata: 1\n\n", "a", b"1", False),
    ]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_the_size_of_an_event_is_bounded_wherever_it_is_cut(size: int, end: bytes) -> None:
    good = b"data: x" + end
    fits = b"data: " + b"y" * (64 - 6 - len(end)) + end
    assert frames_of([fits[at : at + size] for at in range(0, 64, size)], 64) == ([fits], b"")
    stream = good + good + fits[: -len(end)] + b"y" + end + good
    framer = Framer(64)
    frames: list[bytes] = []

    def feed_all() -> None:
        for at in range(0, len(stream), size):
            frames.extend(framer.feed(stream[at : at + size]))

    with pytest.raises(EventTooLarge, match="longer than 64 bytes") as raised:
        feed_all()
    assert frames + raised.value.frames == [good, good]


def test_a_whole_event_over_the_bound_is_refused_on_the_short_way_too() -> None:
    framer = Framer(20)
    assert framer.feed(b"data: x\n\n") == [b"data: x\n\n"]
    with pytest.raises(EventTooLarge) as raised:
        framer.feed(b"data: y\n\ndata: 0123456789abcdef\n\n")
    assert raised.value.frames == [b"data: y\n\n"]


def test_an_endless_event_is_refused_before_it_fills_memory() -> None:
    framer = Framer(1000)
    for _ in range(10):
        assert framer.feed(b"x" * 100) == []
    with pytest.raises(EventTooLarge):
        framer.feed(b"x")


def test_a_large_event_in_small_pieces_is_read_in_linear_time() -> None:
    """Each byte is looked at once: eight MiB in pieces of 1 KiB would take minutes otherwise."""
    framer = Framer(16 << 20)
    framer.feed(b"data: ")
    for _ in range(8192):
        assert framer.feed(b"x" * 1024) == []
    (frame,) = framer.feed(b"\n\n")
    assert len(frame) == 8192 * 1024 + 8


def test_encoding() -> None:
    payload = json.dumps({"a": "é\n"}).encode()
    assert encode_event(payload) == b"data: " + payload + b"\n\n"
    assert encode_event(b"a\nb\r\nc", "error") == b"event: error\ndata: a\ndata: b\ndata: c\n\n"
    assert encode_comment() == b": ping\n\n"
    assert encode_comment("héllo") == ": héllo\n\n".encode()
    with pytest.raises(ValueError):
        encode_comment("a\nb")
