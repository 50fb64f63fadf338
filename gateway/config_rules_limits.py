"""Rules of limits: each one can be met, does something, and has what it needs to be counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway import limit_rules
from gateway.config_finding import Finding, Rule, rule
from gateway.settings import Config
from gateway.settings_models import Model
from gateway.settings_tenants import MONEY_FIELDS, RATE_FIELDS, Limits, Tenant
from gateway.yaml_tree import Path

_TOKEN_FIELDS: Final = tuple(field for field in RATE_FIELDS if field != "requests_per_minute")


def own_figures(config: Config) -> Iterator[Finding]:
    """What shows in the limits of one subject alone."""
    for path, limits in all_limits(config):
        given = limits.given()
        for flag in ("exact", "shadow"):
            if getattr(limits, flag) and not given:
                yield Finding((*path, flag), "has no effect: no limit is set beside it")
        if limits.burst_s is not None:
            if not any(field in given for field in RATE_FIELDS):
                yield Finding((*path, "burst_s"), "has no effect: no per-minute limit is set beside it")
            for field in RATE_FIELDS:
                if field in given and int(given[field] * limits.burst_s / 60) < 1:
                    yield Finding(
                        (*path, "burst_s"),
                        f"{limits.burst_s:g} s of {field} ({given[field]:g}) is less than one: nothing could pass",
                    )
        total = limits.total_tokens_per_minute
        if total is not None and total < 2:
            yield Finding(
                (*path, "total_tokens_per_minute"),
                f"{total} can never admit a request, which takes at least one prompt and one output token",
            )
        if total is not None and limits.input_tokens_per_minute and limits.output_tokens_per_minute:
            parts = limits.input_tokens_per_minute + limits.output_tokens_per_minute
            if total >= parts:
                yield Finding(
                    (*path, "total_tokens_per_minute"),
                    f"{total} has no effect: input and output limits add up to {parts}",
                    warning=True,
                )
        for field in MONEY_FIELDS:
            if field in given and round(given[field] * limit_rules.MICRO) < 1:
                yield Finding((*path, field), f"{given[field]:g} is less than a micro-dollar: nothing could pass")
        if limits.usd_per_day and limits.usd_per_month and limits.usd_per_day >= limits.usd_per_month:
            yield Finding(
                (*path, "usd_per_day"),
                f"{limits.usd_per_day:g} has no effect: usd_per_month is {limits.usd_per_month:g}",
                warning=True,
            )


def wider_limits(config: Config) -> Iterator[Finding]:
    """A limit that a wider one makes pointless."""
    for name, tenant in config.tenants.items():
        path: Path = ("tenants", name)
        organisation = config.organisations.get(tenant.organisation or "")
        if organisation is not None:
            yield from _pointless((*path, "limits"), tenant.limits, organisation.limits, "the organisation's")
        for model, limits in tenant.model_limits.items():
            yield from _pointless((*path, "model_limits", model), limits, tenant.limits, "the tenant's")
        for index, key in enumerate(tenant.keys):
            yield from _pointless((*path, "keys", index, "limits"), key.limits, tenant.limits, "the tenant's")


def _pointless(path: Path, narrow: Limits, wide: Limits, whose: str) -> Iterator[Finding]:
    if wide.shadow:
        return
    wider = wide.given()
    for field, amount in narrow.given().items():
        if field in wider and amount > wider[field]:
            yield Finding((*path, field), f"{amount:g} has no effect: {whose} is {wider[field]:g}", warning=True)


def money(config: Config) -> Iterator[Finding]:
    """A money limit needs prices on the models it is spent on."""
    for name, tenant in config.tenants.items():
        models = allowed_models(config, tenant)
        path: Path = ("tenants", name)
        yield from _priced((*path, "limits"), tenant.limits, models, config.unpriced)
        for index, key in enumerate(tenant.keys):
            yield from _priced((*path, "keys", index, "limits"), key.limits, models, config.unpriced)
        names = config.names()
        for model, limits in tenant.model_limits.items():
            real = names.get(model)
            if real is not None:
                only = {real: config.models[real]}
                yield from _priced((*path, "model_limits", model), limits, only, config.unpriced)
    misspelt = any((tenant.organisation or "") not in {"", *config.organisations} for tenant in config.tenants.values())
    for name, organisation in config.organisations.items():
        members = [tenant for tenant in config.tenants.values() if tenant.organisation == name]
        if not members:
            if organisation.limits.given() and not misspelt:
                yield Finding(("organisations", name), "no tenant in this file belongs to it", warning=True)
            continue
        models = {}
        for tenant in members:
            models.update(allowed_models(config, tenant))
        yield from _priced(("organisations", name, "limits"), organisation.limits, models, config.unpriced)
    for name, model_settings in config.models.items():
        yield from _priced(("models", name, "limits"), model_settings.limits, {name: model_settings}, config.unpriced)


def _priced(path: Path, limits: Limits, models: dict[str, Model], unpriced: str) -> Iterator[Finding]:
    missing = [name for name, model in models.items() if not has_prices(model)]
    for field in MONEY_FIELDS:
        if getattr(limits, field) is None:
            continue
        if len(missing) == len(models):
            which = f"none of its models ({', '.join(missing)})" if missing else "it may use no model, and none"
            yield Finding((*path, field), f"would count nothing: {which} has prices")
        elif missing:
            fate = {"refuse": "requests for it are refused", "free": "it is spent without being counted"}.get(
                unpriced, "it is charged at the dearest prices"
            )
            yield Finding(
                (*path, field),
                f"no prices on {', '.join(missing)}: {fate} (unpriced: {unpriced})",
                warning=True,
            )


def has_prices(model: Model) -> bool:
    """Whether every target of the model has a price."""
    return model.prices is not None or all(target.prices is not None for tier in model.tiers for target in tier.targets)


def allowed_models(config: Config, tenant: Tenant) -> dict[str, Model]:
    """The models the tenant may use."""
    names = config.names()
    exact = {names.get(pattern) for pattern in tenant.models}
    prefixes = tuple(pattern[:-1] for pattern in tenant.models if pattern.endswith("*"))
    return {name: model for name, model in config.models.items() if name in exact or name.startswith(prefixes)}


def all_limits(config: Config) -> Iterator[tuple[Path, Limits]]:
    """Every set of limits in the file, with its path."""
    for name, organisation in config.organisations.items():
        yield ("organisations", name, "limits"), organisation.limits
    for name, model in config.models.items():
        yield ("models", name, "limits"), model.limits
    for name, tenant in config.tenants.items():
        yield ("tenants", name, "limits"), tenant.limits
        for model_name, limits in tenant.model_limits.items():
            yield ("tenants", name, "model_limits", model_name), limits
        for index, key in enumerate(tenant.keys):
            yield ("tenants", name, "keys", index, "limits"), key.limits


RULES: Final[tuple[Rule, ...]] = (
    rule(own_figures, "organisations", "models", "tenants"),
    rule(wider_limits, "organisations", "tenants"),
    rule(money, "organisations", "models", "tenants", "unpriced"),
)
