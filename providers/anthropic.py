"""The Anthropic Messages wire format as a target: its requests, its events, its usage.

Usage differs in two ways from OpenAI's: `input_tokens` leaves out what was read from and written to the cache, and
counts come in pieces, the input with the first event and the output, cumulative, with the last ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson

from providers.anthropic_request import (
    DEFAULT_OUTPUT_CAP,
    VERSION_WITH_SAMPLING,
    mend_history,
    version_for,
    write_request,
)
from providers.conversation import (
    Began,
    Broke,
    Calls,
    Complete,
    Counted,
    Ended,
    Event,
    Mused,
    Reason,
    Refused,
    Said,
    Waiting,
)
from providers.engines import FACTS, Facts
from providers.exchange import Call, Endpoint, Failure, Headers, Outgoing, Reader, Unsupported, Upstream
from providers.failures import broken, classify
from providers.ingress import TRANSLATED, read_prompt
from providers.messages_native import native_reader
from providers.messages_usage import usage_of
from providers.openai import root_path
from providers.passing import passed_on, refuse_files
from providers.translate import SseDecoder, WholeDecoder, reader

_REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        "end_turn": Reason.STOP,
        "stop_sequence": Reason.STOP,
        "pause_turn": Reason.STOP,
        "max_tokens": Reason.LENGTH,
        "model_context_window_exceeded": Reason.LENGTH,
        "tool_use": Reason.TOOL_CALLS,
        "refusal": Reason.CONTENT_FILTER,
    }
)


_OWN: Mapping[Endpoint, str] = MappingProxyType(
    {Endpoint.MESSAGES: "/messages", Endpoint.COUNT_TOKENS: "/messages/count_tokens"}
)
"""What is passed on and not translated, and its path."""


def _headers(upstream: Upstream, version: str) -> tuple[tuple[str, str], ...]:
    credential = (("x-api-key", upstream.credential),) if upstream.credential else ()
    return (("content-type", "application/json"), ("anthropic-version", version), *credential)


def _streams(call: Call, upstream: Upstream) -> bool:
    """Whether an answer of its own dialect is streamed: it can be put together from a stream without loss."""
    return call.endpoint is Endpoint.MESSAGES and (call.stream or upstream.gather)


class _Message:
    """One answer, event by event."""

    __slots__ = ("_calls", "_usage")

    def __init__(self) -> None:
        self._calls = Calls()
        self._usage: dict[str, Any] = {}
        """Counts so far: a later event overwrites what it names and leaves the rest."""

    def read(self, event: dict[str, Any]) -> list[Event]:
        """The events of one of the stream's own."""
        kind = event.get("type")
        if kind == "content_block_delta":
            return self._delta(_index(event), event.get("delta"))
        if kind == "content_block_start":
            return self._start(_index(event), event.get("content_block"))
        if kind == "content_block_stop":
            return self._calls.close(_index(event))
        if kind == "ping":
            return [Waiting()]
        if kind == "message_start":
            message = event.get("message")
            message = message if isinstance(message, dict) else {}
            return [Began(_text(message.get("id")), _text(message.get("model"))), *self._count(message.get("usage"))]
        if kind == "message_delta":
            delta = event.get("delta")
            return [*self._count(event.get("usage")), *self._stopped(delta if isinstance(delta, dict) else {})]
        if kind == "message_stop":
            return [Complete()]
        return []  # whatever the vendor adds

    def whole(self, message: dict[str, Any]) -> list[Event]:
        """The events of a whole message."""
        content = message.get("content")
        if not isinstance(content, list):
            return [Broke(broken("The upstream's answer holds no content.", "upstream_malformed"))]
        events: list[Event] = [Began(_text(message.get("id")), _text(message.get("model")))]
        for index, block in enumerate(content):
            events += self._start(index, block)
            events += self._calls.close(index)
        return [*events, *self._count(message.get("usage")), *self._stopped(message), Complete()]

    def _count(self, usage: Any) -> list[Event]:
        if not isinstance(usage, dict):
            return []
        self._usage.update({name: value for name, value in usage.items() if value is not None})
        return [Counted(usage_of(self._usage))]

    def _start(self, index: int, block: Any) -> list[Event]:
        if not isinstance(block, dict):
            return []
        kind = block.get("type")
        if kind == "text":
            return _said(Said, block.get("text"))
        if kind == "thinking":
            return _said(Mused, block.get("thinking"))
        if kind == "tool_use":
            begun = self._calls.begin(index, str(block.get("id")), str(block.get("name")))
            given = block.get("input")
            text = orjson.dumps(given).decode() if isinstance(given, dict) and given else ""
            return [begun, *self._calls.argue(index, text)]
        return []

    def _delta(self, index: int, delta: Any) -> list[Event]:
        if not isinstance(delta, dict):
            return []
        kind = delta.get("type")
        if kind == "text_delta":
            return _said(Said, delta.get("text"))
        if kind == "thinking_delta":
            return _said(Mused, delta.get("thinking"))
        if kind == "input_json_delta":
            return self._calls.argue(index, delta.get("partial_json"))
        return []

    def _stopped(self, told: dict[str, Any]) -> list[Event]:
        reason = told.get("stop_reason")
        if not isinstance(reason, str):
            return []
        events: list[Event] = []
        details = told.get("stop_details")
        if reason == "refusal" and isinstance(details, dict):
            events += _said(Refused, details.get("explanation"))
        return [*events, Ended(_REASONS.get(reason, Reason.STOP))]


