"""Settings of pools: the servers or the account behind a model, what they can take, and how they may fail."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.settings_base import (
    AutoCount,
    Count,
    Milliseconds,
    Name,
    NameTable,
    Positive,
    PositiveOrZero,
    Secret,
    Settings,
    Share,
    Table,
)
from gateway.urls import parse_url

EngineKind = Literal["simulated", "vllm", "sglang", "llamacpp", "ollama", "tgi"]
VendorKind = Literal["openai", "azure", "anthropic", "gemini", "gemini-openai", "bedrock"]
Kind = Literal[
    "simulated", "vllm", "sglang", "llamacpp", "ollama", "tgi",
    "openai", "azure", "anthropic", "gemini", "gemini-openai", "bedrock",
    "openai-compatible",
]  # fmt: skip
ENGINE_KINDS: Final = frozenset(get_args(EngineKind))
VENDOR_KINDS: Final = frozenset(get_args(VendorKind))
SALTING_KINDS: Final = frozenset({"simulated", "vllm", "sglang"})
"""Engines that keep the prefix caches of different `cache_salt` values apart."""

Isolation = Literal["shared", "salted", "dedicated"]


def _url(value: str) -> str:
    parse_url(value)
    return value.rstrip("/")


Url = Annotated[str, AfterValidator(_url)]


class Replica(Settings):
    """One server of a pool."""

    name: Name
    """Name in metrics, traces and the admin API; unique in the pool."""
    url: Url
    """Base URL, `http` or `https`, a path prefix is allowed; no user name, query or fragment. No two replicas of any
    pools may share one, or its capacity would be counted twice."""
    key: Secret | None = None
    """Bearer token the server asks for, if it asks for one."""


class Credential(Settings):
    """One key of an account. Several are used in turn, and one that is refused or exhausted is set aside."""

    name: Name
    """Name in metrics and the admin API; the key itself is never shown."""
    key: Secret
    """The API key; for `bedrock` with `access_key_id`, the secret access key."""
    access_key_id: str | None = None
    """For `bedrock`: sign requests with this access key. Without it `key` is sent as a bearer token."""
    session_token: Secret | None = None
    """For `bedrock` with `access_key_id`: the session token of temporary credentials."""


class Account(Settings):
    """An account at a provider."""

    url: Url | None = None
    """Base URL. Needed for `azure` and `openai-compatible`; the other kinds know their own."""
    region: Name | None = None
    """Region of the service. Needed for `bedrock`."""
    api_version: str | None = None
    """For `azure`: the dated API version, none for the v1 API. For `anthropic`: the version header, none for the
    current one."""
    credentials: tuple[Credential, ...] = Field(min_length=1)
    """At least one key."""


def _capacity(value: Any) -> Any:
    return {} if value == "auto" or value is None else value


class Capacity(Settings):
    """What one replica (or the account) can take at once. `auto` is measured or learned."""

    seats: AutoCount = None
    """Sequences that run at the same time. `auto`: from the engine's metrics, or learned."""
    kv_tokens: AutoCount = None
    """Tokens the KV cache holds. `auto`: from the engine's metrics."""
    prefill_tokens_per_s: AutoCount = None
    """Prompt tokens worked off per second within the SLO. `auto`: fitted from what is seen."""
    chunk_tokens: AutoCount = None
    """Prompt tokens the engine takes in one step. `auto`: from the engine's metrics or the kind's default."""


class Slo(Settings):
    """What the pool must keep. Capacity is the load at which it still does."""

    ttft_ms: Milliseconds = 2000
    """Time to first token."""
    tpot_ms: Milliseconds = 100
    """Mean time per output token after the first."""


class Timeouts(Settings):
    """Four timers of one attempt; each must be shorter than the ones it is part of."""

    connect_ms: Milliseconds = 2000
    """Until the connection stands (with TLS)."""
    first_token_ms: Milliseconds = 120_000
    """From the request sent to the first token, also when headers came and then nothing."""
    stall_ms: Milliseconds = 30_000
    """Silence between two pieces of an answer."""
    total_ms: Milliseconds = 1_800_000
    """The whole attempt."""


class FailureDomain(Settings):
    """What would take this pool down together with others. Tiers of a model should not share it."""

    vendor: Name
    """Who runs it; `self` for one's own servers."""
    region: Name
    """Where it runs."""
    family: Name | None = None
    """Model family, for faults that follow the weights (a bad release, a prompt that breaks it)."""


class Adapter(Settings):
    """A LoRA adapter of the pool's base model. A target names it as its model."""

    replicas: tuple[Name, ...] = ()
    """Replicas that hold it; none named: all of them."""


class CostWeights(Settings):
    """Fair-share work of one token, relative to one another."""

    input: Positive = 1.0
    """An uncached prompt token."""
    cached: PositiveOrZero = 0.1
    """A prompt token found in the prefix cache."""
    output: Positive = 4.0
    """An output token."""


class QueueBounds(Settings):
    """How much may wait. When it is full, the tenant with the longest queue for its weight loses its newest request."""

    requests: Count = 10_000
    """Waiting requests of all tenants together."""
    requests_per_tenant: Count = 2_000
    """Waiting requests of one tenant."""


class Pool(Settings):
    """Interchangeable servers of one base model, or one provider account."""

    kind: Kind
    """What stands behind it. Engines (`simulated`, `vllm`, `sglang`, `llamacpp`, `ollama`, `tgi`) have `replicas`;
    providers (`openai`, `azure`, `anthropic`, `gemini`, `gemini-openai`, `bedrock`) have an `account`;
    `openai-compatible` has either."""
    replicas: tuple[Replica, ...] = ()
    """The servers."""
    account: Account | None = None
    """The account."""
    capacity: Annotated[Capacity, BeforeValidator(_capacity)] = Capacity()
    """What each replica, or the account, can take; `auto` measures everything."""
    slo: Slo = Slo()
    """Targets the pool's admission keeps."""
    timeouts: Timeouts = Timeouts()
    """Timers of an attempt."""
    isolation: Isolation = "shared"
    """`shared`: tenants are batched together and share the prefix cache. `salted`: the prefix cache is kept apart by a
    salt for each tenant. `dedicated`: only the tenant in `dedicated_to` is served here."""
    dedicated_to: Name | None = None
    """The tenant of a `dedicated` pool."""
    gather: bool = True
    """Stream calls upstream that the client did not ask to be streamed, and gather the answer, so that their progress
    is known."""
    cold_start_s: Positive = 120.0
    """How long a new replica takes until it serves, for the scaling signal."""
    adapters: NameTable[Adapter] = Field(default={}, validate_default=True)
    """LoRA adapters by name."""
    failure_domain: FailureDomain | None = None
    """None: a provider fails with its region, engines on their own."""
    headroom: Annotated[Share, Field(lt=1)] = 0.2
    """Part of the measured capacity that reservations may not use."""
    kv_fraction: Annotated[Share, Field(gt=0)] = 0.95
    """Part of the KV cache that admission fills at the predicted peak."""
    cost: CostWeights = CostWeights()
    """What a token counts in fair sharing."""
    queue: QueueBounds = QueueBounds()
    """Bounds of the queue."""
    poll_ms: Milliseconds = 1000
    """How often replicas are asked for health and metrics."""


PoolTable = Table[Pool]
