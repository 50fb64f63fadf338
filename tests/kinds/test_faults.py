"""Upstreams of every kind that fail: each fault has its right outcome, and no cut is ever a clean end."""

from __future__ import annotations

from typing import Any

import openai
import orjson
import pytest

from providers.exchange import FailureKind
from tests.gateway.failover import hear
from tests.kinds.cases import BY_NAME, Case
from tests.kinds.cases import CASES as ALL
from tests.kinds.scripts import answers
from tests.kinds.stand import Stand
from tests.kinds.upstream import OPENAI_FAMILY, Play
from tests.providers.scripted import EVENT_STREAM, JSON, TEXT, Script, compact
from tests.providers.test_failures import TABLE

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Each wire format once; other faces of the same kind differ in how they are asked, not in what they answer.
FACES = {"azure-dated", "bedrock-key", "compatible-servers", "trtllm"}
CASES = [case for case in ALL if case.name not in FACES]
CALLERS = {FailureKind.CLIENT, FailureKind.CONTENT, FailureKind.CONTEXT}
TOLD = {
    FailureKind.AUTH: (502, "upstream_configuration_error"),
    FailureKind.CREDIT: (502, "upstream_configuration_error"),
    FailureKind.CONFIG: (502, "upstream_configuration_error"),
    FailureKind.QUOTA: (429, "upstream_rate_limited"),
    FailureKind.RATE: (429, "upstream_rate_limited"),
    FailureKind.CAPACITY: (503, "server_is_overloaded"),
    FailureKind.TRANSIENT: (502, "upstream_error"),
}
BY_KIND = {case.kind: case for case in reversed(ALL) if case.name != "azure-old"}
ROWS = [row for row in TABLE if row[0] in BY_KIND]


@pytest.mark.parametrize("kind", sorted({row[0] for row in ROWS}))
async def test_every_status_of_every_kind(stand: Stand, kind: str) -> None:
    """The table of failures, through the gateway: what the client is told, and nothing of what is only ours to know."""
    case = BY_KIND[kind]
    for _, status, said, meant in (row for row in ROWS if row[0] == kind):
        stand.reset()
        body = said if isinstance(said, bytes) else compact(said)
        stand.at(case).next(*[Script(status, JSON, body)] * 3)
        got, headers, answer = await stand.post(case)
        error = orjson.loads(answer)["error"]
        if meant in CALLERS:
            assert got == (status if 400 <= status < 500 else 400), said
            assert len(stand.at(case).seen) == 1, said  # nobody else is asked the same
            assert error["type"] == "invalid_request_error"
            if meant is FailureKind.CONTEXT:
                assert error["code"] == "context_length_exceeded", said
            elif meant is FailureKind.CONTENT:
                assert error["code"] == "content_filter", said
            continue
        assert (got, error["code"]) == TOLD[meant], said
        assert "retry-after" in headers or got == 502, said
        assert case.kind not in error["message"]
        assert (await stand.line())["output_tokens"] == 0


