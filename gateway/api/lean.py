"""The data listener on `asyncio.Protocol` and httptools: the seam of the aiohttp one, at a fraction of its cost."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import cast

from gateway.api.lean_connection import Connection, Dates, Limits
from gateway.api.seam import Handler

_BACKLOG = 4096
_LAST_ANSWERS_S = 1.0  # for answers under way when the server closes


class LeanServer:
    """Listens for clients and hands each request to `handler`."""

    def __init__(self, handler: Handler, limits: Limits | None = None) -> None:
        self.handler = handler
        self.limits = limits or Limits()
        self.loop = asyncio.get_running_loop()
        self.closing = False
        self.connections: set[Connection] = set()  # all open ones
        self.tasks: set[asyncio.Task[None]] = set()  # of requests, also those whose client has left
        self._listener: asyncio.Server | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listens on `host`:`port` (0 chooses one); returns the port. Raises OSError when it is taken."""
        dates = Dates()
        self._listener = await self.loop.create_server(
            lambda: Connection(self, dates), host, port, ssl=tls, backlog=_BACKLOG, reuse_address=True
        )
        bound: socket.socket = self._listener.sockets[0]
        return cast("int", bound.getsockname()[1])

    def stop_listening(self) -> None:
        """No new connection is accepted; open ones go on."""
        if self._listener is not None:
            self._listener.close()

    async def close(self) -> None:
        """Closes every connection that is left; answers under way have a second to end."""
        self.stop_listening()
        self.closing = True
        for connection in list(self.connections):
            connection.shut()
        await self._tasks_end()
        for connection in list(self.connections):
            connection.abort()
        await self._tasks_end()
        await asyncio.sleep(0)  # the sockets close in the next turn of the loop

    async def _tasks_end(self) -> None:
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=_LAST_ANSWERS_S)
