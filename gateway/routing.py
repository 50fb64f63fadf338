"""Routing joined: plans from routes and breakers, the credential of an attempt, and what each attempt taught.

The decisions are the pure parts' (`providers.route`, `breaker`, `retry`); this file only gives them
what they need to know and tells them what happened.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass

from fairqueue.admission import Ticket
from gateway.accept import Accepted
from gateway.clock import Clock
from gateway.outcomes import Outcome, Refused
from gateway.principals import Principal
from gateway.relay import Broken
from gateway.world import Credential, PoolEntry
from providers.breaker import Breaker, Breakers, Permit
from providers.exchange import Endpoint, Upstream
from providers.health import EVENT_OF, BreakerKey, Event
from providers.retry import Around, AttemptBudget, Decision, RetryRatios, RetrySettings
from providers.route import ANYTHING, Feature, Leg, Needs, Plan, Policy, Skip, SkipReason, Target, candidates

log = logging.getLogger("weighbridge.routing")

_PREFIX_BYTES = 1024  # of a body that name its prefix for replica affinity: a system prompt, usually


@dataclass(slots=True)
class Way:
    """One attempt's way to its upstream: the credential chosen and the permits to report to."""

    upstream: Upstream
    credential: Credential
    pool_permit: Permit
    replica_permit: Permit
    started: float = 0.0
    prompt_tokens: int = 0


