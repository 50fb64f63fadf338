"""Small makers for the tests of this room: items, pools, and a pool run by a simple server in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from fairqueue.admission import Admission, PoolSettings, Ticket
from fairqueue.capacity import Capacity
from fairqueue.item import Demand, Item, RequestClass

_ids = count(1)


def item(
    tenant: str = "acme",
    *,
    prompt: int = 100,
    output: int = 50,
    cached: int = 0,
    cap: int | None = None,
    batch: bool = False,
    at: float = 0.0,
    deadline: float = 1e9,
    seats: int = 1,
    **more: Any,
) -> Item:
    """An item whose prediction is `output` tokens, exactly."""
    return Item(
        request_id=f"r{next(_ids)}",
        tenant=tenant,
        cls=RequestClass.BATCH if batch else RequestClass.INTERACTIVE,
        demand=Demand(
            prompt_tokens=prompt,
            cached_tokens=cached,
            output_tokens=output,
            output_cap=max(output, 4096) if cap is None else cap,
            seats=seats,
        ),
        arrived=at,
        deadline=deadline,
        remaining=lambda n: max(0, output - n),
        preemptible=more.pop("preemptible", batch),
        **more,
    )


def pool(seats: int | None = 4, *, kv: int | None = None, replicas: int = 1, **more: Any) -> Admission:
    """A provider-account-like pool (seats only) unless `kv` is given; then an engine with a generous chunk.

    Nobody waits too long unless the test says so."""
    engine = more.pop("engine", kv is not None)
    chunk = more.pop("chunk", 1_000_000)
    rate = more.pop("rate", None)
    more.setdefault("queue_timeouts_s", dict.fromkeys(RequestClass, 1e9))
    admission = Admission(PoolSettings(name="p", engine=engine, **more))
    for n in range(replicas):
        admission.set_replica(
            f"r{n}", Capacity(seats=seats, kv_tokens=kv, chunk_tokens=chunk, prefill_rate=rate, block_tokens=1), 0.0
        )
    return admission


class Slots:
    """Serves what a pool grants, each request for a time of its own, and keeps the service each tenant got.

    `backlog` tenants are refilled so that they always wait."""

    def __init__(self, admission: Admission, rng: Random, make: Callable[[str], tuple[Item, int]]) -> None:
        self.admission = admission
        self.now = 0.0
        self.served: dict[str, float] = {}  # cost units of what was granted, by the truth (settled) or estimate
        self.order: list[str] = []
        self._rng = rng
        self._make = make
        self._running: list[tuple[float, int, Ticket, int]] = []
        self._serial = count()
        self.truth: dict[Item, int] = {}

    def offer(self, tenant: str, requests: int) -> None:
        for _ in range(requests):
            item, output = self._make(tenant)
            item.arrived = self.now
            self.truth[item] = output
            assert self.admission.enqueue(item, self.now) == []

    def grant(self) -> list[Ticket]:
        tickets = self.admission.dispatch(self.now)
        for ticket in tickets:
            self.order.append(ticket.item.tenant)
            ends = self.now + self._rng.uniform(0.5, 1.5)
            heappush(self._running, (ends, next(self._serial), ticket, self.truth[ticket.item]))
        return tickets

    def finish_one(self) -> Ticket:
        """The next request ends; it is settled at its true output."""
        self.now, _, ticket, output = heappop(self._running)
        self.admission.release(ticket, self.now, output_tokens=output, served=True)
        return ticket

    @property
    def running(self) -> list[Ticket]:
        return [ticket for _, _, ticket, _ in self._running]
