"""The shapes of answers: whole JSON bodies, and server-sent events with the parts that never change made once."""

from __future__ import annotations

import base64
import math
import struct
from hashlib import shake_256
from typing import Any

import orjson

from providers.simulated.ask import Ask, Kind
from providers.simulated.plan import Choice

DONE = b"data: [DONE]\n\n"


def usage(prompt: int, output: int, cached: int) -> dict[str, Any]:
    """The usage object; `cached` is part of `prompt`."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + output,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def whole(
    ask: Ask, answer_id: str, created: int, choices: list[Choice], tokens: list[int], used: dict[str, Any]
) -> bytes:
    """The body of an answer that was not streamed; `tokens` are the output tokens of each choice."""
    chat = ask.kind is Kind.CHAT
    out: list[dict[str, Any]] = []
    for choice, count in zip(choices, tokens, strict=True):
        text = choice.text(count)
        entry: dict[str, Any] = {"index": choice.index}
        if chat and ask.tool:
            call = {"id": call_id(choice), "type": "function", "function": {"name": ask.tool, "arguments": text}}
            entry["message"] = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
        elif chat:
            entry["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            entry["text"] = text
        entry |= {"logprobs": None, "finish_reason": choice.reason, "stop_reason": None}
        out.append(entry)
    return orjson.dumps(
        {
            "id": answer_id,
            "object": "chat.completion" if chat else "text_completion",
            "created": created,
            "model": ask.model,
            "choices": out,
            "usage": used,
        }
    )


def call_id(choice: Choice) -> str:
    """The id of the tool call of a choice."""
    return f"call_{choice.seed:016x}{choice.index:02x}"


class Events:
    """Server-sent events of one streamed answer. Every method gives bytes ready to be sent."""

    __slots__ = ("_ask", "_envelope", "_heads")

    def __init__(self, ask: Ask, answer_id: str, created: int) -> None:
        self._ask = ask
        self._envelope: dict[str, Any] = {
            "id": answer_id,
            "object": "chat.completion.chunk" if ask.kind is Kind.CHAT else "text_completion",
            "created": created,
            "model": ask.model,
        }
        # Bytes before and after the text of one token, for each choice seen so far.
        self._heads: dict[int, tuple[bytes, bytes]] = {}

    def opening(self, choice: Choice, used: dict[str, Any] | None) -> bytes:
        """What comes before the first text of a choice: the role, and the head of a tool call."""
        if self._ask.kind is not Kind.CHAT:
            return b""
        out = self._delta(choice, {"role": "assistant", "content": ""}, None, used)
        if self._ask.tool:
            function = {"name": self._ask.tool, "arguments": ""}
            call = {"index": 0, "id": call_id(choice), "type": "function", "function": function}
            out += self._delta(choice, {"tool_calls": [call]}, None, used)
        return out

    def text(self, choice: Choice, text: str, used: dict[str, Any] | None) -> bytes:
        """One event with the text of one step."""
        if used is not None or self._ask.tool:
            if self._ask.kind is not Kind.CHAT:
                return self._event(choice, {"text": text}, None, used)
            call = {"index": 0, "function": {"arguments": text}}
            return self._delta(choice, {"tool_calls": [call]} if self._ask.tool else {"content": text}, None, used)
        parts = self._heads.get(choice.index)
        if parts is None:
            hole = "\0"
            sample = (
                self._delta(choice, {"content": hole}, None, None)
                if self._ask.kind is Kind.CHAT
                else self._event(choice, {"text": hole}, None, None)
            )
            head, _, tail = sample.partition(b"\\u0000")
            parts = self._heads[choice.index] = (head, tail)
        raw = text.encode() if choice.fixed is None else orjson.dumps(text)[1:-1]
        return parts[0] + raw + parts[1]

    def finish(self, choice: Choice, used: dict[str, Any] | None) -> bytes:
        """The event with the finish reason."""
        if self._ask.kind is Kind.CHAT:
            return self._delta(choice, {}, choice.reason, used)
        return self._event(choice, {"text": ""}, choice.reason, used)

    def final_usage(self, used: dict[str, Any]) -> bytes:
        """The event that carries only usage."""
        return _frame({**self._envelope, "choices": [], "usage": used})

    def _delta(self, choice: Choice, delta: dict[str, Any], reason: str | None, used: dict[str, Any] | None) -> bytes:
        return self._event(choice, {"delta": delta}, reason, used)

    def _event(self, choice: Choice, body: dict[str, Any], reason: str | None, used: dict[str, Any] | None) -> bytes:
        entry = {"index": choice.index, **body, "logprobs": None, "finish_reason": reason}
        if reason is not None:
            entry["stop_reason"] = None
        event = {**self._envelope, "choices": [entry]}
        if used is not None:
            event["usage"] = used
        return _frame(event)


def _frame(event: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(event) + b"\n\n"


def error_event(error: dict[str, Any]) -> bytes:
    """An error inside a stream, in the form that engines use."""
    return _frame({"error": error})


def embeddings(ask: Ask, dimensions: int, prompt: int) -> bytes:
    """Unit vectors that depend on model and input only; base64 holds little-endian 32-bit floats."""
    data: list[dict[str, Any]] = []
    for index, text in enumerate(ask.prompts):
        numbers = vector(ask.model.encode() + b"\0" + text, ask.dimensions or dimensions)
        packed = struct.pack(f"<{len(numbers)}f", *numbers)
        value: Any = (
            base64.b64encode(packed).decode() if ask.base64 else list(struct.unpack(f"<{len(numbers)}f", packed))
        )
        data.append({"object": "embedding", "index": index, "embedding": value})
    used = {"prompt_tokens": prompt, "total_tokens": prompt}
    return orjson.dumps({"object": "list", "model": ask.model, "data": data, "usage": used})


def vector(raw: bytes, dimensions: int) -> list[float]:
    """A unit vector spread evenly by a hash of these bytes."""
    digest = shake_256(raw).digest(2 * dimensions)
    numbers = [value / 32768.0 + 1.0 / 65536.0 for value in struct.unpack(f"<{dimensions}h", digest)]
    length = math.sqrt(sum(x * x for x in numbers))
    return [x / length for x in numbers]
