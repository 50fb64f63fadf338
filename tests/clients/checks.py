"""What an application does with the official SDKs, one check for each dialect and feature.

A check makes its requests to one model of one kind and asserts by value what came back. It says nothing of how the
gateway got it: that is read off the path the upstream saw.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
import pydantic
import pytest

from tests.clients.stack import Clients
from tests.providers.scripted import TEXT

Check = Callable[[Clients, str], Awaitable[None]]
CHECKS: dict[str, dict[str, Check]] = {"chat": {}, "responses": {}, "messages": {}}

PIXEL = base64.b64encode(b"\x89PNG pixel").decode()
PDF = base64.b64encode(b"%PDF-1.7 page").decode()
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class City(pydantic.BaseModel):
    """The structured answer of the `json` scenario."""

    city: str


def check(dialect: str, feature: str) -> Callable[[Check], Check]:
    """Registers a check."""

    def register(function: Check) -> Check:
        CHECKS[dialect][feature] = function
        return function

    return register


def _chat_tools() -> list[Any]:
    return [
        {"type": "function", "function": {"name": "weather", "description": "w", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
    ]


def _messages_tools() -> list[Any]:
    return [
        {"name": "weather", "description": "w", "input_schema": SCHEMA},
        {"name": "clock", "input_schema": {"type": "object", "properties": {}}},
    ]


def _responses_tools() -> list[Any]:
    return [{"type": "function", **tool["function"]} for tool in _chat_tools()]


HI: list[Any] = [{"role": "user", "content": "hi"}]


# --- chat


@check("chat", "whole")
async def chat_whole(c: Clients, kind: str) -> None:
    answer = await c.openai.chat.completions.create(model=f"{kind}:text", messages=HI, max_tokens=50)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (TEXT, "stop")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7


@check("chat", "stream helper, usage")
async def chat_stream(c: Clients, kind: str) -> None:
    options: Any = {"include_usage": True}
    async with c.openai.chat.completions.stream(model=f"{kind}:text", messages=HI, stream_options=options) as stream:
        whole = await stream.get_final_completion()
    assert whole.choices[0].message.content == TEXT
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 7


@check("chat", "parallel tools, results")
async def chat_tools(c: Clients, kind: str) -> None:
    messages: list[Any] = list(HI)
    async with c.openai.chat.completions.stream(
        model=f"{kind}:tools", messages=messages, tools=_chat_tools()
    ) as stream:
        message = (await stream.get_final_completion()).choices[0].message
    calls = message.tool_calls or []
    given = [(call.function.name, json.loads(call.function.arguments)) for call in calls]
    assert given == [("weather", {"city": "Bonn"}), ("clock", {})]
    messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
    for entry in messages[-1]["tool_calls"]:
        entry["function"].pop("parsed_arguments", None)
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "12"} for call in calls]
    answer = await c.openai.chat.completions.create(model=f"{kind}:tools", messages=messages, tools=_chat_tools())
    assert answer.choices[0].message.content == TEXT


@check("chat", "structured output")
async def chat_json(c: Clients, kind: str) -> None:
    answer = await c.openai.chat.completions.parse(model=f"{kind}:json", messages=HI, response_format=City)
    assert answer.choices[0].message.parsed == City(city="Bonn")


@check("chat", "reasoning")
async def chat_thinking(c: Clients, kind: str) -> None:
    answer = await c.openai.chat.completions.create(model=f"{kind}:thinking", messages=HI, reasoning_effort="low")
    message: Any = answer.choices[0].message
    thought = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    assert (message.content, thought) == (TEXT, "Let me think.")


@check("chat", "image, document")
async def chat_media(c: Clients, kind: str) -> None:
    content: Any = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}},
    ]
    await c.openai.chat.completions.create(model=f"{kind}:text", messages=[{"role": "user", "content": content}])
    raw = c.upstreams.last(kind).raw
    assert PIXEL.encode() in raw
    assert PDF.encode() in raw


@check("chat", "a cut stream raises")
async def chat_cut(c: Clients, kind: str) -> None:
    stream = await c.openai.chat.completions.create(model=f"{kind}:cut", messages=HI, stream=True)
    with pytest.raises(openai.APIError):
        _ = [chunk async for chunk in stream]


# --- responses


@check("responses", "whole")
async def responses_whole(c: Clients, kind: str) -> None:
    answer = await c.openai.responses.create(model=f"{kind}:text", input="hi", instructions="be brief")
    assert (answer.output_text, answer.status) == (TEXT, "completed")
    assert answer.usage is not None
    assert answer.usage.output_tokens == 7


@check("responses", "stream helper, usage")
async def responses_stream(c: Clients, kind: str) -> None:
    async with c.openai.responses.stream(model=f"{kind}:text", input="hi") as stream:
        events = [event async for event in stream]
        answer = await stream.get_final_response()
    numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
    assert numbers == sorted(set(numbers))
    assert answer.output_text == TEXT
    assert answer.usage is not None
    assert answer.usage.output_tokens == 7


@check("responses", "parallel tools, results")
async def responses_tools(c: Clients, kind: str) -> None:
    given: list[Any] = list(HI)
    async with c.openai.responses.stream(model=f"{kind}:tools", input=given, tools=_responses_tools()) as stream:
        answer = await stream.get_final_response()
    calls = [item for item in answer.output if item.type == "function_call"]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("weather", {"city": "Bonn"}), ("clock", {})]
    given += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in answer.output]
    given += [{"type": "function_call_output", "call_id": call.call_id, "output": "12"} for call in calls]
    again = await c.openai.responses.create(model=f"{kind}:tools", input=given, tools=_responses_tools())
    assert again.output_text == TEXT


@check("responses", "structured output")
async def responses_json(c: Clients, kind: str) -> None:
    answer = await c.openai.responses.parse(model=f"{kind}:json", input="hi", text_format=City)
    assert answer.output_parsed == City(city="Bonn")


@check("responses", "reasoning")
async def responses_thinking(c: Clients, kind: str) -> None:
    answer = await c.openai.responses.create(model=f"{kind}:thinking", input="hi", reasoning={"effort": "low"})
    [thought] = [item for item in answer.output if item.type == "reasoning"]
    assert "".join(part.text for part in thought.content or ()) == "Let me think."
    assert answer.output_text == TEXT


@check("responses", "image, document")
async def responses_media(c: Clients, kind: str) -> None:
    content: Any = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
    ]
    await c.openai.responses.create(model=f"{kind}:text", input=[{"role": "user", "content": content}])
    raw = c.upstreams.last(kind).raw
    assert PIXEL.encode() in raw
    assert PDF.encode() in raw


@check("responses", "a cut stream raises")
async def responses_cut(c: Clients, kind: str) -> None:
    stream = await c.openai.responses.create(model=f"{kind}:cut", input="hi", stream=True)
    with pytest.raises(openai.APIError):
        _ = [event async for event in stream]


# --- messages


@check("messages", "whole")
async def messages_whole(c: Clients, kind: str) -> None:
    answer = await c.anthropic.messages.create(model=f"{kind}:text", messages=HI, max_tokens=50, system="be brief")
    assert [(block.type, block.text) for block in answer.content if block.type == "text"] == [("text", TEXT)]
    assert (answer.stop_reason, answer.usage.output_tokens) == ("end_turn", 7)


@check("messages", "stream helper, usage")
async def messages_stream(c: Clients, kind: str) -> None:
    async with c.anthropic.messages.stream(model=f"{kind}:text", messages=HI, max_tokens=50) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        answer = await stream.get_final_message()
    assert (text, answer.stop_reason, answer.usage.output_tokens) == (TEXT, "end_turn", 7)
    assert answer.usage.input_tokens in (5, 7, 11)  # what is not cached, as the upstream counts


@check("messages", "parallel tools, results")
async def messages_tools(c: Clients, kind: str) -> None:
    asked: list[tuple[str, str]] = []

    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """The weather.

        Args:
            city: Where.
        """
        asked.append(("weather", city))
        return "12"

    @anthropic.beta_async_tool
    async def clock() -> str:
        """The time."""
        asked.append(("clock", ""))
        return "noon"

    runner = c.anthropic.beta.messages.tool_runner(
        model=f"{kind}:tools", messages=HI, max_tokens=50, tools=[weather, clock]
    )
    last = await runner.until_done()
    assert asked == [("weather", "Bonn"), ("clock", "")]
    assert [block.text for block in last.content if block.type == "text"] == [TEXT]
    async with c.anthropic.messages.stream(
        model=f"{kind}:tools", messages=HI, max_tokens=50, tools=_messages_tools()
    ) as stream:
        answer = await stream.get_final_message()
    uses = [(block.name, block.input) for block in answer.content if block.type == "tool_use"]
    assert (answer.stop_reason, uses) == ("tool_use", [("weather", {"city": "Bonn"}), ("clock", {})])


@check("messages", "structured output")
async def messages_json(c: Clients, kind: str) -> None:
    answer = await c.anthropic.messages.parse(model=f"{kind}:json", messages=HI, max_tokens=50, output_format=City)
    assert answer.parsed_output == City(city="Bonn")


@check("messages", "reasoning")
async def messages_thinking(c: Clients, kind: str) -> None:
    model = f"{kind}:thinking"
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    answer = await c.anthropic.messages.create(model=model, messages=HI, max_tokens=2000, thinking=thinking)
    thought, said = answer.content
    assert thought.type == "thinking"
    assert said.type == "text"
    assert (thought.thinking, said.text) == ("Let me think.", TEXT)
    assert thought.signature
    turns: list[Any] = [*HI, {"role": "assistant", "content": [block.to_dict() for block in answer.content]}, *HI]
    again = await c.anthropic.messages.create(model=model, messages=turns, max_tokens=2000, thinking=thinking)
    assert again.stop_reason == "end_turn"


@check("messages", "image, document")
async def messages_media(c: Clients, kind: str) -> None:
    content: Any = [
        {"type": "text", "text": "look"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}},
    ]
    turns: Any = [{"role": "user", "content": content}]
    await c.anthropic.messages.create(model=f"{kind}:text", messages=turns, max_tokens=50)
    raw = c.upstreams.last(kind).raw
    assert PIXEL.encode() in raw
    assert PDF.encode() in raw


@check("messages", "a cut stream raises")
async def messages_cut(c: Clients, kind: str) -> None:
    stream = await c.anthropic.messages.create(model=f"{kind}:cut", messages=HI, max_tokens=50, stream=True)
    with pytest.raises(anthropic.APIStatusError) as raised:
        _ = [event async for event in stream]
    assert raised.value.status_code == 200


@check("messages", "token count")
async def messages_count(c: Clients, kind: str) -> None:
    counted = await c.anthropic.messages.count_tokens(model=f"{kind}:text", messages=HI)
    assert counted.input_tokens > 0
