"""Rules of tenants: keys that are one's own, models that can be reached, guarantees that can be kept."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Final

from gateway.config_finding import Finding, Rule, rule
from gateway.config_messages import unknown
from gateway.config_rules_limits import allowed_models, has_prices
from gateway.principals import pools_open_to
from gateway.settings import Config
from gateway.settings_tenants import Reservation, Tenant
from gateway.yaml_tree import Path
from providers.engines import FACTS

# Schedules are compared over one year. Any year shows how windows overlap; only the days on which the clocks change
# in different zones differ between years.
_FIRST_DAY: Final = date(2027, 1, 1)
_DAYS: Final = 366
_SHARES: Final = {"rate_share": "rate", "room_share": "room"}


def names(config: Config) -> Iterator[Finding]:
    """What a tenant names exists."""
    public = config.names()
    for name, tenant in config.tenants.items():
        path: Path = ("tenants", name)
        if tenant.organisation is not None and tenant.organisation not in config.organisations:
            yield Finding((*path, "organisation"), unknown("organisation", tenant.organisation, config.organisations))
        for index, pattern in enumerate(tenant.models):
            if not pattern.endswith("*"):
                if pattern not in public:
                    yield Finding((*path, "models", index), unknown("model", pattern, public))
            elif not any(model.startswith(pattern[:-1]) for model in config.models):
                yield Finding((*path, "models", index), f"{pattern!r} is the beginning of no model", warning=True)
        yield from _model_limits(config, path, tenant, public)


def _model_limits(config: Config, path: Path, tenant: Tenant, public: dict[str, str]) -> Iterator[Finding]:
    allowed = allowed_models(config, tenant)
    seen: dict[str, str] = {}
    for model in tenant.model_limits:
        here = (*path, "model_limits", model)
        real = public.get(model)
        if real is None:
            yield Finding(here, unknown("model", model, public))
        elif real in seen:
            yield Finding(here, f"is the same model as {seen[real]!r}")
        elif real not in allowed:
            yield Finding(here, "would limit nothing: the tenant may not use this model")
        seen.setdefault(real or model, model)


def keys(config: Config) -> Iterator[Finding]:
    """Ids and hashes are unique, and peppers are there where they are needed."""
    owners: dict[str, str] = {}
    hashes: dict[str, str] = {}
    for name, tenant in config.tenants.items():
        for index, key in enumerate(tenant.keys):
            path = ("tenants", name, "keys", index)
            if key.id in owners:
                yield Finding((*path, "id"), f"{key.id!r} is the id of a key of tenant {owners[key.id]} too")
            if key.hash in hashes:
                yield Finding((*path, "hash"), f"is the hash of key {hashes[key.hash]} too")
            if key.hash.startswith("hmac:") and not config.key_peppers:
                yield Finding((*path, "hash"), "is of the hmac kind, which needs key_peppers")
            owners.setdefault(key.id, name)
            hashes.setdefault(key.hash, key.id)


def policies(config: Config) -> Iterator[Finding]:
    """A policy names pools and regions that exist and leaves a way to the models."""
    for name, tenant in config.tenants.items():
        wrong = list(_policy(config, ("tenants", name, "policy"), tenant))
        yield from wrong
        if not wrong:
            yield from _reach(config, name, tenant)


def _policy(config: Config, path: Path, tenant: Tenant) -> Iterator[Finding]:
    policy = tenant.policy
    regions = {pool.domain()[1] for pool in config.pools.values()} - {""}
    for index, pool in enumerate(policy.pools or ()):
        if pool not in config.pools:
            yield Finding((*path, "pools", index), unknown("pool", pool, config.pools))
    for index, region in enumerate(policy.regions or ()):
        if region not in regions:
            yield Finding((*path, "regions", index), unknown("region", region, regions))
    if policy.ceiling_usd is not None:
        models = allowed_models(config, tenant).values()
        if not policy.spill:
            yield Finding((*path, "ceiling_usd"), "has no effect with spill: false")
        elif models and not any(has_prices(model) for model in models):
            yield Finding((*path, "ceiling_usd"), "would allow anything: none of its models has prices")


def _reach(config: Config, name: str, tenant: Tenant) -> Iterator[Finding]:
    """Models the tenant may use but that are served only where it may not go."""
    owners = {pool.dedicated_to for pool in config.pools.values()} - {None}
    if not owners <= set(config.tenants) or (tenant.isolation == "dedicated" and name not in owners):
        return  # that is said of the pool, or of the tenant
    pools = reachable(config, name, tenant)
    public = config.names()
    named = {public.get(pattern) for pattern in tenant.models}
    for model_name, model in allowed_models(config, tenant).items():
        targets = {target.pool for tier in model.tiers for target in tier.targets}
        if targets <= set(config.pools) and not targets & pools:
            yield Finding(
                ("tenants", name, "models"),
                f"{model_name!r} is served only in pools that this tenant may not use: {', '.join(sorted(targets))}",
                warning=model_name not in named,
            )


def reachable(config: Config, name: str, tenant: Tenant) -> set[str]:
    """Pools the tenant's requests may go to."""
    pools = pools_open_to(config, name, tenant)
    found = set(config.pools if pools is None else pools)
    if tenant.policy.regions is not None:
        found = {pool for pool in found if config.pools[pool].domain()[1] in tenant.policy.regions}
    return found


