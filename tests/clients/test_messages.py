"""The Anthropic dialect at the wire: what an upstream is sent, what a client is told, and how refusals look."""

from __future__ import annotations

from typing import Any

import aiohttp
import anthropic
import orjson
import pytest

from providers.messages_answer import OWN_SIGNATURE
from tests.clients.answers import MESSAGES
from tests.clients.checks import HI
from tests.clients.stack import KEY, Clients, clients

pytestmark = pytest.mark.asyncio


async def _post(c: Clients, raw: bytes, path: str = "/v1/messages", **headers: str) -> tuple[int, Any, bytes]:
    sent = {"x-api-key": KEY, "content-type": "application/json"}
    sent.update({name.replace("_", "-"): value for name, value in headers.items()})
    async with aiohttp.ClientSession() as session, session.post(c.base_url + path, data=raw, headers=sent) as answer:
        return answer.status, answer.headers, await answer.read()


async def test_a_request_is_passed_on_in_its_own_bytes() -> None:
    # Spaces, escapes, a float, an unknown block and an unknown field: none of them is written anew.
    raw = (
        b'{ "messages" : [{"role":"user","content":[{"type":"text","text":"caf\\u00e9 \\ud83d\\ude00"},'
        b'{"type":"of_tomorrow","x":1.50}]}],\n "max_tokens":1e2, "new":{"model":"not this"},'
        b'"model"  :  "anthropic:text" ,"stream":true}'
    )
    async with clients() as c:
        raw = raw.replace(b"1e2", b"100")
        status, _, out = await _post(c, raw, anthropic_version="2023-06-01", anthropic_beta="a-1,b-2")
        seen = c.upstreams.last("anthropic")
        assert status == 200
        assert seen.raw == raw.replace(b'  "anthropic:text" ', b'"text"')
        assert out == MESSAGES["text"].body
        assert (seen.headers["anthropic-version"], seen.headers["anthropic-beta"]) == ("2023-06-01", "a-1,b-2")
        assert seen.headers["x-api-key"] == "upstream-secret"
        assert KEY not in str(seen.headers)
        await _post(c, raw.replace(b"anthropic:text", b"vllm:text"))
        assert c.upstreams.last("vllm").path == "/v1/messages"


async def test_the_version_a_client_speaks_is_the_one_the_vendor_hears() -> None:
    async with clients() as c:
        await c.anthropic.messages.create(model="anthropic:text", messages=HI, max_tokens=9)
        assert c.upstreams.last("anthropic").headers["anthropic-version"] == "2026-10-21"
        await _post(c, b'{"model":"anthropic:text","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}')
        assert c.upstreams.last("anthropic").headers["anthropic-version"] == "2023-06-01"


