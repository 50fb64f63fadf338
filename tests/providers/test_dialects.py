"""Readers and writers of the client's dialects: the same answer wherever it was cut, and strict to the letter."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from providers.conversation import Argued, Began, Called, Complete, Counted, Ended, Event, Reason, Refused
from providers.exchange import Call, Dialect, Endpoint, FailureKind, Upstream, Usage
from providers.kinds import kind_named
from providers.messages_answer import MessagesStream, MessagesWhole
from providers.splice import replaced, spans
from tests.providers.reading import Read, cuts
from tests.providers.scripted import EVENT_STREAM, JSON, SCRIPTS, TEXT, Script
from tests.providers.scripted_vendors import VENDORS

ANSWERS = {**SCRIPTS, **VENDORS}


def _call(endpoint: Endpoint, *, stream: bool = True) -> Call:
    body: dict[str, Any] = {"model": "m", "stream": stream, "input": "hi", "messages": [], "max_tokens": 9}
    dialect = Dialect.ANTHROPIC if endpoint is Endpoint.MESSAGES else Dialect.OPENAI
    return Call(endpoint, dialect, orjson.dumps(body), body, "m", stream, wants_usage=True)


def _reader(kind: str, endpoint: Endpoint, script: Script, *, stream: bool = True, gather: bool = True) -> Any:
    extra = {"translate": "true"} if kind not in VENDORS else {}
    upstream = Upstream(kind, "http://x", "upstream-model", gather=gather, at=1700000000, extra=extra)
    return kind_named(kind).reader(_call(endpoint, stream=stream), upstream, script.status, script.headers)


def _events(out: bytes) -> list[dict[str, Any]]:
    found = []
    for frame in out.split(b"\n\n")[:-1]:
        name, _, data = frame.partition(b"\ndata: ")
        event = orjson.loads(data)
        assert name == b"event: " + event["type"].encode()
        found.append(event)
    return found


@pytest.mark.parametrize("endpoint", [Endpoint.MESSAGES, Endpoint.RESPONSES])
@pytest.mark.parametrize("kind", ["vllm", "sglang", "openai", "anthropic", "gemini", "bedrock"])
def test_an_answer_is_the_same_wherever_it_was_cut(kind: str, endpoint: Endpoint) -> None:
    script = ANSWERS[kind]["text"]
    whole = Read(_reader(kind, endpoint, script), [script.body])
    assert (whole.done, whole.failure) == (True, None)
    assert _events(whole.out)
    assert all(
        Read(_reader(kind, endpoint, script), pieces).seen == whole.seen
        for pieces in list(cuts(script.body))[:: max(1, len(script.body) // 60)]
    )


@pytest.mark.parametrize("endpoint", [Endpoint.MESSAGES, Endpoint.RESPONSES])
@pytest.mark.parametrize("kind", ["vllm", "anthropic", "gemini", "bedrock"])
def test_a_failure_after_the_first_byte_leaves_no_end(kind: str, endpoint: Endpoint) -> None:
    for name in ("cut", "failed"):
        script = ANSWERS[kind][name]
        read = Read(_reader(kind, endpoint, script), [script.body])
        assert read.failure is not None
        kinds = [event["type"] for event in _events(read.out)]
        assert kinds
        assert not {"message_stop", "response.completed"} & set(kinds)


@pytest.mark.parametrize("kind", ["vllm", "anthropic", "gemini", "bedrock"])
def test_an_error_before_the_answer_lets_nothing_out(kind: str) -> None:
    for endpoint in (Endpoint.MESSAGES, Endpoint.RESPONSES):
        for stream in (True, False):
            script = ANSWERS[kind]["refused"]
            read = Read(_reader(kind, endpoint, script, stream=stream), [script.body])
            assert read.out == b""
            assert read.failure is not None
            assert read.failure.kind in (FailureKind.CAPACITY, FailureKind.RATE, FailureKind.TRANSIENT)


def test_a_message_is_the_same_passed_on_whole_gathered_and_streamed() -> None:
    scripts = VENDORS["anthropic"]
    plain = Read(_reader("anthropic", Endpoint.MESSAGES, scripts["whole"], stream=False, gather=False),
                 [scripts["whole"].body])  # fmt: skip
    assert plain.out == scripts["whole"].body
    gathered = Read(_reader("anthropic", Endpoint.MESSAGES, scripts["thinking"], stream=False),
                    [scripts["thinking"].body])  # fmt: skip
    message = orjson.loads(gathered.out)
    assert message["content"] == [
        {"type": "thinking", "thinking": "Let me think.", "signature": "c2ln"},
        {"type": "text", "text": TEXT},
    ]
    assert message["usage"]["output_tokens"] == 7
    assert (message["stop_reason"], message["type"]) == ("end_turn", "message")
    assert plain.usage.prompt_tokens == gathered.usage.prompt_tokens == 11


def test_an_upstream_s_stream_without_names_is_given_them() -> None:
    bare = b"".join(
        line + b"\n" for line in VENDORS["anthropic"]["text"].body.split(b"\n") if not line.startswith(b"event:")
    )
    read = Read(_reader("anthropic", Endpoint.MESSAGES, Script(200, EVENT_STREAM, bare)), [bare])
    assert [event["type"] for event in _events(read.out)][-1] == "message_stop"


def _written(*events: Event) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    stream, whole = MessagesStream("m"), MessagesWhole("m")
    out = b"".join(stream.write(event) for event in events)
    message = [whole.write(event) for event in events][-1]
    return _events(out), orjson.loads(message)


def test_interleaved_calls_are_written_one_after_the_other() -> None:
    events, message = _written(
        Began("1", "m"), Called(0, "a", "f"), Called(1, "b", "g"), Argued(1, '{"y":'), Argued(0, '{"x":1}'),
        Argued(1, "2}"), Ended(Reason.TOOL_CALLS), Counted(Usage(9, 5, 4)), Complete(),
    )  # fmt: skip
    assert [event["index"] for event in events if event["type"] == "content_block_start"] == [0, 1]
    pieces: dict[int, str] = {}
    opened: int | None = None
    for event in events:
        if event["type"] == "content_block_start":
            assert opened is None
            opened = event["index"]
        elif event["type"] == "content_block_delta":
            assert event["index"] == opened
            pieces[event["index"]] = pieces.get(event["index"], "") + event["delta"]["partial_json"]
        elif event["type"] == "content_block_stop":
            opened = None
    assert [orjson.loads(text) for text in pieces.values()] == [{"x": 1}, {"y": 2}]
    assert [block["input"] for block in message["content"]] == [{"x": 1}, {"y": 2}]
    assert message["usage"] == {"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 5}
    assert events[-2]["usage"] == message["usage"]


def test_a_stop_sequence_and_a_refusal_are_told_as_such() -> None:
    _, stopped = _written(Began(), Ended(Reason.STOP, "###"), Complete())
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "###")
    events, refused = _written(Began(), Refused("No."), Ended(Reason.STOP), Complete())
    assert (refused["stop_reason"], refused["stop_details"]["explanation"]) == ("refusal", "No.")
    assert events[-2]["delta"]["stop_reason"] == "refusal"


def test_arguments_that_are_no_json_are_the_upstream_s_fault() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{broken"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    body = orjson.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    read = Read(_reader("openai", Endpoint.MESSAGES, Script(200, JSON, body), stream=False, gather=False), [body])
    assert read.failure is not None
    assert read.failure.code == "upstream_malformed"
    assert read.out == b""


def test_only_the_named_fields_change_in_the_bytes() -> None:
    raw = b' { "a" : [1, {"model":"x"}], "model":"old" , "s":"\\"model\\":1" }'
    assert replaced(raw, {"model": b'"new"'}) == raw.replace(b'"old" ', b'"new"')
    assert replaced(raw, {"stream": b"true"}) == raw.replace(b"{ ", b'{"stream":true, ', 1)
    assert replaced(b"{}", {"stream": b"true"}) == b'{"stream":true}'
    # Twice the same name, or a name in disguise: another reader might take the other one.
    assert spans(b'{"model":"a","model":"b"}') is None
    assert spans(b'{"mod\\u0065l":"a"}') is None
