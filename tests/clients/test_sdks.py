"""The SDKs' own ways: synchronous clients, and how they retry what the gateway answers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import anthropic
import openai
import pytest

from tests.clients.checks import HI, City
from tests.clients.stack import KEY, Clients, clients
from tests.providers.scripted import TEXT

pytestmark = pytest.mark.asyncio


def _ask(c: Clients, kind: str) -> list[Any]:
    """One round through the synchronous SDKs."""
    found: list[Any] = []
    with openai.OpenAI(base_url=c.base_url + "/v1", api_key=KEY, max_retries=0) as client:
        with client.chat.completions.stream(model=f"{kind}:text", messages=HI) as stream:
            found.append(stream.get_final_completion().choices[0].message.content)
        with client.responses.stream(model=f"{kind}:text", input="hi") as response:
            found.append(response.get_final_response().output_text)
        parsed = client.responses.parse(model=f"{kind}:json", input="hi", text_format=City)
        found.append(parsed.output_parsed)
    with anthropic.Anthropic(base_url=c.base_url, api_key=KEY, max_retries=0) as client_:
        with client_.messages.stream(model=f"{kind}:text", messages=HI, max_tokens=9) as messages:
            found.append(messages.get_final_text())

        @anthropic.beta_tool
        def weather(city: str) -> str:
            """The weather.

            Args:
                city: Where.
            """
            return f"12 in {city}"

        @anthropic.beta_tool
        def clock() -> str:
            """The time."""
            return "noon"

        runner = client_.beta.messages.tool_runner(
            model=f"{kind}:tools", messages=HI, max_tokens=9, tools=[weather, clock]
        )
        found.append(runner.until_done().content[0].text)  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize("kind", ["anthropic", "gemini"])
async def test_the_synchronous_sdks_do_as_the_others(kind: str) -> None:
    async with clients() as c:
        assert await asyncio.to_thread(_ask, c, kind) == [TEXT, TEXT, City(city="Bonn"), TEXT, TEXT]


async def test_older_anthropic_clients_send_their_key_in_a_header_of_its_own() -> None:
    async with clients() as c:
        client = anthropic.AsyncAnthropic(
            base_url=c.base_url, api_key="unused", default_headers={"x-api-key": KEY, "authorization": anthropic.omit}
        )
        async with client:
            answer = await client.messages.create(model="vllm:text", messages=HI, max_tokens=9)
        assert answer.stop_reason == "end_turn"


async def test_a_limit_s_own_wait_is_what_the_sdks_sit_out() -> None:
    async with clients("{requests_per_minute: 300}") as c:
        patient = c.anthropic.with_options(max_retries=2)
        began = time.monotonic()
        answers = await asyncio.gather(
            *(patient.messages.create(model="vllm:text", messages=HI, max_tokens=9) for _ in range(52))
        )
        took = time.monotonic() - began
        assert all(answer.stop_reason == "end_turn" for answer in answers)
        refused = [line for line in c.lines() if line["outcome"] == "rate_limited"]
        assert refused
        # The exact wait is told in milliseconds; in whole seconds each retry would have taken one at least.
        assert took < 10


async def test_what_cannot_pass_is_not_tried_again() -> None:
    async with clients("{total_tokens_per_minute: 1000}") as c:
        with pytest.raises(openai.RateLimitError):
            await c.openai.with_options(max_retries=2).chat.completions.create(
                model="openai:text", messages=[{"role": "user", "content": "word " * 20_000}]
            )
        assert len(c.lines()) == 1
        with pytest.raises(anthropic.RateLimitError):
            await c.anthropic.with_options(max_retries=2).messages.create(
                model="openai:text", messages=[{"role": "user", "content": "word " * 20_000}], max_tokens=9
            )
        assert len(c.lines()) == 2
