"""A lean connection without a socket, on a loop whose clock jumps; and the answers read off what it wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson

from gateway.api.lean_connection import Connection, Dates, Limits
from gateway.api.seam import BodyTooLarge, BodyTooSlow, Exchange, Handler

LIMIT = 10_000  # bytes of a body the handlers here take
HOST = b"host: x\r\n"


class Wire(asyncio.Transport):
    """The client's end: takes what is written, remembers what was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.connection: Connection | None = None
        self.sent = bytearray()
        self.eof = False  # our side was ended, the other may go on
        self.closed = False
        self.aborted = False
        self.reading = True
        self.room: int | None = None  # bytes taken before the writer has to wait; None: any number

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed, "written after the end"
        self.sent += data
        if self.room is not None and len(self.sent) > self.room and self.connection is not None:
            self.connection.pause_writing()

    def read_by_client(self) -> bytes:
        """The client takes everything that was written."""
        data = bytes(self.sent)
        self.sent.clear()
        if self.room is not None and self.connection is not None:
            self.connection.resume_writing()
        return data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.connection is not None:
                asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def abort(self) -> None:
        self.aborted = True
        self.close()


class Server:
    """What a connection needs of its server."""

    def __init__(self, handler: Handler, limits: Limits) -> None:
        self.loop = asyncio.get_running_loop()
        self.handler = handler
        self.limits = limits
        self.closing = False
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()


class Client:
    """One connection and its two ends."""

    def __init__(self, handler: Handler, limits: Limits | None = None) -> None:
        self.server = Server(handler, limits or Limits())
        self.wire = Wire()
        self.connection = Connection(self.server, Dates())
        self.wire.connection = self.connection
        self.connection.connection_made(self.wire)

    async def send(self, data: bytes, step: int | None = None) -> None:
        """Feeds bytes as the loop would, `step` at a time, and lets everything run that can."""
        for start in range(0, len(data), step or max(1, len(data))):
            if self.wire.closed:
                break
            self.connection.data_received(data[start : start + (step or len(data))])
            if step is not None:
                await asyncio.sleep(0)
        await self.turns()

    async def turns(self, count: int = 8) -> None:
        """Lets the loop turn, without time passing."""
        for _ in range(count):
            await asyncio.sleep(0)

    def leave(self) -> None:
        """The client closes the connection."""
        if not self.connection.eof_received():
            self.wire.close()


@dataclass(frozen=True)
class Answer:
    """One answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool  # the framing says that it is all there

    def json(self) -> dict[str, object]:
        """The body as an object."""
        found: dict[str, object] = orjson.loads(self.body)
        return found


def answers(data: bytes, *, heads: int = 0) -> list[Answer]:
    """All answers in what a server wrote; the first `heads` of them are to HEAD requests."""
    found: list[Answer] = []
    while data:
        head, mark, data = data.partition(b"\r\n\r\n")
        assert mark, f"a head without an end: {head!r}"
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status = first.split(" ")[:2]
        assert version == "HTTP/1.1"
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        assert len(headers) == len(lines), f"a header twice: {lines}"
        body, whole = b"", True
        if status == "100" or len(found) < heads:
            pass
        elif headers.get("transfer-encoding") == "chunked":
            body, whole, data = _dechunked(data)
        elif "content-length" in headers:
            length = int(headers["content-length"])
            body, data = data[:length], data[length:]
            whole = len(body) == length
        else:
            body, data = data, b""
        found.append(Answer(int(status), headers, body, whole))
    return found


def _dechunked(data: bytes) -> tuple[bytes, bool, bytes]:
    pieces: list[bytes] = []
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        piece, end, data = data[:length], data[length : length + 2], data[length + 2 :]
        assert end == b"\r\n"
        if not length:
            return b"".join(pieces), True, data
        pieces.append(piece)
    return b"".join(pieces), False, b""


async def echo(http: Exchange) -> None:
    """Tells what was asked, or how the body failed."""
    try:
        body = await http.body(LIMIT, 5.0)
    except BodyTooLarge as error:
        await http.respond(413, (), str(error).encode())
        return
    except BodyTooSlow:
        await http.respond(408, (), b"slow")
        return
    said = {
        "method": http.method,
        "path": http.path,
        "body": body.decode("latin-1"),
        "x": http.header("x"),
        "peer": http.peer,
    }
    await http.respond(200, (("content-type", "application/json"),), orjson.dumps(said))


def running(main: Callable[[], Awaitable[None]]) -> None:
    """Runs a test whose waits cost no time; it fails when everything waits for ever."""
    from tests.transport.virtual import run

    async def with_loop(_: object) -> None:
        await main()

    run(with_loop)


def post(body: bytes = b"", *headers: bytes, path: bytes = b"/v1/x") -> bytes:
    """A POST with a length."""
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"POST %b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n%b" % (path, HOST, lines, len(body), body)
