"""Several limits as one: all take or none does.

A `Group` is what one principal is subject to, compiled once: for each dimension the state objects themselves, so
that a request costs no look-ups. `take` runs through them once, writing as it goes; the first that refuses makes
it undo what it wrote. Undoing is exact because the sums are linear in integers, and nobody can look in between
because nothing here awaits. A shadow limit stands apart: it is charged what was admitted and refuses nothing.

A dimension of which a request takes nothing is not looked at: an embedding has no output, so an output limit in
debt does not stop it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ratelimit.bucket import Bucket
from ratelimit.budget import Budget
from ratelimit.concurrency import Slots
from ratelimit.limit import Amounts, Dimension, Limit, Reason, Refusal, Standing

Member = Bucket | Budget | Slots
Holds = tuple[tuple[int, int], ...]
"""Per money limit of a group, in order: (micro-USD held, the period it was held in)."""


def new_member(limit: Limit) -> Member:
    """Fresh state for one limit: full, nothing spent, no slot taken."""
    match limit.dimension:
        case Dimension.CONCURRENCY:
            return Slots(limit)
        case Dimension.MONEY_DAY | Dimension.MONEY_MONTH:
            return Budget(limit)
        case _:
            return Bucket(limit)


class Group:
    """The limits of one principal with their states. Raises ValueError when two of them count the same thing."""

    __slots__ = ("input", "limits", "live", "members", "money", "open", "output", "requests", "shadow", "slots",
                 "strict", "total")  # fmt: skip

    def __init__(self, limits: Sequence[Limit], members: Sequence[Member]) -> None:
        self.limits = tuple(limits)
        if len({limit.key for limit in self.limits}) < len(self.limits):
            raise ValueError("two limits of one group count the same thing")
        self.open = 0  # reservations of this group that are not settled
        self.link(members)

    def link(self, members: Sequence[Member]) -> None:
        """Point the group at states, one per limit in order."""
        self.members = tuple(members)
        self.live = True  # False once its owner has let the states go; they must be linked anew before use
        enforced = [m for limit, m in zip(self.limits, self.members, strict=True) if not limit.shadow]
        shadowed = [(limit, m) for limit, m in zip(self.limits, self.members, strict=True) if limit.shadow]
        self.requests = _rates(enforced, Dimension.REQUESTS)
        self.input = _rates(enforced, Dimension.INPUT_TOKENS)
        self.output = _rates(enforced, Dimension.OUTPUT_TOKENS)
        self.total = _rates(enforced, Dimension.TOTAL_TOKENS)
        self.slots = tuple(m for m in enforced if isinstance(m, Slots))
        self.money = tuple(m for m in enforced if isinstance(m, Budget))
        self.strict = any(limit.strict for limit in self.limits)
        self.shadow = _shadow([limit for limit, _ in shadowed], [m for _, m in shadowed])

    def standings(self, now: int) -> tuple[Standing, ...]:
        """How every limit stands now, shadow limits left out, in the order they were given."""
        return tuple(standing(m, now) for m in self.members if not m.limit.shadow)


def _rates(members: Sequence[Member], dimension: Dimension) -> tuple[Bucket, ...]:
    return tuple(m for m in members if isinstance(m, Bucket) and m.limit.dimension is dimension)


def _shadow(limits: Sequence[Limit], members: Sequence[Member]) -> Group | None:
    """The shadow limits as a group of their own, every member in its ordinary place."""
    if not limits:
        return None
    shadow = Group((), ())
    shadow.requests = _rates(members, Dimension.REQUESTS)
    shadow.input = _rates(members, Dimension.INPUT_TOKENS)
    shadow.output = _rates(members, Dimension.OUTPUT_TOKENS)
    shadow.total = _rates(members, Dimension.TOTAL_TOKENS)
    shadow.slots = tuple(m for m in members if isinstance(m, Slots))
    shadow.money = tuple(m for m in members if isinstance(m, Budget))
    shadow.strict = any(limit.strict for limit in limits)
    return shadow


def take(group: Group, amounts: Amounts, now: int) -> Holds | None:
    """Take the amounts from every limit, or from none (None). The caller has checked that the group is live."""
    n_requests, n_input, n_output, n_total, micro_usd, worst = amounts
    for buckets, units in (
        (group.requests, n_requests),
        (group.input, n_input),
        (group.output, n_output),
        (group.total, n_total),
    ):
        if units:
            for bucket in buckets:
                debt = bucket.debt
                if debt:
                    elapsed = now - bucket.at
                    if elapsed > 0:
                        debt -= elapsed * bucket.leak
                        if debt < 0:
                            debt = 0
                debt += units * bucket.unit
                if debt > bucket.cap:
                    _undo(group, amounts, bucket)
                    return None
                bucket.debt = debt
                bucket.at = now
    for slots in group.slots:
        if slots.used >= slots.amount:
            _undo(group, amounts, slots)
            return None
        slots.used += 1
    if not group.money:
        return ()
    if worst < micro_usd:
        worst = micro_usd
    holds: list[tuple[int, int]] = []
    for budget in group.money:
        hold = budget.hold_for(micro_usd, worst, now) if worst else 0
        if hold < 0:
            for earlier, (held, _) in zip(group.money, holds, strict=False):
                earlier.held -= held
            _undo(group, amounts, None)
            return None
        budget.held += hold
        holds.append((hold, budget.period))
    return tuple(holds)


def _undo(group: Group, amounts: Amounts, stop: Member | None) -> None:
    """Take back what `take` wrote before it came to `stop` (None: all rates and slots)."""
    for buckets, units in zip((group.requests, group.input, group.output, group.total), amounts, strict=False):
        if units:
            for bucket in buckets:
                if bucket is stop:
                    return
                bucket.debt -= units * bucket.unit
    for slots in group.slots:
        if slots is stop:
            return
        slots.used -= 1


def charge(group: Group, amounts: Amounts, now: int, *, counting: bool = True) -> Holds:
    """Take the amounts whether or not they are there; counts, if asked, who would not have let them pass."""
    micro_usd, worst = amounts.micro_usd, max(amounts.micro_usd, amounts.worst_micro_usd)
    for buckets, units in zip((group.requests, group.input, group.output, group.total), amounts, strict=False):
        if units:
            for bucket in buckets:
                if counting and bucket.wait_us(units, now) != 0:
                    bucket.refused += 1
                bucket.charge(units, now)
    for slots in group.slots:
        slots.refused += counting and slots.used >= slots.amount
        slots.used += 1
    holds: list[tuple[int, int]] = []
    for budget in group.money:
        hold = budget.hold_for(micro_usd, worst, now) if worst else 0
        if hold < 0:
            budget.refused += counting
            hold = micro_usd
        budget.held += hold
        holds.append((hold, budget.period))
    return tuple(holds)


def raise_to(group: Group, reserved: Amounts, so_far: Amounts, holds: Holds, now: int) -> tuple[Amounts, Holds]:
    """Charge by how much a running request has passed what it reserved. Gives what is now reserved."""
    for buckets, had, has in zip((group.requests, group.input, group.output, group.total), reserved, so_far,
                                 strict=False):  # fmt: skip
        if has > had:
            for bucket in buckets:
                bucket.charge(has - had, now)
    raised = Amounts(*map(max, reserved, so_far))
    spent = so_far.micro_usd
    new_holds = []
    for budget, (hold, period) in zip(group.money, holds, strict=True):
        more = spent - hold
        if more > 0:
            if period == budget.period:
                budget.held += more
            hold = spent
        new_holds.append((hold, period))
    return raised, tuple(new_holds)


def price_hold(first: int, old: int, new: int, worst: int, streamed: int) -> int:
    """What is held once a target is chosen: its estimate `new`, or its worst case if `first` was one.

    `first` is what reserve held at the estimate `old`. A hold never passes that, so the price of a later attempt may
    raise it again but not above what was admitted; it never falls below what has been `streamed`.
    """
    return max(streamed, min(first, worst if first > old else new))


def reprice(group: Group, first: Holds, holds: Holds, old: int, new: int, worst: int, streamed: int) -> Holds:
    """Hold the price of the chosen target in every budget; see `price_hold`."""
    repriced = []
    for budget, (most, _), (hold, period) in zip(group.money, first, holds, strict=True):
        target = price_hold(most, old, new, worst, streamed)
        if period == budget.period:
            budget.held += target - hold
        repriced.append((target, period))
    return tuple(repriced)


def settle(group: Group, reserved: Amounts, actual: Amounts, holds: Holds, since: int, now: int) -> None:
    """Replace what was reserved at `since` by what was used, and free the slots."""
    for buckets, had, has in zip((group.requests, group.input, group.output, group.total), reserved, actual,
                                 strict=False):  # fmt: skip
        if has < had:
            back = had - has
            if not group.strict:
                for bucket in buckets:
                    debt = bucket.debt - back * bucket.unit
                    bucket.debt = debt if debt > 0 else 0  # noqa: FURB136 - a call costs more than the rest of this line
            else:
                for bucket in buckets:
                    if bucket.limit.strict:
                        bucket.refund_unearned(back, since, now)
                    else:
                        bucket.refund(back)
        elif has > had:
            for bucket in buckets:
                bucket.charge(has - had, now)
    for slots in group.slots:
        slots.used -= 1
    if holds:
        paid = actual.micro_usd
        for budget, (hold, period) in zip(group.money, holds, strict=True):
            budget.settle(hold, paid, period)


def units_of(dimension: Dimension, amounts: Amounts) -> int:
    """The amount a limit of this dimension reads; money in its worst case."""
    match dimension:
        case Dimension.REQUESTS:
            return amounts.requests
        case Dimension.INPUT_TOKENS:
            return amounts.input_tokens
        case Dimension.OUTPUT_TOKENS:
            return amounts.output_tokens
        case Dimension.TOTAL_TOKENS:
            return amounts.total_tokens
        case Dimension.CONCURRENCY:
            return 1
        case Dimension.MONEY_DAY | Dimension.MONEY_MONTH:
            return max(amounts.micro_usd, amounts.worst_micro_usd)


def explain(group: Group, amounts: Amounts, now: int) -> Refusal | None:
    """Which limit refuses longest, and until when; None if none does. Changes nothing."""
    worst: Refusal | None = None
    for member in group.members:
        if member.limit.shadow:
            continue
        refusal = _refusal(member, amounts, now, group)
        if refusal is not None and (worst is None or _longer(refusal, worst)):
            worst = refusal
    return worst


def _longer(one: Refusal, other: Refusal) -> bool:
    if other.wait_us is None:
        return False
    return one.wait_us is None or one.wait_us > other.wait_us


def _refusal(member: Member, amounts: Amounts, now: int, group: Group) -> Refusal | None:
    units = units_of(member.limit.dimension, amounts)
    if units == 0:
        return None
    reason = Reason.EXCEEDED
    if isinstance(member, Bucket):
        wait, left = member.wait_us(units, now), member.remaining(now)
    elif isinstance(member, Slots):
        wait, left, reason = member.wait_us(), member.remaining(), Reason.CONCURRENCY
    else:
        wait, left = member.wait_us(units, now), member.free(now)
        if wait and units > member.amount - member.spent:
            reason = Reason.BUDGET_EXHAUSTED
    if wait == 0:
        return None
    return Refusal(member.limit, units, left, wait, Reason.NEVER_FITS if wait is None else reason, group)


def standing(member: Member, now: int) -> Standing:
    """How one limit stands now."""
    if isinstance(member, Bucket):
        return Standing(member.limit, member.remaining(now), member.reset_us(now))
    if isinstance(member, Slots):
        return Standing(member.limit, member.remaining(), 0)
    left = member.free(now)
    return Standing(member.limit, left, member.ends - now if left < member.amount else 0)


def forgettable(member: Member, now: int) -> bool:
    """Whether fresh state would behave the same, so that this one may be dropped."""
    return member.forgettable() if isinstance(member, Slots) else member.forgettable(now)
