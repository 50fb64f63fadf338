"""Scripts that those of `tests/providers` lack: tools and JSON for every dialect, and native Responses."""

from __future__ import annotations

from typing import Any

from tests.providers.scripted import (
    CACHED,
    EVENT_STREAM,
    OUTPUT,
    PIECES,
    PROMPT,
    REASONING,
    SCRIPTS,
    TEXT,
    THOUGHT,
    Script,
    chunk,
    sse,
    usage,
)
from tests.providers.scripted_vendors import AWS_STREAM, FRESH, OUT, READ, VENDORS, WRITTEN, aws, named

ANSWER = '{"city":"Bonn"}'
JSON_PIECES = ('{"city":', '"Bonn"}')
CHAT_DIALECT = ("vllm", "simulated", "sglang", "tgi", "llamacpp", "trtllm", "ollama", "openai", "azure",
                "openai-compatible", "gemini-openai")  # fmt: skip


def _chat_json() -> Script:
    said = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": piece}) for piece in JSON_PIECES)]
    return Script(200, EVENT_STREAM, sse(*said, chunk({}, "stop"), chunk(None, usage=usage()), b"[DONE]"))


def _messages_json() -> Script:
    counted = {"input_tokens": FRESH, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "upstream-model", "content": []}
    deltas = [{"type": "text_delta", "text": piece} for piece in JSON_PIECES]
    return Script(
        200,
        EVENT_STREAM,
        named(
            {"type": "message_start", "message": {**message, "stop_reason": None, "usage": counted}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": OUT}},
            {"type": "message_stop"},
        ),
    )


def _gemini_json() -> Script:
    counted = {"promptTokenCount": FRESH, "candidatesTokenCount": OUT, "totalTokenCount": FRESH + OUT}
    pieces = [
        {
            "candidates": [{"content": {"parts": [{"text": text}], "role": "model"}, "index": 0}],
            "usageMetadata": counted,
        }
        for text in JSON_PIECES
    ]
    pieces[-1]["candidates"][0]["finishReason"] = "STOP"  # type: ignore[index]
    return Script(200, EVENT_STREAM, sse(*pieces))


def _bedrock_json() -> Script:
    counted = {"inputTokens": FRESH, "outputTokens": OUT, "totalTokens": FRESH + OUT}
    said = [aws("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": piece}}) for piece in JSON_PIECES]
    end = [aws("messageStop", {"stopReason": "end_turn"}), aws("metadata", {"usage": counted})]
    return Script(200, AWS_STREAM, b"".join([aws("messageStart", {"role": "assistant"}), *said, *end]))


def _events(*events: dict[str, Any]) -> bytes:
    numbered = ({**event, "sequence_number": number} for number, event in enumerate(events))
    return b"".join(b"event: " + event["type"].encode() + b"\n" + sse(event) for event in numbered)


def _response(status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": "resp_up1", "object": "response", "created_at": 1700000000, "status": status, "error": None,
        "incomplete_details": None, "model": "upstream-model", "output": output, "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [], "usage": None if status == "in_progress" else {
            "input_tokens": PROMPT, "input_tokens_details": {"cached_tokens": CACHED, "cache_write_tokens": 0},
            "output_tokens": OUTPUT, "output_tokens_details": {"reasoning_tokens": REASONING},
            "total_tokens": PROMPT + OUTPUT,
        },
    }  # fmt: skip


def _begin() -> list[dict[str, Any]]:
    told = _response("in_progress", [])
    return [{"type": "response.created", "response": told}, {"type": "response.in_progress", "response": told}]


def _said(index: int, pieces: tuple[str, ...]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    item = {"id": "msg_up", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    text = "".join(pieces)
    whole = {**item, "status": "completed", "content": [{**part, "text": text}]}
    at = {"item_id": "msg_up", "output_index": index, "content_index": 0}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": item},
        {"type": "response.content_part.added", **at, "part": part},
        *({"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []} for piece in pieces),
        {"type": "response.output_text.done", **at, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **at, "part": {**part, "text": text}},
        {"type": "response.output_item.done", "output_index": index, "item": whole},
    ], whole


def _mused() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    item: dict[str, Any] = {"id": "rs_up", "type": "reasoning", "summary": [], "content": []}
    at = {"item_id": "rs_up", "output_index": 0, "content_index": 0}
    whole = {**item, "content": [{"type": "reasoning_text", "text": "".join(THOUGHT)}]}
    return [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **at, "part": {"type": "reasoning_text", "text": ""}},
        *({"type": "response.reasoning_text.delta", **at, "delta": piece} for piece in THOUGHT),
        {"type": "response.reasoning_text.done", **at, "text": "".join(THOUGHT)},
        {"type": "response.output_item.done", "output_index": 0, "item": whole},
    ], whole


def _called(index: int, id_: str, name: str, arguments: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    item = {"id": f"fc_{id_}", "type": "function_call", "call_id": id_, "name": name, "arguments": ""}
    whole = {**item, "arguments": arguments, "status": "completed"}
    at = {"item_id": item["id"], "output_index": index}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": {**item, "status": "in_progress"}},
        {"type": "response.function_call_arguments.delta", **at, "delta": arguments},
        {"type": "response.function_call_arguments.done", **at, "name": name, "arguments": arguments},
        {"type": "response.output_item.done", "output_index": index, "item": whole},
    ], whole


def _responses() -> dict[str, Script]:
    def script(*parts: tuple[list[dict[str, Any]], dict[str, Any]]) -> Script:
        events = [event for part, _ in parts for event in part]
        end = {"type": "response.completed", "response": _response("completed", [item for _, item in parts])}
        return Script(200, EVENT_STREAM, _events(*_begin(), *events, end))

    calls = (_called(0, "call_1", "weather", '{"city": "Bonn"}'), _called(1, "call_2", "clock", "{}"))
    return {
        "text": script(_said(0, PIECES)),
        "thinking": script(_mused(), _said(1, PIECES)),
        "tools": script(*calls),
        "json": script(_said(0, JSON_PIECES)),
        "cut": Script(200, EVENT_STREAM, _events(*_begin(), *_said(0, PIECES)[0])),
    }


RESPONSES = _responses()
MESSAGES = {**VENDORS["anthropic"], "json": _messages_json()}


def script(kind: str, path: str, scenario: str) -> Script:
    """What an upstream of `kind` answers at `path` to a streamed request."""
    if path.endswith("/responses"):
        return RESPONSES[scenario]
    if path.endswith("/messages"):
        return MESSAGES[scenario]
    if kind == "gemini":
        return _gemini_json() if scenario == "json" else VENDORS["gemini"][scenario]
    if kind == "bedrock":
        return _bedrock_json() if scenario == "json" else VENDORS["bedrock"][scenario]
    if scenario == "json":
        return _chat_json()
    known = SCRIPTS.get(kind, SCRIPTS["openai"])
    return known.get(scenario) or SCRIPTS["vllm"][scenario]


__all__ = ["ANSWER", "CHAT_DIALECT", "MESSAGES", "READ", "RESPONSES", "TEXT", "WRITTEN", "script"]
