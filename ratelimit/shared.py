"""A principal's limits as the shared store knows them: keys, descriptions, costs, and the lease on each.

Every limit of one organisation is kept under one hash tag, `{o:acme}`, so that one script decides them in one step
on one node of a cluster. A model-wide ceiling spans organisations: it has a tag of its own, `{m:chat-large}`, and is
spent by lease alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from ratelimit.group import Group, Holds, Member, charge, settle, units_of
from ratelimit.lease import Leased, LeasedMoney, LeasedRate, LeasedSlots
from ratelimit.limit import MICROSECONDS, Amounts, Dimension, Level, Limit, Mode, Reason, Refusal, Standing
from ratelimit.reservation import Decider, Reservation
from ratelimit.tag import Tag


def hash_tag(limit: Limit) -> str:
    """The part of a limit's key that decides on which node of a cluster it lives."""
    tag = f"m:{limit.subject}" if limit.level is Level.MODEL else f"o:{limit.organisation}"
    return tag.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")


def describe(lease: Leased) -> list[object]:
    """A limit as the scripts read it; see the head of common.lua."""
    limit = lease.limit
    shadow, strict = int(limit.shadow), int(limit.strict)
    if isinstance(lease, LeasedRate):
        whole = lease.whole
        return ["r", limit.key, whole.unit, whole.leak, whole.cap, whole.ceiling, shadow, strict]
    if isinstance(lease, LeasedMoney):
        kind = "m" if limit.dimension is Dimension.MONEY_MONTH else "d"
        return [kind, limit.key, limit.amount, lease.whole.near, int(limit.exact), 0, shadow, strict]
    return ["c", limit.key, limit.amount, 0, 0, 0, shadow, strict]


def over_leases(leases: Sequence[Leased]) -> Group:
    """A group in which every lease is enforced, shadow or not: the store knows which limits only count."""
    group = Group((), ())
    group.members = tuple(leases)
    rates = [lease for lease in leases if isinstance(lease, LeasedRate)]
    group.requests = tuple(r for r in rates if r.limit.dimension is Dimension.REQUESTS)
    group.input = tuple(r for r in rates if r.limit.dimension is Dimension.INPUT_TOKENS)
    group.output = tuple(r for r in rates if r.limit.dimension is Dimension.OUTPUT_TOKENS)
    group.total = tuple(r for r in rates if r.limit.dimension is Dimension.TOTAL_TOKENS)
    group.slots = tuple(lease for lease in leases if isinstance(lease, LeasedSlots))
    group.money = tuple(lease for lease in leases if isinstance(lease, LeasedMoney))
    return group


