"""What vendors with a dialect of their own say, as bytes: Anthropic, Gemini, Bedrock. The same texts as in
`scripted`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from providers.eventstream import encode_message
from tests.providers.scripted import EVENT_STREAM, JSON, PIECES, THOUGHT, Pieces, Script, compact, sse

FRESH, READ, WRITTEN, OUT, THOUGHT_TOKENS = 5, 4, 2, 7, 2
AWS_STREAM = (("content-type", "application/vnd.amazon.eventstream"), ("x-amzn-requestid", "req-1"))
AWS_JSON = (*JSON, ("x-amzn-requestid", "req-1"))


def named(*events: dict[str, Any]) -> bytes:
    """Anthropic's frames, each with the name of its type."""
    return b"".join(b"event: " + event["type"].encode() + b"\n" + sse(event) for event in events)


def _anthropic_usage(**more: Any) -> dict[str, Any]:
    return {
        "input_tokens": FRESH,
        "cache_read_input_tokens": READ,
        "cache_creation_input_tokens": WRITTEN,
        "output_tokens": 1,
        **more,
    }


def _block(index: int, block: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def _anthropic(pieces: Pieces = PIECES) -> dict[str, Script]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "upstream-model", "content": []}
    start = {"type": "message_start", "message": {**message, "stop_reason": None, "usage": _anthropic_usage()}}
    ping = {"type": "ping"}
    said = _block(0, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))
    mused = _block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        *({"type": "thinking_delta", "thinking": piece} for piece in THOUGHT),
        {"type": "signature_delta", "signature": "c2ln"},
    )
    after = _block(1, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))
    calls = [
        *_block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Looking."}),
        *_block(
            1,
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}},
            {"type": "input_json_delta", "partial_json": ""},
            {"type": "input_json_delta", "partial_json": '{"city": '},
            {"type": "input_json_delta", "partial_json": '"Bonn"}'},
        ),
        *_block(2, {"type": "tool_use", "id": "toolu_2", "name": "clock", "input": {}}),
    ]

    def stop(reason: str, **more: Any) -> list[dict[str, Any]]:
        details = {"output_tokens_details": {"thinking_tokens": THOUGHT_TOKENS}}
        delta = {"stop_reason": reason, "stop_sequence": None, **more}
        return [
            {"type": "message_delta", "delta": delta, "usage": {"output_tokens": OUT, **details}},
            {"type": "message_stop"},
        ]

    refused = {"type": "refusal", "category": None, "explanation": "No."}
    busy = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "req_1"}
    whole = {**message, "content": [{"type": "text", "text": "".join(pieces)}], "stop_reason": "end_turn"}
    whole["usage"] = _anthropic_usage(output_tokens=OUT)
    blocks = [
        {"type": "thinking", "thinking": "".join(THOUGHT), "signature": "c2ln"},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bonn"}},
        {"type": "tool_use", "id": "toolu_2", "name": "clock", "input": {}},
    ]
    whole_tools = {**whole, "content": blocks, "stop_reason": "tool_use"}
    return {
        "text": Script(200, EVENT_STREAM, named(start, ping, *said, *stop("end_turn"))),
        "thinking": Script(200, EVENT_STREAM, named(start, *mused, *after, *stop("end_turn"))),
        "tools": Script(200, EVENT_STREAM, named(start, *calls, *stop("tool_use"))),
        "length": Script(200, EVENT_STREAM, named(start, *said, *stop("max_tokens"))),
        "refusal": Script(200, EVENT_STREAM, named(start, *stop("refusal", stop_details=refused))),
        "cut": Script(200, EVENT_STREAM, named(start, *said)),
        "failed": Script(200, EVENT_STREAM, named(start, *said[:3], busy)),
        "refused": Script(200, EVENT_STREAM, named(busy)),
        "whole": Script(200, JSON, compact(whole)),
        "whole_tools": Script(200, JSON, compact(whole_tools)),
    }


def _gemini(pieces: Pieces = PIECES) -> dict[str, Script]:
    head = {"modelVersion": "upstream-model", "responseId": "resp-1"}

    def piece(*parts: dict[str, Any], finish: str | None = None, out: int = 3) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
        if finish is not None:
            candidate["finishReason"] = finish
        counted = {
            "promptTokenCount": FRESH + READ + WRITTEN,
            "cachedContentTokenCount": READ,
            "candidatesTokenCount": out - THOUGHT_TOKENS,
            "thoughtsTokenCount": THOUGHT_TOKENS,
            "totalTokenCount": FRESH + READ + WRITTEN + out,
        }
        return {"candidates": [candidate], "usageMetadata": counted, **head}

    said = [piece({"text": text}) for text in pieces]
    mused = [piece({"text": text, "thought": True}) for text in THOUGHT]
    calls = [
        piece({"text": "Looking."}),
        piece({"functionCall": {"name": "weather", "args": {"city": "Bonn"}}, "thoughtSignature": "c2ln"}),
        piece({"functionCall": {"id": "f-2", "name": "clock", "args": {}}}),
    ]
    end = piece({"text": ""}, finish="STOP", out=OUT)
    busy = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": FRESH}, **head}
    whole = piece({"text": "".join(THOUGHT), "thought": True}, {"text": "".join(pieces)}, finish="STOP", out=OUT)
    return {
        "text": Script(200, EVENT_STREAM, sse(*said, end, end=b"\r\n")),
        "thinking": Script(200, EVENT_STREAM, sse(*mused, *said, end)),
        "tools": Script(200, EVENT_STREAM, sse(*calls, end)),
        "length": Script(200, EVENT_STREAM, sse(*said, piece(finish="MAX_TOKENS", out=OUT))),
        "filtered": Script(200, EVENT_STREAM, sse(*said, piece(finish="SAFETY", out=OUT))),
        "malformed": Script(200, EVENT_STREAM, sse(*said, piece(finish="MALFORMED_FUNCTION_CALL", out=OUT))),
        "blocked": Script(200, EVENT_STREAM, sse(blocked)),
        "cut": Script(200, EVENT_STREAM, sse(*said)),
        "failed": Script(200, EVENT_STREAM, sse(*said, busy)),
        "refused": Script(200, JSON, compact([busy])),
        "whole": Script(200, JSON, compact(whole)),
        "whole_tools": Script(200, JSON, compact({**calls[1], "candidates": [_both(calls)]})),
    }


