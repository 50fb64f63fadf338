"""Events written as an OpenAI response: item by item, or whole.

Every event is numbered, every lifecycle event carries the whole response under one id, and each item and part is
announced before its first delta and repeated whole after its last. Nothing is kept, so `store` is told as false.
"""

from __future__ import annotations

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
    Waiting,
)
from providers.exchange import NO_USAGE, Call, Usage
from providers.messages_answer import complete_arguments
from providers.sse import encode_comment

_PREFIXES = ("resp_", "chatcmpl-", "msg_")
_KEEP_ALIVE = encode_comment()
_ECHOED = (
    "instructions", "max_output_tokens", "metadata", "temperature", "top_p", "user", "safety_identifier",
    "prompt_cache_key", "service_tier",
)  # fmt: skip


def _bare(upstream_id: str | None) -> str:
    """An upstream's id without the prefix of its own dialect."""
    id_ = upstream_id or "0"
    for prefix in _PREFIXES:
        id_ = id_.removeprefix(prefix)
    return id_


def usage_object(usage: Usage, output_tokens: int) -> dict[str, Any]:
    """The usage of a response, whose every figure clients insist on. `output_tokens` stands in where the upstream
    reported none.
    """
    prompt = usage.prompt_tokens or 0
    output = output_tokens if usage.output_tokens is None else usage.output_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens or 0,
            "cache_write_tokens": usage.cache_write_tokens or 0,
        },
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": prompt + output,
    }


class _Response:
    """A response that grows; what both writers know of it."""

    __slots__ = ("_call", "_created", "_deltas", "_id", "_items", "_model", "_reason", "_usage")

    def __init__(self, call: Call, model: str, created: int) -> None:
        self._call = call
        self._created = created
        self._model = model
        self._id = "0"
        self._items: list[dict[str, Any]] = []
        self._usage: Usage = NO_USAGE
        self._reason = Reason.STOP
        self._deltas = 0

    def _note(self, event: Event) -> None:
        """Takes what adds nothing to the answer's text."""
        if isinstance(event, Began):
            self._id, self._model = _bare(event.id), event.model or self._model
        elif isinstance(event, Counted):
            self._usage = event.usage
        elif isinstance(event, Ended):
            self._reason = event.reason

    def _new(self, kind: str, **fields: Any) -> dict[str, Any]:
        """A new item at the end of the output."""
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        item = {"id": f"{prefix}_{self._id}_{len(self._items)}", "type": kind, **fields, "status": "in_progress"}
        self._items.append(item)
        return item

    def _begin_call(self, call: Called) -> dict[str, Any]:
        extra = {} if call.signature is None else {"extra_content": {"google": {"thought_signature": call.signature}}}
        return self._new("function_call", call_id=call.id, name=call.name, arguments="", **extra)

    def _told(self, status: str) -> dict[str, Any]:
        """The response as it stands."""
        body = self._call.body
        text = body.get("text") if isinstance(body.get("text"), dict) else {}
        reasoning = body.get("reasoning") if isinstance(body.get("reasoning"), dict) else {}
        incomplete = None
        if status == "incomplete":
            cut = "max_output_tokens" if self._reason is Reason.LENGTH else "content_filter"
            incomplete = {"reason": cut}
        over = status in ("completed", "incomplete")
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": incomplete,
            **{name: body.get(name) for name in _ECHOED},
            "metadata": body.get("metadata") or {},
            "model": self._model,
            "output": self._items if over else [],
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None, **(reasoning or {})},
            "store": False,
            "text": {"format": {"type": "text"}, **(text or {})},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "truncation": "disabled",
            "usage": usage_object(self._usage, self._deltas) if over else None,
        }

    @property
    def _status(self) -> str:
        return "incomplete" if self._reason in (Reason.LENGTH, Reason.CONTENT_FILTER) else "completed"


