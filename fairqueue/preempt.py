"""Which batch work to take back so that a request fits: the replica that loses least, its newest work first.

Only tickets that are batch, preemptible, and of which the caller has seen nothing are on a replica's list. What is
freed is counted by the plain sum of predicted use, which errs on taking back a little too much and never too little.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairqueue.item import Item
from fairqueue.replica import Replica
from fairqueue.ticket import Ticket


def victims(item: Item, replica: Replica, now: float, *, surplus_only: bool) -> list[Ticket] | None:
    """Tickets to take back on this replica, newest first; [] if it has room already, None if it cannot be had."""
    demand = item.demand
    seats = replica.seats_held + demand.seats - replica.seat_limit
    limit = replica.kv_limit(now)
    kv = 0.0
    if limit is not None:
        kv = replica.ledger.total + demand.prompt_tokens + replica.ledger.block_tokens - 1 + item.left - limit
    taken: list[Ticket] = []
    for ticket in reversed(replica.preemptible):
        if seats <= 0 and kv <= 0:
            break
        if ticket._preempting:  # on its way out: its room is spoken for already
            continue
        if surplus_only and not ticket._surplus:
            continue
        taken.append(ticket)
        seats -= ticket.item.demand.seats
        kv -= ticket.own + ticket.generated + ticket.left
    return taken if seats <= 0 and kv <= 0 else None


def choose_victims(
    item: Item, replicas: Iterable[Replica], now: float, *, surplus_only: bool
) -> tuple[Replica, list[Ticket]] | None:
    """The replica where taking back costs the fewest tokens of finished work, and what to take back there."""
    best: tuple[int, Replica, list[Ticket]] | None = None
    for replica in replicas:
        if not replica.usable or replica.claimant is not None or not replica.preemptible or not replica.serves(item):
            continue
        taken = victims(item, replica, now, surplus_only=surplus_only)
        if taken:
            lost = sum(ticket.own + ticket.generated for ticket in taken)
            if best is None or lost < best[0]:
                best = (lost, replica, taken)
    return None if best is None else (best[1], best[2])
