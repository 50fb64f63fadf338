"""Every refusal: its status, its code, what it names, and when to come back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import openai
import orjson
import pytest

from gateway.outcomes import Outcome
from tests.gateway.stack import BOB, FAST, MODEL, running, until

pytestmark = pytest.mark.asyncio
MESSAGES = [{"role": "user", "content": "weigh this"}]

BAD_BODIES: list[tuple[Any, str | None]] = [
    (b"{", None),
    (b"\xff\xfe", None),
    (b"[]", None),
    (b"null", None),
    ({}, "model"),
    ({"model": 5, "messages": MESSAGES}, "model"),
    ({"model": "", "messages": MESSAGES}, "model"),
    ({"model": MODEL}, "messages"),
    ({"model": MODEL, "messages": "hi"}, "messages"),
    ({"model": MODEL, "messages": []}, "messages"),
    ({"model": MODEL, "messages": ["hi"]}, "messages[0]"),
    ({"model": MODEL, "messages": [{"content": "hi"}]}, "messages[0].role"),
    ({"model": MODEL, "messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"model": MODEL, "messages": MESSAGES, "stream": "yes"}, "stream"),
    ({"model": MODEL, "messages": MESSAGES, "max_tokens": -1}, "max_tokens"),
    ({"model": MODEL, "messages": MESSAGES, "max_tokens": "9"}, "max_tokens"),
    ({"model": MODEL, "messages": MESSAGES, "max_completion_tokens": 1.5}, "max_completion_tokens"),
    ({"model": MODEL, "messages": MESSAGES, "n": 0}, "n"),
    ({"model": MODEL, "messages": MESSAGES, "n": True}, "n"),
    ({"model": MODEL, "messages": MESSAGES, "stream": True, "stream_options": 1}, "stream_options"),
    ({"model": MODEL, "messages": MESSAGES, "stream_options": {"include_usage": True}}, "stream_options"),
]


async def test_a_bad_body_is_a_400_that_names_the_field() -> None:
    async with running() as stack:
        for body, param in BAD_BODIES:
            status, headers, answer = await stack.post(body)
            error = orjson.loads(answer)["error"]
            assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param), body
            assert headers["x-request-id"].startswith("req_")
        for path, name in (("/completions", "prompt"), ("/embeddings", "input")):
            for wrong in (None, 5, [], [1, "a"], [[]], {"a": 1}):
                status, _, answer = await stack.post({"model": MODEL, name: wrong}, path=path)
                assert (status, orjson.loads(answer)["error"]["param"]) == (400, name), wrong
        assert stack.engines[0].state()["requests_total"] == 0
        await stack.at_rest()


async def test_paths_methods_and_sizes() -> None:
    async with running() as stack:
        status, _, body = await stack.post({}, path="/nope")
        assert (status, orjson.loads(body)["error"]["code"]) == (404, "unknown_url")
        status, _, body = await stack.post({}, path="/v1/chat/completions")
        assert b"/v1 only once" in body
        async with stack.session.get(stack.base_url + "/chat/completions") as answer:
            assert (answer.status, answer.headers["allow"]) == (405, "POST")
        async with stack.session.delete(stack.base_url + "/models") as answer:
            assert (answer.status, answer.headers["allow"]) == (405, "GET")
        object.__setattr__(stack.app.lifecycle.world, "max_body_bytes", 1000)
        status, _, body = await stack.post(stack.chat(messages=[{"role": "user", "content": "x" * 2000}]))
        assert (status, orjson.loads(body)["error"]["code"]) == (413, "request_too_large")

        async def pieces() -> Any:
            for _ in range(4):
                yield b"x" * 500

        async with stack.session.post(
            stack.base_url + "/chat/completions",
            data=pieces(),  # chunked: its size is known only once it has come
            headers={"authorization": f"Bearer {stack.client().api_key}"},
        ) as answer:
            assert answer.status == 413
        status, _, _ = await stack.post(stack.chat(), headers={"content-encoding": "gzip"})
        assert status == 415


async def test_keys_are_taken_as_every_sdk_sends_them() -> None:
    async with running() as stack:
        key = stack.client().api_key
        for header in ("x-api-key", "api-key"):
            status, _, _ = await stack.post(stack.chat(max_tokens=1), key=None, headers={header: key})
            assert status == 200
        for wrong in ("", "wb_alice1_wrong", "x" * 10_000, "'; drop table keys; --"):
            status, headers, body = await stack.post(stack.chat(), key=wrong)
            assert (status, orjson.loads(body)["error"]["code"]) == (401, "invalid_api_key")
            assert headers["www-authenticate"] == "Bearer"


async def test_strangers_are_limited_by_address_and_spend_nobody_s_bucket() -> None:
    changes = {"limits": "{requests_per_minute: 600}", "extra": "unauthenticated: {requests_per_minute: 60, burst: 3}"}
    async with running(config_changes=changes) as stack:
        codes = [(await stack.post(stack.chat(), key="wrong"))[0] for _ in range(5)]
        assert codes == [401, 401, 401, 429, 429]
        status, headers, _ = await stack.post(stack.chat(max_tokens=1))  # a valid key is never locked out
        assert status == 200
        assert headers["x-ratelimit-remaining-requests"] == "99"
        assert await stack.metric("weighbridge_unauthenticated_requests_total") == 5


async def test_a_request_limit_says_which_how_much_and_when() -> None:
    async with running(config_changes={"key_limits": "{requests_per_minute: 60, burst_s: 2}"}) as stack:
        statuses = []
        for _ in range(3):
            status, headers, body = await stack.post(stack.chat(max_tokens=1))
            statuses.append(status)
        assert statuses == [200, 200, 429]
        error = orjson.loads(body)["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert error["message"].startswith("Key 'alice1' limit on requests (60 per minute) reached")
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert headers["retry-after"] == "1"
        assert 0 < int(headers["retry-after-ms"]) <= 1000
        assert headers["x-should-retry"] == "true"
        await asyncio.sleep(int(headers["retry-after-ms"]) / 1000)
        assert (await stack.post(stack.chat(max_tokens=1)))[0] == 200  # never early: at that time it passes
        with pytest.raises(openai.RateLimitError):
            await stack.client().chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1)


async def test_the_sdk_waits_out_a_limit_by_itself() -> None:
    async with running(config_changes={"key_limits": "{requests_per_minute: 120, burst_s: 0.5}"}) as stack:
        client = stack.client(max_retries=2)
        for _ in range(3):
            answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1)
            assert answer.usage.completion_tokens == 1


@pytest.mark.parametrize("name", ["input_tokens", "output_tokens", "total_tokens"])
async def test_each_token_limit_alone_is_enforced_and_settled(name: str) -> None:
    limits = f"{{{name}_per_minute: 6000, burst_s: 6}}"  # 600 at once
    async with running(config_changes={"limits": limits}) as stack:
        body = stack.chat(messages=[{"role": "user", "content": "weigh " * 50}], max_tokens=100)
        loop = asyncio.get_running_loop()
        began = loop.time()
        statuses = [status for status, _, _ in await asyncio.gather(*(stack.post(body) for _ in range(14)))]
        took = loop.time() - began
        assert {200, 429} == set(statuses)
        used = sum(
            {"input_tokens": x["prompt_tokens"], "output_tokens": x["output_tokens"]}.get(
                name, x["prompt_tokens"] + x["output_tokens"]
            )
            for x in stack.lines()
        )
        assert used <= 600 + 100 * took + 150  # the burst, what came back meanwhile, and one estimate's error
        await stack.at_rest()


async def test_a_request_that_can_never_fit_a_limit_is_told_not_to_come_back() -> None:
    async with running(config_changes={"limits": "{total_tokens_per_minute: 600, burst_s: 1}"}) as stack:
        status, headers, body = await stack.post(stack.chat(max_tokens=200))
        error = orjson.loads(body)["error"]
        assert (status, error["code"]) == (429, "request_exceeds_limit")
        assert headers["x-should-retry"] == "false"
        assert "retry-after" not in headers


async def test_concurrency_is_held_until_the_stream_ends() -> None:
    async with running(config_changes={"limits": "{concurrency: 2}"}) as stack:
        writers = [(await stack.raw(stack.chat(max_tokens=1000, stream=True)))[1] for _ in range(2)]
        await until(lambda: stack.engines[0].engine.running == 2)
        status, headers, body = await stack.post(stack.chat())
        assert (status, orjson.loads(body)["error"]["code"]) == (429, "concurrency_limit_exceeded")
        assert "retry-after" in headers
        for writer in writers:
            writer.close()
        await stack.at_rest()
        assert (await stack.post(stack.chat(max_tokens=1)))[0] == 200


async def test_a_spent_budget_stops_the_sdk_s_retries() -> None:
    prices = "prices: {input_usd_per_mtok: 100, output_usd_per_mtok: 1000}"
    async with running(config_changes={"limits": "{usd_per_day: 0.02}", "model": prices}) as stack:
        statuses = [(await stack.post(stack.chat(max_tokens=8)))[0] for _ in range(4)]
        assert statuses[:2] == [200, 200]  # 8 tokens and a short prompt: 0.0085 dollars each
        assert statuses[-1] == 429
        _, headers, body = await stack.post(stack.chat(max_tokens=8))
        assert orjson.loads(body)["error"]["type"] == "insufficient_quota"
        assert headers["x-should-retry"] == "false"
        assert sum(line["micro_usd"] for line in stack.lines()) <= 20_000


async def test_a_full_queue_and_a_wait_in_vain_are_503_with_a_wait() -> None:
    one = replace(FAST, max_seqs=1)
    pool = "capacity: {seats: 1}\n    queue: {requests: 2}"
    extra = "classes: {interactive: {weight: 100, queue_timeout_ms: 300}, batch: {weight: 1, queue_timeout_ms: 300}}"
    async with running(engine=one, config_changes={"pool": pool, "extra": extra}) as stack:
        _, running_one = await stack.raw(stack.chat(max_tokens=3000, stream=True))
        await until(lambda: stack.engines[0].engine.running == 1)
        answers = await asyncio.gather(*(stack.post(stack.chat(max_tokens=5)) for _ in range(4)))
        codes = sorted(orjson.loads(body)["error"]["code"] for _, _, body in answers)
        assert {status for status, _, _ in answers} == {503}
        assert codes.count("server_is_overloaded") == 2
        assert set(codes) <= {"server_is_overloaded", "queue_timeout", "deadline_cannot_be_met"}
        assert all(int(headers["retry-after"]) >= 1 for _, headers, _ in answers)
        running_one.close()
        await stack.at_rest()


async def test_a_prompt_larger_than_the_cache_is_refused_with_the_figures() -> None:
    small = replace(FAST, kv_tokens=4000)
    async with running(engine=small) as stack:
        status, _, body = await stack.post(stack.chat(messages=[{"role": "user", "content": "weigh " * 4000}]))
        error = orjson.loads(body)["error"]
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert "4000" in error["message"]


async def test_an_answer_that_takes_too_long_is_a_504() -> None:
    slow = {"pool": "timeouts: {connect_ms: 50, first_token_ms: 300, stall_ms: 250, total_ms: 400}", "ttft_ms": 200}
    async with running(config_changes=slow) as stack:
        status, headers, body = await stack.post(stack.chat(max_tokens=3000))
        assert (status, orjson.loads(body)["error"]["code"]) == (504, "timeout")
        assert headers["x-should-retry"] == "false"
        await stack.at_rest()


async def test_a_tenant_without_the_model_gets_403_and_does_not_see_it() -> None:
    async with running() as stack:
        status, _, body = await stack.post(stack.chat(), key=BOB)
        assert (status, orjson.loads(body)["error"]["code"]) == (403, "model_not_allowed")
        listed = await stack.client(BOB).models.list()
        assert listed.data == []


async def test_every_outcome_is_complete() -> None:
    labels = [outcome.ending.label for outcome in Outcome]
    assert len(set(labels)) == len(labels)
    for outcome in Outcome:
        ending = outcome.ending
        assert ending.status == 200 or 400 <= ending.status < 600
        if 400 <= ending.status != 499:
            assert ending.error_type is not None, outcome