def places(case: Case) -> list[int]:
    """Bytes after which an answer is cut: at its ends, and spread over it."""
    length = len(answers(case.kind)["text"].body)
    return sorted({0, 1, length // 4, length // 2, length * 3 // 4, length - 9})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("then", ["end", "close", "reset"])
async def test_a_stream_that_is_cut_ends_with_an_error(stand: Stand, case: Case, then: str) -> None:
    """`end` is the worst: the body ends properly, but for the terminator it should have."""
    script = answers(case.kind)["text"]
    for at in places(case):
        stand.reset()
        stand.at(case).next(*[Play(script, cut=at, then=then)] * 3)
        status, _, body = await stand.post(case, stream=True)
        if not body.startswith(b"data: "):  # before the first word: three tries, then a status
            assert (status, orjson.loads(body)["error"]["type"]) == (502, "server_error"), at
            assert len(stand.at(case).seen) == 3, at
            continue
        heard = hear(status, body)
        assert not heard.done, at
        assert heard.error is not None, at
        assert TEXT.startswith(heard.text), at
        assert heard.error["code"] in {"upstream_stream_cut", "upstream_stream_broken"}, at
        line = await stand.line()
        assert (line["attempts"], line["outcome"]) == (1, heard.error["code"].removeprefix("upstream_")), at


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_whole_answer_that_is_cut_is_asked_for_again(stand: Stand, case: Case) -> None:
    script = answers(case.kind)["text" if case.name != "azure-old" else "whole"]
    for at in places(case)[:-1]:
        stand.reset()
        stand.at(case).next(Play(script, cut=min(at, len(script.body) - 5), then="close"))
        answer = await stand.ask(case)
        assert answer.choices[0].message.content == TEXT
        assert len(stand.at(case).seen) == 2


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("piece", [1, 7])
async def test_an_answer_in_small_pieces_is_the_same_answer(stand: Stand, case: Case, piece: int) -> None:
    for name in ("text", "tools"):
        script = answers(case.kind)[name]
        fields: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        if case.name == "azure-old":
            fields.pop("stream_options")
        heard = []
        for play in (Play(script), Play(script, piece=piece)):
            stand.at(case).next(play)
            status, _, body = await stand.post(case, **fields)
            heard.append(_settled(hear(status, body).chunks))
            assert body.endswith(b"data: [DONE]\n\n")
        assert heard[0] == heard[1]


def _settled(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Chunks without what is made of the time of day."""
    return [{name: value for name, value in chunk.items() if name != "created"} for chunk in chunks]


SSE_CASES = [case for case in CASES if case.kind != "bedrock"]


@pytest.mark.parametrize("case", SSE_CASES, ids=lambda case: case.name)
async def test_other_ways_to_write_the_same_stream(stand: Stand, case: Case) -> None:
    body = answers(case.kind)["text"].body.replace(b"\r\n", b"\n")
    ways = {
        "crlf": body.replace(b"\n", b"\r\n"),
        "cr": body.replace(b"\n", b"\r"),
        "comments": b": hello\n\n" + body.replace(b"\n\n", b"\n\n: PROCESSING\n\n"),
        "no blank": body.replace(b"data: ", b"data:"),
        "blank lines": b"\n\n" + body.replace(b"\n\n", b"\n\n\n\n"),
        "other fields": body.replace(b"data: ", b"id: 7\nretry: 10\ndata: "),
    }
    for name, written in ways.items():
        stand.at(case).next(Script(200, EVENT_STREAM, written))
        chunks = [chunk async for chunk in await stand.ask(case, stream=True)]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT, name
        assert chunks[-1].choices[0].finish_reason == "stop", name


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_huge_event_passes(stand: Stand, case: Case) -> None:
    huge = "weigh " * 350_000
    stand.at(case).next(answers(case.kind, (huge, "!"))["text"])
    chunks = [chunk async for chunk in await stand.ask(case, stream=True)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == huge + "!"


EMPTY = {
    "nothing": Script(200, EVENT_STREAM, b""),
    "blank": Script(200, EVENT_STREAM, b"\n\n"),
    "nothing in JSON": Script(200, JSON, b""),
    "an empty object": Script(200, JSON, b"{}"),
    "a page": Script(200, (("content-type", "text/html"),), b"<html>It works!</html>"),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_200_with_nothing_in_it_is_a_failure(stand: Stand, case: Case, stream: bool) -> None:
    for name, script in EMPTY.items():
        stand.reset()
        stand.at(case).next(*[script] * 3)
        status, _, body = await stand.post(case, stream=stream)
        assert (status, orjson.loads(body)["error"]["code"]) == (502, "upstream_error"), name
        assert len(stand.at(case).seen) == 3, name


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_an_error_inside_a_200_is_an_error(stand: Stand, case: Case, stream: bool) -> None:
    """As the first event of a stream: before anything is sent to the client, so with a status of its own."""
    script = answers(case.kind).get("refused")
    if script is None or (case.name == "azure-old" and not stream):
        script = Script(200, JSON, compact({"error": "llama runner process has terminated"}))
    stand.at(case).next(*[script] * 3)
    status, _, body = await stand.post(case, stream=stream)
    error = orjson.loads(body)["error"]
    if case.kind == "llamacpp":
        assert (status, error["code"]) == (400, "context_length_exceeded")
    else:
        assert status in (429, 502, 503)
        assert error["code"] in {"upstream_error", "server_is_overloaded", "upstream_rate_limited"}
    assert not body.startswith(b"data:")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_an_error_in_the_middle_of_a_stream_is_told_in_the_stream(stand: Stand, case: Case) -> None:
    stand.at(case).next(answers(case.kind)["failed"])
    status, _, body = await stand.post(case, stream=True)
    heard = hear(status, body)
    assert heard.text
    assert TEXT.startswith(heard.text)
    assert not heard.done
    assert heard.error is not None
    assert (await stand.line())["outcome"] == "stream_broken"
    stand.reset()
    stand.at(case).next(answers(case.kind)["failed"])
    with pytest.raises(openai.APIError):
        async for _ in await stand.ask(case, stream=True):
            pass


@pytest.mark.parametrize("name", sorted(OPENAI_FAMILY - {"openai-compatible"}))
async def test_a_json_error_where_a_stream_was_asked_for(stand: Stand, name: str) -> None:
    case = BY_NAME[name]
    error = {"error": {"message": "temperature must not be 9", "type": "invalid_request_error", "code": 400}}
    stand.at(case).next(Script(200, JSON, compact(error)))
    status, _, body = await stand.post(case, stream=True)
    assert status == 400
    assert b"temperature must not be 9" in body


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_whole_answer_where_a_stream_was_asked_for_becomes_one(stand: Stand, case: Case) -> None:
    stand.at(case).next(answers(case.kind)["whole"])
    chunks = [chunk async for chunk in await stand.ask(case, stream=True)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"
