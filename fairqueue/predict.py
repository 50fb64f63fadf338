"""How long a request will wait, from the work before it and the rate at which work is granted.

While requests wait, the pool grants cost at some rate mu (decayed over the last seconds of waiting; unknown before
enough was granted). A newcomer of flow f is served when the virtual time has come to S = max(c_f, V) + backlog_f / w_f.
Until then every waiting flow is served up to S, which is at most (S - V) * sum of waiting weights, and never more than
what waits at all, its own predecessors included. Its class gets its share of mu. A reservation bounds the wait from
above: the clock reaches it at max(R, now) + backlog / rate.
"""

from __future__ import annotations

from math import exp

from fairqueue.fair import Flow, Tenant
from fairqueue.item import RequestClass
from fairqueue.settings import CLASSES
from fairqueue.waiting import Waiting

_MEMORY_S = 10.0
_ENOUGH_S = 1.0  # of waiting, before the rate is believed
_ENOUGH_GRANTS = 8


class ServiceRate:
    """Cost granted per second while requests waited."""

    __slots__ = ("_cost", "_grants", "_mark", "_seconds")

    def __init__(self) -> None:
        self._cost = 0.0
        self._seconds = 0.0
        self._grants = 0
        self._mark: float | None = None  # up to when waiting is counted; None = nothing waits

    def waiting(self, now: float) -> None:
        """Requests began to wait."""
        if self._mark is None:
            self._mark = now

    def granted(self, cost: float, now: float, *, still_waiting: bool) -> None:
        """A waiting request was granted."""
        if self._mark is None:
            return
        spent = now - self._mark
        if spent > 0.0:
            keep = exp(-spent / _MEMORY_S)
            self._cost *= keep
            self._seconds = self._seconds * keep + spent
        self._cost += cost
        self._grants += 1
        self._mark = now if still_waiting else None

    def drained(self) -> None:
        """The last waiting request left without a grant."""
        self._mark = None

    @property
    def value(self) -> float | None:
        """Cost units/s; None = not known yet."""
        if self._seconds < _ENOUGH_S or self._grants < _ENOUGH_GRANTS:
            return None
        return self._cost / self._seconds


def predicted_wait(waiting: Waiting, flow: Flow, priority: int, rate: float | None, now: float) -> float:
    """Seconds until an item of `priority` would be granted if it joined the flow now; 0 if that is not known."""
    if not rate:
        return 0.0
    tenant = flow.tenant
    queue = waiting.queues[flow.index]
    ahead = flow.backlog if flow.items and priority >= flow.head().priority else 0.0
    start = max(flow.counter, queue.virtual) + ahead / tenant.weight
    weight = queue.weight + (0.0 if flow.items else tenant.weight)
    work = min((start - queue.virtual) * weight, queue.backlog)
    classes = waiting.classes
    total = sum(w for w, q in zip(classes.weights, waiting.queues, strict=True) if q.length or q is queue)
    wait = work / (rate * classes.weights[flow.index] / total)
    if tenant.rate:
        wait = min(wait, max(tenant.clock - now, 0.0) + ahead / tenant.rate)
    return wait


def newcomer_wait(waiting: Waiting, tenant: str, cls: RequestClass, rate: float | None, now: float) -> float | None:
    """Seconds a further request of `tenant` would wait, 0 while nothing waits; None = not known. Changes nothing."""
    if not waiting.length:
        return 0.0
    if not rate:
        return None
    index = CLASSES.index(cls)
    known = waiting.tenants.get(tenant) or Tenant(tenant, len(CLASSES))
    return predicted_wait(waiting, known.flows[index] or Flow(known, index), 0, rate, now)
