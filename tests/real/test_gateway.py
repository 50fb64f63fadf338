"""The gateway in front of each real engine: answers, usage, cancellation in every phase, metrics, silence."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import aiohttp
import pytest
import pytest_asyncio

from tests.real import backends
from tests.real.backends import Server
from tests.real.client import Client, client, events, first_tokens, until
from tests.real.gateway import Gateway, gateway

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

LONG = {"llamacpp": 8000, "vllm": 900}  # tokens of an answer that runs for seconds
SEATS = {"llamacpp": 4, "vllm": 8}


@dataclass(frozen=True, slots=True)
class Stand:
    """One engine with a gateway in front of it."""

    kind: str
    engine: Server
    gateway: Gateway


@pytest.fixture(scope="module", params=["llamacpp", "vllm"])
def stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    """Each kind in turn, with as many seats as the engine has."""
    kind = request.param
    engine: Server = request.getfixturevalue({"llamacpp": "llama"}.get(kind, kind))
    context = {"llamacpp": 8192, "vllm": 1024}[kind]
    with gateway(kind, [engine.url], capacity={"seats": SEATS[kind]}, context=context) as running:
        yield Stand(kind, engine, running)


@pytest_asyncio.fixture
async def to(stand: Stand) -> AsyncIterator[Client]:
    """A client of the gateway as its first tenant. Afterwards nothing may be held anywhere."""
    async with client(stand.gateway.url, stand.gateway.keys["acme"]) as made:
        yield made
        await until(lambda: at_rest(stand, made.session), 10.0)


async def running(stand: Stand, session: aiohttp.ClientSession) -> int:
    """Requests the engine itself says it is busy with or has waiting."""
    figures = await Client(session, stand.engine.url).figures(stand.kind)
    return (figures.running or 0) + (figures.waiting or 0)


async def at_rest(stand: Stand, session: aiohttp.ClientSession) -> bool:
    gauges = await stand.gateway.gauges(session)
    return len(gauges) == 4 and not any(gauges.values()) and await running(stand, session) == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.asyncio
async def test_chat_is_what_the_engine_says(stand: Stand, to: Client, stream: bool) -> None:
    usage = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    direct = await Client(to.session, stand.engine.url).ask("every tenant waits", 40, temperature=0, **usage)
    answer = await to.ask("every tenant waits", 40, temperature=0, **usage)
    assert (answer.status, answer.text, answer.finish) == (200, direct.text, "length")
    assert answer.done is stream
    assert answer.usage is not None
    assert direct.usage is not None
    assert answer.usage["completion_tokens"] == 40
    assert answer.usage["prompt_tokens"] == direct.usage["prompt_tokens"]
    assert answer.headers["x-request-id"]
    assert "queue;dur=" in answer.headers["server-timing"]


@pytest.mark.asyncio
async def test_a_stream_without_usage_asked_has_none_and_is_settled_all_the_same(stand: Stand, to: Client) -> None:
    whole = await Client(to.session, stand.engine.url).ask("the queue is fair", 30)
    before = await stand.gateway.tokens(to.session)
    answer = await to.ask("the queue is fair", 30, stream=True)
    await until(lambda: at_rest(stand, to.session), 5.0)
    after = await stand.gateway.tokens(to.session)
    assert answer.usage is None
    assert all(event["choices"] for event in answer.events)
    assert whole.usage is not None
    assert after["output"] - before.get("output", 0.0) == 30
    assert after["prompt"] - before.get("prompt", 0.0) == whole.usage["prompt_tokens"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.asyncio
async def test_completions(stand: Stand, to: Client, stream: bool) -> None:
    fields = {"prompt": "the gateway weighs", "max_tokens": 25, "temperature": 0, "stream": stream}
    answer = await to.call("/v1/completions", fields)
    direct = await Client(to.session, stand.engine.url).call("/v1/completions", fields)
    assert (answer.status, answer.text, answer.finish) == (200, direct.text, "length")


@pytest.mark.asyncio
async def test_the_engines_own_refusal_reaches_the_caller(stand: Stand, to: Client) -> None:
    answer = await to.ask("x" * 40_000, 10)
    assert answer.status == 400
    assert answer.error is not None
    assert "context" in str(answer.error).lower()


@pytest.mark.asyncio
async def test_a_client_that_leaves_while_tokens_come(stand: Stand, to: Client) -> None:
    # seconds of work, however slowly this test itself comes to run
    others = [asyncio.create_task(to.ask(f"other {index}", LONG[stand.kind], stream=True)) for index in range(7)]
    async with to.chat("the gateway", LONG[stand.kind], stream=True) as response:
        await first_tokens(response)
        assert await running(stand, to.session) >= 1
        response.close()
    for other in others:
        other.cancel()
    assert await until(lambda: at_rest(stand, to.session), 10.0) < 2.0


@pytest.mark.asyncio
async def test_clients_that_leave_calls_that_are_not_streamed(stand: Stand, to: Client) -> None:
    calls = [asyncio.create_task(to.ask(f"call {index}", LONG[stand.kind])) for index in range(8)]
    await until(lambda: _is(running(stand, to.session), 1, at_least=True), 10.0)
    for call in calls:
        call.cancel()
    assert await until(lambda: at_rest(stand, to.session), 10.0) < 2.0


@pytest.mark.asyncio
async def test_a_client_that_leaves_before_the_first_token(stand: Stand, to: Client) -> None:
    # the engine is held still, so that the request is in prefill for as long as the test wants
    stand.engine.signal(signal.SIGSTOP)
    try:
        call = asyncio.create_task(to.ask("a part of the model", LONG[stand.kind], stream=True))
        await until(lambda: _held(stand, to.session, 1), 10.0)
        call.cancel()
        assert await until(lambda: _held(stand, to.session, 0), 10.0) < 1.0
    finally:
        stand.engine.signal(signal.SIGCONT)
    assert await until(lambda: at_rest(stand, to.session), 10.0) < 5.0


@pytest.mark.asyncio
async def test_clients_that_leave_the_queue(stand: Stand, to: Client) -> None:
    seats = SEATS[stand.kind]
    calls = [asyncio.create_task(to.ask(f"call {index}", LONG[stand.kind], stream=True)) for index in range(3 * seats)]

    async def waiting() -> bool:
        gauges = await stand.gateway.gauges(to.session)
        return gauges["weighbridge_queue_depth"] >= seats

    await until(waiting, 20.0)
    for call in calls:
        call.cancel()
    assert await until(lambda: at_rest(stand, to.session), 20.0) < 3.0


@pytest.mark.asyncio
async def test_the_queue_stands_in_the_gateway_not_in_the_engine(stand: Stand, to: Client) -> None:
    engine = Client(to.session, stand.engine.url)
    seen: list[int] = []
    over = asyncio.Event()

    async def watch() -> None:
        while not over.is_set():
            seen.append((await engine.figures(stand.kind)).waiting or 0)

    watching = asyncio.create_task(watch())
    answers = await asyncio.gather(*(to.ask(f"number {index}", 120, stream=True) for index in range(24)))
    over.set()
    await watching
    assert [answer.status for answer in answers] == [200] * 24
    assert all(answer.done for answer in answers)
    # one may stand there for the moment between its arrival and the next step
    assert sorted(seen)[int(0.9 * len(seen))] <= 1
    assert max(seen) <= 2


@pytest.mark.asyncio
async def test_two_tenants_share_the_engine(stand: Stand, to: Client) -> None:
    async with client(stand.gateway.url, stand.gateway.keys["globex"]) as other:
        flood = [asyncio.create_task(to.ask(f"flood {index}", 200, stream=True)) for index in range(40)]
        await until(lambda: _is(running(stand, to.session), 3, at_least=True), 20.0)
        quiet = await other.ask("quiet", 20)
        left = sum(not call.done() for call in flood)
        await asyncio.gather(*flood)
    assert quiet.status == 200
    assert left >= 20  # it did not wait for the flood to pass


@pytest.mark.asyncio
async def test_an_unknown_model_and_a_wrong_key(stand: Stand, to: Client) -> None:
    wrong = await to.call(
        "/v1/chat/completions", {"model": "nobody", "messages": [{"role": "user", "content": "hello"}]}
    )
    assert wrong.status == 404
    async with client(stand.gateway.url, "wb_nobody") as stranger:
        assert (await stranger.ask("hello", 5)).status == 401


async def _held(stand: Stand, session: aiohttp.ClientSession, seats: int) -> bool:
    return (await stand.gateway.gauges(session))["weighbridge_seats_held"] == seats


async def _is(found: asyncio.Future[int] | object, wanted: int, *, at_least: bool = False) -> bool:
    value = await found  # type: ignore[misc]
    return bool(value >= wanted if at_least else value == wanted)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTERM], ids=["stopped", "terminated"])
@pytest.mark.asyncio
async def test_an_engine_that_falls_silent_ends_the_stream_with_an_error(number: signal.Signals) -> None:
    # both are seen as an open, silent connection: nothing but a limit on silence ends such a stream
    engine = backends.start_llama(slots=2, context=16384)
    try:
        with gateway(
            "llamacpp", [engine.url], capacity={"seats": 2}, timeouts={"first_token_ms": 3000, "stall_ms": 1000}
        ) as running_gateway:
            async with client(running_gateway.url, running_gateway.keys["acme"]) as to:
                await _silenced(to, engine, number)
                await until(lambda: _nothing_held(running_gateway, to.session), 5.0)
    finally:
        engine.kill()


async def _silenced(to: Client, engine: Server, number: signal.Signals) -> None:
    async with to.chat("the gateway", 8000, stream=True) as response:
        silenced = False
        seen: list[dict[str, object] | None] = []
        began = asyncio.get_running_loop().time()
        async for event in events(response):
            seen.append(event)
            if len(seen) == 5 and not silenced:
                engine.signal(number)
                silenced = True
                began = asyncio.get_running_loop().time()
        took = asyncio.get_running_loop().time() - began
    assert None not in seen  # no success terminator
    assert seen[-1] is not None
    assert "error" in seen[-1]
    assert took < 4.0


async def _nothing_held(running_gateway: Gateway, session: aiohttp.ClientSession) -> bool:
    return not any((await running_gateway.gauges(session)).values())


@pytest.mark.asyncio
async def test_embeddings() -> None:
    engine = backends.start_llama(slots=2, context=2048, more=["--embeddings", "--pooling", "mean"])
    try:
        with gateway("llamacpp", [engine.url], capacity={"seats": 2}) as running_gateway:
            async with client(running_gateway.url, running_gateway.keys["acme"]) as to:
                one = await to.call("/v1/embeddings", {"input": "the gateway"})
                two = await to.call("/v1/embeddings", {"input": ["the gateway", "a seat"], "encoding_format": "float"})
    finally:
        engine.stop()
    assert one.status == two.status == 200
    assert [entry["index"] for entry in two.body["data"]] == [0, 1]
    assert len(two.body["data"][0]["embedding"]) == 128
    assert one.usage is not None
    assert one.usage["prompt_tokens"] > 0
