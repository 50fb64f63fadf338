"""What a request asks of a target, and what its caller is told when no target can do it."""

from __future__ import annotations

from gateway.accept import Accepted
from gateway.outcomes import Outcome, Refused
from gateway.principals import Principal
from providers.exchange import Call, Endpoint
from providers.route import ANYTHING, Feature, Needs, Plan, Policy, SkipReason

_FORBIDDEN = frozenset({SkipReason.POOL_FORBIDDEN, SkipReason.REGION_FORBIDDEN, SkipReason.NO_WEIGHT})
_NO_FEATURES: frozenset[Feature] = frozenset()


def needs_of(accepted: Accepted) -> Needs:
    """The needs of one request, policy of its tenant included."""
    estimate = accepted.estimate
    return Needs(
        prompt_tokens=estimate.prompt_tokens,
        output_cap=accepted.measured.output_cap,
        output_tokens=estimate.output_tokens,
        features=_features(accepted),
        policy=_policy(accepted.principal),
        exact=accepted.measured.known_tokens is not None,
    )


def _features(accepted: Accepted) -> frozenset[Feature]:
    body = accepted.call.body
    found: set[Feature] = set()
    if body.get("tools"):
        found.add(Feature.TOOLS)
    if accepted.measured.images:
        found.add(Feature.IMAGES)
    if _wants_schema(accepted.call):
        found.add(Feature.JSON_SCHEMA)
    if body.get("logprobs"):
        found.add(Feature.LOGPROBS)
    if body.get("audio"):
        found.add(Feature.AUDIO)
    if _wants_thought(accepted.call):
        found.add(Feature.REASONING)
    if accepted.call.endpoint is Endpoint.EMBEDDINGS:
        found.add(Feature.EMBEDDINGS)
    return frozenset(found) if found else _NO_FEATURES


def _wants_schema(call: Call) -> bool:
    """Whether the answer must follow a JSON schema, as each dialect says it."""
    body = call.body
    match call.endpoint:
        case Endpoint.MESSAGES:
            inside = body.get("output_config")
            wanted = inside.get("format") if isinstance(inside, dict) else None
        case Endpoint.RESPONSES:
            inside = body.get("text")
            wanted = inside.get("format") if isinstance(inside, dict) else None
        case _:
            wanted = body.get("response_format")
    return isinstance(wanted, dict) and wanted.get("type") == "json_schema"


def _wants_thought(call: Call) -> bool:
    """Whether reasoning is asked for, as each dialect says it."""
    body = call.body
    if call.endpoint is Endpoint.MESSAGES:
        inside = body.get("thinking")
        return isinstance(inside, dict) and inside.get("type") not in (None, "disabled")
    inside = body.get("reasoning") if call.endpoint is Endpoint.RESPONSES else None
    effort = inside.get("effort") if isinstance(inside, dict) else body.get("reasoning_effort")
    return effort not in (None, "none")


def _policy(principal: Principal) -> Policy:
    pools, regions, ceiling = principal.pools, principal.regions, principal.ceiling_micro_usd
    if pools is None and regions is None and ceiling is None and principal.spill:
        return ANYTHING
    return Policy(pools, regions, principal.spill, ceiling)


def nobody(plan: Plan, now: float) -> Refused:
    """Why no target of a plan can serve, and when one may."""
    reasons = {skip.reason for _, skip in plan.skipped}
    if reasons and reasons <= {SkipReason.CONTEXT_TOO_SMALL}:
        return Refused(
            Outcome.CONTEXT_TOO_LONG, "The prompt is longer than any target of this model takes.", param="messages"
        )
    if reasons and reasons <= {SkipReason.FEATURE_MISSING}:
        detail = "; ".join(sorted({skip.detail for _, skip in plan.skipped}))
        return Refused(Outcome.UNSUPPORTED, f"No target of this model can do this: it {detail}.")
    if reasons and reasons <= _FORBIDDEN:
        return Refused(Outcome.FORBIDDEN, "No target of this model is open to this tenant.", param="model")
    if SkipReason.NOT_ISOLATED in reasons:
        why = "; ".join(sorted({skip.detail for _, skip in plan.skipped if skip.reason is SkipReason.NOT_ISOLATED}))
        return Refused(Outcome.NOT_ISOLATED, f"This tenant requires isolation: {why}.", retry_after_s=5.0)
    if SkipReason.TOO_DEAR in reasons:
        sentence = "The targets that take requests at the moment cost more than this tenant allows for one request."
    else:
        sentence = "No upstream for this model takes requests at the moment."
    waits = [skip.until - now for _, skip in plan.skipped if skip.until is not None]
    return Refused(Outcome.NO_TARGET, sentence, retry_after_s=max(1.0, min(waits)) if waits else 5.0)
