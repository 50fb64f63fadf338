"""Two clocks per tenant: the reservation, then the weighted share.

Phase 1, guarantees. A tenant with a reservation has a real-time clock R; while R <= now, or while it holds less than
its reserved room, it is served before all others, in order of R. A grant of estimate e moves R on by e / rate.

Phase 2, shares. Every tenant has a counter c of service received divided by its weight, in cost units; the waiting
tenant with the least counter goes next and is charged its estimate at once: c += e / w. When the truth is known the
difference is charged with the weight of the dispatch. V, the virtual time, is the *least waiting* counter at the last
grant, before its charge (not the one just served: after a large head was passed, that would lift every newcomer far
ahead). A tenant that starts to wait is lifted to V, so idle time earns nothing, and a newcomer goes before whoever was
just served.

For two tenants f, g that wait throughout, with L the largest estimate, P and N the most by which requests in flight
exceed or fall short of their estimates,

    |S_f / w_f - S_g / w_g|  <=  A_fg + A_gf,      A_fg = (L_f + P_f) / w_f + N_g / w_g

Unlike the textbook virtual token counter the estimate of the *whole* request is charged at dispatch and only errors
later; unlike start-time fair queuing there is no finish tag, as the length of a request is not known when it starts.

Heaps are lazy. An entry is valid while it carries its flow's current mark; a counter that rose is corrected when its
entry surfaces, one that fell gets a new entry. Each heap is rebuilt when more than half of it is stale.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace

from fairqueue.item import Item
from fairqueue.reservations import Reservation


class Tenant:
    """One tenant of one pool."""

    __slots__ = (
        "backlog",
        "clock",
        "configured",
        "due_mark",
        "flows",
        "inflight",
        "kv_held",
        "name",
        "rate",
        "reservation",
        "room_kv",
        "room_seats",
        "seats_held",
        "waiting",
        "weight",
    )

    def __init__(self, name: str, flows: int) -> None:
        self.name = name
        self.weight = 1.0  # used for charges from now on; earlier charges keep theirs
        self.flows: list[Flow | None] = [None] * flows  # by class index
        self.configured = False  # set by an operator: never forgotten
        self.backlog = 0.0  # cost units waiting, over all classes
        self.waiting = 0  # items waiting
        self.inflight = 0  # tickets not released
        self.reservation: Reservation | None = None
        self.clock = 0.0  # R, seconds
        self.rate = 0.0  # effective reserved rate at this moment: 0 outside windows, scaled when oversold
        self.room_seats = 0.0  # effective reserved room, likewise
        self.room_kv = 0.0
        self.seats_held = 0  # by its tickets
        self.kv_held = 0
        self.due_mark = 0  # of its valid entry in the reservation heap; 0 = none


class Flow:
    """One tenant's requests of one class. Invariant: `mark` is non-zero exactly while it has a valid heap entry."""

    __slots__ = ("backlog", "counter", "heap", "index", "items", "lifted", "mark", "tenant")

    def __init__(self, tenant: Tenant, index: int) -> None:
        self.tenant = tenant
        self.index = index  # of its class
        self.counter = 0.0  # c, cost units / weight
        self.lifted = 0.0  # by how much it was lifted when it began to wait; 0 once anything of it was granted
        self.mark = 0
        self.backlog = 0.0  # cost units waiting
        self.items: dict[int, Item] = {}  # by seq; the truth about who waits
        self.heap: list[tuple[int, float, int, Item]] = []  # (priority, deadline, seq, item), lazily deleted

    def head(self) -> Item:
        """The request to serve next: by priority, then deadline, then arrival. The flow must not be empty."""
        heap = self.heap
        items = self.items
        while heap[0][2] not in items:
            heappop(heap)
        return heap[0][3]

    def newest(self) -> Item:
        """The request that joined last. The flow must not be empty."""
        seq, item = self.items.popitem()  # from the end, so this is O(1) however many left before
        self.items[seq] = item
        return item

    def push(self, item: Item) -> None:
        self.items[item.seq] = item
        self.backlog += item.cost
        heappush(self.heap, (item.priority, item.deadline, item.seq, item))

    def discard(self, item: Item) -> None:
        del self.items[item.seq]
        if not self.items:
            self.heap.clear()
            self.backlog = 0.0  # no residue of float sums
            return
        self.backlog -= item.cost
        heap = self.heap
        if heap[0][2] == item.seq:
            heappop(heap)
        elif len(heap) > 2 * len(self.items) + 8:
            self.heap = [entry for entry in heap if entry[2] in self.items]
            heapify(self.heap)


