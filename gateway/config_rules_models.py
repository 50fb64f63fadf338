"""Rules of models: names that are one model's, routes that lead somewhere, tiers that do not fail together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.config_finding import Finding, Rule, rule
from gateway.config_messages import unknown
from gateway.settings import Config
from gateway.settings_models import Model, Target
from gateway.yaml_tree import Path
from providers.engines import FACTS


def aliases(config: Config) -> Iterator[Finding]:
    """An alias is no model's name and one model's alias."""
    owners: dict[str, str] = {}
    for name, model in config.models.items():
        for index, alias in enumerate(model.aliases):
            path = ("models", name, "aliases", index)
            if alias == name:
                yield Finding(path, f"{alias!r} is the model itself")
            elif alias in config.models:
                loop = "; each is the other's alias" if name in config.models[alias].aliases else ""
                yield Finding(path, f"{alias!r} is a model of its own, which the alias would hide{loop}")
            elif alias in owners:
                again = "twice here" if owners[alias] == name else f"an alias of {owners[alias]} too"
                yield Finding(path, f"{alias!r} is {again}")
            owners.setdefault(alias, name)


def routes(config: Config) -> Iterator[Finding]:
    """Targets exist, each once; what a model promises is held by some target."""
    for name, model in config.models.items():
        if model.tiers[0].after_ms is not None:
            yield Finding(
                ("models", name, "tiers", 0, "after_ms"), "has no effect on the first tier, which is used at once"
            )
        seen: dict[tuple[str, str], int] = {}
        for number, tier in enumerate(model.tiers):
            for index, target in enumerate(tier.targets):
                path: Path = ("models", name, "tiers", number, "targets", index)
                if target.pool not in config.pools:
                    yield Finding((*path, "pool"), unknown("pool", target.pool, config.pools))
                key = (target.pool, target.model)
                if key in seen:
                    yield Finding(path, f"{target.model!r} in pool {target.pool!r} is in tier {seen[key]} already")
                seen.setdefault(key, number + 1)
                yield from _abilities(path, target, config)
        yield from _promises(("models", name), model, config)


def _abilities(path: Path, target: Target, config: Config) -> Iterator[Finding]:
    """What is said of a target is nothing that its kind cannot do."""
    pool = config.pools.get(target.pool)
    for index, feature in enumerate(target.features or ()):
        if pool is not None and feature not in FACTS[pool.kind].features:
            yield Finding((*path, "features", index), f"no upstream of kind {pool.kind!r} has {feature!r}")


def _promises(path: Path, model: Model, config: Config) -> Iterator[Finding]:
    targets = [target for tier in model.tiers for target in tier.targets]
    contexts = [target.context or model.context for target in targets]
    if max(contexts) < model.context:
        yield Finding((*path, "context"), f"{model.context} is more than any target takes (at most {max(contexts)})")
    if model.max_output_tokens is not None and model.max_output_tokens >= model.context:
        yield Finding(
            (*path, "max_output_tokens"), f"{model.max_output_tokens} leaves no room for a prompt in {model.context}"
        )
    if model.features is not None:
        for index, feature in enumerate(model.features):
            if all(target.features is not None and feature not in target.features for target in targets):
                yield Finding((*path, "features", index), f"no target has {feature!r}")
                continue
            kinds = {config.pools[target.pool].kind for target in targets if target.pool in config.pools}
            if kinds and not any(feature in FACTS[kind].features for kind in kinds):
                named = " and ".join(repr(kind) for kind in sorted(kinds))
                yield Finding(
                    (*path, "features", index), f"no target has {feature!r}: no upstream of kind {named} does"
                )


def failure_domains(config: Config) -> Iterator[Finding]:
    """A model with more than one target should not lose all of them to one failure."""
    for name, model in config.models.items():
        pools = [target.pool for tier in model.tiers for target in tier.targets]
        if len(pools) < 2 or any(pool not in config.pools for pool in pools):
            continue
        path = ("models", name, "tiers")
        if len(set(pools)) == 1:
            if len(model.tiers) > 1:
                yield Finding(path, f"all tiers are in pool {pools[0]!r}, so none outlives it", warning=True)
            continue
        domains = {config.pools[pool].domain()[:2] for pool in pools}
        vendor, region = next(iter(domains))
        if len(domains) == 1 and vendor:
            where = f"vendor {vendor!r}" + (f", region {region!r}" if region else "")
            yield Finding(
                path, f"all targets share one failure domain ({where}), so one outage takes all", warning=True
            )


RULES: Final[tuple[Rule, ...]] = (
    rule(aliases, "models"),
    rule(routes, "models", "pools"),
    rule(failure_domains, "models", "pools"),
)
