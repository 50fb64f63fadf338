"""Settings of models: the route behind a public name, what it can do, and what it costs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateway.settings_base import Count, CountOrZero, ModelName, Name, Positive, PositiveOrZero, Settings
from gateway.settings_tenants import Limits
from ratelimit.prices import MOST_USD_PER_MTOK, prices_from

Feature = Literal["tools", "images", "json_schema", "audio", "reasoning", "logprobs", "embeddings"]
Price = Annotated[PositiveOrZero, Field(le=MOST_USD_PER_MTOK)]
Continuation = Literal["auto", "always", "never"]


class Prices(Settings):
    """What tokens cost, in US dollars per million. A long prompt may have other prices, for all of its tokens."""

    input_usd_per_mtok: Price
    """Prompt tokens."""
    output_usd_per_mtok: Price
    """Output tokens."""
    cached_usd_per_mtok: Price | None = None
    """Prompt tokens read from a cache; none: as other prompt tokens."""
    cache_write_usd_per_mtok: Price | None = None
    """Prompt tokens written to a cache; none: as other prompt tokens."""
    reasoning_usd_per_mtok: Price | None = None
    """Reasoning tokens; none: as other output tokens."""
    long_context_above: Count | None = None
    """Prompt tokens above which the `long_` prices hold; none: there are no others."""
    long_input_usd_per_mtok: Price | None = None
    """Prompt tokens of a long prompt; none: as `input_`. The others follow in the same way."""
    long_output_usd_per_mtok: Price | None = None
    """Output tokens after a long prompt."""
    long_cached_usd_per_mtok: Price | None = None
    """Prompt tokens of a long prompt read from a cache."""
    long_cache_write_usd_per_mtok: Price | None = None
    """Prompt tokens of a long prompt written to a cache."""
    long_reasoning_usd_per_mtok: Price | None = None
    """Reasoning tokens after a long prompt."""

    @model_validator(mode="after")
    def _usable(self) -> Prices:
        prices_from(self.given())
        return self

    def given(self) -> dict[str, object]:
        """The prices that are set, by field name."""
        fields = type(self).model_fields
        return {name: value for name in fields if (value := getattr(self, name)) is not None}


class Target(Settings):
    """One place a model can be served."""

    pool: Name
    """A pool."""
    model: ModelName
    """The model's name there (a deployment, an adapter)."""
    weight: Positive = 1.0
    """Part of the tier's requests relative to its other targets."""
    context: Count | None = None
    """Context window there, if it is not the model's."""
    features: tuple[Feature, ...] | None = None
    """What it can do there, if it is not what the model can."""
    prices: Prices | None = None
    """What it costs there, if it is not the model's prices."""


class Tier(Settings):
    """Targets of equal standing. A tier is used when those before it cannot serve."""

    targets: tuple[Target, ...] = Field(min_length=1)
    """At least one target."""
    after_ms: CountOrZero | None = None
    """Spill: also use this tier when waiting in the tiers before it would take longer than this. None: only when they
    cannot serve at all."""


class Model(Settings):
    """A public model name and its route."""

    context: Count
    """Context window in tokens, prompt and output together."""
    max_output_tokens: Count | None = None
    """Most output tokens of one request; none: what the context leaves."""
    aliases: tuple[ModelName, ...] = ()
    """Other names clients may use."""
    tiers: tuple[Tier, ...] = Field(min_length=1)
    """The route: tiers in order."""
    features: tuple[Feature, ...] | None = None
    """What requests may ask of it beyond plain text; none: anything, and the upstream says what it cannot."""
    continuation: Continuation = "auto"
    """Whether a stream whose server dies goes on from another one of the same pool, where the engine can continue a
    partial answer and the answer is plain text. `auto`: at temperature 0 only, where the text is the same; `always`: at
    any temperature; `never`: the stream ends with an error event."""
    prices: Prices | None = None
    """What tokens cost; needed by money limits."""
    limits: Limits = Limits()
    """Limits over all tenants together."""
