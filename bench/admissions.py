"""Simpler admissions to put behind the same gateway: in order of arrival, a fixed concurrency, no limit.

Each is the gateway's own admission with something taken away, so that whatever else a request meets on its way (keys,
limits, replica choice, relay) is the same in every case:

- `fifo` forgets whose a request is: one line in order of arrival, the same tests of room.
- `fixed` forgets the engine too: so many requests at a time on each replica, whatever their size.
- `unlimited` sends everything to an engine at once; the queue is the engine's own.
"""

from __future__ import annotations

from dataclasses import replace

from fairqueue.admission import Admission, Choose, PoolSettings
from fairqueue.capacity import Capacity, Scrape
from fairqueue.item import Item, Refusal
from gateway.app import MakeAdmission

_EVERYBODY = "everybody"
_NO_OBJECTIVE_S = 1e9  # nothing is ever late, so no limit is ever lowered
_NO_LIMIT = 1_000_000  # seats


class Fifo(Admission):
    """One line for all tenants, in order of arrival; what has no room waits, what follows may pass it as usual."""

    __slots__ = ()

    def enqueue(self, item: Item, now: float) -> list[Refusal]:
        item.tenant = _EVERYBODY
        return Admission.enqueue(self, item, now)


class Fixed(Fifo):
    """At most `seats` requests on each replica. Neither metrics nor objectives change that."""

    __slots__ = ("_seats",)

    def __init__(self, settings: PoolSettings, choose: Choose | None, seats: int) -> None:
        plain = replace(settings, engine=False, ttft_slo_s=_NO_OBJECTIVE_S, tpot_slo_s=_NO_OBJECTIVE_S)
        Fifo.__init__(self, plain, choose)
        self._seats = seats

    def set_replica(self, name: str, capacity: Capacity, now: float, *, engine: Capacity | None = None) -> None:
        Admission.set_replica(self, name, Capacity(seats=self._seats), now)

    def set_engine(self, name: str, engine: Capacity, now: float) -> None:
        pass

    def observe(self, name: str, scrape: Scrape, now: float) -> None:
        pass


def admission(name: str) -> MakeAdmission:
    """The admission of that name: `weighbridge`, `fifo`, `fixed-N` or `unlimited`. ValueError for any other."""
    if name == "weighbridge":
        return Admission
    if name == "fifo":
        return Fifo
    if name == "unlimited":
        return lambda settings, choose: Fixed(settings, choose, _NO_LIMIT)
    kind, _, number = name.partition("-")
    if kind != "fixed" or not number.isdecimal() or not int(number):
        raise ValueError(f"no admission is called {name!r}; there are weighbridge, fifo, fixed-N and unlimited")
    return lambda settings, choose: Fixed(settings, choose, int(number))
