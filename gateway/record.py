"""What is known of one request while it lives: its phases, attempts, estimate and usage.

The phases partition a request's time. A failed attempt moves the time it spent connecting and
prefilling into `failed`, so that the phases that remain tell only of the attempt that served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING

from gateway.outcomes import Outcome

if TYPE_CHECKING:
    from gateway.accept import Accepted
    from gateway.estimate import Estimate
    from gateway.principals import Principal
    from providers.exchange import Usage
    from ratelimit.limit import Amounts, Refusal
    from ratelimit.reservation import Reservation


class Phase(StrEnum):
    """Where a request's time goes; see PHASES in the instruments for the order."""

    LIMIT = "limit"  # parse, authenticate, estimate, limits
    QUEUE = "queue"  # waiting for a ticket
    FAILED = "failed"  # attempts that came to nothing
    CONNECT = "connect"  # opening a connection to the replica
    PREFILL = "prefill"  # request sent, to first token
    DECODE = "decode"  # first token to last
    FINISH = "finish"  # last token to the end of the answer


class Phases:
    """A stopwatch with exactly one running phase; times are monotonic seconds.

    Invariant: the sum of all phases equals `last - started`.
    """

    __slots__ = ("_attempt", "current", "last", "spent", "started")

    def __init__(self, now: float) -> None:
        self.started = self.last = now
        self.current = Phase.LIMIT
        self.spent: dict[Phase, float] = {}
        self._attempt = 0.0  # connect + prefill of the attempt under way

    def enter(self, phase: Phase, now: float) -> None:
        """Ends the running phase at `now` and starts `phase`."""
        took = now - self.last
        self.last = now
        current = self.current
        self.spent[current] = self.spent.get(current, 0.0) + took
        self.current = phase

    def connected(self, connect_s: float) -> None:
        """Of the running prefill's past, `connect_s` seconds were spent opening the connection."""
        if connect_s > 0.0:
            self.spent[Phase.CONNECT] = self.spent.get(Phase.CONNECT, 0.0) + connect_s
            self.spent[Phase.PREFILL] = self.spent.get(Phase.PREFILL, 0.0) - connect_s

    def attempt_failed(self, now: float) -> None:
        """What the attempt under way spent counts as failed from here on."""
        self.enter(Phase.FAILED, now)
        for phase in (Phase.CONNECT, Phase.PREFILL):
            moved = self.spent.pop(phase, 0.0)
            self.spent[Phase.FAILED] = self.spent.get(Phase.FAILED, 0.0) + moved

    def end(self, now: float) -> None:
        """Stops the watch."""
        self.enter(self.current, now)

    @property
    def total(self) -> float:
        """Seconds from the start to the last change."""
        return self.last - self.started

    def server_timing(self) -> str:
        """The Server-Timing value of the phases known so far, in ms."""
        spent = self.spent
        parts = [
            f"queue;dur={1000 * spent.get(Phase.QUEUE, 0.0):.1f}",
            f"connect;dur={1000 * spent.get(Phase.CONNECT, 0.0):.1f}",
            f"prefill;dur={1000 * spent.get(Phase.PREFILL, 0.0):.1f}",
        ]
        if Phase.FAILED in spent:
            parts.append(f"failed;dur={1000 * spent[Phase.FAILED]:.1f}")
        return ", ".join(parts)


@dataclass(slots=True)
class Attempt:
    """One try at one replica: where, how it ended, and how long it took (seconds)."""

    pool: str
    replica: str
    started: float
    credential: str = ""
    result: str = "under way"
    seconds: float = 0.0
    detail: str = ""


@dataclass(slots=True)
class Record:
    """One request from its first byte to settlement."""

    request_id: str
    wall: float  # Unix seconds at arrival
    phases: Phases
    path: str = ""
    stream: bool = False
    principal: Principal | None = None
    cls: str = ""
    model: str = ""
    pool: str = ""
    replica: str = ""
    accepted: Accepted | None = None
    target: tuple[str, str] | None = None  # (pool, upstream model) of the last attempt, whose prices count
    estimate: Estimate | None = None
    limits: Reservation | Refusal | None = None  # what the limits said
    reserved: Amounts | None = None  # what is charged to them now; None before the reservation
    usage: Usage | None = None
    booked: bool = False  # its usage stands in the ledger; the settlement need not write it again
    usage_whole: bool = False  # `usage` is that of the whole answer, not of a part of it
    billed_on: bool = False  # the upstream bills more than was seen, and does not say how much
    counted_tokens: int = 0  # output tokens seen passing by
    attempts: list[Attempt] = field(default_factory=list)
    outcome: Outcome | None = None
    status: int = 0
    detail: str = ""
    first_token_at: float | None = None
    last_token_at: float | None = None

    def finish(self, outcome: Outcome) -> bool:
        """Sets how the request ended; the first to say so wins. Returns whether this call did."""
        if self.outcome is not None:
            return False
        self.outcome = outcome
        return True


def numbered(prefix: str) -> Callable[[], str]:
    """Ids that are cheap to make, and differ between processes and starts as `prefix` does."""
    numbers = count(1)
    return lambda: f"{prefix}{next(numbers):08x}"
