"""What one instance knows of one hash tag: its leases there, and the lease calls it makes.

One call at a time is on its way per tag. It is prepared from all leases that have something to say, numbered, and sent
again unchanged until it is answered, so the store does it once. Leases hold from the time of *sending*: what the store
lets expire later than that has always expired here first. Only a call that renews or wants something makes them hold
longer; a tag nobody spends from is given back in one last call, and then is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import orjson

from ratelimit.group import Group
from ratelimit.lease import SHORTEST_LEASE_US, Leased, LeasedMoney, lease_us

PREFIX = "weighbridge:limit:"
MOST_ENTRIES = 200
"""Limits in one lease call, so that no call keeps the store busy for long."""

CLOCK_SLACK_US = 1_000_000
"""Two clocks of one process may differ by this; a step back beyond it voids leases."""

GRACE_MS = 2_000
"""The store keeps a leased slot this much longer than its holder uses it."""


Describe = Callable[[Leased], list[object]]


class LeaseCall:
    """A lease call as it was first sent."""

    __slots__ = ("args", "keys", "leases", "sent")

    def __init__(self, keys: list[str], args: list[object], leases: Sequence[Leased], sent: int) -> None:
        self.keys = keys
        self.args = args
        self.leases = leases
        self.sent = sent


class Tag:
    """One hash tag: `{o:acme}` or `{m:chat-large}`."""

    __slots__ = ("active", "asked_at", "done", "gives", "lasts", "leases", "life", "looked_at", "name", "needs",
                 "pending", "rounds", "sent", "seq", "shortest_us", "since", "swept", "takes", "until", "used",
                 "wants")  # fmt: skip

    def __init__(self, name: str, shortest_us: int = SHORTEST_LEASE_US, life: int = 0) -> None:
        self.name = name
        self.life = life  # tells the calls of a tag that was forgotten and made anew from those before
        self.leases: dict[str, Leased] = {}  # by limit key: every lease under this tag, the empty ones too
        self.wants: set[str] = set()  # limits that are far from their end and whose lease is short
        self.active: dict[Group, None] = {}  # whose leases were spent since the last round
        self.gives: set[str] = set()  # limits whose spare lease stands in the way of a request the store refused
        self.needs: dict[str, int] = {}  # units that waiting requests cannot do without
        self.shortest_us = shortest_us
        self.lasts = shortest_us  # how long the next lease is to last
        self.sent = 0  # when the last answered call was sent
        self.since = 0  # leases hold from a little before that ...
        self.until = 0  # ... until then
        self.asked_at = 0  # when the last call was sent
        self.used = 0  # when a request last spent from a lease
        self.takes = 0
        self.seq = 0
        self.pending: list[LeaseCall] = []  # sent or to be sent, not answered, in order
        self.rounds = 0  # rounds of calls prepared ...
        self.done = 0  # ... and answered
        self.swept = 0  # when abandoned reservations were last looked for
        self.looked_at = 0  # when leases of dead instances were last looked for

    def key(self, rest: str) -> str:
        return f"{PREFIX}{{{self.name}}}:{rest}"

    def valid(self, now: int) -> bool:
        """Whether leases may be spent; a clock that stepped back voids them."""
        return self.since <= now < self.until

    def due(self, now: int) -> bool:
        """Whether a lease call has something to say now."""
        if self.pending or self.wants or self.needs or self.gives:
            return True
        if not self.until:
            return False
        if any(self.leases[x.key].overdrawn() for group in self.active for x in group.limits if x.key in self.leases):
            return True  # requests ran on past their lease: the store must hear of it
        if not self.valid(now):
            return any(not lease.forgettable(now) for lease in self.leases.values())
        return now - self.sent > self.lasts * 2 // 3 and self.used > self.sent

    def withdraw(self, key: str, units: int) -> None:
        """A request that waited for these units does so no longer."""
        left = self.needs.get(key, 0) - units
        if left > 0:
            self.needs[key] = left
        else:
            self.needs.pop(key, None)

    def prepare(self, instance: str, instances: int, now: int, describe: Describe, clock: str, *,
                give_all: bool = False) -> LeaseCall | None:  # fmt: skip
        """The call to send: an unanswered one again, or a new one; None if there is nothing to say.

        A new round may take several calls; leases hold on when the last of them is answered.
        """
        if self.pending:
            return self.pending[0]
        said: list[Leased] = []
        asks: list[object] = []
        active = self.wants.union(limit.key for group in self.active for limit in group.limits)
        for key, lease in self.leases.items():
            need = 0 if give_all else self.needs.get(key, 0)
            if key in self.wants or key in self.gives or need or not lease.forgettable(now):
                renew = key in active and key not in self.gives and not give_all
                asks.append([describe(lease), *lease.ask(instances, need, now, renew=renew)])
                said.append(lease)
        self.wants.clear()
        self.gives.clear()
        self.needs.clear()
        self.active.clear()
        if not said:
            self.until = 0
            return None
        if self.asked_at and now > self.asked_at:
            self.lasts = lease_us(now - self.asked_at, self.shortest_us)
        self.asked_at = now
        self.rounds += 1
        server_ms = self.lasts // 1_000 + min(GRACE_MS, self.shortest_us // 2_000)
        for start in range(0, len(said), MOST_ENTRIES):
            part = said[start : start + MOST_ENTRIES]
            keys = [self.key(f"call:{instance}:{self.life}")]
            for lease in part:
                keys.append(self.key(lease.limit.key))
                if isinstance(lease, LeasedMoney):
                    keys.append(self.key(f"{lease.limit.key}:leases"))
            self.seq += 1
            entries = orjson.dumps(asks[start : start + MOST_ENTRIES]).decode()
            self.pending.append(LeaseCall(keys, [clock, instance, self.seq, server_ms, entries], part, now))
        return self.pending[0]

    def answered(self, answer: Sequence[object], now: int) -> dict[str, int]:
        """Take in the answer to the first unanswered call; gives what debt ceilings cut off, in ticks by limit key."""
        call = self.pending.pop(0)
        if not self.pending:
            self.sent, self.since, self.until = call.sent, call.sent - CLOCK_SLACK_US, call.sent + self.lasts
            self.done = self.rounds
        cut: dict[str, int] = {}
        if answer[0] != 1:
            return cut  # done before; its grants are forfeited
        entries = answer[1]
        assert isinstance(entries, list)
        for lease, (grant, level, more) in zip(call.leases, (_three(e) for e in entries), strict=True):
            lease.granted(grant, level, now, more)
            if more and not isinstance(lease, LeasedMoney):
                cut[lease.limit.key] = more
        return cut


def _three(entry: Sequence[int]) -> tuple[int, int, int]:
    return entry[0], entry[1], entry[2] if len(entry) > 2 else 0
