"""Answers that leave whole: what the deltas add up to, and what is wrong with an answer that is none."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from providers.exchange import Endpoint, FailureKind, Upstream
from providers.gather import as_stream
from providers.kinds import kind_named
from tests.providers.reading import Read, call, cuts
from tests.providers.scripted import (
    EVENT_STREAM,
    JSON,
    OUTPUT,
    PIECES,
    PROMPT,
    SCRIPTS,
    TEXT,
    THOUGHT,
    chunk,
    sse,
    usage,
)

KINDS = sorted(SCRIPTS)


def upstream(kind: str, *, gather: bool = True) -> Upstream:
    return Upstream(kind, "http://127.0.0.1:9001", "upstream-model", gather=gather)


def gather(kind: str, body: bytes, *, pieces: list[bytes] | None = None, **fields: Any) -> Read:
    asked = call(fields.pop("endpoint", Endpoint.CHAT), **fields)
    reader = kind_named(kind).reader(asked, upstream(kind), 200, EVENT_STREAM)
    return Read(reader, [body] if pieces is None else pieces)


def whole(body: bytes, *, pieces: list[bytes] | None = None, kind: str = "vllm", **fields: Any) -> Read:
    asked = call(fields.pop("endpoint", Endpoint.CHAT), **fields)
    reader = kind_named(kind).reader(asked, upstream(kind, gather=False), 200, JSON)
    return Read(reader, [body] if pieces is None else pieces)


def extras(kind: str) -> dict[str, Any]:
    """Fields of a choice only some engines have."""
    known = {
        "sglang": {"logprobs": None, "matched_stop": None},
        "azure": {"content_filter_results": {}, "content_filter_offsets": {}},
    }
    return known.get(kind, {})


@pytest.mark.parametrize("kind", KINDS)
def test_a_gathered_stream_is_the_answer_the_server_would_have_given(kind: str) -> None:
    got = gather(kind, SCRIPTS[kind]["text"].body)
    assert got.done
    answer = orjson.loads(got.out)
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "upstream-model"
    assert answer["created"] > 0
    [choice] = answer["choices"]
    message = {"role": "assistant", "content": TEXT}
    assert choice == {"index": 0, "message": message, "finish_reason": "stop", **extras(kind)}
    assert answer["usage"]["completion_tokens"] == OUTPUT
    assert got.tokens == len(PIECES)
    assert (got.usage.prompt_tokens, got.usage.output_tokens) == (PROMPT, OUTPUT)


def test_a_gathered_answer_equals_the_whole_one() -> None:
    got = orjson.loads(gather("llamacpp", SCRIPTS["llamacpp"]["text"].body).out)
    assert got.pop("timings") == {"predicted_n": OUTPUT}
    assert got == orjson.loads(SCRIPTS["llamacpp"]["whole"].body)


@pytest.mark.parametrize("kind", KINDS)
def test_cut_at_every_byte_the_answer_is_the_same(kind: str) -> None:
    for name in ("text", "tools", "thinking", "failed"):
        script = SCRIPTS[kind].get(name)
        if script is not None:
            expected = gather(kind, script.body).seen
            for pieces in cuts(script.body):
                assert gather(kind, b"", pieces=pieces).seen == expected


def test_nothing_leaves_before_the_end() -> None:
    body = SCRIPTS["vllm"]["text"].body
    reader = kind_named("vllm").reader(call(), upstream("vllm"), 200, EVENT_STREAM)
    head, tail = body[: body.index(b"data: [DONE]")], body[body.index(b"data: [DONE]") :]
    first = reader.feed(head)
    assert (first.out, first.content, first.done, first.tokens) == (b"", True, False, len(PIECES))
    assert reader.feed(tail).done


def test_tool_calls_are_merged_by_index() -> None:
    message = orjson.loads(gather("vllm", SCRIPTS["vllm"]["tools"].body).out)["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}},
        {"id": "call_2", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
    ]


def test_tool_calls_without_index_or_with_repeated_names_are_merged() -> None:
    def of(**entry: Any) -> dict[str, Any]:
        return chunk({"tool_calls": [entry]})

    values = [
        of(id="a", type="function", function={"name": "f", "arguments": ""}),
        of(id="", function={"name": None, "arguments": "[1"}),
        of(function={"arguments": ",2]"}),
        of(id="b", type="function", function={"name": "g", "arguments": "{}"}, extra_content={"x": 1}),
    ]
    answer = orjson.loads(gather("openai-compatible", sse(*values, chunk({}, "tool_calls"), b"[DONE]")).out)
    assert answer["choices"][0]["message"]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "[1,2]"}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}, "extra_content": {"x": 1}},
    ]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


def test_fields_nobody_here_knows_are_kept() -> None:
    values = [
        chunk({"role": "assistant", "content": ""}, service_tier="flex", system_fingerprint="fp_1"),
        chunk({"refusal": "I can"}, system_fingerprint="fp_1"),
        chunk({"refusal": "not.", "annotations": [{"a": 1}]}),
        chunk({"annotations": [{"b": 2}], "function_call": {"name": "f", "arguments": "{"}}),
        chunk({"function_call": {"arguments": "}"}}),
    ]
    last = chunk({}, "stop")
    last["choices"][0]["stop_reason"] = "###"
    answer = orjson.loads(gather("vllm", sse(*values, last, b"[DONE]")).out)
    assert (answer["service_tier"], answer["system_fingerprint"]) == ("flex", "fp_1")
    [choice] = answer["choices"]
    assert choice["stop_reason"] == "###"
    assert choice["message"] == {
        "role": "assistant",
        "content": "",
        "refusal": "I cannot.",
        "annotations": [{"a": 1}, {"b": 2}],
        "function_call": {"name": "f", "arguments": "{}"},
    }
    assert "usage" not in answer


def test_thoughts_are_gathered() -> None:
    for kind, name in (("vllm", "reasoning"), ("sglang", "reasoning_content")):
        message = orjson.loads(gather(kind, SCRIPTS[kind]["thinking"].body).out)["choices"][0]["message"]
        assert message[name] == "".join(THOUGHT)
        assert message["content"] == TEXT


def test_text_completions_are_gathered() -> None:
    def part(text: str, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
        return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}

    parts = [*(part(piece) for piece in PIECES), part("", "length"), {**part(""), "choices": [], "usage": usage()}]
    body = sse(*parts, b"[DONE]")
    answer = orjson.loads(gather("vllm", body, endpoint=Endpoint.COMPLETIONS, prompt="hi").out)
    assert answer == {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "length"}],
        "usage": usage(),
    }


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        ("vllm", "cut", "upstream_truncated"),
        ("vllm", "failed", "500"),
        ("sglang", "aborted", "upstream_aborted"),
        ("ollama", "failed", "upstream_incomplete"),
        ("llamacpp", "failed", "context_length_exceeded"),
    ],
)
def test_a_stream_that_broke_leaves_nothing(kind: str, name: str, code: str) -> None:
    got = gather(kind, SCRIPTS[kind][name].body)
    assert got.out == b""
    assert got.failure is not None
    assert got.failure.code == code


def test_a_json_answer_to_a_gathered_call_is_passed_on() -> None:
    body = SCRIPTS["vllm"]["whole"].body
    for pieces in cuts(body):
        assert gather("vllm", b"", pieces=pieces).out == body


def test_an_answer_that_came_whole_is_passed_on_byte_for_byte() -> None:
    body = b" " + SCRIPTS["vllm"]["whole"].body + b"\n"
    for pieces in cuts(body):
        got = whole(b"", pieces=pieces)
        assert (got.out, got.done, got.tokens) == (body, True, OUTPUT)


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        (b"", FailureKind.TRANSIENT, "upstream_empty"),
        (b" \n", FailureKind.TRANSIENT, "upstream_empty"),
        (b"<html>", FailureKind.TRANSIENT, "upstream_malformed"),
        (b"[]", FailureKind.TRANSIENT, "upstream_malformed"),
        (b'{"choices":[]}', FailureKind.TRANSIENT, "upstream_malformed"),
        (b'{"id":"x"}', FailureKind.TRANSIENT, "upstream_malformed"),
        (b'{"choices":[{"index":0,"finish_reason":"abort"}]}', FailureKind.TRANSIENT, "upstream_aborted"),
        (b'{"error":"Unauthorized"}', FailureKind.TRANSIENT, None),
        (b'{"error":{"message":"x","type":"rate_limit_error"}}', FailureKind.RATE, None),
        (b'[{"error":{"code":400,"message":"x","status":"INVALID_ARGUMENT"}}]', FailureKind.CLIENT, None),
    ],
)
def test_status_200_is_not_believed(body: bytes, kind: FailureKind, code: str | None) -> None:
    got = whole(body, kind="openai")
    assert got.out == b""
    assert got.failure is not None
    assert (got.failure.kind, got.failure.code) == (kind, code)


def _embeddings(count: int) -> bytes:
    data = [{"object": "embedding", "index": n, "embedding": [0.5] * 8} for n in range(count)]
    return orjson.dumps(
        {"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 9, "total_tokens": 9}}
    )


@pytest.mark.parametrize("count", [1, 6000])
def test_embeddings_are_passed_on_and_their_usage_is_read(count: int) -> None:
    body = _embeddings(count)
    got = whole(body, endpoint=Endpoint.EMBEDDINGS, input="hi")
    assert got.out == body
    assert got.done
    assert (got.usage.prompt_tokens, got.usage.output_tokens, got.tokens) == (9, 0, 0)


def test_embeddings_that_are_none_are_a_failure() -> None:
    got = whole(b'{"object":"list"}', endpoint=Endpoint.EMBEDDINGS, input="hi")
    assert got.failure is not None
    assert got.failure.code == "upstream_malformed"


def test_a_whole_answer_as_a_stream_gathers_back_to_itself() -> None:
    answer = orjson.loads(SCRIPTS["vllm"]["whole"].body)
    answer["choices"][0]["message"]["tool_calls"] = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    answer["system_fingerprint"] = "fp_1"
    assert orjson.loads(gather("vllm", as_stream(answer, wants_usage=True)).out) == answer
