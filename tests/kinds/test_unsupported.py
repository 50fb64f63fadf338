"""What a kind cannot do: the next target that can is asked, and where there is none the client is told what it was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import orjson
import pytest
import pytest_asyncio

from tests.kinds.cases import BY_NAME, MODEL, Case
from tests.kinds.stand import MESSAGES, Stand, standing
from tests.providers.scripted import JSON, TEXT, Script

pytestmark = pytest.mark.asyncio(loop_scope="module")

ANTHROPIC, OLLAMA, VLLM = BY_NAME["anthropic"], BY_NAME["ollama"], BY_NAME["vllm"]
MORE = f"""
  spilling:
    context: 100000
    tiers:
      - targets: [{{pool: anthropic, model: {MODEL}}}]
      - targets: [{{pool: ollama, model: {MODEL}}}]
      - targets: [{{pool: vllm, model: {MODEL}}}]
  unable:
    context: 100000
    tiers:
      - targets: [{{pool: anthropic, model: {MODEL}}}]
      - targets: [{{pool: ollama, model: {MODEL}}}]
  plain:
    context: 100000
    features: [tools]
    tiers: [{{targets: [{{pool: vllm, model: {MODEL}}}]}}]
"""
DOWN = Script(503, JSON, b'{"error": {"message": "down", "type": "x", "code": 503}}')


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tiers() -> AsyncIterator[Stand]:
    async with standing((ANTHROPIC, OLLAMA, VLLM), MORE) as stand:
        yield stand


@pytest_asyncio.fixture(loop_scope="module")
async def stand(tiers: Stand) -> AsyncIterator[Stand]:
    tiers.reset()
    yield tiers
    await tiers.at_rest()


def asked(stand: Stand, *cases: Case) -> list[int]:
    """How many requests reached each."""
    return [len(stand.at(case).seen) for case in cases]


async def post(stand: Stand, model: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    """A chat, and its answer's body."""
    status, _, body = await stand.post(ANTHROPIC, model=model, **fields)
    return status, orjson.loads(body)


ONLY_VLLM: list[dict[str, Any]] = [
    {"n": 2},
    {"logit_bias": {"5": 1}},
    {"guided_json": {"type": "object"}},
    {"min_p": 0.2},
    {"tools": [{"type": "function", "function": {"name": "f"}}], "parallel_tool_calls": False, "seed": 1},
]


@pytest.mark.parametrize("fields", ONLY_VLLM, ids=lambda fields: next(iter(fields)))
async def test_the_first_target_that_can_serves(stand: Stand, fields: dict[str, Any]) -> None:
    status, body = await post(stand, "spilling", **fields)
    assert status == 200
    assert asked(stand, ANTHROPIC, OLLAMA, VLLM) == [0, 0, 1]
    assert next(iter(fields)) in stand.at(VLLM).last.body
    line = await stand.line()
    assert (line["outcome"], line["pool"]) == ("finished", "vllm")
    assert [tried["result"] for tried in line["tried"]] == ["unsupported", "unsupported", "served"]
    assert body["usage"]["completion_tokens"] == line["output_tokens"]


async def test_what_every_target_can_stays_on_the_first(stand: Stand) -> None:
    assert (await post(stand, "spilling", n=1, top_k=-1, user="u", metadata={"a": "b"}))[0] == 200
    assert asked(stand, ANTHROPIC, OLLAMA, VLLM) == [1, 0, 0]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_where_none_can_the_client_is_told_the_field(stand: Stand, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await stand.sdk.chat.completions.create(model="unable", messages=MESSAGES, extra_body=fields)
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", param)
    assert refused.value.type == "invalid_request_error"
    assert param in refused.value.message
    assert asked(stand, ANTHROPIC, OLLAMA) == [0, 0]
    line = await stand.line()
    assert (line["outcome"], line["prompt_tokens"], line["output_tokens"]) == ("unsupported", 0, 0)


async def test_a_target_that_failed_is_what_the_client_hears_of(stand: Stand) -> None:
    """The last one could not be asked, but the one before it may serve the same request later."""
    stand.at(ANTHROPIC).next(*[DOWN] * 3)
    status, body = await post(stand, "unable", seed=None, reasoning_effort="minimal", top_k=5)
    assert (status, body["error"]["code"]) == (502, "upstream_error")
    assert asked(stand, OLLAMA) == [0]


async def test_endpoints_go_where_they_are_served(stand: Stand) -> None:
    answer = await stand.sdk.embeddings.create(model="spilling", input="x", encoding_format="float")
    assert answer.data[0].embedding == [0.5, -0.25]
    assert asked(stand, ANTHROPIC, OLLAMA, VLLM) == [0, 1, 0]


@pytest.mark.parametrize(
    ("fields", "feature"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}}, "json_schema"),
        ({"logprobs": True}, "logprobs"),
        ({"reasoning_effort": "high"}, "reasoning"),
        ({"modalities": ["text", "audio"], "audio": {"voice": "x"}}, "audio"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_model_is_asked_only_for_what_it_is_said_to_do(
    stand: Stand, fields: dict[str, Any], feature: str
) -> None:
    status, body = await post(stand, "plain", **fields)
    assert (status, body["error"]["code"]) == (400, "unsupported_parameter")
    assert feature in body["error"]["message"]
    assert asked(stand, VLLM) == [0]
    status, body = await post(stand, "plain", tools=[{"type": "function", "function": {"name": "f"}}])
    assert status == 200


async def test_a_stream_moves_on_too(stand: Stand) -> None:
    chunks = [
        chunk
        async for chunk in await stand.sdk.chat.completions.create(
            model="spilling", messages=MESSAGES, stream=True, logit_bias={"5": 1}
        )
    ]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert asked(stand, ANTHROPIC, OLLAMA, VLLM) == [0, 0, 1]
