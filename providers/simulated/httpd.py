"""A small HTTP/1.1 server without tasks: requests are handed to a plain function, answers may come at any later time.

It exists because a simulated backend must be cheaper than what is measured through it, must notice at once that a
client has left, and must be able to break the protocol on purpose. Limits: no compression, no trailers, no upgrade.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import cast
from urllib.parse import unquote

import httptools

_MOST_PIPELINED = 32
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_NO_LINGER = struct.pack("ii", 1, 0)


class Exchange:
    """One request and its answer. Every method is synchronous; after the client has left they do nothing."""

    __slots__ = (
        "_chunked",
        "body",
        "connection",
        "gone",
        "headers",
        "keep_alive",
        "method",
        "on_gone",
        "oversize",
        "path",
        "query",
    )

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.method = ""
        self.path = ""
        self.query = ""
        self.headers: dict[str, str] = {}
        """Lower-case names; of a name given twice the last value."""
        self.body = b""
        self.keep_alive = True
        self.gone = False
        """The client has left, or the answer is complete."""
        self.on_gone: Callable[[], None] | None = None
        """Called once if the client leaves, or the server closes, before the answer is complete."""
        self.oversize = 0
        """Bytes of a body that was too large and is not here; 0 is all is well."""
        self._chunked = True

    def respond(
        self, status: int, body: bytes, content_type: str = "application/json", headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Send a whole answer."""
        if self.gone:
            return
        head = self._head(status, headers)
        if content_type:
            head += f"content-type: {content_type}\r\n"
        head += f"content-length: {len(body)}\r\n\r\n"
        self.connection.write(head.encode("latin-1") + (b"" if self.method == "HEAD" else body))
        self._complete()

    def begin(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Send the head of a streamed answer."""
        if self.gone:
            return
        head = self._head(status, headers)
        self.connection.write(
            (head + ("transfer-encoding: chunked\r\n\r\n" if self._chunked else "\r\n")).encode("latin-1")
        )

    def send(self, data: bytes) -> None:
        """Send a part of a streamed answer, at once and as one chunk."""
        if not self.gone and data:
            self.connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def finish(self, last: bytes = b"") -> None:
        """Send the last part of a streamed answer and its proper end."""
        if self.gone:
            return
        if self._chunked:
            self.connection.write((b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last)) if last else b"0\r\n\r\n")
        elif last:
            self.connection.write(last)
        self._complete()

    def raw(self, data: bytes) -> None:
        """Send bytes that need not be HTTP, and close."""
        if not self.gone:
            self.connection.write(data)
            self.cut()

    def cut(self, *, reset: bool = False) -> None:
        """Break the connection where it is: after what was sent, or by a reset that may throw that away."""
        if not self.gone:
            self.gone = True
            self.connection.drop(reset=reset)

    def _head(self, status: int, headers: Iterable[tuple[str, str]]) -> str:
        head = f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}\r\nserver: simulated\r\n"
        for name, value in headers:
            head += f"{name}: {value}\r\n"
        return head if self.keep_alive else head + "connection: close\r\n"

    def _complete(self) -> None:
        self.gone = True
        self.connection.complete(self.keep_alive)

    def lost(self) -> None:
        """The connection is no more. Called by the connection alone."""
        if not self.gone:
            self.gone = True
            if self.on_gone is not None:
                self.on_gone()


class Connection(asyncio.Protocol):
    """One client connection: parses requests and answers them one after the other."""

    __slots__ = (
        "_body",
        "_current",
        "_handle",
        "_large",
        "_limit",
        "_next",
        "_open",
        "_parser",
        "_queue",
        "_transport",
    )

    def __init__(self, handle: Callable[[Exchange], None], open_connections: set[Connection], body_limit: int) -> None:
        self._handle = handle
        self._open = open_connections
        self._limit = body_limit
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._next: Exchange | None = None
        self._body: list[bytes] = []
        self._large = 0
        # The exchange being answered, and parsed ones behind it (pipelining).
        self._current: Exchange | None = None
        self._queue: deque[Exchange] = deque()

    # -- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._open.add(self)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.drop(reset=False)
        except httptools.HttpParserError:
            if self._current is None:
                self.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.drop(reset=False)
        else:
            self._start()

    def connection_lost(self, error: Exception | None) -> None:
        """The client left, or the connection was closed here."""
        self._transport = None
        self._open.discard(self)
        self._queue.clear()
        current, self._current = self._current, None
        if current is not None:
            current.lost()

    # -- httptools ---------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request starts."""
        self._next = Exchange(self)
        self._body = []
        self._large = 0

    def on_url(self, url: bytes) -> None:
        """The target, or a part of it."""
        if self._next is not None:
            self._next.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if self._next is not None:
            self._next.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """All headers are there; a client that waits for permission gets it."""
        if self._next is not None and self._next.headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """A part of the body; what is over the limit is dropped and refused at the end."""
        self._large += len(data)
        if self._large <= self._limit:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """A request is complete."""
        exchange, self._next = self._next, None
        if exchange is None:
            return
        exchange.method = self._parser.get_method().decode("latin-1")
        path, _, exchange.query = exchange.path.partition("?")
        exchange.path = unquote(path)
        exchange.body = b"".join(self._body)
        exchange.keep_alive = self._parser.should_keep_alive()
        exchange._chunked = self._parser.get_http_version() != "1.0"
        exchange.keep_alive = exchange.keep_alive and exchange._chunked
        self._body = []
        if self._large > self._limit:
            exchange.keep_alive = False
            exchange.body = b""
            exchange.oversize = self._large
        self._queue.append(exchange)
        if len(self._queue) > _MOST_PIPELINED:
            self.drop(reset=False)

    # -- for the exchange --------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes now."""
        if self._transport is not None:
            self._transport.write(data)

    def complete(self, keep_alive: bool) -> None:
        """The current answer is out; the next request may be handled."""
        self._current = None
        if not keep_alive:
            self.drop(reset=False)
        elif self._queue:
            asyncio.get_running_loop().call_soon(self._start)

    def drop(self, *, reset: bool) -> None:
        """Close the connection; with `reset` so that the client sees a reset."""
        if self._transport is None:
            return
        if reset:
            raw = self._transport.get_extra_info("socket")
            if raw is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self._transport.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection without sending what is still buffered."""
        if self._transport is not None:
            self._transport.abort()

    def _start(self) -> None:
        if self._current is None and self._queue and self._transport is not None:
            self._current = self._queue.popleft()
            self._handle(self._current)


class HttpServer:
    """A listening socket and its connections."""

    def __init__(self, handle: Callable[[Exchange], None], body_limit: int) -> None:
        self._handle = handle
        self._limit = body_limit
        self._open: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one, `port` then says which. Raises OSError when the address is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self._handle, self._open, self._limit), host, port, backlog=4096, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def drop_all(self, *, reset: bool, but: Exchange | None = None) -> None:
        """Close every connection, except the one of this exchange."""
        for connection in list(self._open):
            if but is None or connection is not but.connection:
                connection.drop(reset=reset)

    async def close(self, *, reset: bool = False) -> None:
        """Stop listening and close every connection; open exchanges are told that the client is gone. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        self.drop_all(reset=reset)
        for _ in range(3):  # what is already written may still go out, but nobody is waited for
            await asyncio.sleep(0)
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)
        await server.wait_closed()
