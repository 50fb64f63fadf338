"""What each kind of upstream says, as bytes: one provider per kind that knows a few answers by heart.

Pure data, so that a test can cut it anywhere; `SCRIPTS[kind][name]` is one HTTP answer. The model name inside is the
upstream's, the texts are the same for every kind, so tests can ask the same of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

TEXT = "Grüße, 世界 🎉!"
PIECES = ("Grüße", ", ", "世界", " 🎉", "!")
THOUGHT = ("Let me ", "think.")
PROMPT, OUTPUT, CACHED, REASONING = 11, 7, 4, 2

Pieces = tuple[str, ...]

EVENT_STREAM = (("content-type", "text/event-stream; charset=utf-8"),)
JSON = (("content-type", "application/json"),)


@dataclass(frozen=True, slots=True)
class Script:
    """One answer of a scripted provider."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def compact(value: Any) -> bytes:
    """JSON as orjson, Go and Rust servers write it."""
    return orjson.dumps(value)


def spaced(value: Any) -> bytes:
    """JSON as Python's own encoder writes it: a blank after colons and commas, other scripts escaped."""
    import json

    return json.dumps(value).encode()


def sse(*values: Any, dumps: Any = compact, end: bytes = b"\n") -> bytes:
    """Frames of `values`; bytes stand for themselves."""
    frames = (value if isinstance(value, bytes) else dumps(value) for value in values)
    return b"".join(b"data: " + frame + end + end for frame in frames)


def chunk(delta: Mapping[str, Any] | None, finish: str | None = None, **extra: Any) -> dict[str, Any]:
    """One chat chunk; `delta` None is a chunk without choices."""
    choices = [] if delta is None else [{"index": 0, "delta": dict(delta), "finish_reason": finish}]
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "upstream-model"}
    return {**head, "choices": choices, **extra}


def usage(*, details: bool = True) -> dict[str, Any]:
    """The usage all scripts report."""
    counted: dict[str, Any] = {"prompt_tokens": PROMPT, "completion_tokens": OUTPUT, "total_tokens": PROMPT + OUTPUT}
    if details:
        counted["prompt_tokens_details"] = {"cached_tokens": CACHED}
        counted["completion_tokens_details"] = {"reasoning_tokens": REASONING}
    return counted


TOOL_FIRST = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
TOOL_SECOND = {"index": 1, "id": "call_2", "type": "function", "function": {"name": "clock", "arguments": "{}"}}


def tool_more(arguments: str, index: int = 0, **extra: Any) -> dict[str, Any]:
    """A later delta of a tool call."""
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}, **extra}]}


def _vllm(pieces: Pieces = PIECES) -> dict[str, Script]:
    text = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": piece}) for piece in pieces)]
    tools = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"tool_calls": [TOOL_FIRST]}),
        chunk(tool_more('{"city": ')),
        chunk(tool_more('"Bonn"}')),
        chunk({"tool_calls": [TOOL_SECOND]}),
        chunk({"content": ""}, "tool_calls"),
        chunk(None, usage=usage()),
    ]
    end = [chunk({"content": ""}, "stop", stop_reason=None), chunk(None, usage=usage())]
    thinking = [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"reasoning": piece}) for piece in THOUGHT),
        *(chunk({"content": piece}) for piece in pieces),
    ]
    failed = {"error": {"message": "EngineCore died", "type": "InternalServerError", "param": None, "code": 500}}
    full = {"message": "queue is full", "type": "ServiceUnavailableError", "param": None, "code": 503}
    return {
        "text": Script(200, EVENT_STREAM, sse(*text, *end, b"[DONE]")),
        "tools": Script(200, EVENT_STREAM, sse(*tools, b"[DONE]")),
        "thinking": Script(200, EVENT_STREAM, b": keep-alive\n\n" + sse(*thinking, *end, b"[DONE]")),
        "cut": Script(200, EVENT_STREAM, sse(*text)),
        "failed": Script(200, EVENT_STREAM, sse(*text, failed, b"[DONE]")),
        "refused": Script(200, EVENT_STREAM, sse({"error": full}, b"[DONE]")),
        "whole": Script(200, JSON, compact(_whole(usage(), pieces))),
    }


