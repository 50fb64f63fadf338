"""What only vLLM shows: a KV cache that fills, adapters, salts, and two replicas of which one dies."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.real import backends
from tests.real.backends import Server
from tests.real.client import Client, client, first_tokens, until
from tests.real.gateway import Gateway, gateway

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def one(vllm: Server) -> Iterator[Gateway]:
    """A gateway that learns everything about the engine from its metrics, but for its seats."""
    with gateway("vllm", [vllm.url], capacity={"seats": 8}, context=1024, isolation="salted") as running:
        yield running


async def preemptions(server: Server, to: Client) -> int:
    total = (await Client(to.session, server.url).figures("vllm")).preemptions_total
    assert total is not None
    return total


@pytest.mark.asyncio
async def test_the_gateway_admits_what_the_cache_holds(one: Gateway, vllm: Server) -> None:
    # the same load without the gateway preempts at least four times (see test_engines)
    async with client(one.url, one.keys["acme"]) as to:
        for _ in range(3):  # it learns how long answers are
            await asyncio.gather(*(to.ask(f"before {index}", 600, temperature=0) for index in range(8)))
        before = await preemptions(vllm, to)
        answers = await asyncio.gather(*(to.ask(f"request {index}", 600, temperature=0) for index in range(8)))
        after = await preemptions(vllm, to)
    assert [answer.status for answer in answers] == [200] * 8
    assert [answer.usage["completion_tokens"] for answer in answers if answer.usage] == [600] * 8
    assert after - before <= 1


@pytest.mark.asyncio
async def test_tenants_do_not_share_cached_prefixes(one: Gateway) -> None:
    prompt = "the gateway weighs every request before it may pass " * 8

    async def cached(to: Client) -> int:
        answer = await to.ask(prompt, 4, temperature=0)
        assert answer.usage is not None
        return int((answer.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    async with client(one.url, one.keys["acme"]) as acme, client(one.url, one.keys["globex"]) as globex:
        first, again, other = await cached(acme), await cached(acme), await cached(globex)
        mine = await cached(globex)
    assert first == 0
    assert again > 0
    assert other == 0
    assert mine > 0


@pytest.mark.asyncio
async def test_a_salt_sent_by_a_client_does_not_reach_the_engine(one: Gateway) -> None:
    prompt = "each tenant gets a fair part of what there is and waits " * 8
    async with client(one.url, one.keys["acme"]) as acme, client(one.url, one.keys["globex"]) as globex:
        await acme.ask(prompt, 4, temperature=0, cache_salt="shared")
        answer = await globex.ask(prompt, 4, temperature=0, cache_salt="shared")
    assert answer.usage is not None
    assert not (answer.usage.get("prompt_tokens_details") or {}).get("cached_tokens")


@pytest.mark.asyncio
async def test_an_adapter_is_a_model_of_its_own(one: Gateway, vllm: Server) -> None:
    async with client(one.url, one.keys["acme"], "ad") as adapted, client(vllm.url, model="ad") as direct:
        through = await adapted.ask("the gateway", 30, temperature=0)
        same = await direct.ask("the gateway", 30, temperature=0)
    assert (through.status, through.text) == (200, same.text)


@pytest.mark.asyncio
async def test_a_replica_dies_and_its_waiting_work_goes_to_the_other(vllm: Server) -> None:
    second = backends.start_vllm()
    try:
        with gateway("vllm", [vllm.url, second.url], capacity={"seats": 4}, context=1024) as running:
            async with client(running.url, running.keys["acme"]) as to:
                calls = [asyncio.create_task(to.ask(f"call {index}", 150)) for index in range(24)]
                engine = Client(to.session, second.url)

                async def busy() -> bool:
                    return ((await engine.figures("vllm")).running or 0) >= 1

                await until(busy, 20.0)
                second.kill()
                answers = await asyncio.gather(*calls)
                # not streamed: nothing had reached a client, so nobody may notice
                assert [answer.status for answer in answers] == [200] * 24
                assert all(answer.usage and answer.usage["completion_tokens"] == 150 for answer in answers)
                after = await asyncio.gather(*(to.ask(f"later {index}", 20) for index in range(8)))
                assert [answer.status for answer in after] == [200] * 8
    finally:
        second.kill()


@pytest.mark.asyncio
async def test_a_stream_cut_by_a_dead_replica_ends_with_an_error(vllm: Server) -> None:
    second = backends.start_vllm()
    try:
        with gateway("vllm", [second.url], capacity={"seats": 4}, context=1024) as running:
            async with client(running.url, running.keys["acme"]) as to, to.chat("hello", 900, stream=True) as response:
                await first_tokens(response)
                second.kill()
                rest = (await response.content.read()).decode()
    finally:
        second.kill()
    assert "[DONE]" not in rest
    assert '"error"' in rest
