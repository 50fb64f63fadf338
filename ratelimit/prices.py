"""What a request costs: integer micro-USD from prices per million tokens.

    cost = ceil((uncached * input + cached * cached + cache writes * cache_write
                 + plain output * output + reasoning * reasoning) / 1,000,000)

A model may have a second tier: a prompt longer than `long_context_above` tokens is charged at the long-context
prices, all of its tokens, input and output alike. Prices are integers of micro-USD per million tokens, read from
decimal USD without passing through a float, so 0.1 USD is 100,000 exactly.

A model without a usable price is not free and not a fault of its neighbours: the book keeps every model that can be
read, says what is wrong with each other one, and its policy decides what a request for such a model is charged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from enum import StrEnum

from ratelimit.usage import TokenUse

MILLION = 1_000_000
MOST_USD_PER_MTOK = 1_000_000
"""A price above a dollar a token is a slip of the pen."""


class BadPrice(ValueError):
    """A model's prices cannot be used; the message names the field and the value."""


@dataclass(frozen=True, slots=True)
class Tier:
    """Micro-USD per million tokens of each kind."""

    input: int
    output: int
    cached: int
    cache_write: int
    reasoning: int


@dataclass(frozen=True, slots=True)
class Prices:
    """One model's prices. Prompts above `long_context_above` tokens are charged by `long_context`."""

    base: Tier
    long_context: Tier | None = None
    long_context_above: int = 0

    def cost(self, use: TokenUse) -> int:
        """Micro-USD for this use, rounded up."""
        tier = self.base
        if self.long_context is not None and use.prompt > self.long_context_above:
            tier = self.long_context
        cached, cache_write, reasoning = use.cached, use.cache_write, use.reasoning
        return -(
            -(
                max(0, use.prompt - cached - cache_write) * tier.input
                + cached * tier.cached
                + cache_write * tier.cache_write
                + max(0, use.output - reasoning) * tier.output
                + reasoning * tier.reasoning
            )
            // MILLION
        )

    def worst(self, prompt: int, output_cap: int) -> int:
        """The dearest a request can become: no token of its prompt cached (or each written), all output used.

        The prompt is an estimate; one within a quarter of the long-context threshold is priced beyond it.
        """
        tiers = [self.base]
        if self.long_context is not None and prompt * 5 > self.long_context_above * 4:
            tiers.append(self.long_context)
        return max(
            -(-(prompt * max(t.input, t.cache_write, t.cached) + output_cap * max(t.output, t.reasoning)) // MILLION)
            for t in tiers
        )


def micro_usd_per_mtok(name: str, value: object) -> int:
    """Micro-USD per million tokens from decimal USD per million tokens. Raises BadPrice."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise BadPrice(f"{name}: expected a number of USD, got {value!r}")
    try:
        usd = Decimal(str(value))
    except InvalidOperation:
        raise BadPrice(f"{name}: expected a number of USD, got {value!r}") from None
    if not usd.is_finite() or not 0 <= usd <= MOST_USD_PER_MTOK:
        raise BadPrice(f"{name}: {value} is not between 0 and {MOST_USD_PER_MTOK} USD per million tokens")
    micro = usd * MILLION
    if micro != int(micro):
        raise BadPrice(f"{name}: {value} has more than six decimals")
    return int(micro)


_KINDS = ("input", "output", "cached", "cache_write", "reasoning")


def _tier(raw: Mapping[str, object], prefix: str, base: Tier | None) -> Tier:
    """One tier; what it does not name follows the base tier, or input and output of its own."""
    given = {
        kind: micro_usd_per_mtok(f"{prefix}{kind}_usd_per_mtok", raw[f"{prefix}{kind}_usd_per_mtok"])
        for kind in _KINDS
        if raw.get(f"{prefix}{kind}_usd_per_mtok") is not None
    }
    for kind in ("input", "output"):
        if kind not in given:
            if base is None:
                raise BadPrice(f"{prefix}{kind}_usd_per_mtok: missing")
            given[kind] = getattr(base, kind)
    if base is not None and base.input:
        given.setdefault("cached", -(-base.cached * given["input"] // base.input))
        given.setdefault("cache_write", -(-base.cache_write * given["input"] // base.input))
    return Tier(
        input=given["input"],
        output=given["output"],
        cached=given.get("cached", given["input"]),
        cache_write=given.get("cache_write", given["input"]),
        reasoning=given.get("reasoning", given["output"]),
    )


def prices_from(raw: Mapping[str, object]) -> Prices:
    """Prices from a config mapping: `input_usd_per_mtok`, `output_usd_per_mtok`, and optionally `cached_`,
    `cache_write_` and `reasoning_usd_per_mtok`, `long_context_above` (tokens) and the same five with `long_` before
    them. Raises BadPrice, also for a field it does not know.
    """
    known = {f"{prefix}{kind}_usd_per_mtok" for prefix in ("", "long_") for kind in _KINDS} | {"long_context_above"}
    for name in raw:
        if name not in known:
            raise BadPrice(f"{name}: unknown price field")
    base = _tier(raw, "", None)
    above = raw.get("long_context_above")
    if above is None:
        if any(name.startswith("long_") and raw[name] is not None for name in raw):
            raise BadPrice("long_context_above: missing, but long-context prices are given")
        return Prices(base)
    if isinstance(above, bool) or not isinstance(above, int) or above <= 0:
        raise BadPrice(f"long_context_above: expected a positive number of tokens, got {above!r}")
    return Prices(base, _tier(raw, "long_", base), above)


class Unpriced(StrEnum):
    """What a request for a model without a usable price is charged."""

    REFUSE = "refuse"  # not let through where a money limit applies
    DEAREST = "dearest"  # at the highest of every price in the book
    FREE = "free"  # nothing, by the operator's explicit word


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Prices by model name. `broken` says, per model, why its prices cannot be used."""

    prices: Mapping[str, Prices]
    broken: Mapping[str, str] = field(default_factory=dict)
    unpriced: Unpriced = Unpriced.REFUSE

    def of(self, model: str) -> Prices | None:
        """The model's prices, what stands for them by policy, or None: refuse where a money limit applies."""
        known = self.prices.get(model)
        if known is not None:
            return known
        if self.unpriced is Unpriced.FREE:
            return Prices(Tier(0, 0, 0, 0, 0))
        if self.unpriced is Unpriced.REFUSE or not self.prices:
            return None
        tiers = [p.base for p in self.prices.values()]
        tiers += [p.long_context for p in self.prices.values() if p.long_context is not None]
        return Prices(Tier(*(max(getattr(tier, kind) for tier in tiers) for kind in _KINDS)))


def price_book(raw: Mapping[str, Mapping[str, object]], unpriced: Unpriced = Unpriced.REFUSE) -> PriceBook:
    """A book from a config mapping of models; one that is broken is reported in the book and touches no other."""
    prices: dict[str, Prices] = {}
    broken: dict[str, str] = {}
    for model, entry in raw.items():
        try:
            prices[model] = prices_from(entry)
        except BadPrice as error:
            broken[model] = str(error)
    return PriceBook(prices, broken, unpriced)
