"""Which waiting request goes where: guarantees, then shares, past heads that do not fit, with claims.

Looking is monotone within one call, as room only shrinks while grants are made, so a head found not to fit is set
aside and not looked at again. Between calls the same holds until something ends: then only new heads are looked at.
After each event the heads are looked past a few at a time; while a replica stays open and nothing else happens, twice
as many in each next call, so a fitting request is found however far back it stands, and no single call is long.

A head that fits nowhere is *passed* by what is granted after it in order. Each pass counts the granted cost, and at
`overtake` times its own cost the head claims the least loaded replica it may use: nobody but guaranteed requests
enters there until it fits. Work that can be taken back at any time may pass without being counted, and may fill room
that is held for reservations. A batch *stream* may not: it can be taken back only until its first token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairqueue.capacity import ReplicaView
from fairqueue.fair import FairQueue, Flow, Tenant
from fairqueue.item import Item
from fairqueue.predict import ServiceRate
from fairqueue.preempt import choose_victims
from fairqueue.replica import Replica
from fairqueue.settings import PoolSettings
from fairqueue.ticket import Ticket
from fairqueue.waiting import Waiting

Choose = Callable[[Item, Sequence[ReplicaView], float], str]

RECHECK_S = 0.1  # heads found not to fit are looked at again after this long: as what runs nears its end, room grows
_SCAN = 8  # heads that fit nowhere, looked past in one call; doubled while nothing else happens
_WARM_LOAD = 0.25  # how much fuller (of 1) the replica with a cached prefix may be
_LOOK_AHEAD = 4  # flows looked at for a cached prefix
_BLOCKED = 64  # of them remembered, to count what passes them


class Dispatcher:
    """Grants for one pool. Invariant: `solid_seats` = seats of tickets in flight that are not recallable."""

    __slots__ = (
        "_blocked",
        "_choose",
        "_clean_at",
        "_clean_open",
        "_clean_version",
        "_fresh",
        "_mean_cost",
        "_scan_limit",
        "_settings",
        "_version",
        "_waiting",
        "_wanting",
        "rate",
        "replicas",
        "solid_seats",
    )

    def __init__(self, settings: PoolSettings, waiting: Waiting, choose: Choose | None) -> None:
        self._settings = settings
        self._waiting = waiting
        self._choose = choose
        self.replicas: dict[str, Replica] = {}
        self.solid_seats = 0
        self.rate = ServiceRate()
        self._mean_cost = 0.0  # of what was granted from the queue lately, cost units
        self._version = 0  # moves whenever room may have grown
        self._clean_version = -1  # version at which the heads looked at were found not to fit,
        self._clean_at = float("-inf")  # when,
        self._clean_open: list[Replica] = []  # with which replicas open,
        self._blocked: list[Item] = []  # the first of those heads, in order,
        self._fresh: list[Flow] = []  # and flows with a new head since then
        self._scan_limit = _SCAN  # above _SCAN: the last look stopped before it had seen all heads
        self._wanting: list[tuple[Item, bool]] = []  # heads that batch may have to make room for; whether guaranteed

    @property
    def unfinished(self) -> bool:
        """The last look stopped early: another is worth it at once."""
        return self._scan_limit > _SCAN

    def reconfigure(self, settings: PoolSettings) -> None:
        """Other settings from now on."""
        self._settings = settings
        self.room_grew()

    def room_grew(self) -> None:
        """Something ended or changed: heads that did not fit may fit now."""
        self._version += 1
        self._scan_limit = _SCAN

    def new_head(self, flow: Flow) -> None:
        """The flow's next request is another than before."""
        if len(self._fresh) < _SCAN:
            self._fresh.append(flow)
        else:
            self._clean_version = -1  # too many to look at one by one

    def drop_claim(self, item: Item) -> None:
        """The item waits no longer: others may enter the replica it had claimed."""
        for replica in self.replicas.values():
            if replica.claimant is item:
                replica.claimant = None
                self.room_grew()

    def open(self, now: float) -> list[Replica]:
        """Replicas that take new work. One whose metrics are lost sits out while another's are fresh."""
        replicas = [r for r in self.replicas.values() if r.is_open(now)]
        if len(self.replicas) < 2:
            return replicas
        for replica in replicas:
            if replica.scraped.last is not None and replica.scraped.lost(now):
                break
        else:
            return replicas
        if any(r.usable and r.scraped.fresh(now) for r in self.replicas.values()):
            return [r for r in replicas if not r.scraped.lost(now)]
        return replicas

    def scan(self, now: float) -> list[Ticket]:
        """All grants possible now to what waits."""
        waiting = self._waiting
        tickets: list[Ticket] = []
        replicas = self.open(now)
        self._wanting.clear()
        if waiting.guarantees.tenants:
            if waiting.guarantees.tick(now):
                self.room_grew()
            self._serve_guaranteed(replicas, tickets, now)
        for replica in replicas[:]:
            claimant = replica.claimant
            if claimant is None:
                continue
            replicas.remove(replica)
            if claimant.flow is not None and replica.fits(claimant, now):
                tickets.append(self._grant_waiting(claimant, replica, now, False))
                if replica.is_open(now):
                    replicas.append(replica)
        if now - self._clean_at >= RECHECK_S:
            self._clean_version = -1
            for replica in replicas:
                replica.room_grew()
        if self._version != self._clean_version or replicas != self._clean_open or self._scan_limit > _SCAN:
            self._serve_shares(replicas, tickets, now)
        elif self._fresh:
            self._serve_fresh(replicas, tickets, now)
        return tickets

    def _serve_guaranteed(self, replicas: list[Replica], tickets: list[Ticket], now: float) -> None:
        """Phase 1: tenants below their room or with a due clock, before all shares and into claimed room too."""
        waiting = self._waiting
        guarantees = waiting.guarantees
        aside: list[Tenant] = []
        while (tenant := guarantees.pop_due(now)) is not None:
            flow = next(f for f in tenant.flows if f is not None and f.items)
            item = flow.head()
            replica = self.place(item, tenant, replicas, now)
            if replica is None:
                aside.append(tenant)
                self._wanting.append((item, True))
                if len(aside) >= _SCAN:
                    break
                continue
            waiting.queues[flow.index].follow()
            tickets.append(self._grant_waiting(item, replica, now, True))
            if tenant.waiting and not tenant.due_mark:
                guarantees.arm(tenant)
            if not replica.is_open(now):
                replicas.remove(replica)
        for tenant in aside:
            guarantees.arm(tenant)

    def _serve_shares(self, replicas: list[Replica], tickets: list[Ticket], now: float) -> None:
        """Phase 2: classes and tenants by their counters, past heads that do not fit."""
        waiting = self._waiting
        queues = waiting.queues
        classes = waiting.classes
        counters = classes.counters
        aside: list[Item] = []
        least: list[Flow | None] = [None] * len(queues)
        limit = self._scan_limit
        self._scan_limit = _SCAN
        while replicas:
            index = -1
            flow: Flow | None = None
            for k, queue in enumerate(queues):
                if (index < 0 or counters[k] < counters[index]) and (first := queue.peek()) is not None:
                    index, flow = k, first
            if flow is None:
                break
            queue = queues[index]
            front = flow
            item = flow.head()
            if item.affinity is not None and not self._is_warm(item, replicas):
                flow = self._warmer(queue, flow, replicas)
                item = flow.head()
            replica = self.place(item, flow.tenant, replicas, now)
            if replica is None:
                queue.set_aside(flow)
                aside.append(item)
                if least[index] is None and flow is front:
                    least[index] = flow
                if len(aside) >= limit:
                    self._scan_limit = min(2 * limit, 4096)
                    break
                continue
            least_flow = least[index] or front
            if queue.virtual < least_flow.counter:
                queue.virtual = least_flow.counter
            if aside:
                waiting.follow_classes()
                tickets.append(self._grant_waiting(item, replica, now, False))
                self._pass(aside, item, replicas)
            else:  # the short way, as no class and no head was passed
                classes.follow(index)
                tickets.append(self._grant_waiting(item, replica, now, False))
            if replica in replicas and not replica.is_open(now):
                replicas.remove(replica)
        for item in aside:
            if item.flow is not None:
                queues[item.flow.index].put_back(item.flow)
        self._want_for_interactive()
        self._fresh.clear()
        self._blocked = aside[:_BLOCKED]
        self._clean_version = self._version if replicas else -1
        self._clean_at = now
        self._clean_open = replicas

    @staticmethod
    def _is_warm(item: Item, replicas: list[Replica]) -> bool:
        """Whether one of these replicas served the item's prefix lately."""
        return any(item.affinity in replica.recent for replica in replicas)

    def _warmer(self, queue: FairQueue, flow: Flow, replicas: list[Replica]) -> Flow:
        """Locality slack: a flow close behind the first whose head finds its prefix cached, else the first.

        `close` is `locality_slack` times a mean request's cost over the flow's weight, so no tenant falls further back
        than that for the sake of another's cache."""
        slack = self._settings.locality_slack * self._mean_cost
        if not slack:
            return flow
        limit = flow.counter
        passed: list[Flow] = []
        chosen = flow
        candidate: Flow | None = flow
        while candidate is not None and len(passed) < _LOOK_AHEAD:
            queue.set_aside(candidate)
            passed.append(candidate)
            candidate = queue.peek()
            if candidate is None or candidate.counter > limit + slack / candidate.tenant.weight:
                break
            head = candidate.head()
            if head.affinity is not None and self._is_warm(head, replicas):
                chosen = candidate
                break
        for other in passed:
            queue.put_back(other)
        return chosen

    def _serve_fresh(self, replicas: list[Replica], tickets: list[Ticket], now: float) -> None:
        """Nothing has ended since all heads were found not to fit: only new heads are worth a look."""
        flows = sorted({id(f): f for f in self._fresh if f.items}.values(), key=lambda f: (f.index, f.counter))
        self._fresh.clear()
        if len(self._blocked) > _BLOCKED:
            self._blocked = [x for x in self._blocked if x.flow is not None][:_BLOCKED]
        for flow in flows:
            while replicas and flow.items:
                item = flow.head()
                replica = self.place(item, flow.tenant, replicas, now)
                if replica is None:
                    self._blocked.append(item)
                    break
                ahead = [x for x in self._blocked if x.flow is not None and self._before(x.flow, flow)]
                tickets.append(self._grant_waiting(item, replica, now, False))
                self._pass(ahead, item, replicas)
                if replica in replicas and not replica.is_open(now):
                    replicas.remove(replica)
        self._clean_open = replicas
        if not replicas:
            self._clean_version = -1
        self._want_for_interactive()

    def _before(self, one: Flow, other: Flow) -> bool:
        if one.index != other.index:
            counters = self._waiting.classes.counters
            return counters[one.index] <= counters[other.index]
        return one.counter <= other.counter

    def _pass(self, ahead: list[Item], item: Item, replicas: list[Replica]) -> None:
        """`item` was granted past others that did not fit. Who was passed by enough gets a replica for itself."""
        if item.recallable:  # gives way when asked, so it is in nobody's way
            return
        for other in ahead:
            if other.flow is None:
                continue
            other.bypassed += item.cost
            if other.bypassed >= self._settings.overtake * other.cost:
                claimed = self._claim(other)
                if claimed is not None and claimed in replicas:
                    replicas.remove(claimed)

    def _claim(self, item: Item) -> Replica | None:
        candidates = []
        claims = 0
        for replica in self.replicas.values():
            if replica.claimant is item:
                return None
            if replica.claimant is not None:
                claims += 1
            elif replica.usable and replica.serves(item):
                candidates.append(replica)
        if not candidates or claims >= max(1, len(self.replicas) // 4):
            return None
        chosen = min(candidates, key=Replica.load)
        chosen.claimant = item
        return chosen

    def _want_for_interactive(self) -> None:
        """Interactive heads wait while surplus batch work runs: it may have to give way."""
        if not self._settings.preempt_for_interactive:
            return
        for replica in self.replicas.values():
            if replica.preemptible:
                break
        else:
            return
        flow = self._waiting.queues[0].peek()
        if flow is not None:
            self._wanting.append((flow.head(), False))

    def place(self, item: Item, tenant: Tenant, replicas: list[Replica], now: float) -> Replica | None:
        """The replica among these open ones where the item goes now, or None."""
        withheld = 0.0
        if self._waiting.guarantees.tenants and not item.recallable:
            if self._seats_withheld(item, tenant):
                return None
            withheld = self._kv_withheld(item, tenant, now)
        fitting: list[Replica] = []
        for replica in replicas:
            if item.replicas is not None and replica.name not in item.replicas:
                continue
            if item.excluded and replica.name in item.excluded:
                continue
            if replica.fits(item, now) and (
                not withheld or replica.fits(item, now, withheld * (replica.kv_tokens or 0))
            ):
                fitting.append(replica)
        if not fitting:
            return None
        if self._choose is not None:
            return self.replicas[self._choose(item, fitting, now)]
        if len(fitting) == 1:
            return fitting[0]
        best = min(fitting, key=Replica.load)
        if item.affinity is not None and item.affinity not in best.recent:
            # A cached prefix is worth a busier replica, within reason.
            warm = [r for r in fitting if item.affinity in r.recent]
            if warm and (warmest := min(warm, key=Replica.load)).load() <= best.load() + _WARM_LOAD:
                return warmest
        return best

    def _seats_withheld(self, item: Item, tenant: Tenant) -> bool:
        """Whether the item would take seats that are held free for others' reservations."""
        guarantees = self._waiting.guarantees
        held = guarantees.held_seats - guarantees.own_hold(tenant)[0]
        if held <= 1e-9:
            return False
        total = sum(r.seat_limit for r in self.replicas.values() if r.usable)
        return self.solid_seats + item.demand.seats + held > total + 1e-9

    def _kv_withheld(self, item: Item, tenant: Tenant, now: float) -> float:
        """The part of each replica's KV tokens (0..1) that must stay free for others' reservations."""
        guarantees = self._waiting.guarantees
        held = guarantees.held_kv - guarantees.own_hold(tenant)[1]
        if held <= 1e-9:
            return 0.0
        total = limit = solid = 0.0
        for replica in self.replicas.values():
            if replica.usable and replica.kv_tokens is not None:
                total += replica.kv_tokens
                limit += replica.kv_limit(now) or 0.0
                solid += replica.solid_kv
        if not total or solid + item.demand.prompt_tokens + item.left + held <= limit:
            return 0.0
        return held / total

    def _grant_waiting(self, item: Item, replica: Replica, now: float, guaranteed: bool) -> Ticket:
        flow = item.flow
        assert flow is not None
        self._waiting.remove(item, now, granted=True)
        self._mean_cost += 0.05 * (item.cost - self._mean_cost) if self._mean_cost else item.cost
        self.rate.granted(item.cost, now, still_waiting=self._waiting.length > 0)
        if item.bypassed:
            self.drop_claim(item)
        return self.grant(item, flow, replica, now, guaranteed)

    def grant(self, item: Item, flow: Flow, replica: Replica, now: float, guaranteed: bool) -> Ticket:
        """The item, which waits no longer, gets its ticket there and is charged its estimate."""
        tenant = flow.tenant
        waiting = self._waiting
        demand = item.demand
        ticket = Ticket()
        ticket.item = item
        ticket.granted_at = ticket._last_at = now
        ticket.first_token_at = None
        ticket._replica = replica
        ticket._flow = flow
        ticket._weight = tenant.weight
        ticket._charged = item.cost
        ticket._paid_tokens = demand.output_tokens
        ticket._kv = demand.prompt_tokens + item.left
        ticket._released = ticket._preempting = False
        ticket._solid = not item.recallable
        ticket._surplus = flow.index > 0 and not waiting.queues[0].length
        item.granted += 1
        waiting.queues[flow.index].charge(flow, item.cost / tenant.weight)
        ticket._class_weight = class_weight = waiting.classes.weights[flow.index]
        waiting.classes.charge(flow.index, item.cost, class_weight)
        if not tenant.inflight and not tenant.waiting:  # who waits is not at rest
            waiting.busy(tenant)
        tenant.inflight += 1
        ticket._rate = 0.0
        if tenant.reservation is not None:
            if guaranteed:
                ticket._rate = waiting.guarantees.charge(tenant, item.cost, now)
            waiting.guarantees.hold(tenant, demand.seats, ticket._kv)
        else:
            tenant.seats_held += demand.seats
            tenant.kv_held += ticket._kv
        if ticket._solid:
            self.solid_seats += demand.seats
        replica.enter(ticket, now)
        return ticket

    def preemptions(self, now: float) -> list[Ticket]:
        """Batch tickets to cancel upstream and queue again, so that what waits for their room gets it.

        The caller cancels each, releases it with `served=False` and enqueues its item again. The room is kept for
        whom it was taken back for. Each ticket is named once."""
        if not self._wanting:
            return []
        taken: list[Ticket] = []
        for item, guaranteed in self._wanting:
            if item.flow is None or any(r.claimant is item for r in self.replicas.values()):
                continue
            choice = choose_victims(item, self.replicas.values(), now, surplus_only=not guaranteed)
            if choice is not None:
                replica, tickets = choice
                replica.claimant = item
                item.bypassed = max(item.bypassed, 1e-9)  # marks that it has a claim to drop
                for ticket in tickets:
                    ticket._preempting = True
                taken += tickets
        self._wanting.clear()
        return taken
