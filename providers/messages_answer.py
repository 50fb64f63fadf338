"""Events written as an Anthropic message: block by block, or whole.

Strict clients need blocks numbered from 0 without a gap, one open at a time, and every figure of usage where they look
for it. The reason of a stop and the final usage go into one event, so it waits for the usage, which upstreams of other
dialects report last. A thought must end with a signature; one made up here is marked, so that it can be told from a
vendor's own when the history comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

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
    Reason,
    Refused,
    Said,
    Sealed,
    Signed,
    Waiting,
)
from providers.exchange import NO_USAGE, Usage
from providers.messages_usage import usage_object

OWN_SIGNATURE = "d2VpZ2hicmlkZ2U"  # "weighbridge" in base64
"""What stands in for the signature of a thought no vendor has signed."""
_PREFIX = "msg_"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'

_REASONS: Mapping[Reason, str] = MappingProxyType(
    {
        Reason.STOP: "end_turn",
        Reason.LENGTH: "max_tokens",
        Reason.TOOL_CALLS: "tool_use",
        Reason.CONTENT_FILTER: "refusal",
    }
)


class Unreadable(Exception):
    """The upstream's tool arguments are not the JSON object the client's dialect must be given."""


def message_id(upstream_id: str | None) -> str:
    """The id of a message, made from the upstream's own."""
    return _PREFIX + (upstream_id or "0").removeprefix(_PREFIX).removeprefix("chatcmpl-")


def frame(event: dict[str, Any]) -> bytes:
    """One named event."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))


def _tool_block(call: Called, given: Any) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_use", "id": call.id, "name": call.name, "input": given}
    if call.signature is not None:
        block["extra_content"] = {"google": {"thought_signature": call.signature}}
    return block


def complete_arguments(text: str) -> dict[str, Any] | None:
    """A call's arguments when `text` is all of them."""
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


class _Ending:
    """How a message ends, gathered from the events that say so."""

    __slots__ = ("reason", "refusal", "stop")

    def __init__(self) -> None:
        self.reason = Reason.STOP
        self.stop: str | None = None
        self.refusal: list[str] = []

    def told(self) -> dict[str, Any]:
        """The members of a message that say why it stopped."""
        if self.refusal or self.reason is Reason.CONTENT_FILTER:
            details = {"type": "refusal", "explanation": "".join(self.refusal) or None}
            return {"stop_reason": "refusal", "stop_sequence": None, "stop_details": details}
        if self.stop is not None and self.reason is Reason.STOP:
            return {"stop_reason": "stop_sequence", "stop_sequence": self.stop}
        return {"stop_reason": _REASONS[self.reason], "stop_sequence": None}