def _said(kind: type[Said] | type[Mused] | type[Refused], text: Any) -> list[Event]:
    return [kind(text)] if isinstance(text, str) and text else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _index(event: dict[str, Any]) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else 0


class AnthropicKind:
    """Anthropic's own API."""

    name = "anthropic"

    @property
    def facts(self) -> Facts:
        """What it can do."""
        return FACTS[self.name]

    @property
    def engine(self) -> bool:
        """An account at a vendor."""
        return False

    def prepare(self, call: Call, upstream: Upstream) -> Outgoing:
        """The request for one attempt. Raises Unsupported."""
        if call.endpoint in _OWN:
            return self._passed_on(call, upstream)
        if call.endpoint not in TRANSLATED:
            raise Unsupported("endpoint", f"{call.endpoint} is not served by {self.name} upstreams")
        prompt = read_prompt(call)
        version = version_for(prompt, upstream.extra.get("api_version"))
        default_cap = int(upstream.extra.get("default_max_tokens", DEFAULT_OUTPUT_CAP))
        body = write_request(prompt, upstream.model, version, default_cap)
        streams = call.stream or upstream.gather
        if streams:
            body["stream"] = True
        return Outgoing(
            method="POST",
            url_path=root_path(upstream.base_url) + "/messages",
            headers=_headers(upstream, version),
            body=orjson.dumps(body),
            streams=streams,
        )

    def _passed_on(self, call: Call, upstream: Upstream) -> Outgoing:
        """A request of Anthropic's own dialect, with the version and the betas its client speaks."""
        refuse_files(call)
        streams = _streams(call, upstream)
        mended = mend_history(call)
        changes = {} if mended is None else {"messages": mended}
        version = call.header("anthropic-version") or upstream.extra.get("api_version") or VERSION_WITH_SAMPLING
        betas = call.header("anthropic-beta")
        return Outgoing(
            method="POST",
            url_path=root_path(upstream.base_url) + _OWN[call.endpoint],
            headers=_headers(upstream, version) + ((("anthropic-beta", betas),) if betas else ()),
            body=passed_on(call, upstream, self.facts, streams=streams, changes=changes),
            streams=streams,
        )

    def reader(self, call: Call, upstream: Upstream, status: int, headers: Headers) -> Reader:
        """The reader of an answer of status 200 to 299."""
        if call.endpoint in _OWN:
            return native_reader(call, self.name, streams=_streams(call, upstream))
        message = _Message()
        if call.stream or upstream.gather:
            decoder = SseDecoder(self.name, message.read, message.whole, list)
            return reader(decoder, call, upstream, whole=False)
        return reader(WholeDecoder(self.name, message.whole), call, upstream, whole=True)

    def failure(self, status: int, headers: Headers, body: bytes) -> Failure:
        """What an answer of any other status means."""
        return classify(self.name, status, headers, body)
