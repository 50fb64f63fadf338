"""Everything that waits for one pool: tenants, their flows in each class, limits and age, kept as one.

An item is in exactly one flow while it waits, and in the counts of that flow, its class, its tenant and the whole.
`push` and `remove` are the only ways in and out, so all of them move together; neither charges anybody.
"""

from __future__ import annotations

from fairqueue.bounds import Expiry, LongestQueue
from fairqueue.classes import ClassClock
from fairqueue.fair import FairQueue, Flow, Tenant
from fairqueue.guarantees import Guarantees
from fairqueue.item import Item, RequestClass
from fairqueue.settings import CLASSES, PoolSettings


class Waiting:
    """The queue of one pool."""

    __slots__ = (
        "_idle",
        "_settings",
        "classes",
        "cost",
        "expiry",
        "guarantees",
        "length",
        "longest",
        "queues",
        "tenants",
    )

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self.tenants: dict[str, Tenant] = {}
        self.queues = [FairQueue() for _ in CLASSES]
        self.classes = ClassClock([settings.class_weights[c] for c in CLASSES])
        self.guarantees = Guarantees()
        self.longest = LongestQueue()
        self.expiry = Expiry()
        self.length = 0  # items waiting
        self.cost = 0.0  # their cost units
        self._idle: dict[str, float] = {}  # tenants with nothing waiting or in flight, by since when; oldest first

    def reconfigure(self, settings: PoolSettings) -> None:
        """Other settings: classes are weighed anew, and what waits gets its cost and its time anew. O(n)."""
        old, self._settings = self._settings, settings
        self.classes.reweigh([settings.class_weights[c] for c in CLASSES])
        if old.costs == settings.costs and old.queue_timeouts_s == settings.queue_timeouts_s:
            return
        self.expiry.clear()
        self.longest.restart()
        self.cost = 0.0
        for queue in self.queues:
            queue.backlog = 0.0
        for tenant in self.tenants.values():
            tenant.backlog = 0.0
            for flow in tenant.flows:
                if flow is not None and flow.items:
                    self._weigh(flow)
            if tenant.waiting:
                self.longest.grew(tenant)

    def _weigh(self, flow: Flow) -> None:
        """Cost and time of all that waits in one flow, and the sums above it."""
        settings = self._settings
        timeout = settings.queue_timeouts_s[CLASSES[flow.index]]
        backlog = 0.0
        for item in flow.items.values():
            demand = item.demand
            item.cost = settings.costs.of(demand.prompt_tokens, demand.cached_tokens, demand.output_tokens)
            item.expires = min(item.deadline, item.arrived + timeout)
            self.expiry.add(item, self.length)
            backlog += item.cost
        flow.backlog = backlog
        flow.tenant.backlog += backlog
        self.queues[flow.index].backlog += backlog
        self.cost += backlog

    def flow_of(self, item: Item) -> Flow:
        """The flow an item belongs to; made when new."""
        tenant = self.tenants.get(item.tenant)
        if tenant is None:
            tenant = self.tenants[item.tenant] = Tenant(item.tenant, len(CLASSES))
        index = 1 if item.cls is RequestClass.BATCH else 0
        flow = tenant.flows[index]
        if flow is None:
            flow = tenant.flows[index] = Flow(tenant, index)
        return flow

    def push(self, item: Item, now: float) -> bool:
        """The item starts to wait. Returns whether it is its flow's next."""
        flow = self.flow_of(item)
        tenant = flow.tenant
        queue = self.queues[flow.index]
        if not queue.length:
            self.classes.activate(flow.index)
        queue.push(flow, item)
        self.length += 1
        self.cost += item.cost
        tenant.waiting += 1
        tenant.backlog += item.cost
        if tenant.waiting == 1:
            self.longest.tenants += 1
            self._idle.pop(tenant.name, None)
            if tenant.reservation is not None:
                self.guarantees.began_to_wait(tenant, now)
        self.longest.grew(tenant)
        self.expiry.add(item, self.length)
        return flow.head() is item

    def remove(self, item: Item, now: float, *, granted: bool = False) -> None:
        """The item waits no longer, granted or not."""
        flow = item.flow
        assert flow is not None
        tenant = flow.tenant
        self.queues[flow.index].remove(item, granted=granted)
        self.length -= 1
        self.cost -= item.cost
        tenant.waiting -= 1
        if tenant.waiting:
            tenant.backlog -= item.cost
        else:
            tenant.backlog = 0.0  # no residue of float sums
            self.longest.tenants -= 1
            if not tenant.inflight:
                self._idle[tenant.name] = now
        if not self.length:
            self.cost = 0.0
            self.longest.clear()
            self.expiry.clear()

    def follow_classes(self) -> None:
        """To be called before a grant: the classes' virtual time follows the least waiting counter."""
        classes = self.classes
        least = float("inf")
        for index, queue in enumerate(self.queues):
            if queue.length and classes.counters[index] < least:
                least = classes.counters[index]
        if classes.virtual < least < float("inf"):
            classes.virtual = least

    def rest(self, tenant: Tenant, now: float) -> None:
        """The tenant may have come to rest: nothing waits, nothing is in flight."""
        if not tenant.waiting and not tenant.inflight:
            self._idle[tenant.name] = now

    def busy(self, tenant: Tenant) -> None:
        """The tenant has something in flight."""
        self._idle.pop(tenant.name, None)

    def forget_idle(self, now: float) -> None:
        """Counters of tenants idle for long are dropped; what an operator set stays."""
        limit = now - self._settings.forget_s
        while self._idle:
            name = next(iter(self._idle))
            if self._idle[name] > limit:
                return
            del self._idle[name]
            tenant = self.tenants[name]
            if tenant.configured:
                tenant.flows = [None] * len(CLASSES)
            else:
                del self.tenants[name]

    def set_weight(self, tenant: Tenant, weight: float) -> None:
        """Future charges use the new weight; what was charged stays as it was."""
        for queue, flow in zip(self.queues, tenant.flows, strict=True):
            if flow is not None:
                queue.reweigh(flow, tenant.weight, weight)
        tenant.weight = weight
        if tenant.waiting:
            self.longest.grew(tenant)

    def overflow(self, now: float) -> list[tuple[Item, Flow, str]]:
        """Takes out what brings the queue back within its bounds: each item, its flow, and why with the figures."""
        out: list[tuple[Item, Flow, str]] = []
        bounds = self._settings.bounds
        while bounds.overfull(self.length, self.cost):
            tenant = self.longest.longest()
            if tenant is None:
                break
            # Batch pays before interactive inside the tenant that pays.
            flow = next(f for f in reversed(tenant.flows) if f is not None and f.items)
            victim = flow.newest()
            detail = (
                f"{self.length} requests of cost {self.cost:.0f} wait; tenant {tenant.name} has the longest queue "
                f"for its weight: {tenant.waiting} of cost {tenant.backlog:.0f}"
            )
            self.remove(victim, now)
            out.append((victim, flow, detail))
        return out
