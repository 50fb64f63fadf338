"""Bytes in, server-sent events out, cut anywhere.

Two levels. `Framer` cuts a byte stream into raw frames, each ending in the empty line that closes it, and keeps the
unfinished rest; the frames joined with the rest are the stream as it came (less a byte order mark at its start), so
traffic of one dialect can be relayed untouched. `parse` and `data_of` read one raw frame.

A line ends with LF, CRLF or CR alone, so a frame ends at two line ends in a row. Where that is a matter of one more
byte, the rule is the same wherever the stream was cut: LF CR waits for the byte after it (it is nearly always the
middle of CRLF CRLF), CR CR does not wait. Almost all streams use LF only, and most reads end where a frame ends: those
take the short way, one scan for CR and one split.
"""

import re
from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"
_BLANK = re.compile(rb"\n\n|\n\r\n|\r\r|\n\r(?=[^\n])")
_LINE_END = re.compile(rb"\r\n|\r|\n")


class EventTooLarge(ValueError):
    """A frame is longer than the bound. `frames` are the ones completed before it in the same read."""

    def __init__(self, limit: int, frames: list[bytes]) -> None:
        super().__init__(f"an event is longer than {limit} bytes")
        self.frames = frames


@dataclass(slots=True)
class Event:
    """One raw frame, read."""

    raw: bytes  # the frame as it came, with its empty line
    name: str | None  # the `event` field; None if there was none
    data: bytes | None  # the `data` fields joined with LF; None if there was none
    is_comment: bool  # nothing but comments and empty lines


class Framer:
    """Cuts a stream into raw frames. Once it has raised EventTooLarge it is of no more use."""

    __slots__ = ("_limit", "_scanned", "_started", "_tail")

    def __init__(self, max_event_bytes: int = 8 * 1024 * 1024) -> None:
        self._limit = max_event_bytes  # bound on one frame and so on what is held, bytes
        self._tail = bytearray()  # begun and not finished frame
        self._scanned = 0  # bytes at the start of _tail in which no end of a frame begins
        self._started = False  # whether the place of a byte order mark has been passed

    def feed(self, data: bytes) -> list[bytes]:
        """The frames completed by these bytes, in order; [] if none. Raises EventTooLarge."""
        if self._started and not self._tail and b"\r" not in data and len(data) <= self._limit:
            return self._split(data)
        return self._search(data)

    def events(self, data: bytes) -> list[Event]:
        """The same frames, read."""
        return [parse(frame) for frame in self.feed(data)]

    def end(self) -> tuple[list[bytes], bytes]:
        """The stream is over: what it still completes, and the unfinished rest.

        A rest that is not empty means a truncated stream: a client never sees an event without its empty line. Spare
        line ends are no rest.
        """
        tail = bytes(self._tail)
        self._tail.clear()
        if tail.endswith(b"\n\r"):
            return [tail], b""
        return [], tail if tail.strip(b"\r\n") else b""

    def _split(self, data: bytes) -> list[bytes]:
        """The short way: nothing kept, no CR, within the bound."""
        first = data.find(b"\n\n") + 2
        if first == len(data) and first > 1:
            return [data]
        parts = data.split(b"\n\n")
        self._tail += parts.pop()
        self._scanned = 0
        return [part + b"\n\n" for part in parts]

    def _search(self, data: bytes) -> list[bytes]:
        tail = self._tail
        tail += data
        if not self._started:
            if len(tail) < len(_BOM) and _BOM.startswith(tail):
                return []
            self._started = True
            if tail.startswith(_BOM):
                del tail[: len(_BOM)]
        frames: list[bytes] = []
        start = 0
        found = _BLANK.search(tail, self._scanned)
        while found is not None:
            end = found.end()
            if end - start > self._limit:
                raise EventTooLarge(self._limit, frames)
            frames.append(bytes(tail[start:end]))
            start = end
            found = _BLANK.search(tail, start)
        del tail[:start]
        if len(tail) > self._limit:
            raise EventTooLarge(self._limit, frames)
        self._scanned = max(0, len(tail) - 2)  # an end is at most three bytes, of which at least one is still to come
        return frames


def parse(frame: bytes) -> Event:
    """Read one raw frame. `id`, `retry` and unknown fields are passed over; a name that is not UTF-8 is mended."""
    name: str | None = None
    data: list[bytes] = []
    fields = False
    for line in frame.split(b"\n") if b"\r" not in frame else _LINE_END.split(frame):
        if line.startswith(b"data:"):
            data.append(line[6:] if line.startswith(b" ", 5) else line[5:])
        elif line.startswith(b"event:"):
            fields = True
            name = line[6:].removeprefix(b" ").decode("utf-8", "replace") or None
        elif line == b"data":
            data.append(b"")
        elif line and not line.startswith(b":"):
            fields = True
    joined = data[0] if len(data) == 1 else b"\n".join(data) if data else None
    return Event(frame, name, joined, not (fields or data))


def data_of(frame: bytes) -> bytes | None:
    """The data of a frame, None if it has none; the short way for frames of one `data: ` line."""
    end = len(frame) - 2
    if frame.startswith(b"data: ") and frame.find(b"\n") == end and b"\r" not in frame:
        return frame[6:end]
    return parse(frame).data


def encode_event(data: bytes, name: str | None = None) -> bytes:
    """One frame. Line ends inside `data` make several `data` lines. Raises ValueError for a name of several lines."""
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(_LINE_END.split(data))
    if name is None:
        return b"data: %b\n\n" % data
    if "\n" in name or "\r" in name:
        raise ValueError("an event name holds a line end")
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def encode_comment(text: str = "ping") -> bytes:
    """A frame that says nothing and keeps the connection alive. Raises ValueError for a text of several lines."""
    if "\n" in text or "\r" in text:
        raise ValueError("a comment holds a line end")
    return b": %b\n\n" % text.encode()