def isolation(config: Config) -> Iterator[Finding]:
    """A tenant gets the isolation it asks for."""
    for name, tenant in config.tenants.items():
        path = ("tenants", name, "isolation")
        if tenant.isolation == "dedicated" and not any(pool.dedicated_to == name for pool in config.pools.values()):
            yield Finding(path, f"'dedicated' needs a pool with isolation: dedicated and dedicated_to: {name}")
        if tenant.isolation != "salted":
            continue
        used = {
            target.pool
            for model in allowed_models(config, tenant).values()
            for tier in model.tiers
            for target in tier.targets
        }
        for pool_name in sorted(used & reachable(config, name, tenant)):
            pool = config.pools[pool_name]
            if pool.dedicated_to == name or FACTS[pool.kind].salt:
                continue
            engine = FACTS[pool.kind].engine or bool(pool.replicas)
            whose = "the engine shares its prefix cache" if engine else "the provider decides what its cache shares"
            yield Finding(path, f"pool {pool_name!r} (kind {pool.kind}) takes no salt: {whose}", warning=not engine)


def reservations(config: Config) -> Iterator[Finding]:
    """Each reservation does something, and together they leave the headroom of the pool."""
    for name, tenant in config.tenants.items():
        pools = reachable(config, name, tenant)
        for pool_name, reservation in tenant.reservations.items():
            path: Path = ("tenants", name, "reservations", pool_name)
            if pool_name not in config.pools:
                yield Finding(path, unknown("pool", pool_name, config.pools))
                continue
            targets = {
                target.pool
                for model in allowed_models(config, tenant).values()
                for tier in model.tiers
                for target in tier.targets
            }
            if pool_name not in pools & targets:
                yield Finding(path, "would guarantee nothing: no model of this tenant is served in this pool")
            yield from _idle(path, reservation)
    for pool_name in config.pools:
        yield from _oversold(config, pool_name)


def _idle(path: Path, reservation: Reservation) -> Iterator[Finding]:
    given = reservation.model_fields_set
    if not reservation.rate_share and not reservation.room_share:
        yield Finding(path, "guarantees nothing: give rate_share, room_share or both")
        return
    if "hold" in given and not reservation.room_share:
        yield Finding((*path, "hold"), "has no effect without room_share")
    if "burst_s" in given and not reservation.rate_share:
        yield Finding((*path, "burst_s"), "has no effect without rate_share")
    if "timezone" in given and not reservation.schedule:
        yield Finding((*path, "timezone"), "has no effect without a schedule")


def _oversold(config: Config, pool_name: str) -> Iterator[Finding]:
    """The highest sum of shares at any time, against what may be sold."""
    most = 1.0 - config.pools[pool_name].headroom
    sold = {
        name: tenant.reservations[pool_name]
        for name, tenant in config.tenants.items()
        if pool_name in tenant.reservations
    }
    for field, words in _SHARES.items():
        total, at, holders = _peak(sold, field)
        if total <= most + 1e-9:
            continue
        listed = ", ".join(f"{name} {getattr(sold[name], field):.0%}" for name in holders)
        when = "" if at is None else f" ({datetime.fromtimestamp(at, UTC):%a %H:%M} UTC)"
        yield Finding(
            ("tenants", holders[-1], "reservations", pool_name, field),
            f"reservations of pool {pool_name!r} add up to {total:.0%} of its {words}{when}: {listed}; "
            f"at most {most:.0%} may be sold (headroom {1 - most:.0%})",
        )


def _peak(sold: dict[str, Reservation], field: str) -> tuple[float, float | None, list[str]]:
    """Highest sum of a share, the Unix time it begins at (None: always), and the tenants that hold it then."""
    always = [name for name, reservation in sold.items() if getattr(reservation, field) and not reservation.schedule]
    events: list[tuple[float, int, str]] = []
    for name, reservation in sold.items():
        if getattr(reservation, field):
            for start, end in reservation.windows(_FIRST_DAY, _DAYS) or ():
                events += [(start, 1, name), (end, 0, name)]
    best: tuple[float, float | None, list[str]] = (sum(getattr(sold[name], field) for name in always), None, always)
    current = set(always)
    for at, begins, name in sorted(events):  # an end sorts before a beginning at the same time
        if not begins:
            current.discard(name)
            continue
        current.add(name)
        total = sum(getattr(sold[holder], field) for holder in current)
        if total > best[0] + 1e-9:
            best = (total, at, [holder for holder in sold if holder in current])
    return best


RULES: Final[tuple[Rule, ...]] = (
    rule(names, "tenants", "organisations", "models"),
    rule(keys, "tenants", "key_peppers"),
    rule(policies, "tenants", "pools", "models"),
    rule(isolation, "tenants", "pools", "models"),
    rule(reservations, "tenants", "pools", "models"),
)
