"""What is left of a plan after a failure, and what attempts have cost or may."""

from __future__ import annotations

from itertools import groupby

from gateway.progress import Run
from gateway.relay import Broken
from providers.exchange import FailureKind
from providers.route import Leg, other_domain_first


def rest(run: Run, leg: Leg, broken: Broken) -> list[Leg]:
    """The further targets after `leg` failed so: those of a tier that share least with it first."""
    rest = run.legs
    context = leg.target.context
    if broken.failure.kind is FailureKind.CONTEXT and context is not None:
        rest = [other for other in rest if other.target.context is None or other.target.context > context]
    tiers = groupby(rest, lambda other: other.tier)
    return [other for _, tier in tiers for other in other_domain_first(list(tier), leg.target)]


def price(run: Run, leg: Leg) -> int:
    """What the request is expected to cost at a target, micro-USD; 0 where the first tier is left out of ceilings."""
    estimate = run.accepted.estimate
    return leg.target.price(estimate.prompt_tokens, estimate.output_tokens) if leg.tier else 0


def billed(run: Run, leg: Leg, broken: Broken) -> int:
    """What a provider may bill for an attempt that failed: nothing where it said no, what it took where it broke."""
    if broken.how == "connect" or (broken.how == "error" and not run.moved):
        return 0
    return leg.target.price(run.accepted.estimate.prompt_tokens, run.record.counted_tokens)


def taken(run: Run) -> tuple[int, int, int] | None:
    """Prompt, cached and output tokens that the attempt now over has taken; None if it took nothing."""
    record = run.record
    usage = record.usage
    if usage is not None and usage.prompt_tokens is not None:
        return usage.prompt_tokens, usage.cached_tokens or 0, usage.output_tokens or record.counted_tokens
    if not record.counted_tokens:
        return None
    return run.accepted.estimate.prompt_tokens, 0, record.counted_tokens
