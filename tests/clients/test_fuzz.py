"""Whatever a body holds, the answer is an answer: no fault of our own, no hang, and an error that the dialect knows.

Each endpoint's own fields are given values of any shape, in front of upstreams that are passed to and translated for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import aiohttp
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.clients.stack import KEY, clients

FIELDS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [
                {"type": "text", "text": "t"}, {"type": "image_url", "image_url": {"url": "x"}}]},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "r"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "tool_choice": "auto",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}, "max_tokens": 9,
        "stop": ["x"], "temperature": 1, "stream_options": {"include_usage": True}, "n": 1, "reasoning_effort": "low",
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [
                {"type": "input_text", "text": "t"}, {"type": "input_image", "image_url": "x"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "r"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
        ],
        "instructions": "i", "tools": [{"type": "function", "name": "f", "parameters": {}}], "tool_choice": "auto",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}, "reasoning": {"effort": "low"},
        "max_output_tokens": 9, "metadata": {"a": "b"}, "include": [], "previous_response_id": None,
    },
    "/v1/messages": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "t"}, {"type": "image", "source": {
                "type": "base64", "media_type": "image/png", "data": "eA=="}}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "h", "signature": "s"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"},
                {"type": "document", "source": {"type": "text", "data": "d"}}]},
        ],
        "system": [{"type": "text", "text": "s"}], "tools": [{"name": "f", "input_schema": {}}],
        "tool_choice": {"type": "auto"}, "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"format": {"type": "json_schema", "schema": {}}}, "max_tokens": 9, "stop_sequences": ["x"],
        "metadata": {"user_id": "u"}, "service_tier": "auto", "temperature": 1,
    },
}  # fmt: skip
FIELDS["/v1/messages/count_tokens"] = FIELDS["/v1/messages"]
SCALARS: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    10**15,
    "",
    "auto",
    "x" * 50,
    [],
    {},
    [[]],
    [None],
    {"type": 5},
    {"type": "x"},
]
MODELS = [f"{kind}:text" for kind in ("vllm", "openai", "ollama", "tgi", "anthropic", "gemini", "bedrock")]


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every value inside `value` stands."""
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*at, key))


PLACES = {path: sorted(_places(fields), key=str) for path, fields in FIELDS.items()}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A path and a body of its fields, a few of which hold something else."""
    path = draw(st.sampled_from(sorted(FIELDS)))
    names = draw(st.sets(st.sampled_from(sorted(FIELDS[path]))))
    needed = {"messages", "input", "max_tokens"} & FIELDS[path].keys()
    body = orjson.loads(orjson.dumps({name: FIELDS[path][name] for name in names | needed}))
    for number in draw(st.lists(st.integers(0, len(PLACES[path]) - 1), max_size=3)):
        place = PLACES[path][number]
        inner: Any = body
        try:
            for key in place[:-1]:
                inner = inner[key]
            if isinstance(inner, dict) and not isinstance(place[-1], str):
                continue
            inner[place[-1]] = deepcopy(draw(st.sampled_from(SCALARS)))
        except (KeyError, IndexError, TypeError):
            continue
    body["model"] = draw(st.sampled_from(MODELS))
    if path != "/v1/messages/count_tokens":
        body["stream"] = draw(st.booleans())
        if not body["stream"]:
            body.pop("stream_options", None)
    return path, body


Post = Callable[[str, dict[str, Any]], tuple[int, bytes]]


@pytest.fixture(scope="module")
def post() -> Iterator[Post]:
    """Sends a body and waits for its answer, in a loop of its own."""
    loop = asyncio.new_event_loop()
    manager = clients()
    stack = loop.run_until_complete(manager.__aenter__())

    async def open_session() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20))

    session = loop.run_until_complete(open_session())

    async def send(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        headers = {"authorization": f"Bearer {KEY}"}
        async with session.post(stack.base_url + path, data=orjson.dumps(body), headers=headers) as answer:
            return answer.status, await answer.read()

    yield lambda path, body: loop.run_until_complete(send(path, body))
    loop.run_until_complete(session.close())
    loop.run_until_complete(manager.__aexit__(None, None, None))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=requests())
def test_no_body_brings_the_gateway_down(post: Post, asked: tuple[str, dict[str, Any]]) -> None:
    path, body = asked
    status, answer = post(path, body)
    assert status in (200, 400), (status, answer)
    if status == 400:
        told = orjson.loads(answer)
        assert told["error"]["message"]
        assert (told.get("type") == "error") is path.startswith("/v1/messages")
    else:
        assert answer
        assert b'"error":{' not in answer
