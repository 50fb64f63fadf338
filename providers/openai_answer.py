"""Events written as an OpenAI chat answer: chunk by chunk, or whole.

Both writers take the same events. The stream writer gives each at once, in the order strict clients need: the role once
and first, a tool's id and name once, one chunk with the reason, the usage if it was asked for, the terminator.
"""

from __future__ import annotations

from typing import Any, Protocol

import orjson

from providers.conversation import (
    Argued,
    Began,
    Called,
    Complete,
    Counted,
    Ended,
    Event,
    Mused,
    Refused,
    Said,
    Sealed,
    Signed,
    Waiting,
)
from providers.exchange import NO_USAGE, Usage
from providers.sse import encode_comment

_PREFIX = "chatcmpl-"
_KEEP_ALIVE = encode_comment()


class Writer(Protocol):
    """Turns events into the client's bytes."""

    def write(self, event: Event) -> bytes:
        """What this event adds to the answer; b"" for nothing."""


def usage_object(usage: Usage) -> dict[str, Any] | None:
    """OpenAI's usage object; None when the totals are unknown, parts that are unknown left out."""
    if usage.prompt_tokens is None or usage.output_tokens is None:
        return None
    told: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }
    prompt = {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens}
    prompt = {name: count for name, count in prompt.items() if count is not None}
    if prompt:
        told["prompt_tokens_details"] = prompt
    if usage.reasoning_tokens is not None:
        told["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return told


def answer_id(upstream_id: str | None) -> str:
    """The id of an answer, made from the upstream's own."""
    id_ = upstream_id or "0"
    return id_ if id_.startswith(_PREFIX) else _PREFIX + id_


def _tool_call(call: Called) -> dict[str, Any]:
    told: dict[str, Any] = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
    if call.signature is not None:
        told["extra_content"] = {"google": {"thought_signature": call.signature}}
    return told


class StreamWriter:
    """A chat stream. `created` is Unix seconds, `model` what is told when the upstream names none."""

    __slots__ = ("_created", "_end", "_head", "_id", "_model", "_usage", "_wants_usage")

    def __init__(self, model: str, created: int, *, wants_usage: bool) -> None:
        self._id = answer_id(None)
        self._model = model
        self._created = created
        self._wants_usage = wants_usage
        self._usage = NO_USAGE
        self._head = b""
        """Everything of a chunk before its delta; empty until the role has been said."""
        self._end = b',"finish_reason":null}]}\n\n'

    def write(self, event: Event) -> bytes:
        """What this event adds to the stream."""
        if isinstance(event, Counted):
            self._usage = event.usage
            return b""
        if isinstance(event, Waiting):
            return _KEEP_ALIVE if self._head else b""
        if isinstance(event, Signed | Sealed):
            return b""
        if isinstance(event, Complete):
            return self._begin() + self._told_usage() + b"data: [DONE]\n\n"
        if isinstance(event, Began):
            if self._head:
                return b""
            self._id, self._model = answer_id(event.id), event.model or self._model
            return self._begin()
        begin = self._begin()
        if isinstance(event, Said):
            return begin + self._chunk({"content": event.text})
        if isinstance(event, Mused):
            return begin + self._chunk({"reasoning_content": event.text})
        if isinstance(event, Refused):
            return begin + self._chunk({"refusal": event.text})
        if isinstance(event, Called):
            return begin + self._chunk({"tool_calls": [{"index": event.index, **_tool_call(event)}]})
        if isinstance(event, Argued):
            return begin + self._chunk({"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]})
        if isinstance(event, Ended):
            return begin + b'%b{},"finish_reason":"%b"}]}\n\n' % (self._head, event.reason.encode())
        return b""

    def _begin(self) -> bytes:
        """The chunk that says the role, once."""
        if self._head:
            return b""
        envelope = {**self._envelope(), "choices": []}
        self._head = b"data: " + orjson.dumps(envelope)[:-2] + b'{"index":0,"delta":'
        return self._chunk({"role": "assistant", "content": ""})

    def _envelope(self) -> dict[str, Any]:
        return {"id": self._id, "object": "chat.completion.chunk", "created": self._created, "model": self._model}

    def _chunk(self, delta: dict[str, Any]) -> bytes:
        return self._head + orjson.dumps(delta) + self._end

    def _told_usage(self) -> bytes:
        told = usage_object(self._usage) if self._wants_usage else None
        if told is None:
            return b""
        return b"data: " + orjson.dumps({**self._envelope(), "choices": [], "usage": told}) + b"\n\n"


class WholeWriter:
    """A whole chat answer, given with the event that completes it."""

    __slots__ = ("_calls", "_created", "_id", "_model", "_reason", "_refusal", "_text", "_thought", "_usage")

    def __init__(self, model: str, created: int) -> None:
        self._id = answer_id(None)
        self._model = model
        self._created = created
        self._text: list[str] = []
        self._thought: list[str] = []
        self._refusal: list[str] = []
        self._calls: list[tuple[Called, list[str]]] = []
        self._reason = "stop"
        self._usage = NO_USAGE

    def write(self, event: Event) -> bytes:
        """The answer when `event` completes it, b"" before."""
        if isinstance(event, Complete):
            return orjson.dumps(self._answer())
        if isinstance(event, Began):
            self._id, self._model = answer_id(event.id), event.model or self._model
        elif isinstance(event, Said):
            self._text.append(event.text)
        elif isinstance(event, Mused):
            self._thought.append(event.text)
        elif isinstance(event, Refused):
            self._refusal.append(event.text)
        elif isinstance(event, Called):
            self._calls.append((event, []))
        elif isinstance(event, Argued):
            self._calls[event.index][1].append(event.text)
        elif isinstance(event, Ended):
            self._reason = event.reason.value
        elif isinstance(event, Counted):
            self._usage = event.usage
        return b""

    def _answer(self) -> dict[str, Any]:
        text = "".join(self._text)
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not self._calls else None}
        if self._thought:
            message["reasoning_content"] = "".join(self._thought)
        if self._refusal:
            message["refusal"] = "".join(self._refusal)
        if self._calls:
            message["tool_calls"] = [self._joined(call, pieces) for call, pieces in self._calls]
        answer: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._model,
            "choices": [{"index": 0, "message": message, "finish_reason": self._reason}],
        }
        told = usage_object(self._usage)
        if told is not None:
            answer["usage"] = told
        return answer

    def _joined(self, call: Called, pieces: list[str]) -> dict[str, Any]:
        told = _tool_call(call)
        told["function"]["arguments"] = "".join(pieces)
        return told
