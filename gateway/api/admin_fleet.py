"""What stands behind the tenants, over the admin API: pools as they are, boundaries between tenants, the audit log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import select

from fairqueue.reservations import Sale
from fairqueue.snapshot import PoolSnapshot
from gateway.api.admin_call import FLEET_READERS, PAGE_PARAMETERS, READERS, Answer, Call, Parameter, Route
from gateway.api.admin_models import AuditView, BoundariesView, PageView, PoolView
from gateway.api.admin_tenants import tenant_of, when
from gateway.api.problems import Problem
from gateway.config_rules_limits import allowed_models
from gateway.config_rules_tenants import reachable
from gateway.isolation import Separation
from gateway.registry import tables
from gateway.settings import Config
from gateway.settings_pools import Pool
from gateway.settings_tenants import Reservation, Tenant
from providers.engines import FACTS
from providers.health import BreakerKey, BreakerSnapshot


@dataclass(frozen=True, slots=True)
class Fleet:
    """Ways to ask the running parts; each answers from memory."""

    config: Callable[[], Config]  # with every tenant that is known
    unix_us: Callable[[], int]
    snapshots: Callable[[], Mapping[str, PoolSnapshot]]
    breakers: Callable[[], Iterable[tuple[BreakerKey, BreakerSnapshot]]]  # of every pool
    sellable: Callable[[str, str, Reservation], Sale]  # pool, tenant, terms
    separations: Callable[[], Mapping[str, Separation]]  # of every pool
    last_used: Callable[[], Mapping[str, int]]  # Unix microseconds by key id, as seen by this instance


def _pool_view(name: str, call: Call, snapshot: PoolSnapshot) -> dict[str, Any]:
    fleet: Fleet = call.parts.fleet
    pool = fleet.config().pools[name]
    found = asdict(snapshot)
    found |= {"kind": pool.kind, "isolation": pool.isolation, "dedicated_to": pool.dedicated_to}
    separation = fleet.separations().get(name)
    found["separation"] = (
        {replica: {"verdict": verdict, "detail": detail} for replica, (verdict, detail) in separation.verdicts.items()}
        if separation is not None
        else {}
    )
    found["breakers"] = [
        {"region": key.region, "model": key.model, "credential": key.credential, "state": one.state, "cause": one.cause}
        for key, one in fleet.breakers()
        if key.provider == name
    ]
    return found


async def pools(call: Call) -> Answer:
    """Every pool as this instance sees it."""
    after, size = call.after(), call.size()
    known = call.parts.fleet.config().pools
    found = sorted((name, one) for name, one in call.parts.fleet.snapshots().items() if name in known)
    if after is not None:
        found = [item for item in found if item[0] > str(after[0])]
    return call.page(found, size, lambda item: [item[0]], lambda item: _pool_view(item[0], call, item[1]))


async def pool(call: Call) -> Answer:
    """One pool as this instance sees it."""
    name = call.names["pool"]
    snapshot = call.parts.fleet.snapshots().get(name)
    if snapshot is None or name not in call.parts.fleet.config().pools:
        raise Problem(404, "unknown_pool", f"There is no pool {name!r}.")
    return Answer(_pool_view(name, call, snapshot))


async def boundaries(call: Call) -> Answer:
    """Which boundary stands between a tenant and the others, in every pool that it may be served in."""
    row = tenant_of(call)
    config = call.parts.fleet.config()
    used = {
        target.pool
        for model in allowed_models(config, row.settings).values()
        for tier in model.tiers
        for target in tier.targets
    }
    found = [
        {"pool": name, "kind": config.pools[name].kind, "used": name in used}
        | _boundary(row.name, row.settings, config.pools[name])
        | {"problem": _problem(call, row.name, row.settings, name)}
        for name in sorted(reachable(config, row.name, row.settings))
    ]
    return Answer({"tenant": row.name, "isolation": row.settings.isolation, "pools": found})


def _problem(call: Call, name: str, tenant: Tenant, pool: str) -> str | None:
    """What the isolation probe has against a pool that is to part the tenant's cache by a salt."""
    fleet: Fleet = call.parts.fleet
    kept, separation = fleet.config().pools[pool], fleet.separations().get(pool)
    if separation is None or kept.dedicated_to == name or "salted" not in (kept.isolation, tenant.isolation):
        return None
    return separation.hindrance()


def _boundary(name: str, tenant: Tenant, pool: Pool) -> dict[str, str]:
    """own: nobody else is behind it. shared: others are. salted: told apart by a secret salt for each tenant.
    provider: whatever the provider does between accounts; tenants here share one account.
    """
    facts = FACTS[pool.kind]
    if pool.dedicated_to == name:
        hardware = "own" if facts.engine else "provider"
        cache = "own"
    else:
        hardware = "shared" if facts.engine else "provider"
        salted = facts.salt and "salted" in (pool.isolation, tenant.isolation)
        cache = "salted" if salted else ("shared" if facts.engine else "provider")
    return {
        "process": hardware,
        "device": hardware,
        "batch": hardware,
        "prefix_cache": cache,
        "adapter": "shared" if pool.adapters and pool.dedicated_to != name else ("own" if pool.adapters else "none"),
        "logs": "the gateway's hold neither prompts nor answers; what the upstream writes down is its own",
    }


async def audit(call: Call) -> Answer:
    """Changes, the newest first; a tenant admin sees those of its own tenant."""
    after, size = call.after(), call.size()
    table = tables.audit
    query = select(table).order_by(table.c.seq.desc()).limit(size + 1)
    tenant = call.who.tenant or call.query.get("tenant")
    if tenant is not None:
        if not call.who.sees(tenant) or call.query.get("tenant", tenant) != tenant:
            raise Problem(404, "unknown_tenant", "There is no such tenant.")
        query = query.where(table.c.tenant == tenant)
    if after is not None:
        if not after or not isinstance(after[0], int):
            raise Problem(400, "invalid_query", "after must be the 'next' of a page.")
        query = query.where(table.c.seq < after[0])
    async with call.registry.database.reading() as connection:
        rows = (await connection.execute(query)).mappings().all()
    return call.page(rows, size, lambda row: [row["seq"]], lambda row: {**row, "at": when(row["at"])})


ROUTES: Final = (
    Route(
        "GET", "/pools", "listPools", "Pools as this instance sees them.", FLEET_READERS, pools,
        answer=PageView[PoolView], paged=True, query=PAGE_PARAMETERS,
    ),
    Route(
        "GET", "/pools/{pool}", "readPool", "One pool as this instance sees it.", FLEET_READERS, pool, answer=PoolView
    ),
    Route(
        "GET", "/tenants/{tenant}/boundaries", "readBoundaries", "What stands between a tenant and the others.",
        READERS, boundaries, answer=BoundariesView,
    ),
    Route(
        "GET", "/audit", "listAudit", "Changes, the newest first.", READERS, audit,
        answer=PageView[AuditView], paged=True, query=(*PAGE_PARAMETERS, Parameter("tenant", "Only of this tenant.")),
    ),
)  # fmt: skip
