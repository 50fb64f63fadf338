"""Who is asking: the directory of keys and the principal a valid key stands for.

A presented key is hashed once; a key that was verified before is found by that hash alone. Only verified keys are
remembered, one text for each key, so no flood of guesses can grow the memory. On the first sight of a key its form is
checked, its record is found by the id in it, and the stored hash is compared in constant time. Unknown, revoked and
expired keys get the same answer after the same work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway import keys, limit_rules
from gateway.limit_rules import LimitRule
from gateway.settings import Config
from gateway.settings_tenants import Key, Tenant

_NOBODY: Final = "0" * 64


@dataclass(frozen=True, slots=True)
class Principal:
    """The verified pair of tenant and key, with everything that decides what it may do."""

    organisation: str | None
    tenant: str
    key_id: str
    weight: float
    cls: str
    """`interactive` or `batch`."""
    names: frozenset[str]
    """Public models it may use, aliases resolved."""
    prefixes: tuple[str, ...]
    """Prefixes of public models it may use; the empty prefix is all of them."""
    limits: tuple[LimitRule, ...]
    """Limits of organisation, tenant and key, whatever the model."""
    model_limits: Mapping[str, tuple[LimitRule, ...]]
    """Limits of the tenant on single models, by public name."""
    isolation: str
    """The least isolation the tenant accepts: `shared`, `salted` or `dedicated`."""
    pools: frozenset[str] | None
    """Pools it may be served in; None is all."""
    regions: frozenset[str] | None
    """Regions it may be served in; None is all."""
    spill: bool
    """Whether later tiers may serve it."""
    ceiling_micro_usd: int | None
    """Micro-dollars the estimated price of one request may reach on a later tier."""

    def allows(self, model: str) -> bool:
        """Whether it may use `model` (a public name, not an alias)."""
        return model in self.names or model.startswith(self.prefixes)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key as it is stored."""

    principal: Principal
    hash: str = field(repr=False)
    expires: float | None = None
    """Unix time in seconds from which it is refused."""
    revoked: bool = False


class Directory:
    """Keys by id. `now` gives Unix time in seconds and is asked only about keys that expire."""

    __slots__ = ("_by_id", "_decoy", "_marks", "_now", "_peppers", "_warm")

    def __init__(self, records: Iterable[KeyRecord], now: Callable[[], float], peppers: tuple[bytes, ...] = ()) -> None:
        self._now = now
        self._peppers = peppers
        self._by_id: dict[str, KeyRecord] = {}
        self._warm: dict[bytes, KeyRecord] = {}  # SHA-256 of a verified key -> its record; at most one for each id
        self._marks: dict[str, bytes] = {}  # id -> its key in _warm
        self._decoy = ("hmac:" if peppers else "sha256:") + _NOBODY
        for record in records:
            self.put(record)

    def find(self, presented: str) -> Principal | None:
        """Whose key this is; None for anything that is not a valid key now."""
        if len(presented) > keys.MAX_LENGTH or not presented.isascii():
            return None
        mark = hashlib.sha256(presented.encode()).digest()
        record = self._warm.get(mark)
        if record is not None and (record.expires is None or self._now() < record.expires):
            return record.principal
        return self._verify(presented, mark)

    def _verify(self, presented: str, mark: bytes) -> Principal | None:
        parsed = keys.parse(presented)
        if parsed is None:
            return None
        record = self._by_id.get(parsed.id)
        right = keys.matches(presented, self._decoy if record is None else record.hash, self._peppers)
        if record is None or not right or record.revoked:
            return None
        if record.expires is not None and self._now() >= record.expires:
            self._forget(parsed.id)
            return None
        self._warm[mark] = record
        self._marks[parsed.id] = mark
        return record.principal

    def put(self, record: KeyRecord) -> None:
        """Add a key or replace the one with its id; takes effect at once."""
        key_id = record.principal.key_id
        self._forget(key_id)
        self._by_id[key_id] = record

    def drop(self, key_id: str) -> bool:
        """Remove a key; False if there is none. It stops working at once."""
        self._forget(key_id)
        return self._by_id.pop(key_id, None) is not None

    def drop_tenant(self, tenant: str) -> int:
        """Remove all keys of a tenant; returns how many there were."""
        doomed = [key_id for key_id, record in self._by_id.items() if record.principal.tenant == tenant]
        for key_id in doomed:
            self.drop(key_id)
        return len(doomed)

    def records(self) -> Iterator[KeyRecord]:
        """All keys, revoked and expired ones too."""
        return iter(tuple(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def _forget(self, key_id: str) -> None:
        mark = self._marks.pop(key_id, None)
        if mark is not None:
            del self._warm[mark]


def directory(config: Config, now: Callable[[], float]) -> Directory:
    """The keys of a config."""
    return Directory(records(config), now, config.peppers())


def records(config: Config) -> Iterator[KeyRecord]:
    """A record for every key of a config."""
    for name in config.tenants:
        yield from of_tenant(config, name)


def of_tenant(config: Config, name: str) -> Iterator[KeyRecord]:
    """A record for every key of a tenant; none when the config has no such tenant."""
    tenant = config.tenants.get(name)
    if tenant is not None:
        for key in tenant.keys:
            yield KeyRecord(principal(config, name, tenant, key), key.hash, key.expires_unix(), key.revoked)


def principal(config: Config, name: str, tenant: Tenant, key: Key) -> Principal:
    """What `key` of the tenant `name` stands for under `config`. The tenant need not be in the file."""
    names = config.names()
    organisation = config.organisations.get(tenant.organisation) if tenant.organisation else None
    policy = tenant.policy
    return Principal(
        organisation=tenant.organisation,
        tenant=name,
        key_id=key.id,
        weight=tenant.weight,
        cls=tenant.request_class,
        names=frozenset(names.get(pattern, pattern) for pattern in tenant.models if not pattern.endswith("*")),
        prefixes=tuple(pattern[:-1] for pattern in tenant.models if pattern.endswith("*")),
        limits=(
            *(
                limit_rules.flatten(organisation.limits, limit_rules.ORGANISATION, tenant.organisation)
                if organisation is not None and tenant.organisation is not None
                else ()
            ),
            *limit_rules.flatten(tenant.limits, limit_rules.TENANT, name),
            *limit_rules.flatten(key.limits, limit_rules.KEY, key.id),
        ),
        model_limits={
            names.get(model, model): limit_rules.flatten(
                limits, limit_rules.TENANT_MODEL, name, names.get(model, model)
            )
            for model, limits in tenant.model_limits.items()
        },
        isolation=tenant.isolation,
        pools=pools_open_to(config, name, tenant),
        regions=None if policy.regions is None else frozenset(policy.regions),
        spill=policy.spill,
        ceiling_micro_usd=None if policy.ceiling_usd is None else round(policy.ceiling_usd * limit_rules.MICRO),
    )


def pools_open_to(config: Config, name: str, tenant: Tenant) -> frozenset[str] | None:
    """Pools the tenant may be served in, None for all: not those of other tenants, with `dedicated` isolation only
    its own, and of these the ones its policy names.
    """
    pools = {
        pool_name
        for pool_name, pool in config.pools.items()
        if (pool.dedicated_to == name if tenant.isolation == "dedicated" else pool.dedicated_to in (None, name))
    }
    if tenant.policy.pools is not None:
        pools &= set(tenant.policy.pools)
    return None if len(pools) == len(config.pools) else frozenset(pools)
