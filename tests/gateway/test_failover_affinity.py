"""What belongs together goes together: prompts to the replica that has their beginning, sessions to one target."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import orjson
import pytest

from gateway.affinity import Sessions, name_of, session_of
from providers.exchange import Call, Dialect, Endpoint
from providers.prefix import Affinity
from providers.simulated.settings import EngineSettings
from tests.gateway.failover import engine, route, serving
from tests.gateway.stack import ALICE, BOB, Stack, until

CACHED = EngineSettings(a_s=0.001, d_s=1e-6, kv_tokens=60_000, max_seqs=64)


def call(endpoint: Endpoint = Endpoint.CHAT, **fields: Any) -> Call:
    body = {"model": "m", **fields}
    return Call(endpoint, Dialect.OPENAI, orjson.dumps(body), body, "m", False, False)


def said(*texts: str, **fields: Any) -> Call:
    roles = ("system", "user", "assistant")
    messages = [{"role": roles[n and 1 + (n - 1) % 2], "content": text} for n, text in enumerate(texts)]
    return call(messages=messages, **fields)


def chain(found: Affinity | None) -> tuple[int, ...]:
    assert found is not None
    return found.chain


LONG = "x" * 6000


def test_a_conversation_keeps_its_names_as_it_grows() -> None:
    first = name_of(said(LONG, "hello"), "t", "", None)
    later = name_of(said(LONG, "hello", "hi", "and" * 2000), "t", "", None)
    assert chain(first) == chain(later)[: len(chain(first))]
    assert first == later  # the same place on the ring
    assert len(chain(later)) > len(chain(first)) >= 5


@pytest.mark.parametrize(
    "other",
    [
        name_of(said(LONG, "hello"), "t", "salt", None),
        name_of(said(LONG, "hello"), "t", "", "adapter"),
        name_of(said(LONG, "hello", tools=[{"type": "function"}]), "t", "", None),
        name_of(said("y" + LONG, "hello"), "t", "", None),
    ],
)
def test_salt_adapter_tools_and_text_are_part_of_the_name(other: Affinity | None) -> None:
    first = name_of(said(LONG, "hello"), "t", "", None)
    assert set(chain(first)).isdisjoint(chain(other))
    assert first != other


def test_what_is_not_worth_finding_again_has_no_name() -> None:
    assert name_of(said("hello"), "t", "", None) is None
    assert name_of(call(Endpoint.EMBEDDINGS, input=LONG), "t", "", None) is None
    assert name_of(call(Endpoint.COMPLETIONS, prompt=LONG), "t", "", None) is not None
    assert name_of(said("hello", user="u"), "t", "", None) is not None  # a session is


def test_a_session_is_its_tenant_s_own_and_named_by_the_most_telling_field() -> None:
    assert session_of(said("x", user="u", prompt_cache_key="p", session_id="s")) == "s"
    assert session_of(said("x", user="u", prompt_cache_key="p")) == "p"
    assert session_of(said("x", user=7)) is None
    mine, theirs = (name_of(said("hello", user="u"), tenant, "", None) for tenant in ("a", "b"))
    assert mine != theirs


def test_a_session_picks_one_target_and_a_service_that_calls_itself_one_does_not() -> None:
    sessions = Sessions()
    picks = {sessions.pick("t", said("x", user="ann"), 10.0) for _ in range(30)}
    assert len(picks) == 1
    assert picks != {sessions.pick("t", said("x", user="bob"), 10.0)}
    assert picks != {sessions.pick("u", said("x", user="ann"), 10.0)}
    assert sessions.pick("t", said("x", user="ann"), 10.0) is None  # the 31st of a minute
    assert {sessions.pick("t", said("x", user="ann"), 70.0)} == picks
    spread = [sessions.pick("t", said("x", user=f"user-{n}"), 70.0) or 0.0 for n in range(1000)]
    assert 0.45 < sum(spread) / 1000 < 0.55


def test_many_sessions_take_a_bounded_memory() -> None:
    sessions = Sessions()
    for n in range(50_000):
        sessions.pick("t", said("x", user=str(n)), 10.0)
    assert len(sessions._counts) <= 20_000


# -- through the gateway --------------------------------------------------------------------------------------


def pool(*urls: str, isolation: str = "shared") -> str:
    replicas = ", ".join(f'{{name: r{n}, url: "{url}"}}' for n, url in enumerate(urls))
    return route(
        f"  local: {{kind: simulated, poll_ms: 100, isolation: {isolation}, replicas: [{replicas}]}}",
        "      - targets: [{pool: local, model: sim-large}]",
    )


def text(name: str, tokens: int) -> str:
    rng = random.Random(name)
    return "".join(rng.choice("abcdefghij klmnopqr") for _ in range(4 * tokens))


async def converse(stack: Stack, name: str, turns: int, *, key: str = ALICE) -> None:
    messages = [{"role": "user", "content": text(name, 600)}]
    for turn in range(turns):
        await stack.post(stack.chat(messages=messages, max_tokens=4), key=key)
        messages += [
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": text(f"{name}{turn}", 150)},
        ]


def looked_up(stack: Stack) -> tuple[int, int]:
    """Tokens that all engines looked up in their caches, and found."""
    seen = [server.engine.snapshot() for server in stack.engines]
    return sum(one.prefix_queries_total for one in seen), sum(one.prefix_hits_total for one in seen)


def hit_share(stack: Stack, before: tuple[int, int] = (0, 0)) -> float:
    asked, hits = looked_up(stack)
    return (hits - before[1]) / (asked - before[0])


@pytest.mark.asyncio
async def test_conversations_find_their_cache_again() -> None:
    """24 conversations of 5 turns over 4 replicas find at least 90 % of what they would find on one."""
    shares = []
    for replicas in (1, 4):
        async with serving([engine(CACHED)] * replicas, pool) as stack:
            # A few at a time, so that replicas are idle more often than not, as they are below full load.
            for batch in range(8):
                await asyncio.gather(*(converse(stack, f"talk {batch}.{n}", 5) for n in range(3)))
            shares.append(hit_share(stack))
            if replicas == 4:
                by_replica = Counter(line["replica"] for line in stack.lines())
                assert len(by_replica) == 4
    alone, spread = shares
    assert alone > 0.6
    assert spread >= 0.9 * alone


@pytest.mark.asyncio
async def test_tenants_that_are_kept_apart_share_no_prefix() -> None:
    def salted(a: str, b: str) -> str:
        return pool(a, b, isolation="salted")

    async with serving([engine(CACHED), engine(CACHED)], salted) as stack:
        start = looked_up(stack)
        for _ in range(4):
            await converse(stack, "the same", 1, key=ALICE)
        assert hit_share(stack, start) > 0.4  # one of four may go elsewhere, to learn
        start = looked_up(stack)
        await converse(stack, "the same", 1, key=BOB)
        assert hit_share(stack, start) == 0.0
        index = stack.app.pools["local"].polled.index
        assert 0 < index.entries <= index.most


@pytest.mark.asyncio
async def test_a_replica_that_was_started_anew_is_believed_to_be_empty() -> None:
    async with serving([engine(CACHED), engine(CACHED)], pool) as stack:
        await converse(stack, "talk", 3)
        polled = stack.app.pools["local"].polled
        assert polled.index.entries > 0
        await until(lambda: any((f.prompt_tokens_total or 0) > 0 for f in polled._before.values()))
        for server in stack.engines:
            server.engine._prompt_tokens = 0  # as its counters would begin
        await until(lambda: polled.index.entries == 0)
