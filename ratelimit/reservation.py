"""Take an estimate now, settle the true cost later, at most once.

    reserve   the estimate is taken from every limit of the principal
    progress  what a running stream has passed it by is charged while it runs
    reprice   money held is reduced to the price of the target that was chosen
    settle    the estimate is replaced by what is kept; how the request ended decides what that is

What is kept of a request, by how it ended:

    end                        requests   input      output               money
    refused or cancelled
      while it waited here     refund     refund     refund               refund
    connect error, or 5xx
      before the first byte    refund     refund     refund               refund
    4xx from upstream          keep       refund     refund               refund
    client gone                keep       actual     what was streamed    actual
    success                    keep       actual     actual               actual
    failure that was billed    keep       actual     actual               actual
"""

from __future__ import annotations

from enum import StrEnum

from ratelimit.group import Group, Holds
from ratelimit.limit import Amounts, Standing


class End(StrEnum):
    """How a request ended, as far as its charge is concerned."""

    NEVER_SENT = "never_sent"  # refused after reserve, timed out or cancelled while it waited here
    UPSTREAM_FAILED = "upstream_failed"  # connect error or 5xx before the first byte, nothing billed
    UPSTREAM_REFUSED = "upstream_refused"  # 4xx: the caller's request was at fault
    CLIENT_GONE = "client_gone"
    SUCCESS = "success"
    BILLED_FAILURE = "billed_failure"  # it failed, yet the provider bills it


def kept(end: End, used: Amounts) -> Amounts:
    """What stays charged of a request that ended so and had used `used` (reported, or streamed if unreported)."""
    match end:
        case End.NEVER_SENT | End.UPSTREAM_FAILED:
            return Amounts()
        case End.UPSTREAM_REFUSED:
            return Amounts(requests=used.requests or 1)
        case End.CLIENT_GONE | End.SUCCESS | End.BILLED_FAILURE:
            return used._replace(requests=used.requests or 1, worst_micro_usd=0)


class Decider(StrEnum):
    """Who let a request pass; said in a header, so that an operator sees a store that is away."""

    IN_PROCESS = "in_process"
    LEASE = "lease"
    STORE = "store"
    LOCAL = "local"
    OPEN = "open"


class Reservation:
    """A handle on what one request holds. Whoever got it from reserve must settle it; only the first settle counts."""

    __slots__ = (
        "at",
        "by",
        "expires",
        "first_holds",
        "group",
        "holds",
        "request_id",
        "reserved",
        "settled",
        "streamed",
    )

    def __init__(
        self,
        request_id: str,
        group: Group,
        reserved: Amounts,
        holds: Holds,
        now: int,
        expires: int,
        by: Decider = Decider.IN_PROCESS,
    ) -> None:
        self.request_id = request_id
        self.group = group
        self.reserved = reserved  # what the rate limits have been charged for it
        self.holds = holds  # what the money limits hold for it
        self.first_holds = holds  # what they held at first: repricing never goes above
        self.at = now
        self.expires = expires  # when it counts as abandoned unless progress moves this on
        self.streamed: Amounts | None = None  # the last progress, which an abandoned one is settled with
        self.settled = False
        self.by = by

    def standings(self, now: int) -> tuple[Standing, ...]:
        """How its limits stand now."""
        return self.group.standings(now)