def _whole(counted: dict[str, Any] | None, pieces: Pieces) -> dict[str, Any]:
    message = {"role": "assistant", "content": "".join(pieces)}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": "upstream-model"}
    answer: dict[str, Any] = {**head, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    return answer if counted is None else {**answer, "usage": counted}


def _sglang(pieces: Pieces = PIECES) -> dict[str, Script]:
    """Every field on every chunk, most of them null, and seconds that pass."""

    def full(at: int, **delta: Any) -> dict[str, Any]:
        finish = delta.pop("finish", None)
        blank = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None}
        choice = {
            "index": 0,
            "delta": {**blank, **delta},
            "logprobs": None,
            "finish_reason": finish,
            "matched_stop": None,
        }
        head = {"id": "9f", "object": "chat.completion.chunk", "created": at, "model": "upstream-model"}
        return {**head, "choices": [choice], "usage": None}

    text = [full(1700000000, role="assistant", content="")]
    text += [full(1700000000 + n, content=piece) for n, piece in enumerate(pieces)]
    counted = {
        **usage(details=False),
        "prompt_tokens_details": {"cached_tokens": CACHED},
        "reasoning_tokens": REASONING,
    }
    end = [full(1700000009, content="", finish="stop"), chunk(None, usage=counted)]
    thinking = [full(1700000000, role="assistant", content="")]
    thinking += [full(1700000001, reasoning_content=piece) for piece in THOUGHT]
    thinking += [full(1700000002, content=piece) for piece in pieces]
    aborted = [*text[:3], full(1700000009, content="", finish="abort"), b"[DONE]"]
    queue = {
        "object": "error",
        "message": "The request queue is full.",
        "type": "SERVICE_UNAVAILABLE",
        "param": None,
        "code": 503,
    }
    return {
        "text": Script(200, EVENT_STREAM, sse(*text, *end, b"[DONE]")),
        "thinking": Script(200, EVENT_STREAM, sse(*thinking, *end, b"[DONE]")),
        "cut": Script(200, EVENT_STREAM, sse(*text)),
        "aborted": Script(200, EVENT_STREAM, sse(*aborted)),
        "failed": Script(200, EVENT_STREAM, sse(*text, {"error": queue}, b"[DONE]")),
        "refused": Script(200, EVENT_STREAM, sse({"error": queue}, b"[DONE]")),
        "whole": Script(200, JSON, compact(_whole(counted, pieces))),
    }


def _tgi(pieces: Pieces = PIECES) -> dict[str, Script]:
    text = [chunk({"role": "assistant", "content": piece}) for piece in pieces]  # the role in every chunk
    end = [chunk({"role": "assistant", "content": ""}, "stop"), chunk(None, usage=usage(details=False))]
    failed = {"error": "Request failed during generation", "error_type": "generation"}
    busy = {"error": "Model is overloaded", "error_type": "overloaded"}
    return {
        "text": Script(200, EVENT_STREAM, sse(*text, *end, b"[DONE]")),
        "cut": Script(200, EVENT_STREAM, sse(*text)),
        "failed": Script(200, EVENT_STREAM, sse(*text, failed)),
        "refused": Script(200, EVENT_STREAM, sse(busy)),
        "whole": Script(200, JSON, compact(_whole(usage(details=False), pieces))),
    }


