"""The data listener on `aiohttp.web.Server`: HTTP on one side, `Exchange` on the other.

No router and no middleware stand on this path. The server cancels the handler's task when the
connection is lost, which is how a client that leaves stops the work done for it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from typing import cast

from aiohttp import web
from aiohttp.client_exceptions import ClientConnectionResetError

from gateway.api.seam import BodyTooLarge, BodyTooSlow, ClientGone, Handler, Headers, path_of

_BACKLOG = 4096


class _Stream(web.StreamResponse):
    """An answer of unknown length, sent chunk by chunk as it comes."""


class AiohttpExchange:
    """One request of the aiohttp server behind the seam (see `seam.Exchange`)."""

    __slots__ = ("_headers", "_request", "_stream", "response", "started")

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._headers: Mapping[str, str] = request.headers
        self._stream: _Stream | None = None
        self.response: web.StreamResponse | None = None
        self.started = False

    @property
    def method(self) -> str:
        return self._request.method

    @property
    def path(self) -> str:
        return path_of(self._request.raw_path)

    @property
    def peer(self) -> str:
        return self._request.remote or ""

    @property
    def gone(self) -> bool:
        transport = self._request.transport
        return transport is None or transport.is_closing()

    def header(self, name: str) -> str | None:
        return self._headers.get(name)

    async def body(self, limit: int, timeout_s: float) -> bytes:
        declared = self._request.headers.get("content-length")
        if declared is not None and int(declared) > limit:
            raise BodyTooLarge(limit)
        content = self._request.content
        if content.is_eof():  # the usual body came in one piece with its head
            data = content.read_nowait()
            if len(data) > limit:
                raise BodyTooLarge(limit)
            return data
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(timeout_s):
                while size <= limit:
                    piece = await content.readany()
                    if not piece and content.at_eof():
                        return b"".join(pieces)
                    pieces.append(piece)
                    size += len(piece)
        except TimeoutError:
            raise BodyTooSlow from None
        except (web.RequestPayloadError, ConnectionError):
            raise ClientGone from None
        raise BodyTooLarge(limit)

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        response = web.Response(status=status, body=body)
        for name, value in headers:
            response.headers[name] = value
        self.started = True
        self.response = response
        try:
            # Head and body leave in one write, now: what the handler does after this delays nobody.
            await response.prepare(self._request)
            await response.write_eof()
        except ConnectionError:
            raise ClientGone from None

    async def head(self, status: int, headers: Headers) -> None:
        stream = _Stream(status=status)
        for name, value in headers:
            stream.headers[name] = value
        self.started = True
        self._stream = self.response = stream
        try:
            await stream.prepare(self._request)
        except ConnectionError:
            raise ClientGone from None

    async def write(self, data: bytes) -> None:
        try:
            await cast("_Stream", self._stream).write(data)
        except (ClientConnectionResetError, ConnectionError):
            raise ClientGone from None

    async def end(self) -> None:
        try:
            await cast("_Stream", self._stream).write_eof()
        except (ClientConnectionResetError, ConnectionError):
            raise ClientGone from None

    def abort(self) -> None:
        transport = self._request.transport
        if transport is not None:
            transport.abort()


class AiohttpServer:
    """Listens for clients and hands each request to `handler`."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: web.Server | None = None
        self._listener: asyncio.Server | None = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange = AiohttpExchange(request)
        await self._handler(exchange)
        if exchange.response is None:
            # Only a handler that gave up on a client that left answers nothing.
            raise ConnectionResetError("client gone")
        return exchange.response

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listens on `host`:`port` (0 chooses one); returns the port. Raises OSError when it is taken."""
        loop = asyncio.get_running_loop()
        self._server = web.Server(
            self._handle,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=75.0,
            max_line_size=16384,
            max_field_size=16384,
        )
        self._listener = await loop.create_server(
            self._server, host, port, ssl=tls, backlog=_BACKLOG, reuse_address=True, start_serving=True
        )
        bound: socket.socket = self._listener.sockets[0]
        return cast("int", bound.getsockname()[1])

    def stop_listening(self) -> None:
        """No new connection is accepted; open ones go on."""
        if self._listener is not None:
            self._listener.close()

    async def close(self) -> None:
        """Closes every connection that is left."""
        self.stop_listening()
        if self._server is not None:
            self._server.pre_shutdown()
            await self._server.shutdown(timeout=1.0)
