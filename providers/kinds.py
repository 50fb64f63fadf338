"""The kinds of upstream, by name: how each is asked and how its answer is read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from providers.anthropic import AnthropicKind
from providers.azure import AzureKind
from providers.bedrock import BedrockKind
from providers.engines import FACTS, Facts
from providers.exchange import Call, Failure, Headers, Outgoing, Reader, Upstream
from providers.gemini import GeminiKind
from providers.ollama import OllamaKind
from providers.openai import OpenAIKind
from providers.tgi import TgiKind


class Kind(Protocol):
    """One wire format and one set of habits. Stateless: one instance serves every call."""

    @property
    def name(self) -> str:
        """As in the config."""

    @property
    def facts(self) -> Facts:
        """What upstreams of this kind can do."""

    @property
    def engine(self) -> bool:
        """Self-hosted, and not an account at a vendor."""

    def prepare(self, call: Call, upstream: Upstream) -> Outgoing:
        """The request for one attempt. Raises Unsupported naming the field this kind cannot do."""

    def reader(self, call: Call, upstream: Upstream, status: int, headers: Headers) -> Reader:
        """The reader for an answer of status 200 to 299, in the client's dialect."""

    def failure(self, status: int, headers: Headers, body: bytes) -> Failure:
        """What an answer of any other status means."""


_OF_THEIR_OWN: Mapping[str, Kind] = MappingProxyType(
    {
        "tgi": TgiKind("tgi"),
        "ollama": OllamaKind("ollama"),
        "azure": AzureKind("azure"),
        "anthropic": AnthropicKind(),
        "gemini": GeminiKind(),
        "bedrock": BedrockKind(),
    }
)
_KINDS: Mapping[str, Kind] = MappingProxyType({name: _OF_THEIR_OWN.get(name) or OpenAIKind(name) for name in FACTS})


def kind_named(name: str) -> Kind:
    """The kind of this name. Raises KeyError."""
    return _KINDS[name]


def kind_names() -> tuple[str, ...]:
    """Every name a config may use."""
    return tuple(_KINDS)
