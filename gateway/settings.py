"""The whole config file as one frozen value; the parts are in `settings_pools` and `settings_tenants`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BaseModel, Field, SecretStr

from gateway.settings_base import (
    Count,
    CountOrZero,
    Milliseconds,
    ModelName,
    ModelTable,
    Name,
    NameTable,
    Port,
    Positive,
    PositiveOrZero,
    Secret,
    Settings,
    Share,
)
from gateway.settings_pools import Pool
from gateway.settings_tenants import Limits, Organisation, Tenant

Feature = Literal["tools", "images", "json_schema", "audio", "reasoning", "logprobs", "embeddings"]
StoreAway = Literal["local", "closed", "open"]
LogLevel = Literal["debug", "info", "warning", "error"]


class Tls(Settings):
    """Certificate of a listener."""

    certificate: str = Field(min_length=1)
    """Path of the PEM file with the certificate chain."""
    private_key: str = Field(min_length=1)
    """Path of the PEM file with the private key."""


class Listen(Settings):
    """The data listener: `/v1/...`."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on."""
    port: Port = 8080
    """TCP port; 0 takes a free one."""
    max_body_bytes: Count = 33_554_432
    """Largest request body; a larger one is refused with 413."""
    body_timeout_ms: Milliseconds = 30_000
    """How long a client may take to send a request's body."""
    drain_s: PositiveOrZero = 30.0
    """How long requests in flight may go on after a signal to stop."""
    tls: Tls | None = None
    """Serve HTTPS; none: plain HTTP."""


class Admin(Settings):
    """The admin listener: admin API, console, metrics."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on."""
    port: Port = 8081
    """TCP port; 0 takes a free one."""
    key: Secret | None = None
    """Bearer key of the admin API. None: the admin API refuses everybody; health and metrics stay."""
    tls: Tls | None = None
    """Serve HTTPS; none: plain HTTP."""


class LongContext(Settings):
    """Prices of requests whose prompt is longer than a bound."""

    above_input_tokens: Count
    """Applies to the whole request when its prompt has more tokens than this."""
    input_usd_per_mtok: PositiveOrZero
    """A million prompt tokens."""
    output_usd_per_mtok: PositiveOrZero
    """A million output tokens."""
    cached_usd_per_mtok: PositiveOrZero | None = None
    """A million prompt tokens read from a cache; none: as other prompt tokens."""


class Prices(Settings):
    """What tokens cost, in US dollars per million."""

    input_usd_per_mtok: PositiveOrZero
    """A million prompt tokens."""
    output_usd_per_mtok: PositiveOrZero
    """A million output tokens, reasoning included."""
    cached_usd_per_mtok: PositiveOrZero | None = None
    """A million prompt tokens read from a cache; none: as other prompt tokens."""
    cache_write_usd_per_mtok: PositiveOrZero | None = None
    """A million prompt tokens written to a cache; none: as other prompt tokens."""
    long_context: tuple[LongContext, ...] = ()
    """Other prices above a prompt length."""


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
    prices: Prices | None = None
    """What tokens cost; needed by money limits."""
    limits: Limits = Limits()
    """Limits over all tenants together."""


class RequestClass(Settings):
    """A class of requests."""

    weight: Positive
    """Share of a contended pool relative to the other class."""
    queue_timeout_ms: Milliseconds
    """Longest wait for admission."""


class Classes(Settings):
    """The two classes: somebody waits, or nobody does."""

    interactive: RequestClass = RequestClass(weight=100, queue_timeout_ms=10_000)
    """Somebody waits for the answer."""
    batch: RequestClass = RequestClass(weight=1, queue_timeout_ms=600_000)
    """Nobody waits; may be preempted and queued again until its first byte is out."""


