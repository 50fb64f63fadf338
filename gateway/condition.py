"""Whether an instance may take requests, and what it goes on without: what the readiness page says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gateway.api.ops import Readiness
from ratelimit.store import LocalLimiter, StoreMode

if TYPE_CHECKING:
    from gateway.isolation_probe import Probes
    from gateway.polled import Polled
    from gateway.registry.registry import Registry
    from providers.breaker import Breakers
    from ratelimit.redis_store import RedisLimiter


def condition(
    *,
    idle: str | None,
    limiter: LocalLimiter | RedisLimiter,
    registry: Registry,
    ledger: Iterable[str],
    pools: Mapping[str, Polled],
    breakers: Breakers,
    probes: Probes,
    now: float,
) -> Readiness:
    """`idle` is why the instance takes no requests by its own will, None while it does; `ledger` what ails that."""
    reasons = [] if idle is None else [idle]
    status = limiter.status()
    if not status.ready:
        reasons.append(status.reason)
    if idle is None and not registry.read:
        reasons.append("the registry has not been read yet")
    degraded: list[str] = []
    if status.mode is StoreMode.AWAY:
        degraded.append(f"limit store away: {status.reason or 'each limit follows its own mode'}")
    if registry.away is not None:
        degraded.append(f"registry away ({registry.away}): tenants and keys stay as last read")
    degraded += ledger
    degraded += [f"pool {name} has no usable replica" for name, it in pools.items() if not it.members.any_usable(now)]
    degraded += [f"pool {key.provider} refuses our configuration: {why}" for key, why in breakers.barred()]
    for it in pools.values():
        degraded += it.loras.problems()
    return Readiness(tuple(reasons), (*degraded, *probes.problems()))