def _llamacpp(pieces: Pieces = PIECES) -> dict[str, Script]:
    text = [chunk({"role": "assistant", "content": None}), *(chunk({"content": piece}) for piece in pieces)]
    end = [chunk({}, "stop"), chunk(None, usage=usage(details=False), timings={"predicted_n": OUTPUT})]
    long = {"code": 400, "message": "request (5000 tokens) exceeds the available context size (4096 tokens)"}
    error = {"error": {**long, "type": "exceed_context_size_error", "n_prompt_tokens": 5000, "n_ctx": 4096}}
    return {
        "text": Script(200, EVENT_STREAM, sse(*text, *end, b"[DONE]")),
        "cut": Script(200, EVENT_STREAM, sse(*text)),
        "failed": Script(200, EVENT_STREAM, b"error: " + compact(long) + b"\n\n" + sse(*text[:2], error)),
        "refused": Script(200, EVENT_STREAM, sse(error)),
        "whole": Script(200, JSON, compact(_whole(usage(details=False), pieces))),
    }


def _ollama(pieces: Pieces = PIECES) -> dict[str, Script]:
    text = [chunk({"role": "assistant", "content": piece}) for piece in pieces]
    end = [chunk({"role": "assistant", "content": ""}, "stop"), chunk(None, usage=usage(details=False))]
    return {
        "text": Script(200, EVENT_STREAM, sse(*text, *end, b"[DONE]")),
        "cut": Script(200, EVENT_STREAM, sse(*text)),
        # Its own error, read as a message: an empty chunk, no finish, and the terminator all the same.
        "failed": Script(200, EVENT_STREAM, sse(*text, chunk({"role": "assistant", "content": ""}), b"[DONE]")),
        "whole": Script(200, JSON, compact(_whole(usage(details=False), pieces))),
    }


def _openai(pieces: Pieces = PIECES) -> dict[str, Script]:
    text = [chunk({"role": "assistant", "content": "", "refusal": None}, usage=None, service_tier="default")]
    text += [chunk({"content": piece}, usage=None, obfuscation="xY" * n) for n, piece in enumerate(pieces)]
    end = [chunk({}, "stop", usage=None), chunk(None, usage=usage())]
    busy = {"type": "service_unavailable_error", "code": "server_is_overloaded", "message": "Overloaded", "param": None}
    return {
        "text": Script(200, EVENT_STREAM, sse(*text, *end, b"[DONE]")),
        "cut": Script(200, EVENT_STREAM, sse(*text)),
        "failed": Script(200, EVENT_STREAM, sse(*text, {"type": "error", "error": busy})),
        "refused": Script(200, EVENT_STREAM, b"event: error\n" + sse({"type": "error", "error": busy})),
        "whole": Script(200, JSON, compact(_whole(usage(), pieces))),
    }


def _azure(pieces: Pieces = PIECES) -> dict[str, Script]:
    note = {
        "id": "",
        "object": "",
        "created": 0,
        "model": "",
        "choices": [],
        "prompt_filter_results": [{"prompt_index": 0}],
    }
    late = chunk(None)
    late["choices"] = [{"index": 0, "finish_reason": None, "content_filter_results": {}, "content_filter_offsets": {}}]
    text = [note, chunk({"role": "assistant", "content": ""}), *(chunk({"content": piece}) for piece in pieces), late]
    end = [chunk({}, "stop"), chunk(None, usage=usage())]
    return {
        "text": Script(200, EVENT_STREAM, sse(*text, *end, b"[DONE]")),
        "cut": Script(200, EVENT_STREAM, sse(*text)),
        "whole": Script(200, JSON, compact(_whole(usage(), pieces))),
    }


BUILDERS: Mapping[str, Callable[[Pieces], dict[str, Script]]] = {
    "vllm": _vllm,
    "simulated": _vllm,
    "sglang": _sglang,
    "tgi": _tgi,
    "llamacpp": _llamacpp,
    "ollama": _ollama,
    "openai": _openai,
    "azure": _azure,
}
"""What each kind says when its model says these pieces."""

SCRIPTS: Mapping[str, Mapping[str, Script]] = {kind: build(PIECES) for kind, build in BUILDERS.items()}
