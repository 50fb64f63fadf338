"""Tiers and targets of a model: who may serve this request, in which order, and why the others may not.

A route is an ordered list of tiers; a tier is a set of interchangeable targets chosen by weight; a later tier serves
when an earlier one cannot. `candidates` turns a route and the needs of one request into an ordered plan. Every target
that does not stand in the plan is listed beside it with a reason from a closed list, so the choice can be explained.

Order within a tier is a weighted draw without replacement from *one* uniform number: the number selects an interval,
its place inside that interval is uniform again and serves the next draw. The caller chooses the number: a random one
spreads requests, a hash of a session keeps the session on its target while weights and shares stay the same.

A hindrance is hard (the target is skipped) or *soft* (it goes behind everybody else): a target that is slow, or that is
being given its traffic back little by little, is still better than no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

UNCERTAINTY = 0.75
"""An estimated prompt length may be a third too high; a target that is too small by less is tried last, not skipped."""


class Feature(StrEnum):
    """What a request may need and a target may lack."""

    TOOLS = "tools"
    IMAGES = "images"
    JSON_SCHEMA = "json_schema"
    AUDIO = "audio"
    REASONING = "reasoning"
    LOGPROBS = "logprobs"
    EMBEDDINGS = "embeddings"


class SkipReason(StrEnum):
    """Why a target does not serve a request: the closed list that `weighbridge explain` prints."""

    CONTEXT_TOO_SMALL = "context_too_small"
    FEATURE_MISSING = "feature_missing"
    POOL_FORBIDDEN = "pool_forbidden"
    REGION_FORBIDDEN = "region_forbidden"
    SPILL_FORBIDDEN = "spill_forbidden"
    TOO_DEAR = "too_dear"
    NO_WEIGHT = "no_weight"
    ALREADY_FAILED = "already_failed"
    BREAKER_OPEN = "breaker_open"
    PROBE_LIMIT = "probe_limit"
    SLOW_START = "slow_start"
    JUST_FAILED = "just_failed"
    COOLING_DOWN = "cooling_down"
    MISCONFIGURED = "misconfigured"
    NO_REPLICA = "no_replica"
    NO_SPARE_CAPACITY = "no_spare_capacity"
    SHED_FIRST = "shed_first"
    DRAINING = "draining"
    NOT_ISOLATED = "not_isolated"


class Skip(NamedTuple):
    """A hindrance. `until` is when it may end (monotonic seconds), None when waiting does not help or is unknown."""

    reason: SkipReason
    detail: str = ""
    until: float | None = None
    soft: bool = False


@dataclass(frozen=True, slots=True)
class FailureDomain:
    """What fails together: targets that share a vendor, a region or a model family share its outages."""

    vendor: str
    region: str = ""
    family: str = ""

    def shared_with(self, other: FailureDomain) -> tuple[str, ...]:
        """The names of the parts both have in common; empty parts are unknown and shared with nobody."""
        return tuple(
            name for name in ("vendor", "region", "family") if getattr(self, name) == getattr(other, name) != ""
        )


@dataclass(frozen=True, slots=True)
class Target:
    """One way to serve a model: a pool and the name the model has there."""

    pool: str
    model: str
    failure_domain: FailureDomain
    weight: float = 1.0
    context: int | None = None
    """Tokens of prompt and output together; None is unknown and taken as large enough."""
    features: frozenset[Feature] = frozenset(Feature)
    input_usd_per_mtok: float | None = None
    """Micro-dollars a token, which is the same number as dollars a million tokens. None is unknown: taken as free."""
    output_usd_per_mtok: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What identifies a target inside a route."""
        return (self.pool, self.model)

    def price(self, prompt_tokens: int, output_tokens: int) -> int:
        """Estimated price in micro-dollars, rounded up."""
        exact = prompt_tokens * (self.input_usd_per_mtok or 0.0) + output_tokens * (self.output_usd_per_mtok or 0.0)
        return -int(-exact // 1)


@dataclass(frozen=True, slots=True)
class Tier:
    """Interchangeable targets. `after_s` on a later tier: it may also serve when the wait before it exceeds this."""

    targets: tuple[Target, ...]
    after_s: float | None = None


class Leg(NamedTuple):
    """One step of a plan. `patience_s` is how long to wait in this pool's queue before the next leg is tried; None is
    as long as the request itself may wait.
    """

    target: Target
    tier: int
    patience_s: float | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """The tiers of one public model, in order of preference."""

    model: str
    tiers: tuple[Tier, ...]
    legs: tuple[tuple[Leg, ...], ...] = field(init=False, repr=False, compare=False)
    """The legs without patience, made once: plans of ordinary requests share them."""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "legs", tuple(tuple(Leg(target, n) for target in tier.targets) for n, tier in enumerate(self.tiers))
        )

    def targets(self) -> Iterable[Target]:
        """All targets, tier by tier."""
        return (target for tier in self.tiers for target in tier.targets)