class ResponseStream(_Response):
    """A stream of a response. `created` is Unix seconds, `model` what is told when the upstream names none."""

    __slots__ = ("_begun", "_calls", "_number", "_open", "_part")

    def __init__(self, call: Call, model: str, created: int) -> None:
        super().__init__(call, model, created)
        self._number = 0
        self._begun = False
        self._open: int | None = None
        """Where in the output the open message or thought stands."""
        self._part: dict[str, Any] | None = None
        """The open part of it."""
        self._calls: dict[int, int] = {}
        """Calls that are not closed: index of the call -> where in the output it stands."""

    def write(self, event: Event) -> bytes:
        """What this event adds to the stream."""
        if isinstance(event, Said):
            return self._grow("message", "output_text", "text", event.text)
        if isinstance(event, Refused):
            return self._grow("message", "refusal", "refusal", event.text)
        if isinstance(event, Mused):
            return self._grow("reasoning", "reasoning_text", "text", event.text)
        if isinstance(event, Called):
            out = self._start() + self._close() + self._close_calls(only_complete=True)
            item = self._begin_call(event)
            self._calls[event.index] = len(self._items) - 1
            return out + self._event("response.output_item.added", output_index=len(self._items) - 1, item=item)
        if isinstance(event, Argued):
            return self._argued(event)
        if isinstance(event, Waiting):
            return _KEEP_ALIVE if self._begun else b""
        if isinstance(event, Complete):
            out = self._start() + self._close() + self._close_calls(only_complete=False)
            return out + self._event(f"response.{self._status}", response=self._told(self._status))
        self._note(event)
        return b""

    def _event(self, kind: str, **fields: Any) -> bytes:
        number = self._number
        self._number += 1
        data = orjson.dumps({"type": kind, "sequence_number": number, **fields})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)

    def _start(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        told = self._told("in_progress")
        return self._event("response.created", response=told) + self._event("response.in_progress", response=told)

    def _grow(self, kind: str, part: str, field: str, text: str) -> bytes:
        """More text: in the open part if it is of this kind, else in a new one."""
        out = self._start()
        if self._open is None or self._items[self._open]["type"] != kind:
            out += self._close() + self._close_calls(only_complete=True)
            more = {"role": "assistant", "content": []} if kind == "message" else {"summary": [], "content": []}
            item = self._new(kind, **more)
            self._open = len(self._items) - 1
            out += self._event("response.output_item.added", output_index=self._open, item=item)
        item = self._items[self._open]
        if self._part is None or self._part["type"] != part:
            out += self._close_part()
            self._part = {"type": part, field: "", **({"annotations": []} if part == "output_text" else {})}
            item["content"].append(self._part)
            out += self._at("response.content_part.added", part=self._part)
        self._deltas += 1
        self._part[field] += text
        logprobs: dict[str, Any] = {"logprobs": []} if part == "output_text" else {}
        return out + self._at(f"response.{part}.delta", delta=text, **logprobs)

    def _at(self, kind: str, **fields: Any) -> bytes:
        """An event of the open part."""
        assert self._open is not None
        item = self._items[self._open]
        place = {"item_id": item["id"], "output_index": self._open, "content_index": len(item["content"]) - 1}
        return self._event(kind, **place, **fields)

    def _close_part(self) -> bytes:
        part = self._part
        if part is None:
            return b""
        self._part = None
        field = "refusal" if part["type"] == "refusal" else "text"
        logprobs: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
        done = self._at(f"response.{part['type']}.done", **{field: part[field]}, **logprobs)
        return done + self._at("response.content_part.done", part=part)

    def _close(self) -> bytes:
        """The end of the open message or thought."""
        if self._open is None:
            return b""
        out = self._close_part()
        index, self._open = self._open, None
        self._items[index]["status"] = "completed"
        return out + self._event("response.output_item.done", output_index=index, item=self._items[index])

    def _argued(self, event: Argued) -> bytes:
        index = self._calls.get(event.index)
        if index is None:
            return b""
        item = self._items[index]
        item["arguments"] += event.text
        self._deltas += 1
        return self._event(
            "response.function_call_arguments.delta", item_id=item["id"], output_index=index, delta=event.text
        )

    def _close_calls(self, *, only_complete: bool) -> bytes:
        """The end of the open calls; a call whose arguments are not whole may still grow."""
        out: list[bytes] = []
        for call, index in list(self._calls.items()):
            item = self._items[index]
            if only_complete and (not item["arguments"] or complete_arguments(item["arguments"]) is None):
                continue
            del self._calls[call]
            item["arguments"] = item["arguments"] or "{}"
            item["status"] = "completed"
            place = {"item_id": item["id"], "output_index": index}
            done = {"name": item["name"], "arguments": item["arguments"]}
            out.append(self._event("response.function_call_arguments.done", **place, **done))
            out.append(self._event("response.output_item.done", output_index=index, item=item))
        return b"".join(out)


class ResponseWhole(_Response):
    """A whole response, given with the event that completes it."""

    __slots__ = ("_calls",)

    def __init__(self, call: Call, model: str, created: int) -> None:
        super().__init__(call, model, created)
        self._calls: dict[int, dict[str, Any]] = {}

    def write(self, event: Event) -> bytes:
        """The response when `event` completes it, b"" before."""
        if isinstance(event, Complete):
            for item in self._items:
                item["status"] = "completed"
                if item["type"] == "function_call":
                    item["arguments"] = item["arguments"] or "{}"
            return orjson.dumps(self._told(self._status))
        if isinstance(event, Said):
            self._part("message", "output_text", "text")["text"] += event.text
        elif isinstance(event, Refused):
            self._part("message", "refusal", "refusal")["refusal"] += event.text
        elif isinstance(event, Mused):
            self._part("reasoning", "reasoning_text", "text")["text"] += event.text
        elif isinstance(event, Called):
            self._calls[event.index] = self._begin_call(event)
        elif isinstance(event, Argued):
            if event.index in self._calls:
                self._calls[event.index]["arguments"] += event.text
        else:
            self._note(event)
        return b""

    def _part(self, kind: str, part: str, field: str) -> dict[str, Any]:
        """The part that text of this kind belongs to."""
        self._deltas += 1
        if not self._items or self._items[-1]["type"] != kind:
            more = {"role": "assistant", "content": []} if kind == "message" else {"summary": [], "content": []}
            self._new(kind, **more)
        content: list[dict[str, Any]] = self._items[-1]["content"]
        if not content or content[-1]["type"] != part:
            content.append({"type": part, field: "", **({"annotations": []} if part == "output_text" else {})})
        return content[-1]