class Routing:
    """Plans attempts and learns from them; one instance a process."""

    def __init__(
        self,
        *,
        clock: Clock,
        uniform: Callable[[], float],
        breakers: Breakers,
        ratios: RetryRatios,
        retry: RetrySettings,
        salt_secret: bytes,
    ) -> None:
        self._clock = clock
        self._uniform = uniform
        self._breakers = breakers
        self._ratios = ratios
        self._retry = retry
        self._salt_secret = salt_secret

    def plan(self, accepted: Accepted, now: float) -> Plan:
        """The targets to try for a request, in order, and why the others are left out."""
        world, cls = accepted.world, accepted.cls

        endpoint = accepted.call.endpoint
        common = endpoint is Endpoint.CHAT

        def usable(target: Target, at: float) -> Skip | None:
            pool = world.pools[target.pool]
            if not common and not pool.kind.facts.serves(endpoint):
                return Skip(SkipReason.FEATURE_MISSING, f"lacks {endpoint}")
            if not pool.members.any_usable(at):
                return Skip(SkipReason.NO_REPLICA, f"no replica of pool {pool.name} is usable")
            first: Skip | None = None
            for credential in pool.credentials:
                skip = self._breaker(pool, target.model, credential).hindrance(cls, at)
                if skip is None:
                    return None
                first = first or skip
            return first

        return candidates(accepted.model.route, _needs(accepted), usable, now, self._uniform())

    def budget(self, accepted: Accepted, now: float, deadline: float) -> AttemptBudget:
        """What one request may still try."""
        return AttemptBudget(
            self._ratios,
            accepted.principal.tenant,
            now,
            deadline,
            settings=self._retry,
            sdk_retries=accepted.sdk_retry,
        )

    def decide(self, budget: AttemptBudget, broken: Broken, around: Around, now: float) -> Decision:
        """What follows a failed attempt."""
        return budget.after(
            broken.failure.kind,
            now,
            around,
            self._uniform(),
            content_sent=broken.sent,
            retry_after_s=broken.failure.retry_after_s,
        )

    def way(self, accepted: Accepted, pool: PoolEntry, leg: Leg, ticket: Ticket, failed: frozenset[str]) -> Way | None:
        """A credential that may be used now, and the attempt's upstream; None when every one is barred.

        `failed` names credentials that were refused for this request already.
        """
        now = self._clock.monotonic()
        cls = accepted.cls
        for credential in pool.credentials:
            if credential.name in failed:
                continue
            permit = self._breaker(pool, leg.target.model, credential).enter(cls, now)
            if permit is None:
                continue
            upstream = self._upstream(pool, ticket.replica, leg.target.model, credential, self._salt(accepted, pool))
            member = pool.members.enter(ticket.replica, cls, now)
            return Way(upstream, credential, permit, member, now, accepted.estimate.prompt_tokens)
        return None

    def _upstream(
        self, pool: PoolEntry, replica: str, model: str, credential: Credential, salt: str | None
    ) -> Upstream:
        """Where an attempt goes; the same for all attempts of a second, salts aside."""
        at = int(self._clock.unix())
        key = (replica, model, credential.name)
        known = pool.upstreams.get(key)
        if known is None or known.at != at or salt is not None:
            known = Upstream(
                kind=pool.kind.name,
                base_url=pool.replicas[replica].base_url,
                model=model,
                credential=credential.secret,
                extra=pool.extra,
                cache_salt=salt,
                gather=pool.gather,
                at=at,
            )
            if salt is None:
                pool.upstreams[key] = known
        return known

    def first_token(self, way: Way) -> None:
        """The attempt's first token has come."""
        now = self._clock.monotonic()
        way.pool_permit.answered(now, now - way.started, way.prompt_tokens)
        way.replica_permit.answered(now, now - way.started, way.prompt_tokens)

    def report(self, way: Way, broken: Broken | None, served: bool, *, whole_pool: bool) -> None:
        """How the attempt ended; with neither a failure nor an answer it says nothing about the target.

        A replica's failure is the replica's; it is the pool's only when the request has failed on all of
        them (`whole_pool`), or when it is our configuration that was refused, which is the same everywhere.
        """
        now = self._clock.monotonic()
        if broken is None:
            event = Event.OK if served else Event.NEUTRAL
            ttft = now - way.started if served else None
            way.pool_permit.end(event, now, ttft, way.prompt_tokens)
            way.replica_permit.end(event, now, ttft, way.prompt_tokens)
            return
        failure = broken.failure
        event = Event.CONNECT if broken.how == "connect" else EVENT_OF[failure.kind]
        if broken.how == "silent":
            event = Event.TIMEOUT
        if event is Event.MISCONFIGURED:
            log.error(
                "upstream %s refuses our configuration for model %s: %s",
                way.upstream.base_url,
                way.upstream.model,
                failure.message,
            )
        of_pool = event if whole_pool or event is Event.MISCONFIGURED else Event.NEUTRAL
        cause = failure.message[:200]
        way.pool_permit.end(of_pool, now, None, way.prompt_tokens, failure.retry_after_s, cause)
        way.replica_permit.end(event, now, None, way.prompt_tokens, failure.retry_after_s, cause)

    def affinity(self, accepted: Accepted, pool: PoolEntry) -> int | None:
        """A number that requests with the same beginning share, across tenants only where caches are shared too."""
        if len(pool.replicas) < 2 or accepted.call.endpoint is Endpoint.EMBEDDINGS:
            return None
        body = accepted.call.body
        head = body.get("messages") or body.get("prompt")
        first = head[0] if isinstance(head, list) and head else head
        content = first.get("content") if isinstance(first, dict) else first
        text = content if isinstance(content, str) else repr(content)[:_PREFIX_BYTES]
        salt = self._salt(accepted, pool) or ""
        # Lengths frame the fields, so that no tenant can name another's prefix by joining them differently.
        framed = f"{len(salt)}:{salt}:{text[:_PREFIX_BYTES]}"
        return int.from_bytes(hashlib.blake2b(framed.encode(errors="replace"), digest_size=8).digest(), "big")

    def nobody(self, plan: Plan, now: float) -> Refused:
        """Why no target can serve, and when one may."""
        reasons = {skip.reason for _, skip in plan.skipped}
        if reasons and reasons <= {SkipReason.CONTEXT_TOO_SMALL}:
            return Refused(
                Outcome.CONTEXT_TOO_LONG, "The prompt is longer than any target of this model takes.", param="messages"
            )
        if reasons and reasons <= {SkipReason.FEATURE_MISSING}:
            detail = "; ".join(sorted({skip.detail for _, skip in plan.skipped}))
            return Refused(Outcome.UNSUPPORTED, f"No target of this model can do this: it {detail}.")
        if reasons and reasons <= {SkipReason.POOL_FORBIDDEN, SkipReason.REGION_FORBIDDEN, SkipReason.NO_WEIGHT}:
            return Refused(Outcome.FORBIDDEN, "No target of this model is open to this tenant.", param="model")
        waits = [skip.until - now for _, skip in plan.skipped if skip.until is not None]
        return Refused(
            Outcome.NO_TARGET,
            "No upstream for this model takes requests at the moment.",
            retry_after_s=max(1.0, min(waits)) if waits else 5.0,
        )

    def _breaker(self, pool: PoolEntry, model: str, credential: Credential) -> Breaker:
        breaker = pool.breakers.get((model, credential.name))
        if breaker is None:
            key = BreakerKey(pool.name, pool.region, model, credential.name)
            breaker = pool.breakers[model, credential.name] = self._breakers.of(key, pool.ttft_slo_s)
        return breaker

    def _salt(self, accepted: Accepted, pool: PoolEntry) -> str | None:
        """The cache salt of a tenant: unguessable, the same on every instance, and never the client's to choose."""
        if pool.isolation != "salted" and accepted.principal.isolation != "salted":
            return None
        tenant = accepted.principal.tenant.encode()
        framed = len(tenant).to_bytes(4, "big") + tenant
        return urlsafe_b64encode(hmac.digest(self._salt_secret, framed, "sha256")).decode().rstrip("=")


def _needs(accepted: Accepted) -> Needs:
    estimate, body = accepted.estimate, accepted.call.body
    features: set[Feature] = set()
    if body.get("tools"):
        features.add(Feature.TOOLS)
    if accepted.measured.images:
        features.add(Feature.IMAGES)
    wanted = body.get("response_format")
    if isinstance(wanted, dict) and wanted.get("type") == "json_schema":
        features.add(Feature.JSON_SCHEMA)
    if accepted.call.endpoint is Endpoint.EMBEDDINGS:
        features.add(Feature.EMBEDDINGS)
    return Needs(
        prompt_tokens=estimate.prompt_tokens,
        output_cap=accepted.measured.output_cap,
        output_tokens=estimate.output_tokens,
        features=frozenset(features),
        policy=_policy(accepted.principal),
        exact=accepted.measured.known_tokens is not None,
    )


def _policy(principal: Principal) -> Policy:
    pools, regions, ceiling = principal.pools, principal.regions, principal.ceiling_micro_usd
    if pools is None and regions is None and ceiling is None and principal.spill:
        return ANYTHING
    return Policy(pools, regions, principal.spill, ceiling)
