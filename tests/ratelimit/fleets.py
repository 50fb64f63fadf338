"""Several instances over one fake store in virtual time: what the lease and outage tests drive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import fakeredis

from ratelimit.limit import Amounts, Limit, Refusal
from ratelimit.redis_connect import connect
from ratelimit.redis_store import RedisLimiter
from ratelimit.reservation import Reservation
from tests.ratelimit.cases import NOON


class FleetUnderTest:
    """`count` limiters over one store; nothing runs by itself, time is an argument. In fakeredis without a URL."""

    def __init__(self, count: int, url: str | None = None, **settings: Any) -> None:
        self.server = fakeredis.FakeServer()
        self.now = NOON
        self.clients: list[Any] = [
            connect(url) if url is not None else fakeredis.FakeAsyncRedis(server=self.server) for _ in range(count)
        ]
        settings = {"budget_s": 5.0, **settings}
        self.limiters = [
            RedisLimiter(client, instance=f"i{n}", server_time=False, clock=lambda: self.now, **settings)
            for n, client in enumerate(self.clients)
        ]
        self.granted: list[tuple[int, Amounts]] = []  # (when, what) of all that was admitted
        self._ids = 0

    async def tick(self) -> None:
        for limiter in self.limiters:
            await limiter.tick(self.now)

    async def settle_in(self) -> None:
        """Every instance knows of the others."""
        await self.tick()
        self.now += 1_000_000
        await self.tick()

    async def ask(self, instance: int, limits: Sequence[Limit], amounts: Amounts) -> Reservation | Refusal:
        self._ids += 1
        decided = await self.limiters[instance].reserve(f"r{self._ids}", limits, amounts, self.now)
        if isinstance(decided, Reservation):
            self.granted.append((self.now, amounts))
        return decided

    async def spend_all(self, instance: int, limits: Sequence[Limit], amounts: Amounts, most: int = 10_000) -> int:
        """Ask until refused; gives how many passed."""
        for passed in range(most):
            if isinstance(await self.ask(instance, limits, amounts), Refusal):
                return passed
        return most

    def cut(self) -> None:
        """The store is gone for everybody."""
        self.server.connected = False

    def mend(self) -> None:
        self.server.connected = True

    async def close(self) -> None:
        self.mend()
        for limiter, client in zip(self.limiters, self.clients, strict=True):
            await limiter.close()
            await client.aclose()
