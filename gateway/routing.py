"""Routing joined: plans from routes and breakers, the credential of an attempt, and what each attempt taught.

The decisions are the pure parts' (`providers.route`, `breaker`, `retry`); this file only gives them
what they need to know and tells them what happened.

Two memories judge an attempt. A server of a pool has its own, and its failure is the pool's only when others failed
the same request or none of them is well. What the pool's breaker stands for besides is one model and one credential:
a rate limit, an empty account or a refused key of the only address there is concerns these and not the address, which
another credential may still use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from fairqueue.item import Item, RequestClass
from gateway.accept import Accepted
from gateway.affinity import Sessions, name_of
from gateway.clock import Clock
from gateway.gate import Gate
from gateway.isolation import Salts
from gateway.needs import needs_of
from gateway.relay import Broken
from gateway.world import Credential, PoolEntry, World
from providers.breaker import Breaker, Breakers, Permit
from providers.ejection import Replicas
from providers.exchange import Endpoint, FailureKind, Upstream
from providers.health import EVENT_OF, BreakerKey, Event
from providers.retry import Around, AttemptBudget, Decision, RetryRatios, RetrySettings
from providers.route import Leg, Plan, Skip, SkipReason, Target, candidates

log = logging.getLogger("weighbridge.routing")

_SHORT_WAIT_S = 1.0
_OURS = frozenset({Event.MISCONFIGURED, Event.RATE, Event.QUOTA})  # of a credential or a model, not a server's health
_OF_ONE_SERVER = frozenset({FailureKind.CONFIG, FailureKind.AUTH})  # in a pool of several, another may know better
# Inside an engine that serves by priority; never 0, which some engines take for no priority at all.
_PRIORITIES = {RequestClass.INTERACTIVE: 1, RequestClass.BATCH: -1}


@dataclass(slots=True)
class Way:
    """One attempt's way to its upstream: the credential chosen and the permits to report to."""

    pool: PoolEntry
    replica: str
    upstream: Upstream
    credential: Credential
    pool_permit: Permit
    replica_permit: Permit
    started: float
    prompt_tokens: int
    uncached: int  # prompt tokens that are not believed to be in the replica's cache


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
        salts: Salts,
    ) -> None:
        self._clock = clock
        self._uniform = uniform
        self._breakers = breakers
        self._ratios = ratios
        self._retry = retry
        self._salts = salts
        self._sessions = Sessions()
        self._turn = 0  # credentials of an account are used in turn
        self._back: set[str] = set()  # pools that were without a replica and have one again, no failure seen since

    def plan(self, accepted: Accepted, now: float) -> Plan:
        """The targets to try for a request, in order, and why the others are left out."""
        world, cls, route = accepted.world, accepted.cls, accepted.model.route
        tenant = accepted.principal.tenant
        pick = self._sessions.pick(tenant, accepted.call, now)
        if pick is None:
            pick = self._uniform()

        endpoint = accepted.call.endpoint
        common = endpoint is Endpoint.CHAT
        salted = accepted.principal.isolation == "salted"

        def usable(target: Target, at: float) -> Skip | None:
            pool = world.pools[target.pool]
            if not common and not pool.kind.facts.serves(endpoint):
                return Skip(SkipReason.FEATURE_MISSING, f"lacks {endpoint}")
            if salted and (why := pool.separation.hindrance()) is not None:
                return Skip(SkipReason.NOT_ISOLATED, why)
            if not pool.members.any_usable(at):
                return Skip(SkipReason.NO_REPLICA, f"no replica of pool {pool.name} is usable")
            first: Skip | None = None
            for credential in pool.credentials:
                skip = self._breaker(pool, target.model, credential).hindrance(cls, at, pick, claim=False)
                if skip is None:
                    return crowded(pool, target, at)
                # One that merely ramps up is better than one that is closed to everybody.
                if first is None or (skip.soft and not first.soft):
                    first = skip
            if first is not None and first.reason is SkipReason.PROBE_LIMIT and pool.name in self._back:
                # It went because its servers did, and their polls say that they are back: the last resort at least.
                return first._replace(soft=True)
            return first

        def crowded(pool: PoolEntry, target: Target, at: float) -> Skip | None:
            """A later tier without room to spare comes last: what does not fit there stays in its own queue."""
            if pool.spillway is None or any(target is one for one in route.tiers[0].targets):
                return None
            skip = pool.spillway.hindrance(cls, at)
            return None if skip is None else skip._replace(soft=True)

        def wait(target: Target, at: float) -> float | None:
            return world.pools[target.pool].gate.core.expected_wait(tenant, cls, at)

        return candidates(route, needs_of(accepted), usable, now, pick, wait if len(route.tiers) > 1 else None)

    def budget(self, accepted: Accepted, now: float, deadline: float) -> AttemptBudget:
        """What one request may still try; what its tenant allows it to cost bounds failed attempts too."""
        return AttemptBudget(
            self._ratios,
            accepted.principal.tenant,
            now,
            deadline,
            settings=self._retry,
            sdk_retries=accepted.sdk_retry,
            ceiling_usd_micro=accepted.principal.ceiling_micro_usd,
        )

    def around(
        self,
        budget: AttemptBudget,
        accepted: Accepted,
        pool: PoolEntry,
        model: str,
        replicas: frozenset[str],
        credentials: frozenset[str],
        targets: int,
    ) -> Around:
        """What may be tried after a failed attempt at `pool`.

        `replicas` and `credentials` are those of the pool that failed this request, `targets` counts the further ones
        of the plan. While there are any, the last attempt is theirs: more of what has just failed must not use it up.
        """
        now = self._clock.monotonic()
        here = not targets or budget.left > 1
        states = pool.members.usable(now)
        open_ = {
            credential.name
            for credential in pool.credentials
            if (skip := self._breaker(pool, model, credential).hindrance(accepted.cls, now, claim=False)) is None
            or skip.soft
        }
        return Around(
            replicas=here and bool(open_) and any(states.get(name) for name in pool.replicas if name not in replicas),
            credentials=here and not open_ <= credentials,
            targets=targets > 0,
            same=here and bool(open_),
        )

    def decide(
        self, budget: AttemptBudget, broken: Broken, around: Around, *, free: bool, billed: int, following: int
    ) -> Decision:
        """What follows a failed attempt, `around` being what may be tried; `free` where what it did is not repeated.

        `billed` is what it may have cost although it failed, `following` what the next one is expected to (micro-USD).
        """
        failure = broken.failure
        kind = failure.kind
        if kind in _OF_ONE_SERVER and around.replicas:
            kind = FailureKind.CAPACITY  # what one server of a pool says of its set-up need not hold for another
        if (failure.retry_after_s or 0.0) > _SHORT_WAIT_S:
            # Whoever limits us says when to come back; a long wait here would only hide that from the caller.
            around = replace(around, same=False)
        return budget.after(
            kind,
            self._clock.monotonic(),
            around,
            self._uniform(),
            free=free,
            retry_after_s=failure.retry_after_s,
            billed_usd_micro=billed,
            next_usd_micro=following,
        )

    def way(self, accepted: Accepted, pool: PoolEntry, leg: Leg, replica: str, failed: frozenset[str]) -> Way | None:
        """A credential that may be used now, and the attempt's upstream; None when every one is barred.

        `failed` names credentials that were refused for this request already. The caller reports how the attempt
        ended exactly once.
        """
        now = self._clock.monotonic()
        cls, model = accepted.cls, leg.target.model
        credentials = pool.credentials
        if len(credentials) > 1:
            self._turn += 1
            at = self._turn % len(credentials)
            credentials = (*credentials[at:], *credentials[:at])
        hard = len(credentials) > 1  # a ramping credential waits while another is well
        while True:
            for credential in credentials:
                if credential.name in failed:
                    continue
                breaker = self._breaker(pool, model, credential)
                permit = breaker.enter(cls, now, last_resort=not hard)
                if permit is None:
                    if hard or pool.name not in self._back:
                        continue
                    permit = breaker.passenger(now)
                priority = _PRIORITIES[cls] if pool.priorities else None
                salt = self._salt(accepted, pool)
                upstream = self._upstream(pool, replica, model, credential, salt, priority)
                member = pool.members.enter(replica, cls, now)
                tokens = accepted.estimate.prompt_tokens
                return Way(pool, replica, upstream, credential, permit, member, now, tokens, tokens)
            if not hard:
                return None
            hard = False

    def _upstream(
        self,
        pool: PoolEntry,
        replica: str,
        model: str,
        credential: Credential,
        salt: str | None,
        priority: int | None,
    ) -> Upstream:
        """Where an attempt goes; the same for all attempts of a second, salts aside."""
        at = int(self._clock.unix())
        key = (replica, model, credential.name, priority)
        known = pool.upstreams.get(key)
        if known is None or known.at != at or salt is not None:
            known = Upstream(
                kind=pool.kind.name,
                base_url=pool.replicas[replica].base_url,
                model=model,
                credential=credential.secret,
                extra=pool.extra,
                cache_salt=salt,
                priority=priority,
                gather=pool.gather,
                at=at,
            )
            if salt is None:
                pool.upstreams[key] = known
        return known

    # -- what attempts teach -------------------------------------------------------------------------------

    def sent(self, way: Way, item: Item) -> None:
        """The request is on its way: its prompt will be in that replica's cache."""
        if len(way.pool.replicas) > 1:
            way.uncached -= way.pool.chooser.held(way.replica, item)
            way.pool.chooser.sent(way.replica, item)

    def first_token(self, way: Way) -> None:
        """The attempt's first token has come."""
        now = self._clock.monotonic()
        took = now - way.started
        way.pool_permit.answered(now, took, way.prompt_tokens)
        way.replica_permit.answered(now, took, way.prompt_tokens)
        if len(way.pool.replicas) > 1:
            way.pool.chooser.answered(way.replica, now, took, way.uncached)

    def report(self, way: Way, broken: Broken | None, served: bool, failed: frozenset[str]) -> None:
        """How the attempt ended; with neither a failure nor an answer it says nothing about the target.

        `failed` are the pool's replicas that failed this request, this one included.
        """
        now = self._clock.monotonic()
        if broken is None:
            event = Event.OK if served else Event.NEUTRAL
            ttft = now - way.started if served else None
            way.pool_permit.end(event, now, ttft, way.prompt_tokens)
            way.replica_permit.end(event, now, ttft, way.prompt_tokens)
            return
        pool, failure = way.pool, broken.failure
        event = _event(broken)
        if event is Event.MISCONFIGURED:
            log.error(
                "upstream %s refuses our configuration for model %s: %s",
                way.upstream.base_url,
                way.upstream.model,
                failure.message,
            )
        if event is Event.RATE:
            # One of several servers is left alone for as long as it says. The only address has other credentials, or
            # other targets beside it: nobody may wait long for it in the queue.
            alone = len(pool.replicas) == 1 and (len(pool.credentials) > 1 or (failure.retry_after_s or 0.0) > 1.0)
            pool.gate.core.throttled(way.replica, now, None if alone else failure.retry_after_s)
        replicas = pool.replicas
        of_replica = event
        if event in _OURS:
            all_failed = len(failed) >= len(replicas)
            # An adapter that one server lacks says nothing of the models it has.
            if len(replicas) == 1 or (event is Event.MISCONFIGURED and way.upstream.model in pool.adapters):
                of_replica = Event.NEUTRAL
        cause, wait, tokens = failure.message[:200], failure.retry_after_s, way.prompt_tokens
        way.replica_permit.end(of_replica, now, None, tokens, wait, cause)
        if event not in _OURS:
            all_failed = len(failed) >= min(2, len(replicas)) or not pool.members.any_well()
        way.pool_permit.end(event if all_failed else Event.NEUTRAL, now, None, tokens, wait, cause)
        if event is not Event.NEUTRAL:
            self._back.discard(pool.name)

    def refresh(self, pool: PoolEntry | str, gate: Gate, members: Replicas, now: float) -> None:
        """What is known of a pool's replicas may have changed: its queue learns which may get work.

        A pool without any trips its breakers, so that work comes back to it little by little; polls that get through
        again shorten that.
        """
        name = pool if isinstance(pool, str) else pool.name
        states = members.usable(now)
        gate.usable(states)
        if any(states.values()):
            if name in self._back:
                for _, breaker in self._breakers.of_provider(name):
                    breaker.reachable(now)
            return
        if states:
            self._back.add(name)
            for _, breaker in self._breakers.of_provider(name):
                breaker.trip(now, "no replica was usable")

    def retain(self, world: World) -> None:
        """The configuration has changed: breakers of targets that are gone are forgotten."""
        self._breakers.retain(_keys(world))
        self._back &= world.pools.keys()

    # -- what belongs together -------------------------------------------------------------------------------

    def affinity(self, accepted: Accepted, pool: PoolEntry, model: str) -> int | None:
        """What requests with the same beginning share, across tenants only where their caches are shared too."""
        if len(pool.replicas) < 2 or accepted.call.endpoint is Endpoint.EMBEDDINGS:
            return None
        salt = self._salt(accepted, pool) or ""
        adapter = model if model in pool.adapters else None
        return name_of(accepted.call, accepted.principal.tenant, salt, adapter)

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
        return self._salts.of(accepted.principal.tenant, accepted.call.body.get("cache_salt"))


_NO_FAULT = frozenset({408, 425})  # "took too long to send", "too early": tried again, and nobody's fault
_TOO_MANY = 429  # never trips a breaker, whoever sent it


def _event(broken: Broken) -> Event:
    """What a failed attempt is to a breaker."""
    if broken.how == "connect":
        return Event.CONNECT
    if broken.how == "silent":
        return Event.TIMEOUT
    event, status = EVENT_OF[broken.failure.kind], broken.failure.status
    if event is Event.FAILURE and status == _TOO_MANY:
        return Event.RATE
    return Event.NEUTRAL if event is Event.FAILURE and status in _NO_FAULT else event


def _keys(world: World) -> Iterable[BreakerKey]:
    """The keys of all breakers a world can ask for."""
    for entry in world.models.values():
        for target in entry.route.targets():
            pool = world.pools[target.pool]
            for credential in pool.credentials:
                yield BreakerKey(pool.name, pool.region, target.model, credential.name)
