"""The whole config file as one frozen value; pools, models and tenants are in files beside this one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BaseModel, Field, SecretStr

from gateway.settings_base import (
    Count,
    Milliseconds,
    ModelTable,
    NameTable,
    Port,
    Positive,
    PositiveOrZero,
    Secret,
    Settings,
    Share,
)
from gateway.settings_models import Model, Prices
from gateway.settings_pools import Pool, Url
from gateway.settings_tenants import Organisation, Tenant

__all__ = [
    "Admin",
    "Breaker",
    "Classes",
    "Config",
    "Failover",
    "Ledger",
    "Listen",
    "Model",
    "Organisation",
    "Pool",
    "Prices",
    "RequestClass",
    "Telemetry",
    "Tenant",
    "Tls",
    "Unauthenticated",
]

StoreAway = Literal["local", "closed", "open"]
Unpriced = Literal["refuse", "dearest", "free"]
LogLevel = Literal["debug", "info", "warning", "error"]
HttpServer = Literal["lean", "aiohttp"]


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
    server: HttpServer = "lean"
    """The HTTP server of this listener: `lean` is our own, `aiohttp` the one of that library at twice its CPU time."""


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
    otlp_endpoint: Url | None = None
    """Where traces go (OTLP over HTTP); none: they stay."""


class Ledger(Settings):
    """What is kept of requests: one row each, and counts of those that were refused."""

    spool: str | None = Field(default=None, min_length=1)
    """Folder where a request is written down before it is sent, so that a killed process loses none; it belongs on a
    local disk. None: beside the SQLite file, or `weighbridge-spool` in the working folder."""
    keep_days: Annotated[Count, Field(le=36_500)] = 400
    """Days that rows are kept; the sums by day are kept for good."""
    keep_refusals_days: Annotated[Count, Field(le=36_500)] = 31
    """Days that counts of refusals are kept."""


class Unauthenticated(Settings):
    """Limits on requests without a valid key, for each client address."""

    requests_per_minute: Count = 60
    """Refused requests before the address itself is refused."""
    burst: Count = 20
    """How many of them may come at once."""


def _scheme(*schemes: str) -> AfterValidator:
    def check(value: SecretStr) -> SecretStr:
        scheme, separator, rest = value.get_secret_value().partition("://")
        if not separator or not rest or scheme not in schemes:
            raise ValueError(f"must begin with {' or '.join(f'{name}://' for name in schemes)}")
        return value

    return AfterValidator(check)


StoreUrl = Annotated[Secret, _scheme("sqlite+aiosqlite", "postgresql+asyncpg")]
RedisUrl = Annotated[Secret, _scheme("redis", "rediss", "unix")]


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
    store: StoreUrl | None = None
    """SQL URL of registry and ledger (`sqlite+aiosqlite:///weighbridge.db`, `postgresql+asyncpg://…`); none: they are
    kept in memory and start from this file."""
    redis: RedisUrl | None = None
    """Redis URL that instances share limits and capacity over; none: there is one instance."""
    limits_when_store_is_away: StoreAway = "local"
    """When Redis cannot be reached: `local` spends what this instance holds, `closed` refuses, `open` admits."""
    unpriced: Unpriced = "refuse"
    """A request for a model without prices, where a money limit applies: `refuse` it, charge the `dearest` prices of
    any model, or let it through `free`."""
    key_peppers: Annotated[tuple[Secret, ...], AfterValidator(_unique_peppers)] = ()
    """Secrets for `hmac:` key hashes, newest first."""
    salt_secret: Secret | None = None
    """What the cache salts of tenants are made from, at least 16 characters, the same on every instance; it is read at
    the start. None: made anew then, so that cached prefixes are lost with a restart and not shared by instances."""
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
    ledger: Ledger = Ledger()
    """The usage ledger."""
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
