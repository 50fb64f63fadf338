"""The upstream leg: HTTP/1.1 connections, four timers, cancellation.

`Transport.send` gives the head of the answer, `Answer.read` its body. Three timers are kept here: connect, head
(request sent until the head of the answer is complete) and idle (nothing moves while somebody waits); the fourth, the
total, is the caller's and works by cancelling. A cancelled `send` or `read` closes its connection at once, in every
phase, so that an engine stops generating.

A request on a kept connection that ends before any byte of an answer is sent once more, on a fresh connection: most
likely the upstream closed it while the request was on its way. Nothing else is retried here.
"""

import asyncio
import math
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from providers.answer import (
    Answer,
    ConnectFailed,
    Cut,
    HeadTimeout,
    Malformed,
    Phase,
    Silence,
    TransportError,
)
from providers.http1 import Limits
from providers.origin import Origin
from providers.pool import OriginStats, Pool, PoolSettings

__all__ = [
    "Answer",
    "ConnectFailed",
    "Cut",
    "HeadTimeout",
    "Limits",
    "Malformed",
    "Origin",
    "OriginStats",
    "Phase",
    "Silence",
    "Timers",
    "Transport",
    "TransportError",
]


@dataclass(frozen=True, slots=True)
class Timers:
    """Seconds one exchange may wait in each phase; `math.inf` for no limit."""

    connect_s: float  # name, TCP and TLS together, and the wait for a place where connections are bounded
    head_s: float  # request sent until the head of the answer is complete
    idle_s: float  # a waiting reader without body bytes, or a request body of which nothing is taken


class Transport:
    """Connections to any number of origins, on one event loop. `async with` closes it."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        max_connections: int | None = None,
        idle_s: float = 30.0,
        age_s: float = 600.0,
    ) -> None:
        """Settings.

        `tls` is used for https origins (default: the system's trust). `max_connections` bounds each origin.
        An unused connection closes after `idle_s` seconds, or sooner if the upstream names a shorter time; one older
        than `age_s` seconds is not used again.
        """
        self._tls = tls
        self._settings = PoolSettings(
            limits=limits or Limits(),
            most=math.inf if max_connections is None else max_connections,
            idle_s=idle_s,
            age_s=age_s,
            names={},
        )
        self._pools: dict[Origin, Pool] = {}
        self._closed = False

    async def send(
        self,
        origin: Origin,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        timers: Timers,
        sending: Callable[[], None] | None = None,
    ) -> Answer:
        """Send a request and give its answer once the head has come. The caller owns the answer: read or close it.

        `sending` is called when a connection stands and the request is about to go, again if it goes a second time.
        Host, content-length and accept-encoding are set here. Raises ValueError for a request that cannot be framed
        (nothing is sent then), ConnectFailed, HeadTimeout, Silence, Cut or Malformed.
        """
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pool(origin)
        head = pool.heads.build(method, path, headers, len(body))
        connection = pool.take()
        reused, again, connect_s = True, False, 0.0
        while True:
            if connection is None:
                started = time.monotonic()
                connection, reused = await pool.acquire(timers.connect_s, fresh=again)
                connect_s = time.monotonic() - started
            if sending is not None:
                sending()
            answer = Answer(idle_s=timers.idle_s, reused=reused, connect_s=connect_s, is_head=method == "HEAD")
            try:
                await connection.begin(answer, head, body, timers.head_s)
            except BaseException:
                answer.close()
                raise
            error = answer.begun()
            if error is None:
                return answer
            if not reused or answer.touched or not isinstance(error, Cut) or self._closed:
                raise error
            pool.retried += 1
            connection, again = None, True

    def stats(self) -> dict[Origin, OriginStats]:
        """The connections of every origin that has been used."""
        return {origin: pool.stats() for origin, pool in self._pools.items()}

    async def close(self) -> None:
        """Abort every connection; exchanges under way end with Cut, and nothing can be sent any more."""
        self._closed = True
        for pool in self._pools.values():
            pool.close()
        await asyncio.sleep(0)  # the sockets close in the next turn of the loop

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _pool(self, origin: Origin) -> Pool:
        if self._closed:
            raise ConnectFailed("the transport is closed")
        tls = None
        if origin.scheme == "https":
            tls = self._tls = self._tls or ssl.create_default_context()
        pool = self._pools[origin] = Pool(origin, tls, self._settings)
        return pool
