"""A waiting request: tenant, class, demand, cost, deadline.

Cost is fair-share work in *cost units*, one unit being the work of one uncached prompt token:

    cost = prompt * (prompt tokens - cached tokens) + cached * cached tokens + output * output tokens

An item is refused, granted, cancelled or expired exactly once per stay in the queue: `flow` is set while it waits
and is None otherwise, so the second of two racing outcomes finds that it lost. A granted item may be queued again
(a batch request that was preempted, an attempt that failed before its first byte).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairqueue.fair import Flow


class RequestClass(StrEnum):
    """`interactive`: somebody waits. `batch`: nobody does; may be preempted until its first byte is relayed."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost units per token of each kind. The defaults price an output token as four prompt tokens."""

    prompt: float = 1.0
    cached: float = 0.1
    output: float = 4.0

    def of(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> float:
        """Cost units of a request, at least 1: a free request would never move its tenant's counter."""
        cost = self.prompt * (prompt_tokens - cached_tokens) + self.cached * cached_tokens + self.output * output_tokens
        return cost if cost > 1.0 else 1.0  # noqa: FURB136 (half the cost of max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one request is expected to take, in tokens and seats."""

    prompt_tokens: int
    output_tokens: int  # predicted; what fairness charges before the truth is known
    output_cap: int  # the most it may generate: its own maximum, or what the context leaves
    cached_tokens: int = 0  # prompt tokens expected to be found in a prefix cache
    seats: int = 1  # sequences it runs side by side (`n`)


@dataclass(slots=True, eq=False)
class Item:
    """One request that wants a place in a pool. Times are seconds of the caller's monotonic clock."""

    request_id: str
    tenant: str
    cls: RequestClass
    demand: Demand
    arrived: float
    deadline: float  # absolute; past it a grant is useless
    remaining: Callable[[int], int]  # tokens still expected after n generated: a conditional quantile
    replicas: frozenset[str] | None = None  # replicas that can serve it; None = all
    excluded: frozenset[str] = frozenset()  # replicas that already failed it
    affinity: int | None = None  # names the prefix it shares with others (salted by tenant upstream of here)
    adapter: str | None = None
    preemptible: bool = False
    gathered: bool = False  # the caller sees nothing before the end, so the first token does not end preemption
    silent: bool = False  # its first token cannot be seen, as its upstream answers whole
    priority: int = 0  # inside its tenant: lower goes first

    # Owned by the queue that holds the item; nobody else writes these.
    flow: Flow | None = field(default=None, init=False, repr=False)  # set exactly while it waits
    seq: int = field(default=0, init=False)  # order of enqueue; kept when it is queued again
    cost: float = field(default=0.0, init=False)  # estimate, cost units
    left: int = field(default=0, init=False)  # output tokens expected, for KV
    expires: float = field(default=0.0, init=False)  # the earlier of deadline and queue timeout
    bypassed: float = field(default=0.0, init=False)  # cost granted past it while it was first and did not fit
    granted: int = field(default=0, init=False)  # times it was granted

    @property
    def recallable(self) -> bool:
        """Whether it can be taken back at any time of its run: preemptible, and nothing is relayed before the end."""
        return self.preemptible and self.gathered


class Reason(StrEnum):
    """Why an item will not be granted."""

    QUEUE_FULL = "queue_full"
    DEADLINE_UNMEETABLE = "deadline_unmeetable"
    QUEUE_TIMEOUT = "queue_timeout"
    NEVER_FITS = "never_fits"
    NO_REPLICA = "no_replica"
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An item that left without a grant. `predicted_wait_s` is when coming back makes sense (0 = unknown or never)."""

    item: Item
    reason: Reason
    predicted_wait_s: float
    detail: str