class Breaker(Settings):
    """When a target is left alone for a while."""

    window_s: Positive = 30.0
    """Outcomes of this long count."""
    min_requests: Count = 20
    """With fewer outcomes in the window a ratio says nothing."""
    failure_ratio: Annotated[Share, Field(gt=0)] = 0.5
    """Opens at this part of failures."""
    slow_ratio: Annotated[Share, Field(gt=0)] = 0.8
    """Opens at this part of answers whose first token came too late for their prompt."""
    connect_errors: Count = 5
    """Opens at this many failed connections in a row."""
    open_ms: Milliseconds = 5000
    """How long it stays open the first time; doubled each time it fails again."""
    open_max_ms: Milliseconds = 300_000
    """Longest time it stays open."""


class Failover(Settings):
    """How hard a request tries."""

    max_attempts: Annotated[Count, Field(le=10)] = 3
    """Attempts of one request over retries, credentials, replicas and tiers together."""
    retry_ratio: Share = 0.1
    """Retries allowed per first attempt, so that an outage is not multiplied."""
    retries_per_s: PositiveOrZero = 1.0
    """Retries allowed on top of that, per second."""
    backoff_ms: Milliseconds = 50
    """Mean-doubling wait before another attempt at the same target, with full jitter."""
    backoff_max_ms: Milliseconds = 2000
    """Longest such wait."""
    breaker: Breaker = Breaker()
    """The circuit breaker of a target."""


class Telemetry(Settings):
    """What is told about requests."""

    log_level: LogLevel = "info"
    """Least level that is logged."""
    otlp_endpoint: str | None = None
    """Where traces go (OTLP over HTTP); none: they stay."""


class Unauthenticated(Settings):
    """Limits on requests without a valid key, for each client address."""

    requests_per_minute: Count = 60
    """Refused requests before the address itself is refused."""
    burst: Count = 20
    """How many of them may come at once."""


def _unique_peppers(value: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    if len({pepper.get_secret_value() for pepper in value}) != len(value):
        raise ValueError("holds the same pepper twice")
    return value


class Config(Settings):
    """The config file."""

    listen: Listen = Listen()
    """The data listener."""
    admin: Admin = Admin()
    """The admin listener."""
    store: Secret | None = None
    """SQL URL of registry and ledger (`sqlite+aiosqlite:///weighbridge.db`, `postgresql+asyncpg://…`); none: they are
    kept in memory and start from this file."""
    redis: Secret | None = None
    """Redis URL that instances share limits and capacity over; none: there is one instance."""
    limits_when_store_is_away: StoreAway = "local"
    """When Redis cannot be reached: `local` spends what this instance holds, `closed` refuses, `open` admits."""
    key_peppers: Annotated[tuple[Secret, ...], AfterValidator(_unique_peppers)] = ()
    """Secrets for `hmac:` key hashes, newest first."""
    pools: NameTable[Pool] = Field(default={}, validate_default=True)
    """Pools by name."""
    models: ModelTable[Model] = Field(default={}, validate_default=True)
    """Models by public name."""
    classes: Classes = Classes()
    """Weights and waits of the two classes."""
    organisations: NameTable[Organisation] = Field(default={}, validate_default=True)
    """Organisations by name."""
    tenants: NameTable[Tenant] = Field(default={}, validate_default=True)
    """Tenants by name."""
    failover: Failover = Failover()
    """Retries and breakers."""
    telemetry: Telemetry = Telemetry()
    """Logs and traces."""
    unauthenticated: Unauthenticated = Unauthenticated()
    """Limits on clients without a key."""

    def digest(self) -> str:
        """16 hexadecimal digits that change with any setting, secrets included (which they do not reveal)."""
        return hashlib.sha256(orjson.dumps(_plain(self), option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]

    def peppers(self) -> tuple[bytes, ...]:
        """`key_peppers` as bytes."""
        return tuple(pepper.get_secret_value().encode() for pepper in self.key_peppers)

    def names(self) -> dict[str, str]:
        """Every public model name and alias, with the model it stands for."""
        found = {name: name for name in self.models}
        for name, model in self.models.items():
            for alias in model.aliases:
                found.setdefault(alias, name)
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
