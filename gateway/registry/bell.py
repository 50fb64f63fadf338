"""Tells other instances over Redis that the registry has a new version, and listens for them.

A message only says that there is something to look at. One that is lost costs nothing but time: every instance looks
by itself twice a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

log = logging.getLogger("weighbridge.registry")

CHANNEL: Final = "weighbridge:registry"
_LISTEN_S: Final = 5.0
_PAUSE_S: Final = 1.0  # between tries while Redis is away

_AWAY = (RedisError, OSError, TimeoutError)


class Bell:
    """One instance a process; the client is its owner's to close."""

    def __init__(self, client: Redis, heard: Callable[[], None]) -> None:
        self._client = client
        self._heard = heard
        self._listener: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listens from now on."""
        self._listener = asyncio.get_running_loop().create_task(self._listen())

    async def close(self) -> None:
        """Stops listening."""
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
            self._listener = None

    async def ring(self, version: int) -> None:
        """Says that the registry is at `version` now."""
        with contextlib.suppress(*_AWAY):
            await self._client.publish(CHANNEL, str(version))

    async def _listen(self) -> None:
        while True:
            pubsub = self._client.pubsub()
            try:
                await pubsub.subscribe(CHANNEL)
                self._heard()  # something may have been said before
                while True:
                    if await pubsub.get_message(ignore_subscribe_messages=True, timeout=_LISTEN_S) is not None:
                        self._heard()
            except _AWAY as error:
                log.debug("not hearing of changes over Redis: %s", type(error).__name__)
            finally:
                with contextlib.suppress(*_AWAY):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]
            await asyncio.sleep(_PAUSE_S)