@dataclass(frozen=True, slots=True)
class Policy:
    """What a tenant allows. None allows everything."""

    pools: frozenset[str] | None = None
    regions: frozenset[str] | None = None
    spill: bool = True
    """Later tiers may serve when the first cannot or is too slow."""
    ceiling_usd_micro: int | None = None
    """Micro-dollars the estimated price of one request may reach on a later tier; None is no ceiling."""


ANYTHING = Policy()


@dataclass(slots=True)
class Needs:
    """What one request asks of a target."""

    prompt_tokens: int
    output_cap: int | None = None
    """The request's own maximum, tokens; None when it names none."""
    output_tokens: int = 0
    """The predicted output, tokens, for the price."""
    features: frozenset[Feature] = frozenset()
    policy: Policy = ANYTHING
    exact: bool = False
    """`prompt_tokens` was counted, not estimated."""
    failed: frozenset[tuple[str, str]] = frozenset()
    """Keys of targets that failed for this request."""


class Plan(NamedTuple):
    """What to try, in order, and who was left out and why (soft hindrances are listed too, though tried last)."""

    legs: list[Leg]
    skipped: list[tuple[Target, Skip]]

    @property
    def targets(self) -> list[Target]:
        """The targets to try, in order."""
        return [leg.target for leg in self.legs]


Usable = Callable[[Target, float], Skip | None]
"""Whether a target's state lets it serve now: its breaker, its replicas, its spare capacity."""
Wait = Callable[[Target, float], float | None]
"""The wait in seconds this request would have in the target's pool, None when unknown."""


def candidates(route: Route, needs: Needs, usable: Usable, now: float, pick: float, wait: Wait | None = None) -> Plan:
    """Order the targets of `route` for one request.

    `pick` is uniform in [0, 1). With `wait`, a later tier that has `after_s` is put before the earlier ones when the
    shortest expected wait there is longer; without it (or when the wait is unknown), the earlier legs carry `after_s`
    as their patience and the caller moves on when it has run out.
    """
    legs: list[Leg] = []
    skipped: list[tuple[Target, Skip]] = []
    last: list[Leg] = []
    for number, row in enumerate(route.legs):
        start = len(legs)
        for leg in row if len(row) == 1 else _draw(row, pick):
            skip = unfit(leg.target, needs, number) or usable(leg.target, now)
            if skip is None:
                legs.append(leg)
            else:
                skipped.append((leg.target, skip))
                if skip.soft:
                    last.append(leg)
        if number and start and len(legs) > start:
            after = route.tiers[number].after_s
            if after is not None:
                legs = _spill_by_wait(legs, start, after, now, wait)
    if last:
        legs.extend(last)
    return Plan(legs, skipped)


def unfit(target: Target, needs: Needs, tier: int = 0) -> Skip | None:
    """Why a target can never serve this request, whatever its state."""
    if target.context is not None:
        total = needs.prompt_tokens + (needs.output_cap or 1)
        if total > target.context:
            sure = needs.exact or needs.prompt_tokens * UNCERTAINTY + (needs.output_cap or 1) > target.context
            detail = f"needs {total} tokens, has {target.context}"
            return Skip(SkipReason.CONTEXT_TOO_SMALL, detail, soft=not sure)
    if needs.features and not needs.features <= target.features:
        lacks = ", ".join(sorted(needs.features - target.features))
        return Skip(SkipReason.FEATURE_MISSING, f"lacks {lacks}")
    if target.weight <= 0:
        return Skip(SkipReason.NO_WEIGHT, "its weight is 0")
    if needs.failed and target.key in needs.failed:
        return Skip(SkipReason.ALREADY_FAILED, "it failed for this request")
    return None if needs.policy is ANYTHING else _forbidden(target, needs, tier)


