"""Simpler gates to compare with: no limit, fixed concurrency by arrival or by turns of the tenants, and plain FIFO."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

from fairqueue.admission import Admission
from fairqueue.capacity import Capacity, Scrape
from fairqueue.item import Item, Reason, Refusal, RequestClass


class Fifo(Admission):
    """The real tests of room behind one line in order of arrival: it forgets whose a request is."""

    __slots__ = ()

    def enqueue(self, item: Item, now: float) -> list[Refusal]:
        item.tenant = "everybody"
        return Admission.enqueue(self, item, now)


class PlainTicket:
    """A grant of a plain gate."""

    __slots__ = ("item", "open", "replica")

    def __init__(self, item: Item, replica: str) -> None:
        self.item = item
        self.replica = replica
        self.open = True


class PlainGate:
    """At most `limit` requests per replica (None = no limit), by arrival or by turns over tenants, never by size."""

    def __init__(self, limit: int | None, *, turns: bool = False, timeout_s: float = 10.0) -> None:
        self._limit = limit
        self._turns = turns
        self._timeout = timeout_s
        self._inflight: dict[str, int] = {}
        self._lines: OrderedDict[str, deque[Item]] = OrderedDict()

    def set_replica(self, name: str, capacity: Capacity, now: float) -> None:
        self._inflight.setdefault(name, 0)

    def observe(self, name: str, scrape: Scrape, now: float) -> None:
        pass

    def enqueue(self, item: Item, now: float) -> list[Refusal]:
        timeout = self._timeout if item.cls is RequestClass.INTERACTIVE else 600.0
        item.expires = min(item.deadline, item.arrived + timeout)
        self._lines.setdefault(item.tenant if self._turns else "", deque()).append(item)
        return []

    def dispatch(self, now: float) -> list[PlainTicket]:
        granted = []
        while self._lines:
            name = min(self._inflight, key=self._inflight.__getitem__)
            if self._limit is not None and self._inflight[name] >= self._limit:
                break
            tenant, line = next(iter(self._lines.items()))
            granted.append(PlainTicket(line.popleft(), name))
            self._inflight[name] += 1
            if line:
                self._lines.move_to_end(tenant)
            else:
                del self._lines[tenant]
        return granted

    def cancel(self, item: Item, now: float) -> bool:
        key = item.tenant if self._turns else ""
        line = self._lines.get(key)
        if line is None or item not in line:
            return False
        line.remove(item)
        if not line:
            del self._lines[key]
        return True

    def expire(self, now: float) -> list[Refusal]:
        gone = [x for line in self._lines.values() for x in line if x.expires <= now]
        for item in gone:
            self.cancel(item, now)
        return [Refusal(item, Reason.QUEUE_TIMEOUT, 0.0, "") for item in gone]

    def first_token(self, ticket: PlainTicket, now: float) -> None:
        pass

    def progress(self, ticket: PlainTicket, output_tokens: int, now: float) -> None:
        pass

    def release(self, ticket: PlainTicket, now: float, **actual: Any) -> None:
        if ticket.open:
            ticket.open = False
            self._inflight[ticket.replica] -= 1

    def preemptions(self, now: float) -> list[PlainTicket]:
        return []

    def next_wake(self, now: float) -> float | None:
        return min((x.expires for line in self._lines.values() for x in line), default=None)
