"""The data listener: which of two HTTP servers stands behind the seam.

`lean` is our own (see `lean_connection.py`); `aiohttp` is `aiohttp.web.Server`, kept for whoever would rather trust a
server that many use, at several times the CPU time. The same tests run on both.
"""

from __future__ import annotations

import ssl
from typing import Literal, Protocol

from gateway.api.aiohttp_server import AiohttpServer
from gateway.api.lean import LeanServer
from gateway.api.seam import Handler

ServerName = Literal["lean", "aiohttp"]


class Server(Protocol):
    """What is asked of either."""

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listens on `host`:`port` (0 chooses one); returns the port. Raises OSError when it is taken."""

    def stop_listening(self) -> None:
        """No new connection is accepted; open ones go on."""

    async def close(self) -> None:
        """Closes every connection that is left."""


class DataServer:
    """Listens for clients and hands each request to `handler`. Make it inside a running loop."""

    def __init__(self, handler: Handler, server: ServerName = "lean") -> None:
        self._server: Server = LeanServer(handler) if server == "lean" else AiohttpServer(handler)
        self.start = self._server.start
        self.stop_listening = self._server.stop_listening
        self.close = self._server.close
