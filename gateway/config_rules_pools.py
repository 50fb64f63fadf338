"""Rules of pools: servers or an account, each once, with timers in order and an isolation that can be kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.config_finding import Finding, Rule, rule
from gateway.config_messages import unknown
from gateway.settings import Config
from gateway.settings_pools import ENGINE_KINDS, VENDOR_KINDS, Account, Pool
from gateway.urls import address_key, is_loopback_host, parse_url
from gateway.yaml_tree import Path
from providers.engines import FACTS
from providers.kinds import kind_names

# Fields that mean nothing for an account, and why.
_SERVERS_ONLY: Final = {
    "key": "the account's credentials are used",
    "adapters": "a provider holds its own",
    "cold_start_s": "an account has no replicas to start",
    "poll_ms": "an account has no replicas to poll",
}
_SERVERS_ONLY_CAPACITY: Final = ("kv_tokens", "prefill_tokens_per_s", "chunk_tokens")
_ACCOUNT_FIELDS: Final = {
    "api_version": ("azure", "anthropic"),
    "organization": ("openai",),
    "project": ("openai",),
}


def kinds(config: Config) -> Iterator[Finding]:
    """Every kind is one this version can speak to."""
    usable = kind_names()
    for name, pool in config.pools.items():
        if pool.kind not in usable:
            yield Finding(
                ("pools", name, "kind"),
                f"{pool.kind!r} cannot be spoken to by this version; it can: {', '.join(sorted(usable))}",
            )


def upstreams(config: Config) -> Iterator[Finding]:
    """Replicas or an account, as the kind needs."""
    for name, pool in config.pools.items():
        path = ("pools", name)
        if pool.kind in ENGINE_KINDS:
            if pool.account is not None:
                yield Finding((*path, "account"), f"kind {pool.kind!r} is an engine: it has replicas and no account")
            if not pool.replicas:
                yield Finding(path, f"kind {pool.kind!r} needs replicas")
        elif pool.kind in VENDOR_KINDS:
            if pool.replicas:
                yield Finding((*path, "replicas"), f"kind {pool.kind!r} is a provider: it has an account, no replicas")
            if pool.account is None:
                yield Finding(path, f"kind {pool.kind!r} needs an account")
        elif (pool.account is None) == (not pool.replicas):
            yield Finding(path, f"kind {pool.kind!r} needs either replicas or an account, and not both")
        if pool.account is not None and not pool.replicas:
            yield from _account(path, pool, pool.account)


def _account(path: Path, pool: Pool, account: Account) -> Iterator[Finding]:
    here = (*path, "account")
    for field, why in _SERVERS_ONLY.items():
        if field in pool.model_fields_set and getattr(pool, field):
            yield Finding((*path, field), f"has no effect on an account: {why}")
    for field in _SERVERS_ONLY_CAPACITY:
        if getattr(pool.capacity, field) is not None:
            yield Finding((*path, "capacity", field), "has no effect on an account, which has seats and nothing else")
    if account.url is None and pool.kind in ("azure", "openai-compatible"):
        yield Finding(here, f"kind {pool.kind!r} needs a url")
    if account.region is None and pool.kind == "bedrock":
        yield Finding(here, "kind 'bedrock' needs a region")
    for field, kind_list in _ACCOUNT_FIELDS.items():
        if getattr(account, field) is not None and pool.kind not in kind_list:
            yield Finding((*here, field), f"has no effect on kind {pool.kind!r}, only on {' and '.join(kind_list)}")
    if account.url is not None:
        parts = parse_url(account.url)
        if parts.scheme == "http" and not is_loopback_host(parts.hostname or ""):
            yield Finding((*here, "url"), "is not https, so the credentials travel in clear", warning=True)
    seen: set[str] = set()
    for index, credential in enumerate(account.credentials):
        entry = (*here, "credentials", index)
        if credential.name in seen:
            yield Finding((*entry, "name"), f"{credential.name!r} is the name of another credential of this account")
        seen.add(credential.name)
        if credential.access_key_id is not None and pool.kind != "bedrock":
            yield Finding((*entry, "access_key_id"), f"has no effect on kind {pool.kind!r}, only on bedrock")
        if credential.session_token is not None and credential.access_key_id is None:
            yield Finding((*entry, "session_token"), "has no effect without access_key_id")


def replicas(config: Config) -> Iterator[Finding]:
    """Names are unique in a pool, addresses everywhere."""
    owners: dict[tuple[str, str, int, str], str] = {}
    for name, pool in config.pools.items():
        names: set[str] = set()
        for index, replica in enumerate(pool.replicas):
            path = ("pools", name, "replicas", index)
            if replica.name in names:
                yield Finding((*path, "name"), f"{replica.name!r} is the name of another replica of this pool")
            names.add(replica.name)
            owner = owners.setdefault(address_key(replica.url), f"{name}.{replica.name}")
            if owner != f"{name}.{replica.name}":
                yield Finding((*path, "url"), f"is the address of replica {owner} too; its capacity would count twice")
        for adapter_name, adapter in pool.adapters.items():
            for index, holder in enumerate(adapter.replicas):
                if holder not in names:
                    yield Finding(
                        ("pools", name, "adapters", adapter_name, "replicas", index), unknown("replica", holder, names)
                    )


def loops(config: Config) -> Iterator[Finding]:
    """No pool leads back to this gateway: a request would go round until its time is over."""
    port, host = config.listen.port, config.listen.host
    for name, pool in config.pools.items():
        for place, url in pool.addresses():
            parts = parse_url(url)
            named = parts.hostname or ""
            here = named == host or is_loopback_host(named)
            if here and port and port == (parts.port or (443 if parts.scheme == "https" else 80)):
                where = ("account", "url") if pool.account is not None else ("replicas",)
                yield Finding(("pools", name, *where), f"{place!r} is this gateway's own address: a request would loop")


def adapters(config: Config) -> Iterator[Finding]:
    """Adapters fit what the engines were started for, and those that are to be loaded can be."""
    for name, pool in config.pools.items():
        lora = pool.lora
        for adapter_name, adapter in pool.adapters.items():
            path = ("pools", name, "adapters", adapter_name)
            if adapter.source is not None and FACTS[pool.kind].adapter_paths is None:
                loading = sorted(kind for kind, facts in FACTS.items() if facts.adapter_paths is not None)
                yield Finding(
                    (*path, "source"),
                    f"kind {pool.kind!r} loads no adapter while it runs; these do: {', '.join(loading)}",
                )
            if adapter.rank is not None and lora.max_rank is not None and adapter.rank > lora.max_rank:
                yield Finding(
                    (*path, "rank"), f"{adapter.rank} is more than the engines take (lora.max_rank: {lora.max_rank})"
                )
            if None not in (adapter.base, lora.base) and adapter.base != lora.base:
                yield Finding(
                    (*path, "base"), f"{adapter.base!r} is not what the pool serves (lora.base: {lora.base!r})"
                )
        yield from _crowded(name, pool)


def _crowded(name: str, pool: Pool) -> Iterator[Finding]:
    """Adapters that stay must fit beside each other, and leave room for those that come and go."""
    slots = pool.lora.slots
    if slots is None:
        return
    for replica in pool.replicas:
        here = [a for a in pool.adapters.values() if not a.replicas or replica.name in a.replicas]
        staying = sum(adapter.source is None for adapter in here)
        if staying > slots or (staying == slots and len(here) > staying):
            more = ", and others are to be loaded" if staying == slots else ""
            yield Finding(
                ("pools", name, "lora", "slots"), f"{slots}, but {staying} adapters stay on {replica.name}{more}"
            )
            return


def timers(config: Config) -> Iterator[Finding]:
    """connect < first token < total, stall < total, and the TTFT target inside its timer."""
    for name, pool in config.pools.items():
        timeouts = pool.timeouts
        for shorter, longer in (
            ("connect_ms", "first_token_ms"),
            ("first_token_ms", "total_ms"),
            ("stall_ms", "total_ms"),
        ):
            if getattr(timeouts, shorter) >= getattr(timeouts, longer):
                yield Finding(
                    ("pools", name, "timeouts", shorter),
                    f"{getattr(timeouts, shorter)} must be shorter than {longer} ({getattr(timeouts, longer)})",
                )
        if pool.slo.ttft_ms >= timeouts.first_token_ms:
            yield Finding(
                ("pools", name, "slo", "ttft_ms"),
                f"{pool.slo.ttft_ms} must be shorter than timeouts.first_token_ms ({timeouts.first_token_ms})",
            )


def isolation(config: Config) -> Iterator[Finding]:
    """`dedicated` says to whom, and `salted` needs an engine that keeps salts apart."""
    for name, pool in config.pools.items():
        path = ("pools", name)
        if pool.isolation == "dedicated" and pool.dedicated_to is None:
            yield Finding((*path, "isolation"), "'dedicated' needs dedicated_to: the tenant it is for")
        if pool.dedicated_to is not None:
            if pool.isolation != "dedicated":
                yield Finding((*path, "dedicated_to"), f"has no effect with isolation {pool.isolation!r}")
            if pool.dedicated_to not in config.tenants:
                yield Finding((*path, "dedicated_to"), unknown("tenant", pool.dedicated_to, config.tenants))
        if pool.isolation == "salted" and not FACTS[pool.kind].salt:
            salting = sorted(kind for kind, facts in FACTS.items() if facts.salt)
            yield Finding(
                (*path, "isolation"),
                f"kind {pool.kind!r} keeps no prefix caches apart by salt; these do: {', '.join(salting)}",
            )


def priorities(config: Config) -> Iterator[Finding]:
    """An order inside the engine needs an engine that keeps one."""
    for name, pool in config.pools.items():
        if pool.priority and FACTS[pool.kind].priority is None:
            taking = sorted(kind for kind, facts in FACTS.items() if facts.priority is not None)
            yield Finding(
                ("pools", name, "priority"),
                f"kind {pool.kind!r} serves in the order of arrival; these can serve by priority: {', '.join(taking)}",
            )


def unused(config: Config) -> Iterator[Finding]:
    """Every pool serves some model."""
    used = {target.pool for model in config.models.values() for tier in model.tiers for target in tier.targets}
    if not used <= set(config.pools):
        return  # a name is misspelt, and that is said of the target
    for name in config.pools:
        if name not in used:
            yield Finding(("pools", name), "no model has a target in this pool", warning=True)


RULES: Final[tuple[Rule, ...]] = (
    rule(kinds, "pools"),
    rule(upstreams, "pools"),
    rule(replicas, "pools"),
    rule(adapters, "pools"),
    rule(loops, "pools", "listen"),
    rule(timers, "pools"),
    rule(isolation, "pools", "tenants"),
    rule(priorities, "pools"),
    rule(unused, "pools", "models"),
)