def _both(calls: list[dict[str, Any]]) -> dict[str, Any]:
    parts = [part for call in calls[1:] for part in call["candidates"][0]["content"]["parts"]]
    return {"content": {"parts": parts, "role": "model"}, "finishReason": "STOP", "index": 0}


def aws(name: str, value: dict[str, Any], kind: str = "event") -> bytes:
    """One message of Converse's stream, padded as it comes."""
    headers = {f":{kind}-type": name, ":content-type": "application/json", ":message-type": kind}
    return encode_message(headers, compact({**value, "p": "abcdefghij"[: len(name) % 10]}))


def _bedrock(pieces: Pieces = PIECES) -> dict[str, Script]:
    def delta(block: int, **value: Any) -> bytes:
        return aws("contentBlockDelta", {"contentBlockIndex": block, "delta": value})

    def start(block: int, id_: str, name: str) -> bytes:
        use = {"toolUse": {"toolUseId": id_, "name": name}}
        return aws("contentBlockStart", {"contentBlockIndex": block, "start": use})

    def stop(block: int) -> bytes:
        return aws("contentBlockStop", {"contentBlockIndex": block})

    counted = {
        "inputTokens": FRESH,
        "outputTokens": OUT,
        "totalTokens": FRESH + OUT,
        "cacheReadInputTokens": READ,
        "cacheWriteInputTokens": WRITTEN,
    }

    def end(reason: str) -> bytes:
        last = aws("metadata", {"usage": counted, "metrics": {"latencyMs": 12}})
        return aws("messageStop", {"stopReason": reason}) + last

    begin = aws("messageStart", {"role": "assistant"})
    said = b"".join(delta(0, text=text) for text in pieces) + stop(0)
    mused = b"".join(delta(0, reasoningContent={"text": text}) for text in THOUGHT)
    mused += delta(0, reasoningContent={"signature": "c2ln"}) + stop(0)
    after = b"".join(delta(1, text=text) for text in pieces) + stop(1)
    calls = delta(0, text="Looking.") + stop(0) + start(1, "tooluse_1", "weather")
    calls += delta(1, toolUse={"input": '{"city": '}) + delta(1, toolUse={"input": '"Bonn"}'}) + stop(1)
    calls += start(2, "tooluse_2", "clock") + stop(2)
    throttled = aws("throttlingException", {"message": "Too many requests"}, kind="exception")
    error = encode_message(
        {":message-type": "error", ":error-code": "InternalFailure", ":error-message": "An internal error."}, b""
    )
    message = {"role": "assistant", "content": [{"text": "".join(pieces)}]}
    whole = {"output": {"message": message}, "stopReason": "end_turn", "usage": counted, "metrics": {"latencyMs": 1}}
    blocks = [
        {"reasoningContent": {"reasoningText": {"text": "".join(THOUGHT), "signature": "c2ln"}}},
        {"toolUse": {"toolUseId": "tooluse_1", "name": "weather", "input": {"city": "Bonn"}}},
        {"toolUse": {"toolUseId": "tooluse_2", "name": "clock", "input": {}}},
    ]
    whole_tools = {**whole, "output": {"message": {"role": "assistant", "content": blocks}}, "stopReason": "tool_use"}
    return {
        "text": Script(200, AWS_STREAM, begin + said + end("end_turn")),
        "thinking": Script(200, AWS_STREAM, begin + mused + after + end("end_turn")),
        "tools": Script(200, AWS_STREAM, begin + calls + end("tool_use")),
        "length": Script(200, AWS_STREAM, begin + said + end("max_tokens")),
        "filtered": Script(200, AWS_STREAM, begin + said + end("guardrail_intervened")),
        "malformed": Script(200, AWS_STREAM, begin + said + end("malformed_tool_use")),
        "uncounted": Script(200, AWS_STREAM, begin + said + aws("messageStop", {"stopReason": "end_turn"})),
        "cut": Script(200, AWS_STREAM, begin + said),
        "failed": Script(200, AWS_STREAM, begin + said + throttled),
        "broken": Script(200, AWS_STREAM, begin + said + error),
        "refused": Script(200, AWS_STREAM, throttled),
        "whole": Script(200, AWS_JSON, compact(whole)),
        "whole_tools": Script(200, AWS_JSON, compact(whole_tools)),
    }


VENDOR_BUILDERS: Mapping[str, Callable[[Pieces], dict[str, Script]]] = {
    "anthropic": _anthropic,
    "gemini": _gemini,
    "bedrock": _bedrock,
}
"""What each kind says when its model says these pieces."""

VENDORS: Mapping[str, Mapping[str, Script]] = {kind: build(PIECES) for kind, build in VENDOR_BUILDERS.items()}
