"""What a config sets up, in lines for people: shown by `weighbridge check` and at start.

The list of limits is what is enforced and not what was written, so that a limit that is missing can be seen to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from gateway import limit_rules
from gateway.limit_rules import LimitRule
from gateway.settings import Config

LISTED: Final = 40
"""Limits shown one by one before the rest is only counted."""


def summary(config: Config, most: int | None = LISTED) -> list[str]:
    """Pools, models, tenants, and the limits in force (`most` of them one by one; None: all)."""
    key_count = sum(len(tenant.keys) for tenant in config.tenants.values())
    pools = []
    for name, pool in config.pools.items():
        size = count(len(pool.replicas), "replica") if pool.replicas else "account"
        pools.append(f"{name} ({pool.kind}, {size})")
    models = [" = ".join([name, *model.aliases]) for name, model in config.models.items()]
    rules = list(limit_rules.enforced(config))
    lines = [
        _row("pools", pools),
        _row("models", models),
        _row("tenants", [count(len(config.tenants), "tenant"), count(key_count, "key")]),
        _row("limits", [_counts(rules)]),
    ]
    shown = rules if most is None else rules[:most]
    lines.extend(f"{'':<9}{rule}" for rule in shown)
    if len(rules) > len(shown):
        lines.append(f"{'':<9}… and {len(rules) - len(shown)} more")
    return lines


def count(number: int, noun: str) -> str:
    """`1 key`, `2 keys`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _counts(rules: Sequence[LimitRule]) -> str:
    if not rules:
        return "none in force: nobody is limited"
    by_level = Counter(rule.level for rule in rules)
    parts = [f"{by_level[level]} by {level.replace('_', ' and ')}" for level in limit_rules.LEVELS if by_level[level]]
    return f"{len(rules)} in force: {', '.join(parts)}"


def _row(name: str, values: Iterable[str]) -> str:
    return f"{name:<9}" + (", ".join(values) or "none")