class MessagesStream:
    """A stream of an Anthropic message. `model` is what is told when the upstream names none."""

    __slots__ = ("_begun", "_deltas", "_ending", "_id", "_index", "_model", "_open", "_usage", "_waiting", "_written")

    def __init__(self, model: str) -> None:
        self._id = message_id(None)
        self._model = model
        self._usage: Usage = NO_USAGE
        self._ending = _Ending()
        self._begun = False
        self._index = -1
        """Of the last block begun."""
        self._open: str | Called | None = None
        """The open block: a kind of text, or a call."""
        self._written: list[str] = []
        """Arguments of the open call so far; of an open thought, its signature if one came."""
        self._waiting: list[tuple[Called, list[str]]] = []
        """Calls that began while another's arguments were not complete."""
        self._deltas = 0

    def write(self, event: Event) -> bytes:
        """What this event adds to the stream."""
        if isinstance(event, Counted):
            self._usage = event.usage
        elif isinstance(event, Began):
            self._id, self._model = message_id(event.id), event.model or self._model
        elif isinstance(event, Said | Refused):
            if isinstance(event, Refused):
                self._ending.refusal.append(event.text)
            return self._text("text", {"type": "text_delta", "text": event.text})
        elif isinstance(event, Mused):
            return self._text("thinking", {"type": "thinking_delta", "thinking": event.text})
        elif isinstance(event, Signed):
            opened = self._turn_to("thinking")
            self._written.append(event.signature)
            return opened + self._delta({"type": "signature_delta", "signature": event.signature})
        elif isinstance(event, Sealed):
            return self._begin("sealed", {"type": "redacted_thinking", "data": event.data}) + self._close()
        elif isinstance(event, Called):
            return self._called(event)
        elif isinstance(event, Argued):
            return self._argued(event)
        elif isinstance(event, Ended):
            self._ending.reason, self._ending.stop = event.reason, event.stop
            return self._start()
        elif isinstance(event, Waiting):
            return PING if self._begun else b""
        elif isinstance(event, Complete):
            return self._finish()
        return b""

    def _start(self) -> bytes:
        """`message_start`, once. It waits for the first content, by which some upstreams have counted the prompt."""
        if self._begun:
            return b""
        self._begun = True
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, **usage_object(self._usage, 0), "output_tokens": 0},
        }
        return frame({"type": "message_start", "message": message})

    def _text(self, kind: str, delta: dict[str, Any]) -> bytes:
        return self._turn_to(kind) + self._delta(delta)

    def _turn_to(self, kind: str) -> bytes:
        """An open block of this kind: the one that is open, or a new one."""
        if self._open == kind:
            return b""
        empty = {"type": "text", "text": ""} if kind == "text" else {"type": kind, "thinking": "", "signature": ""}
        return self._begin(kind, empty)

    def _begin(self, opened: str | Called, block: dict[str, Any]) -> bytes:
        before = self._start() + self._close()
        self._index += 1
        self._open = opened
        self._written = []
        return before + frame({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        self._deltas += 1
        return frame({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signature = b""
        if self._open == "thinking" and not self._written:
            signature = self._delta({"type": "signature_delta", "signature": OWN_SIGNATURE})
        self._open = None
        return signature + frame({"type": "content_block_stop", "index": self._index})

    def _called(self, call: Called) -> bytes:
        if isinstance(self._open, Called):
            text = "".join(self._written)
            if self._waiting or not text or complete_arguments(text) is None:
                self._waiting.append((call, []))  # the open call may still grow
                return b""
        return self._begin(call, _tool_block(call, {}))

    def _argued(self, event: Argued) -> bytes:
        if isinstance(self._open, Called) and self._open.index == event.index:
            self._written.append(event.text)
            return self._delta({"type": "input_json_delta", "partial_json": event.text})
        for call, pieces in self._waiting:
            if call.index == event.index:
                pieces.append(event.text)
        return b""

    def _finish(self) -> bytes:
        out = [self._start()]
        for call, pieces in self._waiting:
            out.append(self._begin(call, _tool_block(call, {})))
            text = "".join(pieces)
            if text:
                out.append(self._delta({"type": "input_json_delta", "partial_json": text}))
        out.append(self._close())
        usage = usage_object(self._usage, self._deltas)
        out.append(frame({"type": "message_delta", "delta": self._ending.told(), "usage": usage}))
        out.append(frame({"type": "message_stop"}))
        return b"".join(out)


class MessagesWhole:
    """A whole Anthropic message, given with the event that completes it."""

    __slots__ = ("_blocks", "_calls", "_deltas", "_ending", "_id", "_model", "_usage")

    def __init__(self, model: str) -> None:
        self._id = message_id(None)
        self._model = model
        self._usage: Usage = NO_USAGE
        self._ending = _Ending()
        self._blocks: list[dict[str, Any]] = []
        self._calls: dict[int, tuple[Called, list[str], dict[str, Any]]] = {}
        self._deltas = 0

    def write(self, event: Event) -> bytes:
        """The message when `event` completes it, b"" before. Raises Unreadable."""
        if isinstance(event, Complete):
            return orjson.dumps(self._message())
        if isinstance(event, Began):
            self._id, self._model = message_id(event.id), event.model or self._model
        elif isinstance(event, Counted):
            self._usage = event.usage
        elif isinstance(event, Said | Refused):
            if isinstance(event, Refused):
                self._ending.refusal.append(event.text)
            self._last("text")["text"] += event.text
        elif isinstance(event, Mused):
            self._last("thinking")["thinking"] += event.text
        elif isinstance(event, Signed):
            self._last("thinking")["signature"] += event.signature
        elif isinstance(event, Sealed):
            self._blocks.append({"type": "redacted_thinking", "data": event.data})
        elif isinstance(event, Called):
            block = _tool_block(event, {})
            self._blocks.append(block)
            self._calls[event.index] = (event, [], block)
        elif isinstance(event, Argued):
            if event.index in self._calls:
                self._calls[event.index][1].append(event.text)
        elif isinstance(event, Ended):
            self._ending.reason, self._ending.stop = event.reason, event.stop
        return b""

    def _last(self, kind: str) -> dict[str, Any]:
        """The block that text of this kind belongs to."""
        self._deltas += 1
        if not self._blocks or self._blocks[-1]["type"] != kind:
            empty = {"text": ""} if kind == "text" else {"thinking": "", "signature": ""}
            self._blocks.append({"type": kind, **empty})
        return self._blocks[-1]

    def _message(self) -> dict[str, Any]:
        for _, pieces, block in self._calls.values():
            given = complete_arguments("".join(pieces))
            if given is None:
                raise Unreadable
            block["input"] = given
        for block in self._blocks:
            if block["type"] == "thinking" and not block["signature"]:
                block["signature"] = OWN_SIGNATURE
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": self._blocks,
            **self._ending.told(),
            "usage": {"input_tokens": 0, **usage_object(self._usage, self._deltas)},
        }
