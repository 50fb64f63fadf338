"""Bodies read, refused by name, and planned: lengths, reasons, text that depends on what was asked."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from providers.simulated.ask import IMAGE_TOKENS, Ask, Kind, prompt_tokens, read_ask
from providers.simulated.errors import ApiError
from providers.simulated.plan import Choice, plan_choices
from providers.simulated.service import Lengths, ServiceSettings
from providers.simulated.text import text_of

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello there"}]}
SETTINGS = ServiceSettings(output_median=50.0, output_sigma=0.5)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def chat(**more: Any) -> Ask:
    return read_ask(Kind.CHAT, {**CHAT, **more})


def plan(ask: Ask, chance: int = 1, settings: ServiceSettings = SETTINGS) -> list[Choice]:
    return plan_choices(ask, settings, chance)


def test_a_chat_counts_headers_and_content() -> None:
    messages = [
        {"role": "system", "content": "abcd"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "abcde"}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
    ]
    calls = -(-len(orjson.dumps([{"id": "1"}])) // 4)
    ask = chat(messages=messages)
    assert prompt_tokens(ask.prompts[0]) == (1 + 1) + (1 + 2 + IMAGE_TOKENS) + (1 + calls) + 1
    with_tools = prompt_tokens(chat(messages=messages, tools=[TOOL]).prompts[0])
    assert with_tools - prompt_tokens(ask.prompts[0]) == 1 + -(-len(orjson.dumps([TOOL])) // 4)


@pytest.mark.parametrize(
    ("kind", "value", "tokens"),
    [
        (Kind.COMPLETION, "abcde", [2]),
        (Kind.COMPLETION, ["a", "abcde"], [1, 2]),
        (Kind.COMPLETION, [1, 2, 3], [3]),
        (Kind.EMBEDDING, [[1, 2], [3]], [2, 1]),
    ],
)
def test_prompts_come_in_four_forms(kind: Kind, value: Any, tokens: list[int]) -> None:
    name = "prompt" if kind is Kind.COMPLETION else "input"
    assert [prompt_tokens(p) for p in read_ask(kind, {"model": "m", name: value}).prompts] == tokens


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": [1]}, "stream_options"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "a/b"}, "cache_salt"),
        ({"cache_salt": "x" * 129}, "cache_salt"),
        ({"stop": 5}, "stop"),
        ({"tools": {}}, "tools"),
        ({"tools": [{}]}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": False}, "messages"),
    ],
)
def test_a_bad_field_is_named(change: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**change)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_an_answer_is_as_long_as_its_maximum_or_drawn() -> None:
    assert [(c.output_tokens, c.reason) for c in plan(chat(max_tokens=7))] == [(7, "length")]
    lengths = [plan(chat(), chance)[0] for chance in range(300)]
    assert all(c.reason == "stop" for c in lengths)
    assert sorted(c.output_tokens for c in lengths)[150] == pytest.approx(50, rel=0.1)


def test_drawn_lengths_are_cut_at_the_maximum_unless_the_end_is_ignored() -> None:
    drawn = ServiceSettings(lengths=Lengths.DRAWN, output_median=50.0, output_sigma=0.5)
    got = [plan(chat(max_tokens=60), chance, drawn)[0] for chance in range(200)]
    assert all((c.output_tokens < 60 and c.reason == "stop") or c.output_tokens == 60 for c in got)
    assert {c.reason for c in got} == {"stop", "length"}
    exact = plan(chat(max_tokens=60, ignore_eos=True), 1, drawn)[0]
    assert (exact.output_tokens, exact.reason) == (60, "length")


def test_completions_have_sixteen_tokens_unless_told() -> None:
    ask = read_ask(Kind.COMPLETION, {"model": "m", "prompt": ["a", "b"], "n": 2})
    choices = plan(ask)
    assert [(c.index, c.output_tokens) for c in choices] == [(0, 16), (1, 16), (2, 16), (3, 16)]
    assert len({c.text(16) for c in choices}) == 4


def test_text_differs_by_chance_and_not_at_temperature_zero() -> None:
    assert plan(chat(), 1)[0].text(9) != plan(chat(), 2)[0].text(9)
    greedy = chat(temperature=0)
    assert plan(greedy, 1)[0].text(9) == plan(greedy, 2)[0].text(9)
    assert plan(greedy, 1)[0].text(9) != plan(chat(temperature=0, model="other"), 1)[0].text(9)
    seeded = plan(chat(seed=5, n=2), 1)
    assert [c.text(9) for c in seeded] == [c.text(9) for c in plan(chat(seed=5, n=2), 2)]
    assert seeded[0].text(9) != seeded[1].text(9)


@pytest.mark.parametrize("had", [1, 7, 29])
def test_a_partial_answer_goes_on_where_it_stopped(had: int) -> None:
    whole = plan(chat(temperature=0, max_tokens=30))[0].text(30)
    partial = {"role": "assistant", "content": whole[: 4 * had]}
    ask = chat(
        messages=[*CHAT["messages"], partial],
        continue_final_message=True,
        add_generation_prompt=False,
        temperature=0,
        max_tokens=30 - had,
    )
    choice = plan(ask, 99)[0]
    assert whole[: 4 * had] + choice.text(choice.output_tokens) == whole
    # It is the same prompt with the partial answer behind it, so its beginning is found in the cache.
    assert ask.prompts[0].startswith(chat().prompts[0])
    assert prompt_tokens(ask.prompts[0]) == prompt_tokens(chat().prompts[0]) + had


def test_a_drawn_answer_that_was_complete_is_continued_by_nothing() -> None:
    first = plan(chat(temperature=0))[0]
    text = first.text(first.output_tokens)
    ask = chat(
        messages=[*CHAT["messages"], {"role": "assistant", "content": text}],
        continue_final_message=True,
        add_generation_prompt=False,
        temperature=0,
    )
    rest = plan(ask)[0]
    assert (rest.output_tokens, rest.reason, rest.text(1)) == (1, "stop", "")


def test_a_stop_string_ends_the_answer_before_itself() -> None:
    whole = plan(chat(temperature=0, max_tokens=30))[0].text(30)
    stop = whole[37:43]
    choice = plan(chat(temperature=0, max_tokens=30, stop=["never there", stop]))[0]
    assert choice.text(choice.output_tokens) == whole[:37]
    # The eleventh token completes the string.
    assert (choice.output_tokens, choice.reason) == (11, "stop")


def test_a_required_tool_is_called_with_arguments_that_fit() -> None:
    choice = plan(chat(tools=[TOOL], tool_choice="required"))[0]
    assert choice.reason == "tool_calls"
    assert orjson.loads(choice.text(choice.output_tokens)) == {"city": ""}
    assert chat(tools=[TOOL]).tool is None
    named = chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "weather"}})
    assert named.tool == "weather"
    cut = plan(chat(tools=[TOOL], tool_choice="required", max_tokens=1))[0]
    assert (cut.output_tokens, cut.reason) == (1, "length")


def test_json_modes_answer_json() -> None:
    choice = plan(chat(response_format={"type": "json_object"}))[0]
    assert (choice.text(9), choice.reason) == ("{}", "stop")
    schema = {"type": "object", "properties": {"größe": {"type": "integer"}}, "required": ["größe"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    choice = plan(chat(response_format=form))[0]
    assert choice.text(99).isascii()
    assert orjson.loads(choice.text(choice.output_tokens)) == {"größe": 0}


def test_too_long_a_request_is_refused_with_the_context_length() -> None:
    with pytest.raises(ApiError, match="maximum context length is 8000 tokens") as caught:
        plan(chat(messages=[{"role": "user", "content": text_of(8_000)}]))
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "messages", "context_length_exceeded")
    with pytest.raises(ApiError, match="5 prompt tokens and 7996 output tokens"):
        plan(chat(max_tokens=7_996))
    assert plan(chat(max_tokens=7_995))[0].output_tokens == 7_995
