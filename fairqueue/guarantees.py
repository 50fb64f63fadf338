"""The reservations of one pool at work: who is owed service now, and what is held free for whom.

A heap orders the waiting reserved tenants: those below their reserved room first, then by their clock R. An entry is
due when its tenant is below its room or R <= now. What is held free is a running sum over tenants,

    held = sum of hold * max(0, room - what the tenant holds),

and work that cannot be preempted must leave it free, except the tenant's own.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from fairqueue.fair import Tenant
from fairqueue.reservations import Floors, Reservation, Vector


class Guarantees:
    """Reserved tenants of one pool."""

    __slots__ = ("_heap", "_largest", "_mark", "_next_change", "floors", "held_kv", "held_seats", "tenants")

    def __init__(self) -> None:
        self.tenants: dict[str, Tenant] = {}  # those with a reservation
        self.held_seats = 0.0  # invariant: the sum in the module's docstring
        self.held_kv = 0.0
        self.floors = Floors()
        self._heap: list[tuple[int, float, int, Tenant]] = []  # (0 = below room, R, mark, tenant)
        self._mark = 0
        self._next_change = float("inf")
        self._largest = 1.0  # the largest estimate granted so far, cost units: a clock may lag by so much

    def set(self, tenant: Tenant, reservation: Reservation | None, now: float) -> None:
        """A tenant's reservation from now on; what it holds already counts."""
        self._release_hold(tenant)
        if reservation is None:
            self.tenants.pop(tenant.name, None)
            tenant.reservation = None
            tenant.rate = tenant.room_seats = tenant.room_kv = 0.0
            tenant.due_mark = 0
        else:
            if tenant.reservation is None:
                tenant.clock = now
            tenant.reservation = reservation
            self.tenants[tenant.name] = tenant
            self._apply(tenant, now)
        self._schedule(now)

    def _schedule(self, now: float) -> None:
        changes = [
            c
            for t in self.tenants.values()
            if t.reservation is not None and (c := t.reservation.next_change(now)) is not None
        ]
        self._next_change = min(changes, default=float("inf"))

    def _apply(self, tenant: Tenant, now: float) -> None:
        """Effective floors of one tenant at this moment."""
        r = tenant.reservation
        assert r is not None
        self._release_hold(tenant)
        on = r.active(now)
        was = tenant.rate
        tenant.rate = r.rate * self.floors.rate if on else 0.0
        tenant.room_seats = r.seats * self.floors.seats if on else 0.0
        tenant.room_kv = r.kv_tokens * self.floors.kv_tokens if on else 0.0
        if tenant.rate and not was:
            tenant.clock = max(tenant.clock, now)  # time outside its windows earns nothing
        self._take_hold(tenant)
        if tenant.waiting:
            self.arm(tenant)

    def _release_hold(self, tenant: Tenant) -> None:
        r = tenant.reservation
        if r is not None:
            self.held_seats -= r.hold * max(0.0, tenant.room_seats - tenant.seats_held)
            self.held_kv -= r.hold * max(0.0, tenant.room_kv - tenant.kv_held)

    def _take_hold(self, tenant: Tenant) -> None:
        r = tenant.reservation
        if r is not None:
            self.held_seats += r.hold * max(0.0, tenant.room_seats - tenant.seats_held)
            self.held_kv += r.hold * max(0.0, tenant.room_kv - tenant.kv_held)

    def rescale(self, measured: Vector, headroom: float, now: float) -> bool:
        """Measured capacity changed: scale all floors by what it still carries. Returns whether anything changed."""
        if not self.tenants:
            return False
        sold = [t.reservation for t in self.tenants.values() if t.reservation is not None]
        floors = Floors.of(sold, measured, headroom, now)
        if floors == self.floors:
            return False
        self.floors = floors
        for tenant in self.tenants.values():
            self._apply(tenant, now)
        return True

    def tick(self, now: float) -> bool:
        """Windows that opened or closed since; whether anything changed."""
        if now < self._next_change:
            return False
        for tenant in self.tenants.values():
            self._apply(tenant, now)
        self._schedule(now)
        return True

    def own_hold(self, tenant: Tenant) -> tuple[float, float]:
        """The part of what is held that is the tenant's own."""
        r = tenant.reservation
        if r is None:
            return 0.0, 0.0
        return (
            r.hold * max(0.0, tenant.room_seats - tenant.seats_held),
            r.hold * max(0.0, tenant.room_kv - tenant.kv_held),
        )

    def arm(self, tenant: Tenant) -> None:
        """A reserved tenant that waits enters the order anew: it began to wait, or its clock or holding moved."""
        self._mark += 1
        tenant.due_mark = self._mark
        below = tenant.seats_held < tenant.room_seats or tenant.kv_held < tenant.room_kv
        heappush(self._heap, (0 if below else 1, tenant.clock, self._mark, tenant))
        if len(self._heap) > 2 * len(self.tenants) + 64:
            self._heap = [entry for entry in self._heap if entry[2] == entry[3].due_mark]
            heapify(self._heap)

    def began_to_wait(self, tenant: Tenant, now: float) -> None:
        """Idle time earns nothing beyond the burst."""
        r = tenant.reservation
        if r is not None and tenant.rate:
            tenant.clock = max(tenant.clock, now - r.burst / tenant.rate)
        self.arm(tenant)

    @staticmethod
    def is_due(tenant: Tenant, now: float) -> bool:
        """Whether the tenant goes before all shares."""
        if tenant.seats_held < tenant.room_seats or tenant.kv_held < tenant.room_kv:
            return True
        return bool(tenant.rate) and tenant.clock <= now

    def pop_due(self, now: float) -> Tenant | None:
        """The reserved waiting tenant that goes first, taken out of the order (the caller arms it again), or None."""
        heap = self._heap
        while heap:
            rank, clock, mark, tenant = heap[0]
            if mark != tenant.due_mark or not tenant.waiting:
                heappop(heap)
                continue
            if rank and (clock > now or not tenant.rate):
                return None
            heappop(heap)
            tenant.due_mark = 0
            return tenant
        return None

    def next_due(self, now: float) -> float | None:
        """When the next clock or window comes due, if that is to come."""
        times = [self._next_change] if self._next_change < float("inf") else []
        heap = self._heap
        while heap and (heap[0][2] != heap[0][3].due_mark or not heap[0][3].waiting):
            heappop(heap)
        if heap and heap[0][0] and heap[0][1] > now:
            times.append(heap[0][1])
        return min(times, default=None)

    def charge(self, tenant: Tenant, cost: float, now: float) -> float:
        """A grant by guarantee moves the clock. Returns the rate to correct it with later."""
        rate = tenant.rate
        if not rate:
            return 0.0
        r = tenant.reservation
        assert r is not None
        self._largest = max(self._largest, cost)
        tenant.clock = max(tenant.clock, now - max(r.burst, self._largest) / rate) + cost / rate
        return rate

    def hold(self, tenant: Tenant, seats: int, kv_tokens: int) -> None:
        """The tenant took (or with negative figures gave back) room."""
        self._release_hold(tenant)
        tenant.seats_held += seats
        tenant.kv_held += kv_tokens
        self._take_hold(tenant)
        if tenant.waiting:
            self.arm(tenant)
        elif not tenant.seats_held:
            self._tidy()

    def _tidy(self) -> None:
        """Running sums of floats drift: recount them when a tenant is at rest."""
        self.held_seats = self.held_kv = 0.0
        for tenant in self.tenants.values():
            self._take_hold(tenant)
