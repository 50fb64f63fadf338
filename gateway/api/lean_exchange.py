"""One request on a lean connection and its answer, as the seam asks for it; how heads are checked and written.

A head is acceptable when it leaves no doubt where the message ends and whom it is for: one Host in HTTP/1.1, a length
or `chunked` and nothing else, no transfer coding in HTTP/1.0. What the parser itself refuses is not looked for again.
"""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING

from gateway.api.seam import BodyTooLarge, BodyTooSlow, ClientGone, Headers, path_of
from providers.errors import encode_error
from providers.exchange import Dialect

if TYPE_CHECKING:
    from gateway.api.lean_connection import Connection

_STARTS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_ONCE = frozenset({b"host", b"transfer-encoding"})  # a second one is never harmless


class Rejected(Exception):
    """The bytes are no request that could be served; `status` is what the client is told."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class LeanExchange:
    """One request and its answer (see `seam.Exchange`). The connection fills it as bytes come."""

    __slots__ = (
        "_chunked",
        "_chunks",
        "_connection",
        "_declared",
        "_expects",
        "_headers",
        "_limit",
        "_received",
        "_version",
        "_waiter",
        "asked",
        "broken",
        "complete",
        "ended",
        "keep_alive",
        "kept_alive",
        "method",
        "path",
        "started",
    )

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.method = ""
        self.path = ""
        self.keep_alive = False  # the client wants to send another request after this one
        self.complete = False  # the whole message has been read
        self.broken = False  # the rest of the message cannot be read
        self.asked = False  # the handler has asked for the body
        self.started = False  # the head of the answer has left
        self.ended = False  # the whole answer has left
        self.kept_alive = False  # the answer says that another request may follow
        self._headers: dict[bytes, bytes] = {}  # by lower-case name, the first value
        self._version = ""
        self._declared = 0  # bytes of the body as announced; 0 when it comes in chunks
        self._expects = False  # the client waits for 100 Continue before it sends the body
        self._chunks: list[bytes] = []  # of the body
        self._received = 0  # bytes of the body so far, those thrown away included
        self._limit: int | None = None  # of the body that is wanted; None: nobody has asked yet
        self._waiter: asyncio.Future[None] | None = None  # done when the body is complete, too large or broken
        self._chunked = False  # how the answer is framed

    # -- filled by the connection ----------------------------------------------------------------------------

    def take_header(self, name: bytes, value: bytes) -> None:
        """One header line, in order. Raises Rejected."""
        name = name.lower()
        if name not in self._headers:
            self._headers[name] = value
        elif name in _ONCE:
            raise Rejected(400, f"The request has more than one {name.decode()} header.")

    def begin(self, method: bytes, target: bytes, version: str, keep_alive: bool) -> None:
        """The head is complete. Raises Rejected when it is not clear what it asks or where the body ends."""
        headers = self._headers
        if version != "1.1" and version != "1.0":
            raise Rejected(505, f"HTTP/{version} is not served here; use HTTP/1.1.")
        if version == "1.1" and b"host" not in headers:
            raise Rejected(400, "The request has no Host header.")
        coding = headers.get(b"transfer-encoding")
        if coding is not None and (version == "1.0" or coding.lower() != b"chunked"):
            raise Rejected(400, "The request body has a transfer coding other than chunked.")
        self.path = path_of(target.decode("latin-1"))
        if not self.path or method == b"CONNECT":
            raise Rejected(400, "The request's target is neither a path nor an http URL.")
        expects = headers.get(b"expect")
        if expects is not None:
            if expects.lower() != b"100-continue":
                raise Rejected(417, "The request expects something other than 100-continue.")
            self._expects = version == "1.1"
        self.method = method.decode("ascii")
        self.keep_alive = keep_alive
        self._version = version
        self._declared = int(headers.get(b"content-length", b"0"))

    @property
    def missing(self) -> int:
        """Bytes of an announced body that have not come yet; 0 when nothing was announced."""
        return self._declared - self._received if self.method else 0

    @property
    def framing(self) -> bytes:
        """The header that announces the body; empty when there is none."""
        if b"transfer-encoding" in self._headers:
            return b"transfer-encoding: chunked"
        return b"content-length: %d" % self._declared if self._declared else b""

    def take(self, data: bytes) -> int:
        """Bytes of the body; returns how many there have been."""
        self._received += len(data)
        if self._limit is None or self._received <= self._limit:
            self._chunks.append(data)
        else:
            self._wake()
        return self._received

    def finish(self) -> None:
        """The message is complete."""
        self.complete = True
        self._wake()

    def broke(self) -> None:
        """The rest of the message will never come."""
        self.broken = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- asked by the handler --------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def gone(self) -> bool:
        transport = self._connection.transport
        return self._connection.lost or transport is None or transport.is_closing()

    def header(self, name: str) -> str | None:
        value = self._headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    async def body(self, limit: int, timeout_s: float) -> bytes:
        self.asked = True
        self._limit = limit
        if self._declared > limit:
            raise BodyTooLarge(limit)
        if not self.complete and not self.broken and self._received <= limit:
            await self._rest(timeout_s)
        chunks, self._chunks = self._chunks, []
        if self._received > limit:
            raise BodyTooLarge(limit)
        if not self.complete:
            raise ClientGone
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _rest(self, timeout_s: float) -> None:
        """Waits for the end of the body, for more than its limit, or for something that is no body."""
        if self._expects and not self._received:
            self._write(_CONTINUE)
        self._connection.wanted()
        self._waiter = self._connection.loop.create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._waiter
        except TimeoutError:
            self._limit = -1  # what still comes is thrown away
            raise BodyTooSlow from None
        finally:
            self._waiter = None

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        head = self._head(status, headers, f"content-length: {len(body)}\r\n")
        self.started = self.ended = True
        self._write(head if self.method == "HEAD" else head + body)
        if self._connection.full:
            await self._connection.drain()

    async def head(self, status: int, headers: Headers) -> None:
        self._chunked = self._version == "1.1"
        head = self._head(status, headers, "transfer-encoding: chunked\r\n" if self._chunked else None)
        self.started = True
        self._write(head)

    async def write(self, data: bytes) -> None:
        if data:  # an empty chunk would be the end
            self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
            if self._connection.full:
                await self._connection.drain()

    async def end(self) -> None:
        self.ended = True
        if self._chunked:
            self._write(b"0\r\n\r\n")

    def abort(self) -> None:
        transport = self._connection.transport
        if transport is not None:
            transport.abort()

    def _write(self, data: bytes) -> None:
        connection = self._connection
        transport = connection.transport
        if connection.lost or transport is None or transport.is_closing():
            raise ClientGone
        transport.write(data)

    def _head(self, status: int, headers: Headers, framing: str | None) -> bytes:
        """The head of an answer; without `framing` the end of the connection is the end of the answer.

        Raises ValueError for a header that would not arrive as it was meant.
        """
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        count = len(headers)
        if lines.count("\n") != count or lines.count("\r") != count or "\0" in lines:
            raise ValueError("a header value holds CR, LF or NUL")
        connection = self._connection
        self.kept_alive = self.keep_alive and self.complete and framing is not None and not connection.closing
        kept = ""
        if not self.kept_alive:
            kept = "connection: close\r\n"
        elif self._version == "1.0":
            kept = "connection: keep-alive\r\n"
        start = _STARTS.get(status) or f"HTTP/1.1 {status} \r\n"
        return f"{start}{lines}{connection.date()}{framing or ''}{kept}\r\n".encode("latin-1")


def error_answer(status: int, message: str) -> bytes:
    """The whole answer to bytes that are no request; the connection is closed after it."""
    body = encode_error(Dialect.OPENAI, status, "invalid_request_error", message, "malformed_http")
    return (
        f"{_STARTS[status]}content-type: application/json\r\n{date_line(time.time())}"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    ).encode("latin-1") + body


def date_line(unix: float) -> str:
    """The Date header of an answer written at `unix` seconds since 1970."""
    return f"date: {formatdate(unix, usegmt=True)}\r\n"
