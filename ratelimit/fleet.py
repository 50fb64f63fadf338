"""What one instance of a fleet knows of the shared limits, and what it decides from that alone.

Its leases by hash tag, the groups compiled over them, the open reservations, the outbox, and the agreement for an
outage. Nothing here waits: the limiter asks the store and hands the answer in; the upkeep does what time makes due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ratelimit.away import AwayLimits, refuse
from ratelimit.forget import Forgetting
from ratelimit.group import Holds, charge, take, units_of
from ratelimit.lease import Leased, LeasedMoney, LeasedRate, LeasedSlots, new_leased
from ratelimit.limit import MICROSECONDS, Amounts, Limit, Mode, Reason, Refusal
from ratelimit.outbox import Outbox
from ratelimit.reservation import Decider
from ratelimit.shared import SharedGroup, SharedReservation, hash_tag
from ratelimit.tag import Tag

IDLE_US = 60 * MICROSECONDS
"""A group not used for this long, with nothing open and nothing leased, is forgotten."""

CLOSED_KEPT = 10_000
LOOKS_DIVISOR = 30
"""One part in this many of all groups is looked at in a refresh."""


@dataclass(frozen=True, slots=True)
class SharedSnapshot:
    """Counters since the start, and what is held now."""

    open: int
    groups: int
    leases: int
    admitted: dict[Decider, int]
    settled: int
    refused: dict[Reason, int]
    swept: int
    records_lost: int  # reservations the store had no record of when it was told of them
    abandoned: int  # of this instance, settled because nobody had moved them for an hour
    unconfirmed: int  # decisions on exact limits that too few replicas confirmed in time
    shadow_refused: dict[str, int]  # by limit key
    cut_units: dict[str, int]  # by limit key: units beyond the debt ceiling, never charged


class Fleet:
    """The state of one instance."""

    def __init__(self, instance: str, lease_us: int, *, leasing: bool) -> None:
        self.instance = instance
        self.instances = 1  # alive, itself among them, as last counted
        self.tags: dict[str, Tag] = {}
        self.groups: dict[tuple[Limit, ...], SharedGroup] = {}
        self.open: dict[str, SharedReservation] = {}  # exactly the reservations that are not settled
        self.urgent: set[Tag] = set()  # whose leases something was wanted of since the last lease calls
        self.outbox = Outbox(instance)
        self.agreed = AwayLimits()
        self.away = False  # from the first call that failed to the next that is answered
        self.revision = 0  # counts changes of limits' figures
        self._closed: dict[str, None] = {}  # ids lately settled without having been let through
        self._ids = 0
        self.admitted: Counter[Decider] = Counter()
        self.refused: Counter[Reason] = Counter()
        self.counts: Counter[str] = Counter()
        self.shadow_refused: Counter[str] = Counter()
        self.cut: Counter[str] = Counter()
        self._forgetting: Forgetting[SharedGroup] = Forgetting()
        self._tags_made = 0
        self._lease_us = lease_us
        self._leasing = leasing

    def group(self, limits: Sequence[Limit]) -> SharedGroup:
        """The compiled form of a principal's limits, with a lease, perhaps empty, on each. See RedisLimiter.group."""
        wanted = tuple(limits)
        leases = self._leases(wanted)
        group = self.groups.get(wanted)
        if group is None:
            group = self.groups[wanted] = SharedGroup(wanted, leases, self.tags)
            self._forgetting.add(group)
        group.refresh(self.revision)
        return group

    def current(self, group: SharedGroup) -> SharedGroup:
        """A group that had been forgotten, or whose limits got other figures under another name, ready for use."""
        if not group.live:
            twin = self.groups.setdefault(group.limits, group)
            if twin is not group:
                group = twin
            else:
                group.revive(self._leases(group.limits), self.tags)
                self._forgetting.add(group)
        group.refresh(self.revision)
        return group

    def _leases(self, limits: Sequence[Limit]) -> list[Leased]:
        leases: list[Leased] = []
        for limit in limits:
            name = hash_tag(limit)
            tag = self.tags.get(name)
            if tag is None:
                self._tags_made += 1
                tag = self.tags[name] = Tag(name, self._lease_us, self._tags_made)
            lease = tag.leases.get(limit.key)
            if lease is None:
                lease = tag.leases[limit.key] = new_leased(limit)
            elif lease.limit != limit:
                lease.reshape(limit)
                self.revision += 1
            leases.append(lease)
        return leases

    def opened(self, reservation: SharedReservation) -> None:
        """Keep a reservation until it is settled."""
        self.open[reservation.request_id] = reservation
        reservation.shared.open += 1
        self.admitted[reservation.by] += 1

    def store_id(self, request_id: str) -> str:
        """The id a request has in the store: its own, unless that was settled there before."""
        return self.another_id(request_id) if request_id in self._closed else request_id

    def another_id(self, request_id: str) -> str:
        self._ids += 1
        return f"{request_id}~{self.instance}~{self._ids}"

    def close(self, group: SharedGroup, store_id: str) -> None:
        """Settle an id that may have been reserved, with nothing charged. It is not used again."""
        self.outbox.close(group, store_id, group.charges(Amounts()))
        self._closed[store_id] = None
        if len(self._closed) > CLOSED_KEPT:
            del self._closed[next(iter(self._closed))]

    def by_lease(self, request_id: str, group: SharedGroup, amounts: Amounts, now: int) -> SharedReservation | None:
        """Take everything from leases in hand, or nothing."""
        for tag in group.tags:
            if not tag.since <= now < tag.until:
                return None
        holds = take(group, amounts, now)
        if holds is None:
            return None
        for tag in group.tags:
            tag.used = now
            tag.takes += 1
            tag.active[group] = None
        return SharedReservation(request_id, group, amounts, holds, now, Decider.LEASE, request_id)

    def look_ahead(self, group: SharedGroup) -> None:
        """Every eighth time a group's leases are spent: want more of those that are half gone."""
        for tag in group.tags:
            if tag.takes & 7:
                continue
            for lease in group.leases:
                if lease.limit.key in tag.leases and lease.low(self.instances):
                    tag.wants.add(lease.limit.key)
                    self.urgent.add(tag)

    def by_ceiling(self, group: SharedGroup, amounts: Amounts, now: int) -> Holds | None:
        """Take the model-wide ceilings from leases in hand; None if they are short."""
        assert group.ceiling is not None
        tags = self._ceiling_tags(group, amounts)
        if not all(tag.valid(now) for tag in tags):
            return None
        holds = take(group.ceiling, amounts, now)
        if holds is not None:
            for tag in tags:
                tag.used = now
                tag.active[group] = None
        return holds

    def _ceiling_tags(self, group: SharedGroup, amounts: Amounts) -> list[Tag]:
        """The tags whose model-wide ceilings a request takes something from."""
        assert group.ceiling is not None
        asked = {m.limit.key for m in group.ceiling.members if units_of(m.limit.dimension, amounts)}
        return [tag for tag in group.tags if tag is not group.own_tag and not asked.isdisjoint(tag.leases)]

    def need_ceiling(self, group: SharedGroup, amounts: Amounts) -> list[tuple[Tag, int]]:
        """Ask for what a waiting request cannot do without. Gives, per tag, the round of calls that will have asked."""
        assert group.ceiling is not None
        rounds = []
        for tag in self._ceiling_tags(group, amounts):
            for lease in group.ceiling.members:
                key = lease.limit.key
                units = units_of(lease.limit.dimension, amounts)
                if key in tag.leases and units:
                    tag.needs[key] = tag.needs.get(key, 0) + units
                    tag.wants.add(key)
            rounds.append((tag, tag.rounds + 1))
        return rounds

    def give_up_ceiling(self, tag: Tag, group: SharedGroup, amounts: Amounts) -> None:
        """The request waits no longer; what it needed may still be granted, and is given back later."""
        assert group.ceiling is not None
        for lease in group.ceiling.members:
            tag.withdraw(lease.limit.key, units_of(lease.limit.dimension, amounts))

    def refuse_ceiling(self, group: SharedGroup, amounts: Amounts, now: int) -> Refusal | Holds:
        """Why the ceilings do not let a request pass; if only shadow limits are short, they are charged and it does."""
        assert group.ceiling is not None
        asked = [(lease, units_of(lease.limit.dimension, amounts)) for lease in group.leases]
        short = [(x, units) for x, units in asked if units and x in group.ceiling.members and x.short(units)]
        refusals = [x.refusal(units, now, group) for x, units in short if not x.limit.shadow]
        if not refusals:
            self.shadow_refused.update(x.limit.key for x, _ in short)
            return charge(group.ceiling, amounts, now, counting=False)
        return max(refusals, key=lambda refusal: refusal.wait_us or 0)

    def by_answer(
        self, request_id: str, store_id: str, group: SharedGroup, amounts: Amounts, answer: Any, now: int
    ) -> SharedReservation | Refusal:
        """The reserve script's answer as a verdict. Also learns from it where the limits stand."""
        code, which, wait, levels, shadows = answer
        holds = []
        for lease, level in zip(group.own, levels, strict=True):
            if isinstance(lease, LeasedMoney):
                lease.told(level[0], now)
                holds.append((level[1], level[2]))
            else:
                lease.told(level, now)
        for index in shadows:
            self.shadow_refused[group.own[index - 1].limit.key] += 1
        if code >= 2:
            return self._refused(group.own[which - 1], group, amounts, int(wait), exhausted=code == 3, now=now)
        if self._leasing and group.own_tag is not None and not group.exact:
            far = [x.far(self.instances, units_of(x.limit.dimension, amounts), now) for x in group.own]
            if all(far):
                group.own_tag.wants.update(lease.limit.key for lease in group.own)
                self.urgent.add(group.own_tag)
        made = SharedReservation(request_id, group, amounts, tuple(holds), now, Decider.STORE, store_id)
        made.levels = group.standings(now)
        return made

    def _refused(
        self,
        lease: LeasedRate | LeasedSlots | LeasedMoney,
        group: SharedGroup,
        amounts: Amounts,
        wait: int,
        *,
        exhausted: bool,
        now: int,
    ) -> Refusal:
        limit, reason = lease.limit, Reason.EXCEEDED
        if isinstance(lease, LeasedMoney):
            reason = Reason.BUDGET_EXHAUSTED if exhausted else reason
            if group.own_tag is not None and now - group.own_tag.looked_at > self._lease_us:
                # Money may be held by the lease of an instance that is no more; a lease call drops such.
                group.own_tag.looked_at = now
                group.own_tag.gives.add(limit.key)
                self.urgent.add(group.own_tag)
        elif isinstance(lease, LeasedSlots):
            reason = Reason.CONCURRENCY
        if group.own_tag is not None and lease.spare():
            group.own_tag.gives.add(limit.key)
            self.urgent.add(group.own_tag)
        left = lease.whole.remaining(now) if isinstance(lease, LeasedRate) else lease.standing(now).remaining
        return Refusal(limit, units_of(limit.dimension, amounts), left, wait, reason, group)

    def by_agreement(
        self, request_id: str, store_id: str, group: SharedGroup, amounts: Amounts, now: int, *, sent: bool
    ) -> SharedReservation | Refusal:
        """The store is away: every limit follows its own mode. `sent`: the store may have taken it all the same."""
        if not self.away:
            self.away = True
            self.agreed.begin(self.instances, [r.shared.limits for r in self.open.values()])
        limits = [lease.limit for lease in group.leases]
        if group.away is None or group.away_epoch != self.agreed.epoch:
            group.away = self.agreed.group(limits, group.leases, now)
            group.away_epoch = self.agreed.epoch
        holds = None if group.closed else take(group.away, amounts, now)
        if holds is None:
            if sent:
                self.close(group, store_id)
            return refuse(limits, group.away, amounts, now)
        by = Decider.LOCAL if group.away.members or not group.opens else Decider.OPEN
        held = tuple((amounts.micro_usd, 0) for _ in group.own_money)
        made = SharedReservation(request_id, group, amounts, held, now, by, store_id)
        made.told = 1 if sent else 0
        made.away, made.away_holds, made.away_epoch = group.away, holds, group.away_epoch
        return made

    def back(self) -> None:
        """The store answers again."""
        self.away = False

    def unconfirmed(self, group: SharedGroup) -> Limit | None:
        """Too few replicas confirmed a decision: the exact limit that would rather refuse, if there is one."""
        self.counts["unconfirmed"] += 1
        exact = (lease.limit for lease in group.own if lease.limit.exact)
        return next((limit for limit in exact if limit.mode is Mode.CLOSED), None)

    def tidy(self, now: int, *, everything: bool = False) -> None:
        """Forget a part of the groups nobody uses, with the leases and tags nobody refers to any more."""
        looks = len(self._forgetting) // LOOKS_DIVISOR + 1
        count = len(self._forgetting) if everything else looks
        for group, freed in self._forgetting.look(count, lambda idle: self._needless(idle, now)):
            if self.groups.get(group.limits) is group:
                del self.groups[group.limits]
            for tag in group.tags:
                for key in freed:
                    tag.leases.pop(key, None)
                if not tag.leases and self.tags.get(tag.name) is tag:
                    del self.tags[tag.name]
        if not self.away:
            self.agreed.tidy(now)

    @staticmethod
    def _needless(group: SharedGroup, now: int) -> bool:
        if now - group.used <= IDLE_US or any(tag.pending for tag in group.tags):
            return False
        return all(lease.forgettable(now) for lease in group.leases)

    def snapshot(self) -> SharedSnapshot:
        return SharedSnapshot(
            open=len(self.open),
            groups=len(self.groups),
            leases=sum(len(tag.leases) for tag in self.tags.values()),
            admitted=dict(self.admitted),
            settled=self.counts["settled"],
            refused=dict(self.refused),
            swept=self.counts["swept"],
            records_lost=self.counts["records_lost"],
            abandoned=self.counts["abandoned"],
            unconfirmed=self.counts["unconfirmed"],
            shadow_refused=dict(self.shadow_refused),
            cut_units=dict(self.cut),
        )
