"""The limits in force, flattened from the settings: one value each, with its level, subject and figures.

    burst = floor(amount * burst_s / 60), at least 1; where the settings give no `burst_s` the limiter chooses

This list is what is enforced, nothing else: it is printed at start and by `weighbridge check`, so that a limit which
was meant but is not there can be seen to be missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.settings import Config
from gateway.settings_tenants import Limits

ORGANISATION: Final = "organisation"
TENANT: Final = "tenant"
KEY: Final = "key"
TENANT_MODEL: Final = "tenant_model"
MODEL: Final = "model"
LEVELS: Final = (ORGANISATION, TENANT, KEY, TENANT_MODEL, MODEL)

# Field of the settings -> dimension, unit for people.
_DIMENSIONS: Final = {
    "requests_per_minute": ("requests", "requests/min"),
    "input_tokens_per_minute": ("input_tokens", "input tokens/min"),
    "output_tokens_per_minute": ("output_tokens", "output tokens/min"),
    "total_tokens_per_minute": ("total_tokens", "tokens/min"),
    "concurrency": ("concurrency", "at once"),
    "usd_per_day": ("money_day", "USD/day"),
    "usd_per_month": ("money_month", "USD/month"),
}
MICRO: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class LimitRule:
    """One limit as configured."""

    level: str
    """One of `LEVELS`."""
    subject: str
    """Organisation, tenant, key id or model; for `tenant_model` the tenant."""
    model: str | None
    """The model's public name for `tenant_model` and `model`, else None: all models."""
    dimension: str
    """requests, input_tokens, output_tokens, total_tokens, concurrency, money_day or money_month."""
    amount: int
    """Units of the dimension per period: requests, tokens, requests in flight, micro-dollars."""
    period_s: int
    """60 for rates; 0 where there is none (concurrency) or the calendar has it (money)."""
    burst: int | None
    """Most units of a rate that can be taken at once. None: the limiter's default, or not a rate."""
    exact: bool
    shadow: bool

    def __str__(self) -> str:
        """`tenant acme: 600 requests/min`."""
        words = next(words for name, words in _DIMENSIONS.values() if name == self.dimension)
        amount = f"{self.amount / MICRO:,.6g}" if self.dimension.startswith("money") else f"{self.amount:,}"
        who = f"{self.subject} on {self.model}" if self.level == TENANT_MODEL else self.subject
        level = "tenant" if self.level == TENANT_MODEL else self.level
        notes = [
            *([f"burst {self.burst:,}"] if self.burst is not None else []),
            *(["exact"] if self.exact else []),
            *(["shadow: refuses nothing"] if self.shadow else []),
        ]
        return f"{level} {who}: {amount} {words}" + (f" ({', '.join(notes)})" if notes else "")


def flatten(limits: Limits, level: str, subject: str, model: str | None = None) -> tuple[LimitRule, ...]:
    """The limits that are set, as rules of `level` for `subject`."""
    rules = []
    for name, value in limits.given().items():
        dimension, _ = _DIMENSIONS[name]
        rate = name.endswith("_per_minute")
        amount = round(value * MICRO) if dimension.startswith("money") else int(value)
        rules.append(
            LimitRule(
                level=level,
                subject=subject,
                model=model,
                dimension=dimension,
                amount=amount,
                period_s=60 if rate else 0,
                burst=burst(amount, limits.burst_s) if rate and limits.burst_s is not None else None,
                exact=limits.exact,
                shadow=limits.shadow,
            )
        )
    return tuple(rules)


def burst(per_minute: int, burst_s: float) -> int:
    """Units that `burst_s` seconds of a per-minute limit allow at once, at least 1."""
    return max(1, int(per_minute * burst_s / 60.0 + 1e-9))


def model_rules(config: Config) -> dict[str, tuple[LimitRule, ...]]:
    """The limits of each model over all tenants, by public name; models without any are left out."""
    rules = {name: flatten(model.limits, MODEL, name, name) for name, model in config.models.items()}
    return {name: found for name, found in rules.items() if found}


def enforced(config: Config) -> Iterator[LimitRule]:
    """Every limit in force, from the widest level to the narrowest."""
    names = config.names()
    for name, organisation in config.organisations.items():
        yield from flatten(organisation.limits, ORGANISATION, name)
    for name, model in config.models.items():
        yield from flatten(model.limits, MODEL, name, name)
    for name, tenant in config.tenants.items():
        yield from flatten(tenant.limits, TENANT, name)
        for model_name, limits in tenant.model_limits.items():
            yield from flatten(limits, TENANT_MODEL, name, names.get(model_name, model_name))
        for key in tenant.keys:
            yield from flatten(key.limits, KEY, key.id)
