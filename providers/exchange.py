"""The common form of a request, of stream events, of usage and of failure.

Plain values at the seam between the gateway and one upstream. The gateway builds a `Call` once per client request and
an `Upstream` once per attempt; a kind (see `kinds.py`) turns the pair into an `Outgoing` request and, when the upstream
has answered, into a `Reader` that eats the upstream's bytes and gives the client's.

What is unknown is `None`, never zero: a provider that reports no cached tokens and one that reports none cached differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

Headers = Sequence[tuple[str, str]]


class Endpoint(StrEnum):
    """What a client asked for, whatever the dialect it spoke."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    RERANK = "rerank"
    MODERATIONS = "moderations"
    IMAGES = "images"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    MODELS = "models"


UNREAD = frozenset({Endpoint.RERANK, Endpoint.MODERATIONS, Endpoint.IMAGES, Endpoint.TOKENIZE, Endpoint.DETOKENIZE})
"""What is passed on without being looked into."""


class Dialect(StrEnum):
    """The wire format a client speaks and is answered in."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@dataclass(slots=True)
class Call:
    """One client request. `body` is `raw` parsed, shared by every attempt: adapters copy before they change."""

    endpoint: Endpoint
    dialect: Dialect
    raw: bytes
    body: dict[str, Any]
    model: str
    """The public name the client asked for."""
    stream: bool
    wants_usage: bool
    """The client asked for the usage chunk of a stream (`stream_options.include_usage`)."""
    headers: Headers = ()
    """Headers of the client's dialect that an upstream of the same dialect must see, by lower-case name."""

    def header(self, name: str) -> str | None:
        """The value of one of them."""
        return next((value for known, value in self.headers if known == name), None)


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where one attempt goes. One is built for each attempt."""

    kind: str
    base_url: str
    """The API root. Without a path the kind adds its own (`/v1`); with one, the path is taken as it is, as SDKs do."""
    model: str
    """The upstream's own name for the model."""
    credential: str | None = None
    """Our key there. For SigV4: `access_key_id:secret_access_key[:session_token]`."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Per-upstream switches and places: api_version, region, organization, project, max_tokens_field,
    stream_options...
    """
    cache_salt: str | None = None
    priority: int | None = None
    """Larger is more urgent, 0 is ordinary; each kind turns it into its own direction."""
    gather: bool = False
    """Stream a call upstream that the client did not ask to stream, and hand it back whole."""
    at: int = 0
    """Unix seconds of this attempt, for signatures and for `created` in translated answers."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One HTTP request as it will be sent, without `host`, `content-length` and `accept-encoding`, the transport's to
    add.
    """

    method: str
    url_path: str
    """Path and query, percent-encoded as signed: the transport must not encode it again."""
    headers: tuple[tuple[str, str], ...]
    body: bytes
    streams: bool
    """Whether the upstream is asked to stream."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request as the upstream reported them. `None` is unknown, 0 is zero.

    `cached_tokens` and `cache_write_tokens` are parts of `prompt_tokens`; `reasoning_tokens` is a part of
    `output_tokens`. Readers of dialects that count otherwise (Anthropic, Bedrock, Gemini) convert to this.
    """

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


NO_USAGE = Usage()


class FailureKind(StrEnum):
    """Whose fault a failed attempt is and what may be tried next. Only the last four groups may move a breaker."""

    CLIENT = "client"
    """The caller's request is wrong: never retried, never counted against the upstream."""
    CONTEXT = "context"
    """Too long for this model: the caller's fault, except that a model with a longer context may be tried."""
    CONTENT = "content"
    """Refused by a content filter: the caller's."""
    AUTH = "auth"
    """Our credential was refused: another credential or provider, and an alert."""
    CREDIT = "credit"
    """Our account there has no money left: another provider, and an alert."""
    QUOTA = "quota"
    """A spend limit or a per-day quota of our account: another credential or provider."""
    CONFIG = "config"
    """The upstream lacks the model, the path or the feature: another provider, and an alert."""
    RATE = "rate"
    """A per-minute limit of our account: elsewhere at once, here after the hint."""
    CAPACITY = "capacity"
    """Overloaded or its queue is full: elsewhere at once."""
    TRANSIENT = "transient"
    """A fault of the upstream or of the way to it: retry or elsewhere."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed, read from a status and a body, from an error inside a stream, or from its end."""

    kind: FailureKind
    status: int | None
    """The upstream's HTTP status, or the one its error named inside a 200; None when the stream just ended."""
    message: str
    code: str | None = None
    param: str | None = None
    retry_after_s: float | None = None
    """Seconds until the upstream says it is worth trying again, clamped; None when it does not say."""
    body: bytes | None = None
    """The error to relay when the fault is the caller's: OpenAI shape, codes as strings."""
    type: str | None = None


@dataclass(slots=True)
class Relayed:
    """What one `feed` gives. `out` goes to the client even when `failure` is set: it came before the failure."""

    out: bytes = b""
    tokens: int = 0
    """Output tokens seen in this feed: one per delta with content, or the reported number for an answer that came
    whole.
    """
    content: bool = False
    """Something the model generated is in `out` (or was gathered) in this feed."""
    failure: Failure | None = None
    done: bool = False
    """The answer is complete; nothing more will come out of this reader."""


class Reader(Protocol):
    """Eats one upstream answer of status 200 and gives the client's bytes. One per attempt; not reusable."""

    @property
    def usage(self) -> Usage:
        """The last usage the upstream reported; all None before."""

    @property
    def tokens(self) -> int:
        """Output tokens seen so far, as counted by deltas."""

    def feed(self, data: bytes) -> Relayed:
        """Take the next bytes as they came."""

    def end(self) -> Relayed:
        """The upstream closed properly. Not done by now is a failure."""


class Unsupported(Exception):
    """The target cannot do what a field of the request asks for. The message names the field."""

    def __init__(self, field_name: str, detail: str = "") -> None:
        self.field = field_name
        self.detail = detail or f"{field_name} is not supported by this provider"
        super().__init__(self.detail)


@dataclass(slots=True)
class Gathered:
    """Bytes of an answer that must be whole before anything is out, with a bound (bytes)."""

    limit: int
    parts: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, data: bytes) -> bool:
        """Keep `data`; False once the bound is passed."""
        self.parts.append(data)
        self.size += len(data)
        return self.size <= self.limit

    def joined(self) -> bytes:
        """All bytes so far."""
        return b"".join(self.parts)
