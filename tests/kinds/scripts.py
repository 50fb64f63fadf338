"""What an upstream of each kind says over the wire: the answers known by heart, and those only these tests ask for."""

from __future__ import annotations

from typing import Any

import orjson

from tests.providers.scripted import (
    BUILDERS,
    EVENT_STREAM,
    JSON,
    OUTPUT,
    PIECES,
    PROMPT,
    THOUGHT,
    TOOL_FIRST,
    TOOL_SECOND,
    Pieces,
    Script,
    chunk,
    compact,
    sse,
    tool_more,
    usage,
)
from tests.providers.scripted_vendors import VENDOR_BUILDERS

LIKE = {"trtllm": "vllm", "gemini-openai": "openai", "openai-compatible": "openai"}
"""Kinds whose plain answers look like another's."""
WRITTEN = 3
"""Tokens OpenAI says were written to its cache."""
BUSY = {"message": "Overloaded", "type": "service_unavailable_error", "param": None, "code": "server_is_overloaded"}

_TOOLS_WHOLE = [
    {**TOOL_FIRST, "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}},
    TOOL_SECOND,
]


def answers(kind: str, pieces: Pieces = PIECES) -> dict[str, Script]:
    """Every answer of a kind whose model says `pieces`."""
    if kind in VENDOR_BUILDERS:
        return VENDOR_BUILDERS[kind](pieces)
    known = dict(BUILDERS[LIKE.get(kind, kind)](pieces))
    counted = _counted(kind)
    if kind in LIKE or kind == "openai":
        known["text"] = Script(200, EVENT_STREAM, _with_usage(known["text"].body, counted))
        known["whole"] = Script(200, JSON, compact({**orjson.loads(known["whole"].body), "usage": counted}))
    known.setdefault("tools", Script(200, EVENT_STREAM, _tools(kind, counted)))
    thinking = _thinking(kind, pieces, counted)
    if thinking is not None:
        known.setdefault("thinking", Script(200, EVENT_STREAM, thinking))
    known.setdefault("refused", Script(200, EVENT_STREAM, sse({"error": BUSY})))
    known.setdefault("failed", Script(200, EVENT_STREAM, sse(*_said(pieces)[:3], {"error": BUSY})))
    known["whole_tools"] = Script(200, JSON, compact(_whole_tools(counted)))
    known["embeddings"] = Script(200, JSON, compact(_embeddings()))
    return known


def _counted(kind: str) -> dict[str, Any]:
    counted = usage(details=kind not in ("tgi", "llamacpp", "ollama", "trtllm"))
    if kind == "openai":
        counted["prompt_tokens_details"]["cache_write_tokens"] = WRITTEN
    return counted


def _with_usage(body: bytes, counted: dict[str, Any]) -> bytes:
    """The stream with another usage at its end."""
    frames = body.split(b"\n\n")
    for place, frame in enumerate(frames):
        if b'"choices":[],"usage":{' in frame:
            frames[place] = b"data: " + compact(chunk(None, usage=counted))
    return b"\n\n".join(frames)


def _said(pieces: Pieces) -> list[dict[str, Any]]:
    return [chunk({"role": "assistant", "content": ""}), *(chunk({"content": piece}) for piece in pieces)]


def _tools(kind: str, counted: dict[str, Any]) -> bytes:
    """Two calls, as the kind streams them."""
    begin, end = chunk({"role": "assistant", "content": ""}), [chunk({}, "tool_calls"), chunk(None, usage=counted)]
    if kind == "ollama":  # whole
        calls = [chunk({"role": "assistant", "content": "", "tool_calls": _TOOLS_WHOLE})]
    elif kind == "gemini-openai":  # whole, with the signature that must come back
        signed = {**_TOOLS_WHOLE[0], "extra_content": {"google": {"thought_signature": "c2ln"}}}
        calls = [chunk({"role": "assistant", "tool_calls": [signed, _TOOLS_WHOLE[1]]})]
    elif kind == "tgi":  # role and id again and again
        again = [(0, "weather", ""), (0, None, '{"city": '), (0, None, '"Bonn"}'), (1, "clock", "{}")]
        calls = [
            chunk({"role": "assistant", **tool_more(text, index, id=f"call_{index}", type="function")})
            for index, _, text in again
        ]
        for call, (_, name, _) in zip(calls, again, strict=True):
            call["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] = name
    else:
        calls = [
            chunk({"tool_calls": [TOOL_FIRST]}),
            chunk(tool_more('{"city": ')),
            chunk(tool_more('"Bonn"}')),
            chunk({"tool_calls": [TOOL_SECOND]}),
        ]
    return sse(begin, *calls, *end, b"[DONE]")


def _whole_tools(counted: dict[str, Any]) -> dict[str, Any]:
    calls = [{name: value for name, value in call.items() if name != "index"} for call in _TOOLS_WHOLE]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": "upstream-model"}
    return {**head, "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": counted}


def _thinking(kind: str, pieces: Pieces, counted: dict[str, Any]) -> bytes | None:
    """Reasoning before the answer, under the name the kind gives it; None where no text of it is shown."""
    name = {
        "ollama": "reasoning",
        "llamacpp": "reasoning_content",
        "trtllm": "reasoning_content",
        "openai-compatible": "reasoning_content",
    }.get(kind)
    if name is None:
        return None
    begin, *said = _said(pieces)
    mused = [chunk({name: piece}) for piece in THOUGHT]
    return sse(begin, *mused, *said, chunk({}, "stop"), chunk(None, usage=counted), b"[DONE]")


def _embeddings() -> dict[str, Any]:
    row = {"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}
    return {
        "object": "list",
        "model": "upstream-model",
        "data": [row],
        "usage": {"prompt_tokens": PROMPT, "total_tokens": PROMPT},
    }


def without_usage(body: bytes) -> bytes:
    """A stream of the OpenAI family as it is sent to a caller that did not ask for the usage at its end."""
    frames = [frame for frame in body.split(b"\n\n") if frame]
    kept = [frame for frame in frames if not _is_usage(frame)]
    return b"".join(frame + b"\n\n" for frame in kept)


def _is_usage(frame: bytes) -> bool:
    text = frame.removeprefix(b"data: ")
    if not text.startswith(b"{"):
        return False
    value = orjson.loads(text)
    return value.get("choices") == [] and bool(value.get("usage"))


__all__ = ["OUTPUT", "PROMPT", "WRITTEN", "answers", "without_usage"]
