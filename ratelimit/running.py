"""A shared reservation after it was let through: what it has used, what it costs, how it ends.

By whom it was let through decides where its charge is. By lease: in the leases, and nobody is told. By the store: in
the store, told by the outbox; its model-wide ceilings in leases. Without the store: in this instance's share, and
the whole of it is told to the store later.
"""

from __future__ import annotations

from ratelimit.fleet import Fleet
from ratelimit.group import price_hold, raise_to, reprice, settle
from ratelimit.limit import Amounts
from ratelimit.reservation import Decider
from ratelimit.shared import ABANDONED_AFTER_US, SharedReservation


def progressed(fleet: Fleet, r: SharedReservation, so_far: Amounts, now: int) -> None:
    """It has used this much: charge what passes its reservation."""
    r.streamed = so_far
    r.expires = now + ABANDONED_AFTER_US
    if r.by is Decider.LEASE:
        r.reserved, r.holds = raise_to(r.shared, r.reserved, so_far, r.holds, now)
        return
    if r.shared.ceiling is not None and r.by is Decider.STORE:
        r.ceiling_holds = raise_to(r.shared.ceiling, r.reserved, so_far, r.ceiling_holds, now)[1]
    if r.away is not None:
        r.away_holds = raise_to(r.away, r.reserved, so_far, r.away_holds, now)[1]
    r.reserved = Amounts(*map(max, r.reserved, so_far))
    r.holds = tuple((max(hold, so_far.micro_usd), period) for hold, period in r.holds)
    fleet.outbox.move(r)


def repriced(fleet: Fleet, r: SharedReservation, micro_usd: int, worst_micro_usd: int) -> None:
    """Its target is chosen: hold that price, at most what was admitted."""
    old, worst = r.reserved.micro_usd, max(micro_usd, worst_micro_usd)
    streamed = r.streamed.micro_usd if r.streamed is not None else 0
    if r.by is Decider.LEASE:
        r.holds = reprice(r.shared, r.first_holds, r.holds, old, micro_usd, worst, streamed)
        return
    r.holds = tuple((price_hold(most, old, micro_usd, worst, streamed), period) for most, period in r.first_holds)
    fleet.outbox.move(r)


def settled(fleet: Fleet, r: SharedReservation, actual: Amounts, now: int) -> None:
    """It is over, and this stays charged."""
    r.settled = True
    group = r.shared
    group.open -= 1
    fleet.open.pop(r.request_id, None)
    fleet.counts["settled"] += 1
    if r.by is Decider.LEASE:
        settle(group, r.reserved, actual, r.holds, r.at, now)
    else:
        if r.by is not Decider.STORE:
            group.owe_ceiling(actual, now)
        elif group.ceiling is not None:
            settle(group.ceiling, r.reserved, actual, r.ceiling_holds, r.at, now)
        fleet.outbox.settle(r, actual)
    if r.away is not None:
        settle(r.away, r.reserved, actual, r.away_holds, r.at, now)
    if fleet.away:
        fleet.agreed.ended(group.limits, counted=r.away_epoch == fleet.agreed.epoch)


def abandon(fleet: Fleet, now: int) -> int:
    """Settle what nobody has moved for an hour with what it had streamed. Gives how many there were."""
    lost = [r for r in fleet.open.values() if r.expires <= now]
    for r in lost:
        settled(fleet, r, r.streamed or r.reserved, now)
    fleet.counts["abandoned"] += len(lost)
    return len(lost)