def _forbidden(target: Target, needs: Needs, tier: int) -> Skip | None:
    policy = needs.policy
    if policy.pools is not None and target.pool not in policy.pools:
        return Skip(SkipReason.POOL_FORBIDDEN, f"pool {target.pool} is not among the tenant's")
    if policy.regions is not None and target.failure_domain.region not in policy.regions:
        return Skip(SkipReason.REGION_FORBIDDEN, f"region {target.failure_domain.region or 'unknown'} is not allowed")
    if tier:
        if not policy.spill:
            return Skip(SkipReason.SPILL_FORBIDDEN, "the tenant stays on the first tier")
        if policy.ceiling_usd_micro is not None:
            price = target.price(needs.prompt_tokens, needs.output_tokens)
            if price > policy.ceiling_usd_micro:
                return Skip(SkipReason.TOO_DEAR, f"about {price} micro-dollars, ceiling {policy.ceiling_usd_micro}")
    return None


def _draw(row: Sequence[Leg], pick: float) -> list[Leg]:
    """All legs of a tier in weighted random order, from one uniform number."""
    left = list(row)
    drawn = []
    total = sum(leg.target.weight for leg in left)
    while len(left) > 1 and total > 0:
        point = pick * total
        for leg in left:
            weight = leg.target.weight
            if point < weight or leg is left[-1]:
                break
            point -= weight
        pick = min(point / weight, 1.0) if weight > 0 else 0.0
        drawn.append(leg)
        left.remove(leg)
        total -= weight
    return drawn + left


def _spill_by_wait(legs: list[Leg], start: int, after_s: float, now: float, wait: Wait | None) -> list[Leg]:
    """Put the tier that begins at `start` first if the wait before it is too long, else give the earlier patience."""
    waits = [] if wait is None else [wait(leg.target, now) for leg in legs[:start]]
    known = [seconds for seconds in waits if seconds is not None]
    if known and len(known) == len(waits) and min(known) > after_s:
        return legs[start:] + legs[:start]
    return [
        leg._replace(patience_s=after_s if leg.patience_s is None else min(leg.patience_s, after_s))
        for leg in legs[:start]
    ] + legs[start:]


def other_domain_first(legs: Sequence[Leg], failed: Target) -> list[Leg]:
    """What is left of a plan after `failed` failed: within each tier, targets that share least with it come first."""
    rest = [leg for leg in legs if leg.target.key != failed.key]
    return sorted(rest, key=lambda leg: (leg.tier, len(leg.target.failure_domain.shared_with(failed.failure_domain))))


def cycles(edges: Mapping[str, Iterable[str]]) -> list[tuple[str, ...]]:
    """Every loop among names that lead to names (models falling back on models, aliases), found when config is read.

    Each loop is given once, beginning with its least name. Names without an entry lead nowhere.
    """
    found: set[tuple[str, ...]] = set()
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> None:
        if name in path:
            loop = path[path.index(name) :]
            least = loop.index(min(loop))
            found.add(tuple(loop[least:] + loop[:least]))
            return
        if name in done:
            return
        for following in edges.get(name, ()):
            walk(following, [*path, name])
        done.add(name)

    for name in sorted(edges):
        walk(name, [])
    return sorted(found)


def faults(route: Route) -> list[str]:
    """What is wrong with a route, for the config check: one sentence a fault."""
    wrong = []
    if not route.tiers:
        wrong.append(f"model {route.model} has no tier")
    seen: dict[tuple[str, str], int] = {}
    for number, tier in enumerate(route.tiers, 1):
        if not tier.targets:
            wrong.append(f"tier {number} of model {route.model} has no target")
        elif all(target.weight <= 0 for target in tier.targets):
            wrong.append(f"no target of tier {number} of model {route.model} has a weight above 0")
        if number == 1 and tier.after_s is not None:
            wrong.append(f"tier 1 of model {route.model} cannot have after_ms: nothing comes before it")
        for target in tier.targets:
            if target.key in seen:
                where = f"in tiers {seen[target.key]} and {number}" if seen[target.key] != number else "twice in a tier"
                wrong.append(f"model {route.model} names {target.pool}/{target.model} {where}")
            seen.setdefault(target.key, number)
    return wrong


def shared_fates(route: Route) -> list[str]:
    """Warnings: a later tier that shares a vendor or a region with the whole tier before it falls with it."""
    warnings = []
    for number in range(1, len(route.tiers)):
        before, after = route.tiers[number - 1].targets, route.tiers[number].targets
        for part in ("vendor", "region"):
            names = {getattr(target.failure_domain, part) for target in (*before, *after)}
            if before and after and len(names) == 1 and "" not in names:
                warnings.append(
                    f"tiers {number} and {number + 1} of model {route.model} share the {part} {names.pop()}"
                )
    return warnings
