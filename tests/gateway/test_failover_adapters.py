"""LoRA adapters: loaded once where they are wanted, waited for, used only where they are, and their failures seen."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import aiohttp
import orjson
import pytest

from providers.simulated.faults import Fault, FaultKind, Match
from tests.gateway.failover import engine, route, serving
from tests.gateway.stack import FAST, Stack, until

LORA = replace(FAST, lora_slots=2)
LOAD = "/v1/load_lora_adapter"


def adapters(a: str, b: str, made: str = "red: {source: /adapters/red}, blue: {source: /adapters/blue}") -> str:
    names = [part.split(":")[0].strip() for part in made.split("},")]
    models = "".join(
        f"\n  {name}: {{context: 16000, tiers: [{{targets: [{{pool: local, model: {name}}}]}}]}}" for name in names
    )
    return (
        route(
            f"""  local:
    kind: simulated
    poll_ms: 100
    replicas: [{{name: r0, url: "{a}"}}, {{name: r1, url: "{b}"}}]
    adapters: {{{made}}}""",
            "      - targets: [{pool: local, model: sim-large}]",
        ).rstrip()
        + models
        + "\n"
    )


async def ask(stack: Stack, model: str, **fields: object) -> tuple[int, dict[str, str], bytes]:
    return await stack.post(stack.chat(model=model, max_tokens=4, **fields))


def loaded(stack: Stack) -> Counter[tuple[str, str]]:
    return Counter((f"r{n}", name) for n, server in enumerate(stack.engines) for name in server.adapters)


@pytest.mark.asyncio
async def test_an_adapter_is_loaded_once_and_everybody_waits_for_it() -> None:
    async with serving([engine(LORA), engine(LORA)], adapters) as stack:
        for server in stack.engines:
            server.add_faults([Fault(FaultKind.DELAY, seconds=0.0)])
        answers = await asyncio.gather(*(ask(stack, "red") for _ in range(12)))
        assert [code for code, _, _ in answers] == [200] * 12
        assert sum(loaded(stack).values()) == 1  # no stampede
        assert len({line["replica"] for line in stack.lines()}) == 1
        assert await stack.metric("weighbridge_adapter_loads_total") == 1
        # The next adapter goes where there are fewer.
        assert (await ask(stack, "blue"))[0] == 200
        assert {name for name, _ in loaded(stack)} == {"r0", "r1"}
        # The base model is anybody's.
        answers = await asyncio.gather(*(ask(stack, "chat-large") for _ in range(8)))
        assert [code for code, _, _ in answers] == [200] * 8
        await stack.at_rest()


@pytest.mark.asyncio
async def test_an_idle_adapter_makes_room() -> None:
    made = ", ".join(f"ad{n}: {{source: /adapters/{n}}}" for n in range(4))
    one = replace(FAST, lora_slots=1)
    async with serving([engine(one), engine(one)], lambda a, b: adapters(a, b, made)) as stack:
        await until(lambda: all(s.slots == 1 for s in stack.app.pools["local"].polled.loras.snapshot().values()))
        for n in (0, 1, 2, 3, 0):
            assert (await ask(stack, f"ad{n}"))[0] == 200
            assert max(Counter(name for name, _ in loaded(stack)).values()) == 1
        assert await stack.metric("weighbridge_adapter_loads_total") == 5


@pytest.mark.asyncio
async def test_a_failed_load_has_a_cause_that_can_be_seen_and_is_not_tried_by_everybody() -> None:
    async with serving([engine(LORA), engine(LORA)], adapters) as stack:
        for server in stack.engines:
            server.add_faults(
                [Fault(FaultKind.STATUS, status=400, message="rank 64 is above 16", match=Match(path=LOAD))]
            )
        code, headers, body = await ask(stack, "red")
        assert code == 503
        assert b"rank 64 is above 16" in body
        assert 1 <= float(headers["retry-after"]) <= 6
        answers = await asyncio.gather(*(ask(stack, "red") for _ in range(10)))
        assert {code for code, _, _ in answers} == {503}
        assert sum(server.faults.faults[0].struck for server in stack.engines) == 2  # each replica once
        assert await stack.metric("weighbridge_adapter_loads_total") == 2
        async with aiohttp.ClientSession() as session:
            page = await session.get(f"http://127.0.0.1:{stack.app.admin_port}/readyz")
            degraded = orjson.loads(await page.read())["degraded"]
        assert len(degraded) == 2
        assert all("adapter red failed to load on r" in why and "rank 64 is above 16" in why for why in degraded)
        assert (await ask(stack, "blue"))[0] == 503
        assert (await ask(stack, "chat-large"))[0] == 200


@pytest.mark.asyncio
async def test_an_adapter_of_the_operator_s_is_used_where_it_is_and_nowhere_else() -> None:
    servers = [engine(LORA), engine(LORA, adapters=("green",))]
    async with serving(servers, lambda a, b: adapters(a, b, "green: {}")) as stack:
        await until(lambda: len(stack.app.pools["local"].polled.loras._resident) == 2)
        for _ in range(6):
            assert (await ask(stack, "green"))[0] == 200
        assert {line["replica"] for line in stack.lines()} == {"r1"}
        del stack.engines[1].adapters["green"]
        resident = stack.app.pools["local"].polled.loras._resident
        await until(lambda: not resident["r1"])
        code, _, body = await ask(stack, "green")
        assert code == 503
        assert b"adapter green is on no usable replica" in body


@pytest.mark.asyncio
async def test_an_adapter_of_another_base_model_is_not_used() -> None:
    servers = [engine(LORA, adapters=("green",)), engine(LORA)]
    async with serving(servers, lambda a, b: adapters(a, b, "green: {base: llama}")) as stack:
        await until(lambda: bool(stack.app.readiness().degraded))
        assert "adapter green stands on sim-large at r0, not on llama" in stack.app.readiness().degraded[0]
        assert (await ask(stack, "green"))[0] == 503


@pytest.mark.asyncio
async def test_a_replica_that_lost_an_adapter_is_found_out_by_its_404() -> None:
    async with serving([engine(LORA), engine(LORA)], adapters) as stack:
        assert (await ask(stack, "red"))[0] == 200
        (name, _) = next(iter(loaded(stack)))
        stack.app.pools["local"].polled.loras.observed = lambda *_: None  # type: ignore[method-assign]
        stack.engines[int(name[1])].adapters.clear()
        codes = [(await ask(stack, "red"))[0] for _ in range(3)]
        assert codes[-1] == 200
        assert (await ask(stack, "chat-large"))[0] == 200
