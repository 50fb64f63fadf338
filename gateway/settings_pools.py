"""Settings of pools: the servers or the account behind a model, what they can take, and how they may fail."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.settings_base import (
    AutoCount,
    Count,
    Milliseconds,
    ModelName,
    Name,
    NameTable,
    Positive,
    PositiveOrZero,
    Secret,
    Settings,
    Share,
)
from gateway.urls import parse_url

EngineKind = Literal["simulated", "vllm", "sglang", "llamacpp", "ollama", "tgi", "trtllm"]
VendorKind = Literal["openai", "azure", "anthropic", "gemini", "gemini-openai", "bedrock"]
Kind = Literal[
    "simulated", "vllm", "sglang", "llamacpp", "ollama", "tgi", "trtllm",
    "openai", "azure", "anthropic", "gemini", "gemini-openai", "bedrock",
    "openai-compatible",
]  # fmt: skip
ENGINE_KINDS: Final = frozenset(get_args(EngineKind))
VENDOR_KINDS: Final = frozenset(get_args(VendorKind))
ACCOUNT_NAME: Final = "account"
"""Stands for the one address of an account where a pool of servers has replica names."""

_URLS: Final = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "gemini": "https://generativelanguage.googleapis.com",
    "gemini-openai": "https://generativelanguage.googleapis.com/v1beta/openai",
}

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
    """Base URL, `http` or `https`; no user name, query or fragment. With a path it is taken as it is, without one `/v1`
    is added. No two replicas may share one, or its capacity would be counted twice."""


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

    def secret(self) -> str:
        """What adapters take: the key, or `access_key_id:secret_access_key[:session_token]`."""
        if self.access_key_id is None:
            return self.key.get_secret_value()
        token = [] if self.session_token is None else [self.session_token.get_secret_value()]
        return ":".join([self.access_key_id, self.key.get_secret_value(), *token])


class Account(Settings):
    """An account at a provider."""

    url: Url | None = None
    """Base URL. Needed for `azure` and `openai-compatible`; the other kinds know their own."""
    region: Name | None = None
    """Region of the service. Needed for `bedrock`."""
    api_version: str | None = None
    """For `azure`: the dated API version, none for the v1 API. For `anthropic`: the version header, none for the
    current one."""
    organization: str | None = None
    """For `openai`: the organization requests are booked on."""
    project: str | None = None
    """For `openai`: the project requests are booked on."""
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
    region: Name | None = None
    """Where it runs; none: unknown, shared with nobody."""
    family: Name | None = None
    """Model family, for faults that follow the weights; none: unknown, shared with nobody."""


class Adapter(Settings):
    """A LoRA adapter of the pool's base model. A target names it as its model."""

    replicas: tuple[Name, ...] = ()
    """Replicas that hold it, or may with `source`; none named: all of them."""
    source: str | None = Field(default=None, min_length=1)
    """How the engine finds it (a path or a name it knows): it is loaded where it is wanted, and makes room for others
    when it is idle. None: the operator loads it, and it stays."""
    base: ModelName | None = None
    """The base model it was trained on; one that an engine lists under another base is not used."""
    rank: Count | None = None
    """Its rank, checked against `lora.max_rank`."""


class Lora(Settings):
    """What the replicas of a pool take of LoRA adapters."""

    slots: AutoCount = None
    """Adapters that a replica holds at once. `auto`: from the engine's metrics, 4 where it does not say."""
    max_rank: Count | None = None
    """Highest rank the engines were started for; none: not checked."""
    base: ModelName | None = None
    """The base model they serve; none: not checked here, but against what they list."""


class CostWeights(Settings):
    """Fair-share work of one token, relative to one another."""

    prompt: Positive = 1.0
    """An uncached prompt token."""
    cached: PositiveOrZero = 0.1
    """A prompt token found in the prefix cache."""
    output: Positive = 4.0
    """An output token."""


class QueueBounds(Settings):
    """How much may wait. When it is full, the tenant with the longest queue for its weight loses its newest request."""

    requests: Count = 100_000
    """Waiting requests of all tenants together."""
    cost: Positive | None = None
    """Waiting work of all tenants together, in cost units (tokens times `cost`); none: no bound."""
    tenant_cost: Positive | None = None
    """Waiting work of one tenant, in cost units; none: no bound of its own."""


class Quirks(Settings):
    """What upstreams that call themselves compatible do differently."""

    stream_options: bool = True
    """Whether it knows `stream_options`; false for one that answers 400 to it. Streams then carry no usage."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    """The name of the output cap it reads; none: the kind's own."""
    translate: bool = False
    """Ask for chat where clients speak Responses or Messages: for an engine too old to serve those itself, or one that
    does it worse than the gateway."""


class Pool(Settings):
    """Interchangeable servers of one base model, or one provider account."""

    kind: Kind
    """What stands behind it. Engines (`simulated`, `vllm`, `sglang`, `llamacpp`, `ollama`, `tgi`, `trtllm`) have
    `replicas`; providers (`openai`, `azure`, `anthropic`, `gemini`, `gemini-openai`, `bedrock`) have an `account`;
    `openai-compatible` has either."""
    replicas: tuple[Replica, ...] = ()
    """The servers."""
    account: Account | None = None
    """The account."""
    key: Secret | None = None
    """Bearer token the replicas ask for, if they ask for one."""
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
    priority: bool = False
    """Whether the engine was started to serve by priority (`--scheduling-policy priority` of vLLM,
    `--enable-priority-scheduling` of SGLang): then interactive requests go before batch ones inside it too."""
    cold_start_s: Positive = 120.0
    """How long a new replica takes until it serves, for the scaling signal."""
    adapters: NameTable[Adapter] = Field(default={}, validate_default=True)
    """LoRA adapters by name."""
    lora: Lora = Lora()
    """What the replicas take of adapters."""
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
    quirks: Quirks = Quirks()
    """Deviations of the upstream from its kind."""

    def addresses(self) -> tuple[tuple[str, str], ...]:
        """Name and base URL of each replica, or of the account."""
        if self.account is None:
            return tuple((replica.name, replica.url) for replica in self.replicas)
        url = self.account.url or _URLS.get(self.kind)
        if url is None and self.kind == "bedrock":
            url = f"https://bedrock-runtime.{self.account.region}.amazonaws.com"
        return () if url is None else ((ACCOUNT_NAME, url),)

    def secrets(self) -> tuple[tuple[str, str], ...]:
        """Name and secret of each credential; none when the replicas ask for no key."""
        if self.account is not None:
            return tuple((credential.name, credential.secret()) for credential in self.account.credentials)
        return () if self.key is None else (("replicas", self.key.get_secret_value()),)

    def extra(self) -> dict[str, str]:
        """Places and switches that adapters read by name."""
        found: dict[str, str | None] = {}
        if self.account is not None:
            found = {name: getattr(self.account, name) for name in ("api_version", "region", "organization", "project")}
        found["max_tokens_field"] = self.quirks.max_tokens_field
        found["stream_options"] = None if self.quirks.stream_options else "false"
        found["translate"] = "true" if self.quirks.translate else None
        return {name: value for name, value in found.items() if value is not None}

    def domain(self) -> tuple[str, str, str]:
        """Vendor, region and family that it fails with; empty where unknown, which is shared with nobody."""
        domain = self.failure_domain
        if domain is not None:
            return domain.vendor, domain.region or "", domain.family or ""
        if self.account is None:
            return "", "", ""
        if self.kind == "openai-compatible":
            return urlsplit(self.account.url or "").hostname or "", self.account.region or "", ""
        return self.kind, self.account.region or "", ""
