"""Limits on length and age, and whom to drop first.

Length. A tenant may have a bounded cost waiting; beyond that its own newest request is refused. The whole queue is
bounded in items and in cost; on overflow the newest request of the tenant with the largest backlog / weight is evicted
(longest-queue drop), so a tenant below its weighted share of the buffer never loses one, whoever overflows it.

Age. An item leaves at the earlier of its deadline and its class's queue timeout.

Both keep lazy heaps: an entry may be out of date in one direction only (a backlog that has shrunk since, an item that
has left), which is found out when it surfaces. Each is rebuilt when more than half is stale.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

from fairqueue.fair import Tenant
from fairqueue.item import Item


@dataclass(frozen=True, slots=True)
class Bounds:
    """None = unbounded. Costs in cost units."""

    items: int | None = 100_000
    cost: float | None = None
    tenant_cost: float | None = None

    def tenant_full(self, tenant: Tenant, cost: float) -> bool:
        """Whether one more request of `cost` would take it over its own bound. An empty tenant may always wait."""
        return self.tenant_cost is not None and tenant.waiting > 0 and tenant.backlog + cost > self.tenant_cost

    def overfull(self, items: int, cost: float) -> bool:
        if self.items is not None and items > self.items:
            return True
        return self.cost is not None and items > 1 and cost > self.cost


class LongestQueue:
    """Tenants by waiting cost / weight, largest first."""

    __slots__ = ("_heap", "_serial", "tenants")

    def __init__(self) -> None:
        self.tenants = 0  # tenants waiting, kept by the owner of the queue
        self._heap: list[tuple[float, int, Tenant]] = []  # (-backlog / weight or less, serial, tenant)
        self._serial = 0

    def grew(self, tenant: Tenant) -> None:
        """Its backlog rose, or its weight changed. A fall needs no call."""
        self._serial += 1
        heap = self._heap
        heappush(heap, (-tenant.backlog / tenant.weight, self._serial, tenant))
        if len(heap) > 2 * self.tenants + 64:
            latest = {id(entry[2]): entry[2] for entry in heap if entry[2].waiting}
            self._heap = [(-t.backlog / t.weight, n, t) for n, t in enumerate(latest.values())]
            heapify(self._heap)
            self._serial = len(self._heap)

    def longest(self) -> Tenant | None:
        heap = self._heap
        while heap:
            key, serial, tenant = heap[0]
            if not tenant.waiting:
                heappop(heap)
                continue
            true = -tenant.backlog / tenant.weight
            if true > key:  # it has shrunk since
                heapreplace(heap, (true, serial, tenant))
                continue
            return tenant
        return None

    def restart(self) -> None:
        """Every backlog is about to be told anew."""
        self._heap.clear()

    def clear(self) -> None:
        """Nothing waits any more."""
        self._heap.clear()
        self.tenants = 0


class Expiry:
    """Waiting items by the time at which they must leave."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []

    def add(self, item: Item, waiting: int) -> None:
        heap = self._heap
        heappush(heap, (item.expires, item.seq, item))
        if len(heap) > 2 * waiting + 64:
            self._heap = [entry for entry in heap if entry[2].flow is not None and entry[0] == entry[2].expires]
            heapify(self._heap)

    def next(self) -> float | None:
        heap = self._heap
        while heap and (heap[0][2].flow is None or heap[0][0] != heap[0][2].expires):
            heappop(heap)
        return heap[0][0] if heap else None

    def pop(self, now: float) -> Item | None:
        """An item whose time has come, still queued (the caller removes it), or None."""
        due = self.next()
        return self._heap[0][2] if due is not None and due <= now else None

    def clear(self) -> None:
        self._heap.clear()
