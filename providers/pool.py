"""The connections of one origin: kept, handed out, opened, bounded.

The connection used last is handed out first, so a small load lives on few warm connections and the rest grow old and
close. Where connections are bounded, every place is either free, being connected, or held by an open connection; a
place or connection given up while somebody waits passes to whoever has waited longest, so nothing is free while anybody
waits.
"""

import asyncio
import contextlib
import math
import ssl
from collections import deque
from dataclasses import dataclass

from providers.answer import ConnectFailed
from providers.http1 import Connection, Limits
from providers.origin import Heads, Origin


@dataclass(frozen=True, slots=True)
class OriginStats:
    """The connections of one origin at one moment. `open` = `idle` + `in_use`."""

    open: int
    idle: int
    in_use: int
    connecting: int
    waiting: int  # requests that wait for a place
    opened: int  # connections made since the start
    retried: int  # requests sent again on a fresh connection since the start


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What all pools of a transport share."""

    limits: Limits
    most: float  # connections per origin, `math.inf` for no bound
    idle_s: float  # an unused connection closes after this many seconds
    age_s: float  # a connection older than this is not used again, so that names are looked up anew
    names: dict[bytes, str]  # header names of answers, as received -> lower case; bounded where it is filled


class Pool:
    """The keeper of the connections of one origin, on the running event loop."""

    def __init__(self, origin: Origin, tls: ssl.SSLContext | None, settings: PoolSettings) -> None:
        self.loop = asyncio.get_running_loop()
        self.heads = Heads(origin)
        self.closed = False
        self.retried = 0  # counted by whoever sends
        self._opened = 0
        self._origin = origin
        self._tls = tls
        self._settings = settings
        self._connections: set[Connection] = set()  # the open ones, idle or in use
        self._idle: dict[Connection, None] = {}  # the idle ones among them, the one used last at the end
        self._connecting = 0  # places taken by connections not open yet
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()  # given a connection, or None: a place

    def take(self) -> Connection | None:
        """An idle connection, the one used last."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.usable:
                return connection
            connection.abort()
        return None

    async def acquire(self, connect_s: float, *, fresh: bool) -> tuple[Connection, bool]:
        """A connection, and whether it has been used before (never if `fresh`), waiting for a place if need be.

        Raises ConnectFailed. The caller owns the connection and gives it its exchange before it waits again.
        """
        try:
            async with asyncio.timeout(None if connect_s == math.inf else connect_s):
                if len(self._connections) + self._connecting >= self._settings.most:
                    handed = await self._wait()
                    if handed is not None and not fresh:
                        return handed, True
                    if handed is not None:  # its place is what is wanted
                        self._connections.remove(handed)
                        self._connecting += 1
                        handed.abort()
                else:
                    self._connecting += 1
                return await self._connect(), False
        except TimeoutError:
            raise ConnectFailed(f"no connection to {self._origin} within {connect_s} s") from None

    def done(self, connection: Connection) -> None:
        """Keep a connection that is free again, or hand it to whoever waits."""
        if self.closed or self.loop.time() - connection.born > self._settings.age_s:
            connection.abort()
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        self._idle[connection] = None
        connection.rest()

    def gone(self, connection: Connection) -> None:
        """Forget a closed connection and pass its place on."""
        self._idle.pop(connection, None)
        if connection in self._connections:
            self._connections.remove(connection)
            self._pass_place()

    def stats(self) -> OriginStats:
        """Counts at this moment."""
        now, idle = len(self._connections), len(self._idle)
        waiting = len(self._waiting)
        return OriginStats(now, idle, now - idle, self._connecting, waiting, self._opened, self.retried)

    def close(self) -> None:
        """Abort everything; those who wait or connect are refused."""
        self.closed = True
        for connection in list(self._connections):
            connection.abort()
        while self._waiting:
            self._pass_place()

    def _pass_place(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._connecting += 1
                waiter.set_result(None)
                return

    async def _wait(self) -> Connection | None:
        waiter: asyncio.Future[Connection | None] = self.loop.create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            with contextlib.suppress(ValueError):
                self._waiting.remove(waiter)
            if waiter.done() and not waiter.cancelled():  # given something in the same moment: pass it on
                connection = waiter.result()
                if connection is None:
                    self._connecting -= 1
                    self._pass_place()
                elif connection.usable:
                    self.done(connection)
            raise

    async def _connect(self) -> Connection:
        """Open a connection in a place already counted in `_connecting`."""
        settings, origin = self._settings, self._origin
        connection = Connection(self.loop, self, settings.limits, settings.names, settings.idle_s)
        try:
            if self.closed:
                raise ConnectFailed("the transport is closed")
            await self.loop.create_connection(
                lambda: connection,
                origin.host,
                origin.port,
                ssl=self._tls,
                server_hostname=origin.host if self._tls is not None else None,
            )
            if self.closed or not connection.usable:
                raise ConnectFailed(f"the connection to {origin} closed as soon as it was made")
        except BaseException as error:
            connection.abort()
            self._connecting -= 1
            self._pass_place()
            if isinstance(error, OSError | UnicodeError):  # no name, refused, unreachable, TLS
                raise ConnectFailed(f"no connection to {origin}: {str(error) or type(error).__name__}") from error
            raise
        self._connecting -= 1
        self._opened += 1
        self._connections.add(connection)
        return connection
