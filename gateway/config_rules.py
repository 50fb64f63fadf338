"""Rules across settings: what no value shows by itself. Each reports everything it finds and changes nothing.

A limit or a guarantee that would silently do nothing is an error; a set-up that works but will disappoint is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway import config_rules_limits, config_rules_models, config_rules_pools, config_rules_tenants
from gateway.config_finding import Finding, Rule, rule
from gateway.settings import Config
from gateway.urls import is_loopback_host

_SHORT_KEY = 16


def listeners(config: Config) -> Iterator[Finding]:
    """Two listeners on two ports, and the admin one not open to the network in clear."""
    listen, admin = config.listen, config.admin
    if listen.port == admin.port != 0:
        yield Finding(("admin", "port"), f"{admin.port} is the data listener's port too; give it one of its own")
    if not is_loopback_host(admin.host):
        if admin.tls is None:
            yield Finding(
                ("admin", "host"),
                f"{admin.host!r} can be reached from the network without TLS, so the admin key travels in clear; "
                "set admin.tls or listen on 127.0.0.1",
                warning=True,
            )
        if admin.key is not None and len(admin.key.get_secret_value()) < _SHORT_KEY:
            yield Finding(
                ("admin", "key"),
                f"has fewer than {_SHORT_KEY} characters while {admin.host!r} can be reached from the network",
                warning=True,
            )


def stores(config: Config) -> Iterator[Finding]:
    """What is shared between instances."""
    if config.redis is None and config.limits_when_store_is_away != "local":
        yield Finding(
            ("limits_when_store_is_away",),
            f"{config.limits_when_store_is_away!r} has no effect without redis: limits are this instance's own",
            warning=True,
        )


def salts(config: Config) -> Iterator[Finding]:
    """A secret for cache salts that cannot be guessed, and that instances share."""
    secret = config.salt_secret
    if secret is not None:
        if len(secret.get_secret_value()) < _SHORT_KEY:
            yield Finding(("salt_secret",), f"has fewer than {_SHORT_KEY} characters, so salts could be guessed")
        return
    salted = [name for name, pool in config.pools.items() if pool.isolation == "salted"]
    salted += [name for name, tenant in config.tenants.items() if tenant.isolation == "salted"]
    if config.redis is not None and salted:
        yield Finding(
            ("redis",),
            f"instances share limits but not the cache salts that {salted[0]!r} needs, so a tenant finds its cached "
            "prefixes only through the instance that made them; set salt_secret",
            warning=True,
        )


def ahead(config: Config) -> Iterator[Finding]:
    """Settings that no part reads: silence about them would be a promise."""
    if config.telemetry.otlp_endpoint is not None:
        yield Finding(
            ("telemetry", "otlp_endpoint"), "has no effect in this version: no traces are exported", warning=True
        )


def failover(config: Config) -> Iterator[Finding]:
    """First and longest waits in order."""
    settings = config.failover
    if settings.backoff_ms > settings.backoff_max_ms:
        yield Finding(
            ("failover", "backoff_ms"),
            f"{settings.backoff_ms} is longer than backoff_max_ms ({settings.backoff_max_ms})",
        )
    if settings.breaker.open_ms > settings.breaker.open_max_ms:
        yield Finding(
            ("failover", "breaker", "open_ms"),
            f"{settings.breaker.open_ms} is longer than open_max_ms ({settings.breaker.open_max_ms})",
        )


def something_to_serve(config: Config) -> Iterator[Finding]:
    """At least one model on at least one pool."""
    if not config.pools:
        yield Finding(("pools",), "none is defined, so nothing can be served")
    if not config.models:
        yield Finding(("models",), "none is defined, so every request would be refused")


RULES: Final[tuple[Rule, ...]] = (
    rule(listeners, "listen", "admin"),
    rule(stores, "redis", "limits_when_store_is_away"),
    rule(salts, "salt_secret", "redis", "pools", "tenants"),
    rule(ahead, "telemetry"),
    rule(failover, "failover"),
    rule(something_to_serve, "pools", "models"),
    *config_rules_pools.RULES,
    *config_rules_models.RULES,
    *config_rules_limits.RULES,
    *config_rules_tenants.RULES,
)
