"""Bedrock's Converse and ConverseStream as a target: signed requests, event-stream answers.

Three things a reader of other streams would not expect: a text block may come without a start, usage comes after the
stop, and an error comes as a message of its own in an answer of status 200.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlsplit

import orjson

from providers.bedrock_request import write_request
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
    Said,
    Sealed,
    Signed,
)
from providers.engines import FACTS, Facts
from providers.eventstream import BrokenMessage, Message, MessageFramer
from providers.exchange import Call, Failure, Headers, Outgoing, Reader, Unsupported, Upstream, Usage
from providers.failures import broken, classify, classify_error, read_error
from providers.ingress import TRANSLATED, read_prompt
from providers.messages_usage import count
from providers.openai import root_path
from providers.sigv4 import Keys, sign
from providers.translate import WholeDecoder, parsed, reader

SERVICE = "bedrock"
_REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        "end_turn": Reason.STOP,
        "stop_sequence": Reason.STOP,
        "tool_use": Reason.TOOL_CALLS,
        "max_tokens": Reason.LENGTH,
        "model_context_window_exceeded": Reason.LENGTH,
        "guardrail_intervened": Reason.CONTENT_FILTER,
        "content_filtered": Reason.CONTENT_FILTER,
    }
)
_MALFORMED = frozenset({"malformed_model_output", "malformed_tool_use"})
_PORTS: Mapping[str, int] = MappingProxyType({"http": 80, "https": 443})


def usage_of(told: Mapping[str, Any]) -> Usage:
    """OpenAI's way of counting: Converse's `inputTokens` leaves out what was read from and written to the cache."""
    fresh = count(told.get("inputTokens"))
    read, written = count(told.get("cacheReadInputTokens")), count(told.get("cacheWriteInputTokens"))
    return Usage(
        prompt_tokens=None if fresh is None else fresh + (read or 0) + (written or 0),
        output_tokens=count(told.get("outputTokens")),
        cached_tokens=read,
        cache_write_tokens=written,
    )


class _Converse:
    """One answer, block by block."""

    __slots__ = ("_calls", "_id")

    def __init__(self, request_id: str | None) -> None:
        self._id = request_id
        self._calls = Calls()

    def read(self, kind: str, told: dict[str, Any]) -> list[Event]:
        """The events of one message of the stream."""
        block = told.get("contentBlockIndex")
        block = block if isinstance(block, int) else 0
        if kind == "messageStart":
            return [Began(self._id)]
        if kind == "contentBlockStart":
            start = told.get("start")
            use = start.get("toolUse") if isinstance(start, dict) else None
            return [self._begin(block, use)] if isinstance(use, dict) else []
        if kind == "contentBlockDelta":
            delta = told.get("delta")
            return self._delta(block, delta) if isinstance(delta, dict) else []
        if kind == "contentBlockStop":
            return self._calls.close(block)
        if kind == "messageStop":
            return _stopped(told.get("stopReason"))
        if kind == "metadata":
            usage = told.get("usage")
            return [*([Counted(usage_of(usage))] if isinstance(usage, dict) else []), Complete()]
        return []

    def whole(self, answer: dict[str, Any]) -> list[Event]:
        """The events of a whole answer."""
        output = answer.get("output")
        message = output.get("message") if isinstance(output, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            return [Broke(broken("The upstream's answer holds no message.", "upstream_malformed"))]
        events: list[Event] = [Began(self._id)]
        for index, block in enumerate(content):
            if isinstance(block, dict):
                events += self._block(index, block)
        usage = answer.get("usage")
        if isinstance(usage, dict):
            events.append(Counted(usage_of(usage)))
        return [*events, *_stopped(answer.get("stopReason")), Complete()]

    def _begin(self, block: int, use: dict[str, Any]) -> Event:
        return self._calls.begin(block, str(use.get("toolUseId")), str(use.get("name")))

    def _block(self, index: int, block: dict[str, Any]) -> list[Event]:
        use = block.get("toolUse")
        if isinstance(use, dict):
            given = use.get("input")
            text = orjson.dumps(given).decode() if given else ""
            return [self._begin(index, use), *self._calls.argue(index, text), *self._calls.close(index)]
        thought = block.get("reasoningContent")
        if isinstance(thought, dict):
            inner = thought.get("reasoningText")
            return _mused({**thought, **(inner if isinstance(inner, dict) else {})})
        return self._delta(index, block)

    def _delta(self, block: int, delta: dict[str, Any]) -> list[Event]:
        text = delta.get("text")
        if isinstance(text, str) and text:
            return [Said(text)]
        use = delta.get("toolUse")
        if isinstance(use, dict):
            return self._calls.argue(block, use.get("input"))
        thought = delta.get("reasoningContent")
        return _mused(thought) if isinstance(thought, dict) else []


def _mused(thought: dict[str, Any]) -> list[Event]:
    """A thought or a piece of one, its signature, or a thought only the vendor can read."""
    events: list[Event] = []
    text, signature, sealed = thought.get("text"), thought.get("signature"), thought.get("redactedContent")
    if isinstance(text, str) and text:
        events.append(Mused(text))
    if isinstance(signature, str) and signature:
        events.append(Signed(signature))
    if isinstance(sealed, str) and sealed:
        events.append(Sealed(sealed))
    return events


def _stopped(reason: Any) -> list[Event]:
    if not isinstance(reason, str):
        return []
    if reason in _MALFORMED:
        return [Broke(broken(f"The model's answer was malformed ({reason}).", "upstream_malformed"))]
    return [Ended(_REASONS.get(reason, Reason.STOP))]


class _StreamDecoder:
    """An event stream, or the JSON error that came in its place."""

    __slots__ = ("_begun", "_converse", "_framer", "_kind", "_stopped", "_whole")

    def __init__(self, kind: str, converse: _Converse) -> None:
        self._kind = kind
        self._converse = converse
        self._framer = MessageFramer()
        self._begun = False
        self._stopped = False
        self._whole: WholeDecoder | None = None

    def feed(self, data: bytes) -> list[Event]:
        """The events of the messages these bytes complete."""
        if not self._begun and data:
            self._begun = True
            if data[:1] == b"{":  # a message begins with its length, and none is that long
                self._whole = WholeDecoder(self._kind, self._converse.whole)
        if self._whole is not None:
            return self._whole.feed(data)
        try:
            messages = self._framer.feed(data)
        except BrokenMessage as error:
            return [Broke(broken(f"The upstream's stream is damaged: {error}.", "upstream_malformed"))]
        return [event for message in messages for event in self._events(message)]

    def end(self) -> list[Event]:
        """An answer that has stopped is complete even if no usage came."""
        if self._whole is not None:
            return self._whole.end()
        return [Complete()] if self._stopped and not self._framer.tail else []

    def _events(self, message: Message) -> list[Event]:
        kind = message.headers.get(":message-type")
        if kind == "event":
            told = parsed(self._kind, message.payload or b"{}")
            if isinstance(told, Broke):
                return [told]
            name = message.headers.get(":event-type", "")
            self._stopped = self._stopped or name == "messageStop"
            return self._converse.read(name, told)
        if kind == "exception":
            name = message.headers.get(":exception-type", "")
            text = _message_of(message.payload)
        else:
            name = message.headers.get(":error-code", "")
            text = message.headers.get(":error-message", "")
        return [_told(self._kind, name, text)]


def _message_of(payload: bytes) -> str:
    try:
        told = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return ""
    text = told.get("message", told.get("originalMessage")) if isinstance(told, dict) else None
    return text if isinstance(text, str) else ""


def _told(kind: str, name: str, text: str) -> Broke:
    """An error the stream told of, by the name of its exception."""
    error = read_error({"error": {"type": name, "message": text or name}})
    assert error is not None
    return Broke(classify_error(kind, error))


class BedrockKind:
    """Amazon Bedrock, any model that speaks Converse."""

    name = "bedrock"

    @property
    def facts(self) -> Facts:
        """What it can do."""
        return FACTS[self.name]

    @property
    def engine(self) -> bool:
        """An account at a vendor."""
        return False

    def prepare(self, call: Call, upstream: Upstream) -> Outgoing:
        """The request for one attempt, signed for `upstream.at`. Raises Unsupported."""
        if call.endpoint not in TRANSLATED:
            raise Unsupported("endpoint", f"{call.endpoint} is not served by {self.name} upstreams")
        streams = call.stream or upstream.gather
        body = orjson.dumps(write_request(read_prompt(call)))
        verb = "converse-stream" if streams else "converse"
        path = f"{root_path(upstream.base_url, '')}/model/{quote(upstream.model, safe='')}/{verb}"
        headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
        return Outgoing("POST", path, _authenticated(upstream, path, headers, body), body, streams)

    def reader(self, call: Call, upstream: Upstream, status: int, headers: Headers) -> Reader:
        """The reader of an answer of status 200 to 299."""
        request_id = next((value for name, value in headers if name.lower() == "x-amzn-requestid"), None)
        converse = _Converse(request_id)
        if call.stream or upstream.gather:
            return reader(_StreamDecoder(self.name, converse), call, upstream, whole=False)
        return reader(WholeDecoder(self.name, converse.whole), call, upstream, whole=True)

    def failure(self, status: int, headers: Headers, body: bytes) -> Failure:
        """What an answer of any other status means."""
        return classify(self.name, status, headers, body)


def _authenticated(
    upstream: Upstream, path: str, headers: tuple[tuple[str, str], ...], body: bytes
) -> tuple[tuple[str, str], ...]:
    """The headers with our credential: a signature for access keys, a bearer token otherwise."""
    if upstream.credential is None:
        return headers
    keys = Keys.parse(upstream.credential)
    if keys is None:
        return (*headers, ("authorization", f"Bearer {upstream.credential}"))
    parts = urlsplit(upstream.base_url)
    host = parts.hostname or ""
    if parts.port is not None and parts.port != _PORTS.get(parts.scheme):
        host = f"{host}:{parts.port}"
    region = upstream.extra.get("region") or _region_of(host)
    return sign(
        keys,
        method="POST",
        host=host,
        path=path,
        headers=headers,
        body=body,
        region=region,
        service=SERVICE,
        at=upstream.at,
    )


def _region_of(host: str) -> str:
    """The region in a host such as bedrock-runtime.eu-west-1.amazonaws.com."""
    labels = host.split(".")
    return labels[1] if len(labels) > 2 else "us-east-1"
