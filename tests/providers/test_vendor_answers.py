"""Answers of vendors with their own dialect, as an OpenAI client sees them, streamed and whole, wherever they were
cut.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import orjson
import pytest

from providers.eventstream import BrokenMessage, Message, MessageFramer, encode_message
from providers.exchange import FailureKind, Reader, Upstream, Usage
from providers.kinds import kind_named
from tests.providers.reading import Read, call, chunks, cuts, said
from tests.providers.scripted import PIECES, TEXT, THOUGHT, Script
from tests.providers.scripted_vendors import FRESH, OUT, READ, THOUGHT_TOKENS, VENDORS, WRITTEN

KINDS = sorted(VENDORS)
ASKED = {"stream": True, "stream_options": {"include_usage": True}}
PROMPT = FRESH + READ + WRITTEN
IDS = {"anthropic": "chatcmpl-msg_1", "gemini": "chatcmpl-resp-1", "bedrock": "chatcmpl-req-1"}
REASONING = {"anthropic": THOUGHT_TOKENS, "gemini": THOUGHT_TOKENS, "bedrock": None}
WRITES = {"anthropic": WRITTEN, "gemini": None, "bedrock": WRITTEN}
TOOL_IDS = {
    "anthropic": ("toolu_1", "toolu_2"),
    "gemini": ("call_resp-1_0", "f-2"),
    "bedrock": ("tooluse_1", "tooluse_2"),
}


def reader(kind: str, script: Script, *, gather: bool = False, **fields: Any) -> Reader:
    upstream = Upstream(kind, "https://vendor.test", "upstream-model", gather=gather, at=1700000000)
    return kind_named(kind).reader(call(**fields), upstream, script.status, script.headers)


def stream(kind: str, name: str, *, pieces: list[bytes] | None = None, **fields: Any) -> Read:
    script = VENDORS[kind][name]
    return Read(reader(kind, script, **{"stream": True, **fields}), [script.body] if pieces is None else pieces)


def whole(kind: str, name: str, *, gather: bool = False) -> Read:
    script = VENDORS[kind][name]
    return Read(reader(kind, script, gather=gather), [script.body])


def calls_of(out: bytes) -> dict[int, dict[str, str]]:
    """Tool calls as a client puts them together: every text joined, as strict clients do."""
    found: dict[int, dict[str, str]] = {}
    for part in chunks(out)[:-1]:
        for choice in part["choices"]:
            for entry in choice["delta"].get("tool_calls", []):
                known = found.setdefault(entry["index"], {"id": "", "name": "", "arguments": ""})
                known["id"] += entry.get("id") or ""
                known["name"] += entry["function"].get("name") or ""
                known["arguments"] += entry["function"].get("arguments") or ""
    return found


def reason_of(out: bytes) -> list[str]:
    return [c["finish_reason"] for part in chunks(out)[:-1] for c in part["choices"] if c["finish_reason"]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_streamed_as_openai_streams_one(kind: str) -> None:
    got = stream(kind, "text", **ASKED)
    assert got.failure is None
    parts = chunks(got.out)
    assert {(part["id"], part["created"], part["model"]) for part in parts[:-1]} == {
        (IDS[kind], 1700000000, "upstream-model")
    }
    assert parts[0]["choices"] == [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    assert [part["choices"][0]["delta"]["content"] for part in parts[1:-3]] == list(PIECES)
    assert parts[-3]["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert parts[-2]["choices"] == []
    assert parts[-1] == "[DONE]"
    assert got.tokens == len(PIECES)


@pytest.mark.parametrize("kind", KINDS)
def test_usage_is_counted_openais_way(kind: str) -> None:
    got = stream(kind, "text", **ASKED)
    expected = Usage(PROMPT, OUT, READ, WRITES[kind], REASONING[kind])
    assert got.usage == expected
    told = chunks(got.out)[-2]["usage"]
    assert (told["prompt_tokens"], told["completion_tokens"], told["total_tokens"]) == (PROMPT, OUT, PROMPT + OUT)
    assert told["prompt_tokens_details"]["cached_tokens"] == READ
    assert told["prompt_tokens_details"].get("cache_write_tokens") == WRITES[kind]
    assert told.get("completion_tokens_details", {}).get("reasoning_tokens") == REASONING[kind]
    assert all(part == "[DONE]" or part["choices"] for part in chunks(stream(kind, "text").out))


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in VENDORS[kind]])
def test_cut_at_every_byte_the_client_gets_the_same(kind: str, name: str) -> None:
    body = VENDORS[kind][name].body
    expected = stream(kind, name, **ASKED).seen
    for pieces in cuts(body):
        assert stream(kind, name, pieces=pieces, **ASKED).seen == expected


@pytest.mark.parametrize("kind", KINDS)
def test_thoughts_are_reasoning(kind: str) -> None:
    got = stream(kind, "thinking")
    assert said(got.out, "reasoning_content") == "".join(THOUGHT)
    assert said(got.out) == TEXT
    assert reason_of(got.out) == ["stop"]


@pytest.mark.parametrize("kind", KINDS)
def test_tool_calls_are_counted_from_zero_and_always_have_arguments(kind: str) -> None:
    got = stream(kind, "tools")
    calls = calls_of(got.out)
    assert [(call["id"], call["name"]) for call in calls.values()] == [
        (TOOL_IDS[kind][0], "weather"),
        (TOOL_IDS[kind][1], "clock"),
    ]
    assert list(calls) == [0, 1]
    assert [orjson.loads(call["arguments"]) for call in calls.values()] == [{"city": "Bonn"}, {}]
    assert said(got.out) == "Looking."
    assert reason_of(got.out) == ["tool_calls"]


def test_geminis_signature_travels_with_the_call() -> None:
    first = next(
        part for part in chunks(stream("gemini", "tools").out) if part["choices"][0]["delta"].get("tool_calls")
    )
    [entry] = first["choices"][0]["delta"]["tool_calls"]
    assert entry["extra_content"] == {"google": {"thought_signature": "c2ln"}}


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        ("anthropic", "length", "length"),
        ("anthropic", "refusal", "content_filter"),
        ("gemini", "length", "length"),
        ("gemini", "filtered", "content_filter"),
        ("bedrock", "length", "length"),
        ("bedrock", "filtered", "content_filter"),
    ],
)
def test_reasons_to_stop(kind: str, name: str, reason: str) -> None:
    assert reason_of(stream(kind, name).out) == [reason]


def test_a_refusal_says_why() -> None:
    assert said(stream("anthropic", "refusal").out, "refusal") == "No."


@pytest.mark.parametrize("kind", KINDS)
def test_whole_answers_are_openais(kind: str) -> None:
    got = whole(kind, "whole")
    answer = orjson.loads(got.out)
    assert (answer["id"], answer["object"], answer["created"]) == (IDS[kind], "chat.completion", 1700000000)
    [choice] = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (TEXT, "stop")
    assert answer["usage"]["completion_tokens"] == OUT
    assert got.tokens == OUT
    assert got.usage.prompt_tokens == PROMPT


@pytest.mark.parametrize("kind", KINDS)
def test_whole_tool_calls_are_openais(kind: str) -> None:
    [choice] = orjson.loads(whole(kind, "whole_tools").out)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] is None
    assert [(entry["id"], entry["type"]) for entry in message["tool_calls"]] == [
        (TOOL_IDS[kind][0], "function"),
        (TOOL_IDS[kind][1], "function"),
    ]
    assert [orjson.loads(entry["function"]["arguments"]) for entry in message["tool_calls"]] == [{"city": "Bonn"}, {}]
    assert message.get("reasoning_content") == (None if kind == "gemini" else "".join(THOUGHT))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["text", "thinking", "tools"])
def test_a_gathered_stream_says_what_the_stream_says(kind: str, name: str) -> None:
    streamed = stream(kind, name)
    gathered = whole(kind, name, gather=True)
    message = orjson.loads(gathered.out)["choices"][0]["message"]
    assert (message["content"] or "") == said(streamed.out)
    assert message.get("reasoning_content", "") == said(streamed.out, "reasoning_content")
    arguments = [entry["function"]["arguments"] for entry in message.get("tool_calls", [])]
    assert arguments == [entry["arguments"] for entry in calls_of(streamed.out).values()]
    assert gathered.usage == streamed.usage
    assert gathered.tokens == streamed.tokens


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_answer_where_a_stream_was_asked_becomes_one(kind: str) -> None:
    got = stream(kind, "whole", **ASKED)
    assert said(got.out) == TEXT
    assert chunks(got.out)[-1] == "[DONE]"


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_stops_short_is_a_failure(kind: str) -> None:
    for got in (stream(kind, "cut"), whole(kind, "cut", gather=True)):
        assert got.failure is not None
        assert (got.failure.kind, got.failure.code) == (FailureKind.TRANSIENT, "upstream_truncated")
        assert b"[DONE]" not in got.out


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_answer_is_a_failure(kind: str) -> None:
    for fields in ({"stream": True}, {}):
        got = Read(reader(kind, VENDORS[kind]["text"], **fields), [b""])
        assert got.failure is not None
        assert got.failure.code == "upstream_empty"


@pytest.mark.parametrize(
    ("kind", "name", "found"),
    [
        ("anthropic", "failed", FailureKind.CAPACITY),
        ("anthropic", "refused", FailureKind.CAPACITY),
        ("gemini", "failed", FailureKind.CAPACITY),
        ("gemini", "refused", FailureKind.CAPACITY),
        ("gemini", "blocked", FailureKind.CONTENT),
        ("gemini", "malformed", FailureKind.TRANSIENT),
        ("bedrock", "failed", FailureKind.RATE),
        ("bedrock", "refused", FailureKind.RATE),
        ("bedrock", "malformed", FailureKind.TRANSIENT),
        ("bedrock", "broken", FailureKind.TRANSIENT),
    ],
)
def test_errors_inside_an_answer(kind: str, name: str, found: FailureKind) -> None:
    got = stream(kind, name)
    assert got.failure is not None
    assert got.failure.kind is found
    assert b"[DONE]" not in got.out
    if name in ("refused", "blocked"):
        assert got.out == b""


def test_a_blocked_prompt_is_the_callers_fault_and_says_so() -> None:
    failure = stream("gemini", "blocked").failure
    assert failure is not None
    assert failure.body is not None
    assert orjson.loads(failure.body)["error"]["code"] == "content_filter"


def test_a_cache_that_was_not_reported_is_unknown_and_one_that_was_not_hit_is_zero() -> None:
    body = orjson.loads(VENDORS["anthropic"]["whole"].body)
    script = Script(200, (), b"")
    del body["usage"]["cache_creation_input_tokens"]
    body["usage"]["cache_read_input_tokens"] = 0
    got = Read(reader("anthropic", script), [orjson.dumps(body)])
    assert (got.usage.prompt_tokens, got.usage.cached_tokens, got.usage.cache_write_tokens) == (FRESH, 0, None)
    assert orjson.loads(got.out)["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_converse_without_its_metadata_is_complete_when_it_closes() -> None:
    got = stream("bedrock", "uncounted", **ASKED)
    assert got.done
    assert said(got.out) == TEXT
    assert got.usage == Usage()
    assert all(part == "[DONE]" or part["choices"] for part in chunks(got.out))


VECTOR = bytes.fromhex(
    "0000009e00000057fe1b824f0b3a6576656e742d74797065070011636f6e74656e74426c6f636b44656c74610d3a636f6e74656e742d747970"
    "650700106170706c69636174696f6e2f6a736f6e0d3a6d6573736167652d747970650700056576656e747b22636f6e74656e74426c6f636b49"
    "6e646578223a302c2264656c7461223a7b2274657874223a226869227d2c2270223a22616263227d1b86ce8e"
)


def test_a_known_message_is_read_and_written() -> None:
    headers = {
        ":event-type": "contentBlockDelta",
        ":content-type": "application/json",
        ":message-type": "event",
    }
    payload = b'{"contentBlockIndex":0,"delta":{"text":"hi"},"p":"abc"}'
    for at in range(len(VECTOR) + 1):
        framer = MessageFramer()
        assert framer.feed(VECTOR[:at]) + framer.feed(VECTOR[at:]) == [Message(headers, payload)]
        assert framer.tail == b""
    assert encode_message(headers, payload) == VECTOR


@pytest.mark.parametrize("at", [0, 5, 9, 20, 60, 100, len(VECTOR) - 1])
def test_a_damaged_message_is_not_believed(at: int) -> None:
    damaged = bytearray(VECTOR)
    damaged[at] ^= 1
    with pytest.raises(BrokenMessage):
        MessageFramer().feed(bytes(damaged))
    got = Read(reader("bedrock", VENDORS["bedrock"]["text"], stream=True), [bytes(damaged)])
    assert got.failure is not None
    assert got.failure.code == "upstream_malformed"


def test_headers_of_every_type_are_passed_over() -> None:
    values = [(0, b""), (1, b""), (2, b"x"), (3, b"xx"), (4, b"x" * 4), (5, b"x" * 8), (8, b"x" * 8), (9, b"x" * 16)]
    block = b"".join(b"\x01%c%c%b" % (97 + kind, kind, value) for kind, value in values)
    block += b"\x01z\x06\x00\x02hi" + b"\x04name\x07\x00\x05value"
    lengths = struct.pack(">II", 16 + len(block), len(block))
    raw = lengths + struct.pack(">I", zlib.crc32(lengths)) + block
    raw += struct.pack(">I", zlib.crc32(raw))
    assert MessageFramer().feed(raw) == [Message({"name": "value"}, b"")]
