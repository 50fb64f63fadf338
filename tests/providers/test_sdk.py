"""The official OpenAI SDK as the judge: what its strict stream helper makes of every kind's answers."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from openai import APIError, OpenAI

from providers.errors import encode_stream_error
from providers.exchange import Dialect, Upstream
from providers.kinds import kind_named
from tests.providers.reading import Read, call
from tests.providers.scripted import EVENT_STREAM, JSON, OUTPUT, SCRIPTS, TEXT, Script
from tests.providers.scripted_vendors import OUT, VENDORS

ANSWERS = {**SCRIPTS, **VENDORS}
KINDS = sorted(ANSWERS)
WITH_TOOLS = sorted(kind for kind in ANSWERS if "tools" in ANSWERS[kind])
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def relayed(kind: str, script: Script, *, gather: bool = False, **fields: Any) -> bytes:
    upstream = Upstream(kind, "http://x", "upstream-model", gather=gather, at=1700000000)
    reader = kind_named(kind).reader(call(**fields), upstream, script.status, script.headers)
    got = Read(reader, [script.body])
    if got.failure is None:
        return got.out
    error = encode_stream_error(Dialect.OPENAI, 502, "server_error", got.failure.message, got.failure.code)
    return got.out + error


def client(out: bytes, headers: tuple[tuple[str, str], ...]) -> OpenAI:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers=list(headers), content=out)

    transport = httpx2.MockTransport(answer)
    return OpenAI(base_url="http://gw/v1", api_key="k", http_client=httpx2.Client(transport=transport), max_retries=0)


ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("kind", KINDS)
def test_its_stream_helper_puts_the_answer_together(kind: str) -> None:
    sdk = client(relayed(kind, ANSWERS[kind]["text"], **USAGE), EVENT_STREAM)
    with sdk, sdk.chat.completions.stream(**ASK, stream_options={"include_usage": True}) as stream:
        completion = stream.get_final_completion()
    [choice] = completion.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    assert completion.usage is not None
    assert completion.usage.completion_tokens == (OUT if kind in VENDORS else OUTPUT)


@pytest.mark.parametrize("kind", WITH_TOOLS)
def test_its_stream_helper_puts_tool_calls_together(kind: str) -> None:
    sdk = client(relayed(kind, ANSWERS[kind]["tools"], stream=True), EVENT_STREAM)
    with sdk, sdk.chat.completions.stream(**ASK, tools=[WEATHER]) as stream:
        [choice] = stream.get_final_completion().choices
    assert choice.finish_reason == "tool_calls"
    calls = choice.message.tool_calls
    assert calls is not None
    assert [(entry.function.name, entry.function.arguments.replace(" ", "")) for entry in calls] == [
        ("weather", '{"city":"Bonn"}'),
        ("clock", "{}"),
    ]
    assert len({entry.id for entry in calls}) == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gather", [True, False])
def test_whole_answers_are_read(kind: str, gather: bool) -> None:
    with client(relayed(kind, ANSWERS[kind]["text" if gather else "whole"], gather=gather), JSON) as sdk:
        completion = sdk.chat.completions.create(**ASK)
    assert completion.choices[0].message.content == TEXT
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_was_cut_raises(kind: str) -> None:
    with client(relayed(kind, ANSWERS[kind]["cut"], stream=True), EVENT_STREAM) as sdk:
        chunks = sdk.chat.completions.create(**ASK, stream=True)
        with pytest.raises(APIError) as raised:
            for _ in chunks:
                pass
    assert raised.value.code == "upstream_truncated"
