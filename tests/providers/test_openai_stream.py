"""Streams passed on: what a client sees, wherever the bytes were cut."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.exchange import Endpoint, FailureKind, Upstream
from providers.kinds import kind_named
from tests.providers.reading import Read, call, chunks, cuts, said
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
    TOOL_FIRST,
    chunk,
    spaced,
    sse,
    tool_more,
    usage,
)

KINDS = sorted(SCRIPTS)
ASKED = {"stream": True, "stream_options": {"include_usage": True}}


def upstream(kind: str, **fields: Any) -> Upstream:
    return Upstream(kind, "http://127.0.0.1:9001", "upstream-model", **fields)


def read(kind: str, body: bytes, *, pieces: list[bytes] | None = None, **fields: Any) -> Read:
    asked = call(fields.pop("endpoint", Endpoint.CHAT), **{"stream": True, **fields})
    reader = kind_named(kind).reader(asked, upstream(kind), 200, EVENT_STREAM)
    return Read(reader, [body] if pieces is None else pieces)


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_of_any_kind_gets_the_text_once_and_the_end(kind: str) -> None:
    got = read(kind, SCRIPTS[kind]["text"].body)
    assert got.failure is None
    assert got.done
    assert said(got.out) == TEXT
    assert said(got.out, "role") == "assistant"
    assert chunks(got.out)[-1] == "[DONE]"
    assert got.tokens == got.counted == len(PIECES)
    assert (got.usage.prompt_tokens, got.usage.output_tokens) == (PROMPT, OUTPUT)


@pytest.mark.parametrize("kind", KINDS)
def test_every_chunk_has_a_choice_unless_usage_was_asked_for(kind: str) -> None:
    got = read(kind, SCRIPTS[kind]["text"].body)
    assert all(part == "[DONE]" or part["choices"] for part in chunks(got.out))
    asked = chunks(read(kind, SCRIPTS[kind]["text"].body, **ASKED).out)
    assert [part["usage"]["completion_tokens"] for part in asked[-2:-1]] == [OUTPUT]
    assert asked[-2]["choices"] == []


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in KINDS for name in SCRIPTS[kind] if name != "whole"]
)
def test_cut_at_every_byte_the_client_gets_the_same(kind: str, name: str) -> None:
    script = SCRIPTS[kind][name]
    whole = read(kind, script.body).seen
    for pieces in cuts(script.body):
        assert read(kind, b"", pieces=pieces).seen == whole


@pytest.mark.parametrize("kind", KINDS)
def test_line_ends_do_not_matter(kind: str) -> None:
    body = SCRIPTS[kind]["text"].body
    got = read(kind, body.replace(b"\n", b"\r\n"))
    assert said(got.out) == TEXT
    assert got.done
    lone = read(kind, body.replace(b"\n", b"\r") + b"\r")
    assert said(lone.out) == TEXT


def test_plain_frames_pass_byte_for_byte() -> None:
    script = SCRIPTS["vllm"]["text"].body
    frames = [frame + b"\n\n" for frame in script.split(b"\n\n")[:-1]]
    relayed = b"".join(frame for frame in frames if b'"choices":[]' not in frame)
    assert read("vllm", script).out == relayed
    assert read("vllm", script, pieces=frames).out == relayed
    assert read("vllm", script, **ASKED).out == script


def test_a_server_that_writes_blanks_is_passed_on_as_it_writes() -> None:
    values = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": piece}) for piece in PIECES)]
    body = sse(*values, chunk({}, "stop"), b"[DONE]", dumps=spaced)
    assert read("openai-compatible", body).out == body
    assert read("openai-compatible", body).tokens == len(PIECES)


def test_thoughts_are_content_too() -> None:
    for kind, name in (("vllm", "reasoning"), ("sglang", "reasoning_content")):
        got = read(kind, SCRIPTS[kind]["thinking"].body)
        assert said(got.out, name) == "".join(THOUGHT)
        assert said(got.out) == TEXT
        assert got.tokens == len(THOUGHT) + len(PIECES)


def test_usage_is_read_with_its_parts() -> None:
    got = read("vllm", SCRIPTS["vllm"]["text"].body).usage
    assert (got.cached_tokens, got.reasoning_tokens, got.cache_write_tokens) == (CACHED, REASONING, None)
    assert read("tgi", SCRIPTS["tgi"]["text"].body).usage.cached_tokens is None
    assert read("sglang", SCRIPTS["sglang"]["text"].body).usage.reasoning_tokens == REASONING


def test_a_repeated_role_is_said_once() -> None:
    values = [chunk({"role": "assistant", "content": piece}) for piece in PIECES]
    for dumps in (orjson.dumps, spaced):
        body = sse(*values, chunk({"role": "assistant"}, "stop"), b"[DONE]", dumps=dumps)
        got = read("openai-compatible", body)
        assert said(got.out, "role") == "assistant"
        assert said(got.out) == TEXT
        for pieces in cuts(body):
            assert read("openai-compatible", b"", pieces=pieces).out == got.out


def test_a_role_nobody_said_is_added_to_the_first_chunk() -> None:
    body = sse(*(chunk({"content": piece}) for piece in PIECES), chunk({}, "stop"), b"[DONE]")
    got = read("openai-compatible", body)
    assert chunks(got.out)[0]["choices"][0]["delta"] == {"content": PIECES[0], "role": "assistant"}
    assert said(got.out, "role") == "assistant"


def test_a_repeated_tool_id_and_name_are_said_once_and_an_index_is_given() -> None:
    again = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"a":'}}
    bare = {"function": {"arguments": "1}"}}
    values = [
        chunk({"role": "assistant", "content": None}),
        chunk({"tool_calls": [TOOL_FIRST]}),
        chunk({"tool_calls": [again]}),
        chunk({"tool_calls": [bare]}),
        chunk({}, "tool_calls"),
    ]
    got = chunks(read("openai-compatible", sse(*values, b"[DONE]")).out)
    calls = [part["choices"][0]["delta"]["tool_calls"][0] for part in got[1:4]]
    assert calls == [
        TOOL_FIRST,
        {"index": 0, "function": {"arguments": '{"a":'}},
        {"index": 0, "function": {"arguments": "1}"}},
    ]


def test_tool_calls_pass_as_they_came() -> None:
    got = read("vllm", SCRIPTS["vllm"]["tools"].body, **ASKED)
    assert got.out == SCRIPTS["vllm"]["tools"].body
    assert got.tokens == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_without_its_terminator_was_cut(kind: str) -> None:
    got = read(kind, SCRIPTS[kind]["cut"].body)
    assert got.failure is not None
    assert (got.failure.kind, got.failure.code) == (FailureKind.TRANSIENT, "upstream_truncated")
    assert not got.done
    assert said(got.out) == TEXT
    assert b"[DONE]" not in got.out
    assert got.tokens == len(PIECES)


@pytest.mark.parametrize(
    ("kind", "found", "code"),
    [
        ("vllm", FailureKind.TRANSIENT, "500"),
        ("sglang", FailureKind.CAPACITY, "503"),
        ("tgi", FailureKind.TRANSIENT, None),
        ("llamacpp", FailureKind.CONTEXT, "context_length_exceeded"),
        ("ollama", FailureKind.TRANSIENT, "upstream_incomplete"),
        ("openai", FailureKind.CAPACITY, "server_is_overloaded"),
    ],
)
def test_an_error_inside_a_stream_is_a_failure_and_not_an_end(kind: str, found: FailureKind, code: str | None) -> None:
    got = read(kind, SCRIPTS[kind]["failed"].body)
    assert got.failure is not None
    assert (got.failure.kind, got.failure.code) == (found, code)
    assert b"[DONE]" not in got.out
    assert b"error" not in got.out


@pytest.mark.parametrize(
    ("kind", "found", "status"),
    [
        ("vllm", FailureKind.CAPACITY, 503),
        ("sglang", FailureKind.CAPACITY, 503),
        ("tgi", FailureKind.CAPACITY, 429),
        ("llamacpp", FailureKind.CONTEXT, 400),
        ("openai", FailureKind.CAPACITY, 503),
    ],
)
def test_an_error_in_the_first_frame_leaves_nothing_behind(kind: str, found: FailureKind, status: int) -> None:
    got = read(kind, SCRIPTS[kind]["refused"].body)
    assert got.out == b""
    assert got.failure is not None
    assert (got.failure.kind, got.failure.status) == (found, status)


def test_an_engine_that_gives_up_has_failed() -> None:
    got = read("sglang", SCRIPTS["sglang"]["aborted"].body)
    assert got.failure is not None
    assert got.failure.code == "upstream_aborted"
    assert "abort" not in got.out.decode()


@pytest.mark.parametrize("body", [b"", b"\n\n", b": ping\n\n", b"data: [DONE]\n\n", b"data:\n\n"])
def test_an_answer_that_says_nothing_is_a_failure(body: bytes) -> None:
    got = read("openai-compatible", body)
    assert got.failure is not None
    assert got.failure.code == "upstream_empty"
    assert got.out == b""


@pytest.mark.parametrize("body", [b"data: nonsense\n\n", b"data: 3\n\n", b'data: "text"\n\n'])
def test_an_event_that_is_no_object_is_a_failure(body: bytes) -> None:
    got = read("openai-compatible", body)
    assert got.failure is not None
    assert got.failure.code == "upstream_malformed"


def test_only_data_reaches_the_client() -> None:
    first, second = (orjson.dumps(chunk({"role": "assistant", "content": piece})) for piece in ("a", "b"))
    body = b"id: 1\nevent: message\ndata: " + first + b'\n\nretry: 5\n\nevent: ping\ndata: {"type":"ping"}\n\n'
    body += b": note\nid: 2\n\ndata:" + second + b"\n\ndata: {\ndata: }\n\ndata:[DONE]\n\n"
    got = read("openai-compatible", body)
    assert got.done
    assert b"id:" not in got.out.replace(b'"id":', b"")
    assert b"retry" not in got.out
    assert b"event" not in got.out
    assert said(got.out) == "ab"
    assert got.out.startswith(b"data: " + first + b"\n\n")


def test_the_words_of_the_model_are_never_taken_for_marks() -> None:
    words = ['"error"', "error", "usage", "[DONE]", '{"error": {"message": "x"}}', "data: [DONE]\n\n", "\r\n", "role"]
    words += ['"role":"assistant",', '"finish_reason":"stop"', "abort", '\\"', "\\", "tool_calls", '","content":""']
    values = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": word}) for word in words)]
    for dumps in (orjson.dumps, spaced):
        body = sse(*values, chunk({}, "stop"), b"[DONE]", dumps=dumps)
        frames = [frame + b"\n\n" for frame in body.split(b"\n\n")[:-1]]
        for pieces in ([body], frames, [body[:700], body[700:]]):
            got = read("openai-compatible", b"", pieces=pieces)
            assert got.failure is None
            assert said(got.out) == "".join(words)
            assert got.out == body
            assert got.tokens == len(words)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=8), st.lists(st.integers(0, 4000), max_size=6), st.booleans())
def test_any_text_survives_any_cut(words: list[str], at: list[int], blanks: bool) -> None:
    words = [word.encode("utf-8", "ignore").decode() or "x" for word in words]
    values = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": word}) for word in words)]
    body = sse(*values, chunk({}, "stop"), b"[DONE]", dumps=spaced if blanks else orjson.dumps)
    places = sorted({0, len(body), *(place for place in at if place < len(body))})
    pieces = [body[a:b] for a, b in pairwise(places)]
    got = read("openai-compatible", b"", pieces=pieces)
    assert got.out == body
    assert got.tokens == len(words)


def test_a_very_long_line_passes() -> None:
    long = "x" * 3_000_000
    body = sse(chunk({"role": "assistant", "content": long}), chunk({}, "stop"), b"[DONE]")
    pieces = [body[at : at + 65536] for at in range(0, len(body), 65536)]
    assert said(read("openai-compatible", b"", pieces=pieces).out) == long


def test_an_endless_line_is_a_failure() -> None:
    got = read("openai-compatible", b"", pieces=[b"data: {", *([b"x" * 1_000_000] * 20)])
    assert got.failure is not None
    assert got.failure.code == "upstream_too_large"


def test_several_choices_keep_their_own_roles() -> None:
    def of(index: int, **delta: Any) -> dict[str, Any]:
        part = chunk(delta)
        part["choices"][0]["index"] = index
        return part

    values = [of(index, role="assistant", content=text) for index, text in ((0, "a"), (1, "b"), (1, "c"))]
    got = chunks(read("openai-compatible", sse(*values, b"[DONE]"), n=2).out)
    deltas = [part["choices"][0]["delta"] for part in got[:-1]]
    assert deltas == [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, {"content": "c"}]


def test_text_completions_pass() -> None:
    def part(text: str, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
        return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}

    body = sse(*(part(piece) for piece in PIECES), part("", "length"), b"[DONE]")
    got = read("vllm", body, endpoint=Endpoint.COMPLETIONS, prompt="hi")
    assert got.out == body
    assert got.tokens == len(PIECES)


def test_usage_in_every_chunk_is_followed() -> None:
    def counted(piece: str, n: int) -> dict[str, Any]:
        return chunk({"content": piece}, usage={"prompt_tokens": PROMPT, "completion_tokens": n})

    values = [chunk({"role": "assistant", "content": ""}), *(counted(piece, n) for n, piece in enumerate(PIECES, 1))]
    got = read("vllm", sse(*values))
    assert got.failure is not None
    assert got.usage.output_tokens == len(PIECES)
    assert got.tokens == len(PIECES)


def test_one_json_object_where_a_stream_was_asked_becomes_a_stream() -> None:
    for pieces in cuts(b"  \r\n" + SCRIPTS["vllm"]["whole"].body):
        got = read("vllm", b"", pieces=pieces)
        assert got.done
        assert said(got.out) == TEXT
        assert said(got.out, "role") == "assistant"
    got = read("vllm", SCRIPTS["vllm"]["whole"].body, **ASKED)
    assert [part["choices"][0]["finish_reason"] for part in chunks(got.out)[:2]] == [None, "stop"]
    assert chunks(got.out)[2]["usage"] == usage()
    assert got.usage.output_tokens == OUTPUT


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"error":{"message":"no","type":"server_error","code":500}}', FailureKind.TRANSIENT),
        (b'[{"error":{"code":429,"message":"slow down","status":"RESOURCE_EXHAUSTED"}}]', FailureKind.RATE),
        (b'{"object":"error","message":"bad","code":400}', FailureKind.CLIENT),
        (b'{"object":"list","data":[]}', FailureKind.TRANSIENT),
        (b'{"choices":[]', FailureKind.TRANSIENT),
    ],
)
def test_a_json_error_where_a_stream_was_asked_is_a_failure(body: bytes, found: FailureKind) -> None:
    for pieces in cuts(body):
        got = read("openai-compatible", b"", pieces=pieces)
        assert got.out == b""
        assert got.failure is not None
        assert got.failure.kind is found


def test_the_tail_of_a_stream_after_its_end_is_not_passed_on() -> None:
    body = SCRIPTS["vllm"]["text"].body
    more = sse(chunk({"content": "more"}))
    assert read("vllm", b"", pieces=[body, more, body]).out == read("vllm", body).out
    assert read("vllm", body + more).out == read("vllm", body).out


def test_nothing_follows_a_failure() -> None:
    failed = SCRIPTS["vllm"]["failed"].body
    more = sse(chunk({"content": "more"}))
    assert read("vllm", b"", pieces=[failed, more, more]).out == read("vllm", failed).out


def test_a_terminator_that_lost_its_empty_line_is_one() -> None:
    body = SCRIPTS["vllm"]["text"].body
    for lost in (b"\n", b"\n\n"):
        got = read("vllm", body.removesuffix(lost))
        assert got.done
        assert got.out == read("vllm", body).out


def test_tool_arguments_are_counted() -> None:
    deltas = [{"role": "assistant", "content": None}, {"tool_calls": [TOOL_FIRST]}, tool_more("{}")]
    values = [chunk(delta) for delta in deltas]
    assert read("vllm", sse(*values, chunk({}, "tool_calls"), b"[DONE]")).tokens == 2