class FairQueue:
    """The flows of one class. Costs O(log n) per operation."""

    __slots__ = ("_heap", "_mark", "backlog", "flows", "length", "virtual", "weight")

    def __init__(self) -> None:
        self.virtual = 0.0  # V, never falls
        self.length = 0  # items waiting
        self.flows = 0  # flows waiting, in the heap or set aside
        self.weight = 0.0  # sum of the weights of waiting flows
        self.backlog = 0.0  # cost units waiting
        self._heap: list[tuple[float, int, Flow]] = []  # (counter or less, mark, flow)
        self._mark = 0

    def _arm(self, flow: Flow) -> None:
        self._mark = mark = self._mark + 1
        flow.mark = mark
        heap = self._heap
        heappush(heap, (flow.counter, mark, flow))
        if len(heap) > 2 * self.flows + 64:
            self._heap = [entry for entry in heap if entry[1] == entry[2].mark]
            heapify(self._heap)

    def peek(self) -> Flow | None:
        """The flow with the least counter, or None."""
        heap = self._heap
        while heap:
            counter, mark, flow = heap[0]
            if mark != flow.mark:
                heappop(heap)
            elif counter < flow.counter:
                heapreplace(heap, (flow.counter, mark, flow))
            else:
                return flow
        return None

    def follow(self) -> None:
        """To be called before a grant: V follows the least waiting counter."""
        flow = self.peek()
        if flow is not None and flow.counter > self.virtual:
            self.virtual = flow.counter

    def push(self, flow: Flow, item: Item) -> None:
        """The item starts to wait. A flow that was empty is lifted to V."""
        if not flow.items:
            if flow.counter < self.virtual:
                flow.lifted = self.virtual - flow.counter
                flow.counter = self.virtual
            self.flows += 1
            self.weight += flow.tenant.weight
            flow.push(item)
            self._arm(flow)
        else:
            flow.push(item)
        item.flow = flow
        self.length += 1
        self.backlog += item.cost

    def remove(self, item: Item, *, granted: bool) -> None:
        """The item waits no longer. Charges nothing. A flow that leaves with nothing granted takes its lift back."""
        flow = item.flow
        assert flow is not None
        item.flow = None
        flow.discard(item)
        self.length -= 1
        self.backlog -= item.cost
        if granted:
            flow.lifted = 0.0
        if not flow.items:
            flow.counter -= flow.lifted
            flow.lifted = 0.0
            flow.mark = 0
            self.flows -= 1
            if self.flows:
                self.weight -= flow.tenant.weight
            else:
                self.weight = 0.0
                self.backlog = 0.0
                self._heap.clear()

    def set_aside(self, flow: Flow) -> None:
        """Out of the order for a moment; `put_back` must follow."""
        flow.mark = 0
        if self._heap and self._heap[0][2] is flow:
            heappop(self._heap)

    def put_back(self, flow: Flow) -> None:
        if flow.items and not flow.mark:
            self._arm(flow)

    def charge(self, flow: Flow, amount: float) -> None:
        """Counter up (or down) by cost units / weight; negative amounts are corrections."""
        flow.counter += amount
        if amount < 0.0 and flow.mark:
            self._arm(flow)

    def reweigh(self, flow: Flow, old: float, new: float) -> None:
        if flow.items:
            self.weight += new - old

    def in_order(self) -> Iterator[Flow]:
        """Waiting flows by counter, for people to look at. O(n log n)."""
        live = {id(entry[2]): entry[2] for entry in self._heap if entry[1] == entry[2].mark}
        yield from sorted(live.values(), key=lambda flow: (flow.counter, flow.mark))