async def test_thoughts_no_vendor_signed_do_not_reach_one_that_checks() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": OWN_SIGNATURE}
    real = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    use = {"type": "tool_use", "id": "t", "name": "w", "input": {}, "extra_content": {"google": {}}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "x", "is_error": True}
    turns = [*HI, {"role": "assistant", "content": [thought, real, use]}, {"role": "user", "content": [result]}]
    async with clients() as c:
        for kind in ("anthropic", "bedrock", "openai", "tgi"):
            body = {"model": f"{kind}:text", "max_tokens": 9, "messages": turns}
            status, _, answer = await _post(c, orjson.dumps(body))
            assert status == 200, answer
        kept = c.upstreams.last("anthropic").body["messages"][1]["content"]
        assert kept == [real, {name: value for name, value in use.items() if name != "extra_content"}]
        [thinking, _] = c.upstreams.last("bedrock").body["messages"][1]["content"]
        assert thinking == {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "c2ln"}}}
        chat = c.upstreams.last("openai").body["messages"]
        assert "reasoning_content" not in chat[1]
        assert chat[2] == {"role": "tool", "tool_call_id": "t", "content": "Error: x"}
        assert c.upstreams.last("tgi").body["messages"][1]["reasoning_content"] == "hmhm"


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("openai", {"top_k": 5}, "top_k"),
    ("openai", {"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ("openai", {"tools": [{"type": "web_search_20260318", "name": "web_search"}]}, "tools[0]"),
    ("openai", {"max_tokens": 0}, "max_tokens"),
    ("openai", {"messages": [*HI, {"role": "assistant", "content": "I"}]}, "messages"),
    ("gemini", {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "tools": [
        {"name": "w", "input_schema": {}}]}, "disable_parallel_tool_use"),
    ("anthropic", {"messages": [{"role": "user", "content": [
        {"type": "document", "source": {"type": "file", "file_id": "file_1"}}]}]}, "file_id"),
    ("anthropic", {"thread": {"type": "continue", "previous_message_id": "msg_1"}}, "thread"),
    ("anthropic", {"max_tokens": None}, "max_tokens"),
    ("anthropic", {"messages": "hi"}, "messages"),
    ("anthropic", {"system": 5}, "system"),
    ("anthropic", {"stream": 1}, "stream"),
]  # fmt: skip


async def test_what_cannot_be_done_is_refused_by_the_client_s_own_name_for_it() -> None:
    async with clients() as c:
        for kind, fields, name in REFUSED:
            body = {"model": f"{kind}:text", "max_tokens": 9, "messages": HI, **fields}
            status, headers, answer = await _post(c, orjson.dumps(body))
            told = orjson.loads(answer)
            assert (status, told["type"], told["error"]["type"]) == (400, "error", "invalid_request_error"), fields
            assert name in told["error"]["message"], told
            assert told["request_id"] == headers["request-id"]
        assert "anthropic" not in c.upstreams.seen


async def test_refusals_arrive_as_the_sdk_s_own_exceptions() -> None:
    async with clients("{requests_per_minute: 60, total_tokens_per_minute: 100000}") as c:
        with pytest.raises(anthropic.AuthenticationError) as key:
            await c.anthropic.with_options(api_key="wb_nobody_x").messages.create(
                model="vllm:text", messages=HI, max_tokens=9
            )
        assert key.value.type == "authentication_error"
        assert str(key.value.request_id).startswith("req_")
        with pytest.raises(anthropic.NotFoundError):
            await c.anthropic.messages.create(model="nope", messages=HI, max_tokens=9)
        with pytest.raises(anthropic.NotFoundError) as twice:
            await c.anthropic.with_options(base_url=c.base_url + "/v1").messages.create(
                model="vllm:text", messages=HI, max_tokens=9
            )
        assert "leave it off the base URL" in str(twice.value)
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await c.anthropic.messages.create(
                model="vllm:text", messages=[{"role": "user", "content": "word " * 200_000}], max_tokens=9
            )
        with pytest.raises(anthropic.OverloadedError) as busy:
            await c.anthropic.messages.create(model="vllm:failing", messages=HI, max_tokens=9)
        assert (busy.value.status_code, busy.value.type) == (529, "overloaded_error")
        raw = await c.anthropic.messages.with_raw_response.create(model="vllm:text", messages=HI, max_tokens=9)
        assert raw.headers["anthropic-ratelimit-requests-limit"] == "60"
        assert raw.headers["anthropic-ratelimit-tokens-reset"].endswith("Z")
        assert not [name for name in raw.headers if name.startswith("x-ratelimit")]

        async def too_many() -> None:
            for _ in range(20):
                await c.anthropic.messages.create(model="vllm:text", messages=HI, max_tokens=9)

        with pytest.raises(anthropic.RateLimitError) as limited:
            await too_many()
        assert float(limited.value.response.headers["retry-after-ms"]) > 0
        assert limited.value.type == "rate_limit_error"


async def test_counting_takes_a_request_and_no_tokens() -> None:
    async with clients("{requests_per_minute: 600, total_tokens_per_minute: 100000}") as c:
        raw = await c.anthropic.messages.with_raw_response.count_tokens(model="anthropic:text", messages=HI)
        assert (await raw.parse()).input_tokens == 42
        assert (
            raw.headers["anthropic-ratelimit-tokens-remaining"]
            == (await c.anthropic.messages.with_raw_response.count_tokens(model="openai:text", messages=HI)).headers[
                "anthropic-ratelimit-tokens-remaining"
            ]
        )
        assert [line["prompt_tokens"] for line in c.lines()] == [0, 0]


async def test_a_model_s_own_maximum_holds_in_every_dialect() -> None:
    async with clients() as c:
        entry = c.app.lifecycle.world.models["openai:text"]
        object.__setattr__(entry, "max_output", 20)
        with pytest.raises(anthropic.BadRequestError, match="max_tokens is too large"):
            await c.anthropic.messages.create(model="openai:text", messages=HI, max_tokens=21)
        await c.openai.responses.create(model="openai:text", input="hi")
        assert c.upstreams.last("openai").body["max_output_tokens"] == 20
