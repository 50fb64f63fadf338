"""One pool: enqueue, grant, progress, release, cancel, preempt.

The life of an item:  enqueue -> waits -> dispatch gives a ticket -> first_token -> progress ... -> release
                                     \\-> cancel | expire | evicted (a Refusal)

A grant is decided in three steps (`dispatcher.py`). A tenant whose reservation is due goes first (`guarantees.py`);
then the class with the least counter (`classes.py`), in it the tenant with the least counter (`fair.py`), of it the
first request by priority, deadline and arrival. It goes to a replica that is open and has room (`replica.py`).

An uncontended request takes the short way: while nothing waits, `enqueue` sets it aside and `dispatch` places it
without touching a heap. The counters move as if it had been queued.

Nothing here waits: the caller does what is returned.
"""

from __future__ import annotations

from fairqueue.capacity import Capacity, Scrape
from fairqueue.dispatcher import RECHECK_S, Choose, Dispatcher
from fairqueue.fair import Flow, Tenant
from fairqueue.item import Item, Reason, Refusal, RequestClass
from fairqueue.predict import newcomer_wait, predicted_wait
from fairqueue.replica import Replica
from fairqueue.report import pool_snapshot
from fairqueue.reservations import Reservation, Sale, Vector, sellable, total
from fairqueue.settings import CLASSES, PoolSettings
from fairqueue.snapshot import PoolSnapshot
from fairqueue.ticket import Ticket
from fairqueue.waiting import Waiting

__all__ = ["Admission", "Choose", "PoolSettings", "PoolSnapshot", "Ticket"]

_WATCHDOG_S = 0.5  # a pool in which requests wait is looked at this often, whatever else happens