class SharedGroup(Group):
    """The limits of one principal over the leases this instance has on them.

    As a `Group` its members are the leases; where one is short, the store is asked. Raises ValueError when limits of
    several organisations are mixed, or two count the same thing.
    """

    __slots__ = ("away", "away_epoch", "ceiling", "closed", "description", "exact", "keys", "leases", "opens", "own",
                 "own_money", "own_tag", "revision", "tags", "used")  # fmt: skip

    def __init__(self, limits: Sequence[Limit], leases: Sequence[Leased], tags: Mapping[str, Tag]) -> None:
        names = {hash_tag(limit) for limit in limits if limit.level is not Level.MODEL}
        if len(names) > 1:
            raise ValueError(f"limits of several organisations in one group: {', '.join(sorted(names))}")
        self.used = 0  # when it was last used
        self.bind(leases, tags)
        super().__init__(limits, leases)

    def revive(self, leases: Sequence[Leased], tags: Mapping[str, Tag]) -> None:
        """It had been forgotten: bind it to the leases there are now."""
        self.bind(leases, tags)
        self.link(leases)

    def bind(self, leases: Sequence[Leased], tags: Mapping[str, Tag]) -> None:
        """Point the group at leases, one per limit in order."""
        self.leases = tuple(leases)
        self.own = tuple(lease for lease in leases if lease.limit.level is not Level.MODEL)
        self.own_money = tuple(lease for lease in self.own if isinstance(lease, LeasedMoney))
        ceiling = [lease for lease in leases if lease.limit.level is Level.MODEL]
        self.ceiling = over_leases(ceiling) if ceiling else None
        names = [hash_tag(lease.limit) for lease in leases]
        self.own_tag = tags[hash_tag(self.own[0].limit)] if self.own else None
        self.tags = tuple({name: tags[name] for name in names}.values())
        self.keys = [self.own_tag.key(lease.limit.key) for lease in self.own] if self.own_tag else []
        self.away: Group | None = None  # what is enforced while the store is away
        self.away_epoch = -1
        self.revision = -1  # the revision of all limits' figures that the description was written under
        self.refresh(0)

    def link(self, members: Sequence[Member]) -> None:
        """All members are enforced here."""
        plain = over_leases(self.leases)
        self.members, self.live = plain.members, True
        self.requests, self.input, self.output, self.total = plain.requests, plain.input, plain.output, plain.total
        self.slots, self.money = plain.slots, plain.money
        self.shadow, self.strict = None, False

    def refresh(self, revision: int) -> None:
        """Follow figures that may have changed under another principal's name."""
        if revision != self.revision:
            self.revision = revision
            self.description = orjson.dumps([describe(lease) for lease in self.own]).decode()
            self.exact = any(lease.limit.exact for lease in self.own)
            enforced = [lease.limit for lease in self.leases if not lease.limit.shadow]
            self.closed = any(limit.mode is Mode.CLOSED for limit in enforced)
            self.opens = any(limit.mode is Mode.OPEN for limit in enforced)
            self.away_epoch = -1

    def give_back(self, amounts: Amounts, ceiling: Holds | None, now: int) -> None:
        """The model-wide ceilings were taken, but the request does not go on."""
        if self.ceiling is not None and ceiling is not None:
            settle(self.ceiling, amounts, Amounts(), ceiling, now, now)

    def owe_ceiling(self, actual: Amounts, now: int) -> None:
        """A request that ended was let through without its ceilings' leases: they owe it to the store."""
        if self.ceiling is not None:
            settle(self.ceiling, actual, actual, charge(self.ceiling, actual, now, counting=False), now, now)

    def standings(self, now: int) -> tuple[Standing, ...]:
        return tuple(lease.standing(now) for lease in self.leases if not lease.limit.shadow)

    def costs(self, amounts: Amounts) -> list[object]:
        """What the limits of the organisation are asked for: ticks, a slot, or micro-USD [estimate, worst case]."""
        worst = max(amounts.micro_usd, amounts.worst_micro_usd)
        return [
            _ticks(lease, amounts)
            if isinstance(lease, LeasedRate)
            else [amounts.micro_usd, worst]
            if isinstance(lease, LeasedMoney)
            else 1
            for lease in self.own
        ]

    def charges(self, amounts: Amounts, holds: Holds | None = None) -> list[int]:
        """What stays charged to the organisation's limits: `amounts`, and for money the holds if they are given."""
        charged = []
        budgets = iter(holds or ())
        for lease in self.own:
            if isinstance(lease, LeasedRate):
                charged.append(_ticks(lease, amounts))
            elif isinstance(lease, LeasedMoney):
                charged.append(amounts.micro_usd if holds is None else next(budgets)[0])
            else:
                charged.append(1)
        return charged

    def never_fits(self, amounts: Amounts) -> Refusal | None:
        """The limit this request can never pass, found without asking anybody."""
        for lease in self.leases:
            limit = lease.limit
            units = units_of(limit.dimension, amounts)
            most = limit.burst if isinstance(lease, LeasedRate) else limit.amount
            if units > most and not limit.shadow:
                left = lease.standing(lease.whole.at if isinstance(lease, LeasedRate) else 0).remaining
                return Refusal(limit, units, left, None, Reason.NEVER_FITS, self)
        return None


def _ticks(lease: LeasedRate, amounts: Amounts) -> int:
    """Ticks of the whole limit; beyond twice its ceiling nothing would change any more."""
    return min(units_of(lease.limit.dimension, amounts) * lease.unit, 2 * lease.whole.ceiling)


ABANDONED_AFTER_US = 3_600 * MICROSECONDS
"""A reservation of this process without settle or progress for an hour is settled as abandoned."""


class SharedReservation(Reservation):
    """A reservation decided by lease, by the store, or without it."""

    __slots__ = ("away", "away_epoch", "away_holds", "ceiling_holds", "levels", "shared", "store_id", "told")

    def __init__(
        self, request_id: str, group: SharedGroup, reserved: Amounts, holds: Holds, now: int, by: Decider, store_id: str
    ) -> None:
        super().__init__(request_id, group, reserved, holds, now, now + ABANDONED_AFTER_US, by)
        self.shared = group
        self.store_id = store_id
        self.told = now  # when the store was last meant to hear of it
        self.ceiling_holds: Holds = ()  # of model-wide ceilings, where the rest was decided by the store
        self.levels: tuple[Standing, ...] | None = None  # as the store's answer gave them
        self.away: Group | None = None  # where its share was taken while the store was away
        self.away_holds: Holds = ()
        self.away_epoch = -1

    def standings(self, now: int) -> tuple[Standing, ...]:
        return self.levels if self.levels is not None else self.shared.standings(now)

    def charged(self) -> list[int]:
        """What the store should have charged for it by now."""
        return self.shared.charges(self.reserved, self.holds)

    def if_abandoned(self) -> list[int]:
        """What the store settles it with if it is never heard of again: output as far as it was streamed."""
        if self.streamed is None:
            return abandoned(self.shared, self.reserved, self.holds)
        return self.shared.charges(self.streamed)


def abandoned(group: SharedGroup, reserved: Amounts, holds: Holds | None = None) -> list[int]:
    """What is charged for a request that was sent and of which nothing more is known: its input, and the money held."""
    return group.charges(reserved._replace(output_tokens=0, total_tokens=reserved.input_tokens), holds)
