"""The simulated provider account: a key, limits told and enforced, and none of an engine's inner pages."""

from __future__ import annotations

import math

import openai
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.simulated.account import AccountLimits, MinuteLimit, duration
from providers.simulated.errors import ApiError
from providers.simulated.service import Flavour
from providers.simulated.text import chat_of
from tests.simulated.served import at_rest, body, post, served

KEY = {"authorization": "Bearer k1"}


@pytest.mark.asyncio
async def test_a_key_is_required_and_checked() -> None:
    async with served(flavour=Flavour.ACCOUNT, api_keys=frozenset({"k1"})) as (server, session):
        for headers in ({}, {"authorization": "Bearer k2"}, {"authorization": "Basic k1"}):
            status, _, raw = await post(session, body(), **headers)
            assert (status, orjson.loads(raw)["error"]["code"]) == (401, "invalid_api_key")
        for headers in (KEY, {"api_key": "k1"}, {"x_api_key": "k1"}):
            assert (await post(session, body(), **headers))[0] == 200
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="bad", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()


@pytest.mark.asyncio
async def test_no_inner_page_is_shown() -> None:
    async with served(flavour=Flavour.ACCOUNT) as (_, session):
        for path in ("/metrics", "/health", "/version", "/load"):
            async with session.get(path, headers={"authorization": "Bearer x"}) as answer:
                assert answer.status == 404


@pytest.mark.asyncio
async def test_limits_are_told_and_kept() -> None:
    async with served(flavour=Flavour.ACCOUNT, requests_per_minute=2, tokens_per_minute=1_000) as (server, session):
        asked = body(messages=chat_of(100), max_tokens=50)
        status, headers, _ = await post(session, asked, **KEY)
        assert status == 200
        assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-limit-tokens"]) == ("2", "1000")
        assert (headers["x-ratelimit-remaining-requests"], headers["x-ratelimit-remaining-tokens"]) == ("1", "850")
        assert headers["x-ratelimit-reset-requests"] == "30s"
        status, headers, raw = await post(session, body(messages=chat_of(900), max_tokens=50), **KEY)
        error = orjson.loads(raw)["error"]
        assert (status, error["type"], error["code"]) == (429, "tokens", "rate_limit_exceeded")
        # 100 tokens too many at 1,000 a minute, less what came back since.
        assert (int(headers["retry-after"]), 5_000 < int(headers["retry-after-ms"]) <= 6_000) == (6, True)
        # What was refused took nothing.
        assert (await post(session, asked, **KEY))[0] == 200
        status, headers, raw = await post(session, asked, **KEY)
        assert (status, orjson.loads(raw)["error"]["type"]) == (429, "requests")
        assert at_rest(server)


@pytest.mark.asyncio
async def test_errors_are_a_providers() -> None:
    async with served(flavour=Flavour.ACCOUNT) as (_, session):
        _, _, raw = await post(session, body(max_tokens=9_000), **KEY)
        error = orjson.loads(raw)["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
        status, _, raw = await post(session, body(model="other"), **KEY)
        assert (status, orjson.loads(raw)["error"]["code"]) == (404, "model_not_found")


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 1_000), st.lists(st.tuples(st.integers(1, 300), st.floats(0, 20)), max_size=40))
def test_no_window_gets_more_than_the_bucket_and_its_refill(amount: int, tries: list[tuple[int, float]]) -> None:
    limit = MinuteLimit(amount, 0.0)
    now = 0.0
    taken: list[tuple[float, int]] = []
    for wanted, pause in tries:
        now += pause
        if limit.wait(wanted, now) == 0.0:
            limit.take(wanted, now)
            taken.append((now, wanted))
    for start, _ in taken:
        for end, _ in taken:
            total = sum(n for at, n in taken if start <= at <= end)
            assert total <= amount + (end - start) * amount / 60 + 1e-6 or end < start


def test_the_wait_is_exactly_enough() -> None:
    limit = MinuteLimit(60, 0.0)
    limit.take(60, 0.0)
    wait = limit.wait(30, 10.0)
    assert wait == pytest.approx(20.0)
    assert limit.wait(30, 10.0 + wait) == pytest.approx(0.0, abs=1e-9)
    assert math.isinf(limit.wait(61, 1_000.0))


def test_what_can_never_fit_names_no_time() -> None:
    with pytest.raises(ApiError) as caught:
        AccountLimits(None, 100, 0.0).take(101, 0.0)
    assert "retry-after" not in dict(caught.value.headers)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0ms"), (0.0121, "13ms"), (1.0, "1s"), (1.5, "1.5s"), (59.9, "59.9s"), (360.0, "6m0s"), (math.inf, "never")],
)
def test_durations_are_written_as_providers_do(seconds: float, text: str) -> None:
    assert duration(seconds) == text
