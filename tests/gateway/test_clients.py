"""The official OpenAI SDK, unchanged but for base_url and key, against the gateway."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.gateway.stack import ALICE, BOB, MODEL, running

pytestmark = pytest.mark.asyncio
MESSAGES = [{"role": "user", "content": "weigh this"}]


async def test_chat_answers_with_the_engine_s_usage() -> None:
    async with running() as stack:
        answer = await stack.client().chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=7)
        assert answer.choices[0].finish_reason == "length"
        assert len(answer.choices[0].message.content.split()) == 7
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 7)
        await stack.at_rest()


async def test_a_stream_gives_the_same_text_as_the_whole_answer() -> None:
    async with running() as stack:
        client = stack.client()
        whole = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=9, temperature=0)
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=9, temperature=0, stream=True
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
        # Usage was not asked for, so no chunk without a choice may come.
        assert all(len(chunk.choices) == 1 for chunk in chunks)
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].choices[0].finish_reason == "length"


async def test_usage_comes_last_in_a_stream_that_asks_for_it() -> None:
    async with running() as stack:
        stream = await stack.client().chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == 5
        assert [c.usage for c in chunks[:-1]] == [None] * (len(chunks) - 1)


async def test_completions_embeddings_and_models() -> None:
    async with running() as stack:
        client = stack.client()
        text = await client.completions.create(model=MODEL, prompt="weigh", max_tokens=4)
        assert text.usage.completion_tokens == 4
        vectors = await client.embeddings.create(model=MODEL, input=["one", "two", "three"])
        assert [item.index for item in vectors.data] == [0, 1, 2]
        assert len(vectors.data[0].embedding) == 64
        listed = await client.models.list()
        assert [model.id for model in listed.data] == [MODEL, "gpt-alias"]
        assert (await client.models.retrieve("gpt-alias")).id == "gpt-alias"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("org/nope:1")


async def test_an_alias_serves_the_model_it_stands_for() -> None:
    async with running() as stack:
        answer = await stack.client().chat.completions.create(model="gpt-alias", messages=MESSAGES, max_tokens=2)
        assert answer.usage.completion_tokens == 2
        assert stack.lines()[-1]["model"] == MODEL


async def test_the_synchronous_client_works_too() -> None:
    async with running() as stack:

        def ask() -> tuple[int, str]:
            with openai.OpenAI(base_url=stack.base_url, api_key=ALICE, max_retries=0) as client:
                whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=3)
                stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=3, stream=True)
                text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
                return whole.usage.completion_tokens, text

        tokens, text = await asyncio.to_thread(ask)
        assert tokens == 3
        assert len(text.split()) == 3


async def test_refusals_arrive_as_the_sdk_s_own_exceptions() -> None:
    async with running() as stack:
        with pytest.raises(openai.AuthenticationError) as wrong_key:
            await stack.client("wb_nobody_x").chat.completions.create(model=MODEL, messages=MESSAGES)
        assert wrong_key.value.code == "invalid_api_key"
        assert wrong_key.value.request_id.startswith("req_")
        with pytest.raises(openai.NotFoundError) as unknown:
            await stack.client().chat.completions.create(model="nope", messages=MESSAGES)
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.PermissionDeniedError):
            await stack.client(BOB).chat.completions.create(model=MODEL, messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as long:
            await stack.client().chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "word " * 40_000}]
            )
        assert long.value.code == "context_length_exceeded"
        await stack.at_rest()


async def test_tools_and_json_schema_pass_through() -> None:
    async with running() as stack:
        tool = {"type": "function", "function": {"name": "weigh", "parameters": {"type": "object", "properties": {}}}}
        answer = await stack.client().chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=[tool], tool_choice="required", max_tokens=40
        )
        assert answer.choices[0].message.tool_calls[0].function.name == "weigh"
        assert answer.choices[0].finish_reason == "tool_calls"


async def test_answers_carry_ids_limits_and_phases() -> None:
    async with running(
        config_changes={"limits": "{requests_per_minute: 600, total_tokens_per_minute: 600000}"}
    ) as stack:
        raw = await stack.client().chat.completions.with_raw_response.create(
            model=MODEL, messages=MESSAGES, max_tokens=3
        )
        headers = raw.headers
        assert headers["x-request-id"] == headers["request-id"]
        assert headers["x-ratelimit-limit-requests"] == "600"
        assert int(headers["x-ratelimit-remaining-requests"]) == 99  # ten seconds' worth, less this one
        phases = dict(part.strip().split(";dur=") for part in headers["server-timing"].split(","))
        assert set(phases) == {"queue", "connect", "prefill"}
        assert float(phases["prefill"]) > 0