class Admission:
    """Admission to one pool. Synchronous; `now` is monotonic seconds and never goes back."""

    __slots__ = ("_dispatcher", "_express", "_replicas", "_seq", "_settings", "_waiting")

    def __init__(self, settings: PoolSettings, choose: Choose | None = None) -> None:
        self._settings = settings
        self._waiting = Waiting(settings)
        self._dispatcher = Dispatcher(settings, self._waiting, choose)
        self._replicas = self._dispatcher.replicas
        self._express: Item | None = None  # the only waiting item, not in `_waiting` yet
        self._seq = 0

    def reconfigure(self, settings: PoolSettings, now: float) -> list[Refusal]:
        """Other settings from now on, for what waits, what runs and what comes; no place and no ticket is lost.

        Charges made keep the weights and prices they were made with, what waits is weighed anew, and what runs is
        settled at the new prices. Returns what smaller bounds drop, as an overflow does; whom a shorter timeout has
        caught leaves with the next `expire`."""
        self._join_queue(now)
        old, self._settings = self._settings, settings
        self._waiting.reconfigure(settings)
        self._dispatcher.reconfigure(settings)
        for replica in self._replicas.values():
            replica.reconfigure(settings, now)
            if settings.costs != old.costs:
                replica.meter.reprice(old.costs, settings.costs)
        self._recount(now)
        return self._overflow(now)

    # -- replicas ------------------------------------------------------------------------------------------

    def set_replica(self, name: str, capacity: Capacity, now: float, *, engine: Capacity | None = None) -> None:
        """Add a replica or change its figures: `capacity` as configured (a ceiling), `engine` as its metrics say."""
        self._replica(name).configure(capacity, engine)
        self._recount(now)

    def set_engine(self, name: str, engine: Capacity, now: float) -> None:
        """What the engine itself says it has."""
        self._replica(name).configure(None, engine)
        self._recount(now)

    def _replica(self, name: str) -> Replica:
        replica = self._replicas.get(name)
        if replica is None:
            replica = self._replicas[name] = Replica(name, self._settings)
        return replica

    def remove_replica(self, name: str, now: float) -> None:
        """No new work there. Its tickets stay valid and are released as usual."""
        replica = self._replicas.pop(name, None)
        if replica is not None:
            replica.usable = False
            replica.claimant = None
            self._recount(now)

    def set_usable(self, name: str, usable: bool, now: float) -> None:
        """Whether new work may go there (health, breaker, drain). Unknown names are ignored."""
        replica = self._replicas.get(name)
        if replica is not None and replica.usable is not usable:
            replica.usable = usable
            if not usable:
                replica.claimant = None
            self._recount(now)

    def observe(self, name: str, scrape: Scrape, now: float) -> None:
        """What a replica's metrics say. An older scrape than the last is ignored."""
        replica = self._replicas.get(name)
        if replica is not None:
            replica.observe(scrape, now)
            self._recount(now)

    def throttled(self, name: str, now: float, retry_after_s: float | None = None) -> None:
        """A replica or account refused work for want of capacity (429)."""
        replica = self._replicas.get(name)
        if replica is not None:
            replica.throttled(now, retry_after_s)

    # -- tenants -------------------------------------------------------------------------------------------

    def set_tenant(self, tenant: str, *, weight: float, reservation: Reservation | None = None, now: float) -> None:
        """Weight and reservation from now on; charges made before keep the weight they were made with.

        ValueError: the weight is not above 0."""
        if not weight > 0:
            raise ValueError(f"tenant {tenant}: weight must be above 0, not {weight}")
        self._join_queue(now)
        waiting = self._waiting
        state = waiting.tenants.get(tenant)
        if state is None:
            state = waiting.tenants[tenant] = Tenant(tenant, len(CLASSES))
        state.configured = weight != 1.0 or reservation is not None
        if weight != state.weight:
            waiting.set_weight(state, weight)
        if reservation is not None or state.reservation is not None:
            waiting.guarantees.set(state, reservation, now)
            self._dispatcher.room_grew()
        waiting.rest(state, now)

    # -- the queue -----------------------------------------------------------------------------------------

    def enqueue(self, item: Item, now: float) -> list[Refusal]:
        """The item wants a place. Returns the refusals this causes, of this item or of others; empty = it waits.

        ValueError: it waits already."""
        if item.flow is not None:
            raise ValueError(f"request {item.request_id} waits already")
        demand = item.demand
        item.cost = cost = self._settings.costs.of(demand.prompt_tokens, demand.cached_tokens, demand.output_tokens)
        item.left = min(item.remaining(0), demand.output_cap)
        item.bypassed = 0.0
        timeout = item.arrived + self._settings.queue_timeouts_s[item.cls]
        item.expires = min(item.deadline, timeout)
        if not item.seq:
            self._seq += 1
            item.seq = self._seq
        refusal = self._hopeless(item, now)
        if refusal is not None:
            return [refusal]
        waiting = self._waiting
        if not waiting.length and self._express is None:
            self._express = item
            item.flow = waiting.flow_of(item)
            return []
        self._join_queue(now)
        if item.granted:  # it has been through what follows
            self._push(item, now)
            return []
        flow = waiting.flow_of(item)
        wait = self._predict(flow, item, now)
        tenant = flow.tenant
        if wait > item.expires - now:
            refusal = Refusal(item, Reason.DEADLINE_UNMEETABLE, wait, self._too_late(item, flow, wait, now))
        elif self._settings.bounds.tenant_full(tenant, cost):
            detail = f"tenant {tenant.name} has {tenant.waiting} requests of cost {tenant.backlog:.0f} waiting"
            refusal = Refusal(item, Reason.QUEUE_FULL, wait, detail)
        if refusal is not None:
            waiting.rest(tenant, now)
            return [refusal]
        self._push(item, now)
        return self._overflow(now, item)

    def _overflow(self, now: float, newest: Item | None = None) -> list[Refusal]:
        return [
            Refusal(x, Reason.QUEUE_FULL if x is newest else Reason.EVICTED, self._predict(f, x, now), detail)
            for x, f, detail in self._waiting.overflow(now)
        ]

    def _predict(self, flow: Flow, item: Item, now: float) -> float:
        return predicted_wait(self._waiting, flow, item.priority, self._dispatcher.rate.value, now)

    @staticmethod
    def _too_late(item: Item, flow: Flow, wait: float, now: float) -> str:
        tenant = flow.tenant
        return (
            f"predicted wait {wait:.1f} s, but it may wait {item.expires - now:.1f} s; tenant {tenant.name} has "
            f"{tenant.waiting} requests of cost {tenant.backlog:.0f} waiting"
        )

    def _push(self, item: Item, now: float) -> None:
        self._dispatcher.rate.waiting(now)
        if self._waiting.push(item, now) and item.flow is not None:
            self._dispatcher.new_head(item.flow)

    def _join_queue(self, now: float) -> None:
        """The item set aside joins the queue proper."""
        item = self._express
        if item is not None:
            self._express = None
            self._push(item, now)

    def _hopeless(self, item: Item, now: float) -> Refusal | None:
        """A refusal if the item can never be granted as things are configured."""
        tokens = item.demand.prompt_tokens + 1
        allowed = item.replicas
        reachable = False
        largest = 0
        for name, replica in self._replicas.items():
            if (allowed is None or name in allowed) and name not in item.excluded:
                kv = replica.kv_tokens
                if kv is None or tokens <= kv:
                    break
                reachable = True
                largest = max(largest, kv)
        else:
            if not reachable:
                return Refusal(item, Reason.NO_REPLICA, 0.0, f"no replica of pool {self._settings.name} can serve it")
            detail = f"prompt of {tokens - 1} tokens and one more do not fit into {largest} KV tokens"
            return Refusal(item, Reason.NEVER_FITS, 0.0, detail)
        if item.expires <= now:
            return Refusal(item, Reason.DEADLINE_UNMEETABLE, 0.0, f"it had {item.expires - now:.3f} s left to wait")
        return None

    def cancel(self, item: Item, now: float) -> bool:
        """A waiting item leaves, charged nothing. False: it does not wait (any more)."""
        if item.flow is None:
            return False
        self._take_out(item, now)
        return True

    def _take_out(self, item: Item, now: float) -> None:
        if item is self._express:
            self._express = None
            flow, item.flow = item.flow, None
            assert flow is not None
            self._waiting.rest(flow.tenant, now)
            return
        flow = item.flow
        assert flow is not None
        self._waiting.remove(item, now)
        if flow.items:
            self._dispatcher.new_head(flow)
        elif not self._waiting.length:
            self._dispatcher.rate.drained()
        if item.bypassed:
            self._dispatcher.drop_claim(item)

    def expire(self, now: float) -> list[Refusal]:
        """Items whose deadline or queue timeout has passed, or that no replica can serve any more, leave."""
        self._join_queue(now)
        refusals = []
        waiting = self._waiting
        while (item := waiting.expiry.pop(now)) is not None:
            waited = now - item.arrived
            flow = item.flow
            assert flow is not None
            self._take_out(item, now)
            wait = self._predict(flow, item, now)
            detail = f"waited {waited:.1f} s, {waiting.length} requests of cost {waiting.cost:.0f} still wait"
            refusals.append(Refusal(item, Reason.QUEUE_TIMEOUT, wait, detail))
        waiting.forget_idle(now)
        return refusals

    # -- granting ------------------------------------------------------------------------------------------

    def dispatch(self, now: float) -> list[Ticket]:
        """All grants possible now, in order."""
        item = self._express
        if item is None:
            return self._dispatcher.scan(now) if self._waiting.length else []
        flow = item.flow
        assert flow is not None
        replica = self._dispatcher.place(item, flow.tenant, self._dispatcher.open(now), now)
        if replica is None:
            self._join_queue(now)
            return self._dispatcher.scan(now)  # grants nothing, and notes what batch may have to make room for
        self._express = None
        item.flow = None
        waiting = self._waiting
        queue = waiting.queues[flow.index]
        if flow.counter < queue.virtual:
            flow.counter = queue.virtual
        else:
            queue.virtual = flow.counter
        classes = waiting.classes
        classes.activate(flow.index)
        classes.follow(flow.index)
        tenant = flow.tenant
        guaranteed = False
        if tenant.reservation is not None:
            guarantees = waiting.guarantees
            guarantees.tick(now)
            guarantees.began_to_wait(tenant, now)
            guaranteed = guarantees.is_due(tenant, now)
            tenant.due_mark = 0
        return [self._dispatcher.grant(item, flow, replica, now, guaranteed)]

    # -- what runs -----------------------------------------------------------------------------------------

    def first_token(self, ticket: Ticket, now: float) -> None:
        """The replica began to answer: prefill is over, and a relayed batch request can no longer be taken back."""
        if ticket._released or ticket.first_token_at is not None:
            return
        ticket.first_token_at = ticket._last_at = now
        ticket._replica.first_token(ticket, now)
        self._dispatcher.room_grew()

    def progress(self, ticket: Ticket, output_tokens: int, now: float) -> None:
        """`output_tokens` were generated so far. What exceeds the estimate is charged at once."""
        if ticket._released or output_tokens <= ticket.generated:
            return
        if ticket.first_token_at is None:
            self.first_token(ticket, now)
        replica = ticket._replica
        if replica.progress(ticket, output_tokens, now):
            self._dispatcher.room_grew()
        if now >= replica.meter.ends:
            self._close_window(replica, now)
        if output_tokens > ticket._paid_tokens:
            more = self._settings.costs.output * (output_tokens - ticket._paid_tokens)
            ticket._paid_tokens = output_tokens
            self._adjust(ticket, ticket._charged + more)

    def release(
        self,
        ticket: Ticket,
        now: float,
        *,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        output_tokens: int,
        served: bool,
    ) -> None:
        """The end, however it came; all but the first call do nothing. `served` False refunds the whole charge."""
        if ticket._released:
            return
        ticket._released = True
        item = ticket.item
        demand = item.demand
        cost = 0.0
        if served:
            prompt = demand.prompt_tokens if prompt_tokens is None else prompt_tokens
            cached = demand.cached_tokens if cached_tokens is None else cached_tokens
            cost = self._settings.costs.of(prompt, cached, output_tokens)
            ticket._replica.meter.ended(prompt - cached, output_tokens, cost)
        if cost != ticket._charged:
            self._adjust(ticket, cost)
        replica = ticket._replica
        replica.leave(ticket, output_tokens, now, served=served)
        if now >= replica.meter.ends:
            self._close_window(replica, now)
        if ticket._solid:
            self._dispatcher.solid_seats -= demand.seats
        tenant = ticket._flow.tenant
        tenant.inflight -= 1
        if tenant.reservation is not None:
            self._waiting.guarantees.hold(tenant, -demand.seats, -ticket._kv)
        else:
            tenant.seats_held -= demand.seats
            tenant.kv_held -= ticket._kv
        if not tenant.inflight:
            self._waiting.rest(tenant, now)
        self._dispatcher.room_grew()

    def _close_window(self, replica: Replica, now: float) -> None:
        replica.close_window(now)
        self._recount(now)

    def _recount(self, now: float) -> None:
        """Measured capacity may have changed: floors are scaled to what it carries, and room may have grown."""
        self._dispatcher.room_grew()
        guarantees = self._waiting.guarantees
        if guarantees.tenants:
            guarantees.rescale(self.measured(now), self._settings.headroom, now)

    def measured(self, now: float) -> Vector:
        """The capacity vector of the usable replicas together; None where one of them is not measured."""
        return total(r.vector(now) for r in self._replicas.values() if r.usable)

    def sellable(self, tenant: str, reservation: Reservation, now: float, *, survive_loss: bool = True) -> Sale:
        """Whether this tenant may be sold this reservation beside all others, with the figures."""
        others = [
            t.reservation
            for t in self._waiting.guarantees.tenants.values()
            if t.name != tenant and t.reservation is not None
        ]
        vectors = [r.vector(now) for r in self._replicas.values() if r.usable]
        return sellable(reservation, others, vectors, headroom=self._settings.headroom, survive_loss=survive_loss)

    def _adjust(self, ticket: Ticket, total: float) -> None:
        """Charge the difference to what was charged, with the weight of the dispatch."""
        difference = total - ticket._charged
        ticket._charged = total
        flow = ticket._flow
        waiting = self._waiting
        waiting.queues[flow.index].charge(flow, difference / ticket._weight)
        waiting.classes.charge(flow.index, difference, ticket._class_weight)
        if ticket._rate:
            tenant = flow.tenant
            tenant.clock += difference / ticket._rate
            if tenant.waiting and tenant.reservation is not None:
                waiting.guarantees.arm(tenant)

    def preemptions(self, now: float) -> list[Ticket]:
        """Batch tickets to cancel upstream and queue again, so that what waits for their room gets it.

        The caller cancels each, releases it with `served=False` and enqueues its item again. The room is kept for
        whom it was taken back for. Each ticket is named once."""
        return self._dispatcher.preemptions(now)

    # -- looking -------------------------------------------------------------------------------------------

    def expected_wait(self, tenant: str, cls: RequestClass, now: float) -> float | None:
        """Seconds one more request would wait: 0 while nothing waits, None while the rate of grants is not known."""
        self._join_queue(now)
        return newcomer_wait(self._waiting, tenant, cls, self._dispatcher.rate.value, now)

    def seats(self) -> tuple[int, int]:
        """Seats held and seats there are at the moment, over the usable replicas; 0 where they are still learned."""
        held = limit = 0
        known = True
        for replica in self._replicas.values():
            if replica.usable:
                held += replica.seats_held
                limit += replica.seat_limit
                known = known and replica.seats.value is not None
        return held, limit if known else 0

    def patience_s(self, cls: RequestClass) -> float:
        """Seconds that a request of this class may wait."""
        return self._settings.queue_timeouts_s[cls]

    def next_wake(self, now: float) -> float | None:
        """When `dispatch` or `expire` is worth calling although nothing happens; None = only after an event."""
        self._join_queue(now)
        waiting = self._waiting
        if not waiting.length:
            return None
        times = [now + _WATCHDOG_S]
        due = waiting.expiry.next()
        if due is not None:
            times.append(due)
        reserved = waiting.guarantees.next_due(now)
        if reserved is not None:
            times.append(reserved)
        if self._dispatcher.unfinished:
            times.append(now)
        for replica in self._replicas.values():
            if replica.is_open(now):
                times.append(now + RECHECK_S)
            elif (at := replica.opens_at(now)) is not None:
                times.append(at)
        return max(now, min(times))

    def snapshot(self, now: float) -> PoolSnapshot:
        """The pool as it stands."""
        self._join_queue(now)
        return pool_snapshot(
            self._settings.name, self._waiting, self._replicas.values(), self._dispatcher.rate.value, now
        )
