"""The engines themselves, without the gateway: what the other tests of this folder take for granted."""

import asyncio

import pytest

from tests.real.backends import Server
from tests.real.client import Client, client, first_tokens, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


@pytest.fixture(params=["llamacpp", "vllm"])
def engine(request: pytest.FixtureRequest) -> tuple[str, Server]:
    """Each kind in turn."""
    kind = request.param
    server: Server = request.getfixturevalue({"llamacpp": "llama"}.get(kind, kind))
    return kind, server


async def idle(kind: str, to: Client) -> bool:
    figures = await to.figures(kind)
    return (figures.running or 0) + (figures.waiting or 0) == 0


@pytest.mark.asyncio
async def test_a_stream_says_what_the_whole_answer_says(engine: tuple[str, Server]) -> None:
    _, server = engine
    async with client(server.url) as to:
        whole = await to.ask("the gateway weighs every request", 50, temperature=0)
        stream = await to.ask(
            "the gateway weighs every request", 50, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    assert whole.status == stream.status == 200
    assert whole.text == stream.text
    assert whole.text.isascii()
    assert whole.finish == stream.finish == "length"
    assert stream.done
    assert whole.usage is not None
    assert stream.usage is not None
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert whole.usage[name] == stream.usage[name]
    assert whole.usage["completion_tokens"] == 50


@pytest.mark.asyncio
async def test_a_client_that_leaves_stops_its_work(engine: tuple[str, Server]) -> None:
    kind, server = engine
    tokens = {"llamacpp": 8000, "vllm": 900}[kind]
    async with client(server.url) as to:
        # seconds of work, however slowly this test itself comes to run
        others = [asyncio.create_task(to.ask(f"other {index}", tokens, stream=True)) for index in range(7)]
        async with to.chat("the gateway", tokens, stream=True) as response:
            await first_tokens(response)
            assert not await idle(kind, to)
            response.close()
        for other in others:
            other.cancel()
        assert await until(lambda: idle(kind, to), 10.0) < 2.0


@pytest.mark.asyncio
async def test_both_engines_run_the_same_model(llama: Server, vllm: Server) -> None:
    texts = []
    for server in (llama, vllm):
        async with client(server.url) as to:
            texts.append((await to.ask("each tenant gets a fair part", 60, temperature=0)).text)
    assert texts[0] == texts[1]


@pytest.mark.asyncio
async def test_vllm_preempts_when_its_cache_is_oversold(vllm: Server) -> None:
    async with client(vllm.url) as to:
        before = (await to.figures("vllm")).preemptions_total
        answers = await asyncio.gather(*(to.ask(f"request {index}", 600, temperature=0) for index in range(8)))
        after = (await to.figures("vllm")).preemptions_total
    assert [answer.status for answer in answers] == [200] * 8
    assert before is not None
    assert after is not None
    assert after - before >= 4  # 8 requests of 600 tokens on a cache of 1,280


@pytest.mark.asyncio
async def test_vllm_tells_its_cache_and_the_adapter(vllm: Server) -> None:
    async with client(vllm.url) as to:
        figures = await to.figures("vllm")
        plain = await to.ask("the gateway", 30, temperature=0)
    async with client(vllm.url, model="ad") as to:
        adapted = await to.ask("the gateway", 30, temperature=0)
    assert (figures.kv_tokens_total, figures.block_tokens) == (1280, 32)
    assert adapted.status == 200
    assert adapted.text != plain.text
