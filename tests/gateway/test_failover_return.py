"""Replicas go and come back: the pool is left alone while it has none, and work returns to it without a wave."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from providers.health import State
from providers.simulated.faults import Fault, FaultKind
from providers.simulated.server import SimulatedServer
from tests.gateway.failover import account, engine, route, serving
from tests.gateway.stack import Stack, until

TIMERS = "timeouts: {connect_ms: 500, first_token_ms: 3000, stall_ms: 3000, total_ms: 20000}, slo: {ttft_ms: 1000}"


def one_tier(a: str, b: str) -> str:
    return route(
        f"""  local:
    {{kind: simulated, poll_ms: 60, {TIMERS},
     replicas: [{{name: r0, url: "{a}"}}, {{name: r1, url: "{b}"}}]}}""",
        "      - targets: [{pool: local, model: sim-large}]\n",
    )


def two_tiers(a: str, b: str, c: str) -> str:
    account = f'account: {{url: "{c}/v1", credentials: [{{name: main, key: k}}]}}'
    return (
        one_tier(a, b).replace(
            "\nmodels:", f"\n  vendor: {{kind: openai-compatible, capacity: {{seats: 64}}, {account}}}\nmodels:"
        )
        + "      - targets: [{pool: vendor, model: sim-large}]\n"
    )


def state(stack: Stack) -> State:
    now = stack.app.clock.monotonic()
    return next(seen.state for key, seen in stack.app.breakers.snapshot(now).items() if key.provider == "local")


async def ask(stack: Stack) -> tuple[int, str]:
    code, _, _ = await stack.post(stack.chat(max_tokens=2))
    return code, stack.lines()[-1]["pool"]


async def again(server: SimulatedServer) -> SimulatedServer:
    """The same server, started anew at the same place."""
    made = SimulatedServer(server.settings)
    await made.start(port=server.port)
    return made


def usable(stack: Stack) -> bool:
    return stack.app.pools["local"].members.any_usable(stack.app.clock.monotonic())


@pytest.mark.asyncio
async def test_a_sole_pool_that_comes_back_serves_at_once() -> None:
    async with serving([engine(), engine()], one_tier) as stack:
        assert await ask(stack) == (200, "local")
        for server in stack.engines:
            await server.close(reset=True)
        await until(lambda: not usable(stack))
        assert state(stack) is State.OPEN
        assert "pool local has no usable replica" in stack.app.readiness().degraded
        began = asyncio.get_running_loop().time()
        assert (await ask(stack))[0] == 503
        assert asyncio.get_running_loop().time() - began < 0.5  # nobody waits for it
        stack.engines[0] = await again(stack.engines[0])
        await until(lambda: usable(stack))
        answers = [await ask(stack) for _ in range(10)]
        assert answers == [(200, "local")] * 10


@pytest.mark.asyncio
async def test_with_a_second_tier_work_comes_back_little_by_little() -> None:
    async with serving([engine(), engine(), account("k")], two_tiers) as stack:
        assert await ask(stack) == (200, "local")
        for server in stack.engines[:2]:
            await server.close(reset=True)
        await until(lambda: not usable(stack))
        assert [await ask(stack) for _ in range(5)] == [(200, "vendor")] * 5
        for n in range(2):
            stack.engines[n] = await again(stack.engines[n])
        await until(lambda: usable(stack))
        answers = Counter([await ask(stack) for _ in range(30)])
        assert answers[200, "vendor"] >= 20  # probes at most, which wait for a lower class first
        assert sum(answers.values()) == answers[200, "vendor"] + answers[200, "local"]
        assert state(stack) in {State.OPEN, State.HALF_OPEN}


@pytest.mark.asyncio
async def test_a_pool_of_four_whose_servers_all_hang_is_found_out_by_its_requests() -> None:
    """Health pages answer, generation does not: one replica may be taken out, the pool's breaker does the rest."""

    def text(*urls: str) -> str:
        *mine, other = urls
        replicas = ", ".join(f'{{name: r{n}, url: "{url}"}}' for n, url in enumerate(mine))
        quick = TIMERS.replace("first_token_ms: 3000", "first_token_ms: 600")
        return route(
            f"""  local: {{kind: simulated, {quick.replace("1000", "500")}, replicas: [{replicas}]}}
  vendor:
    kind: openai-compatible
    capacity: {{seats: 64}}
    account: {{url: "{other}/v1", credentials: [{{name: main, key: k}}]}}""",
            "      - targets: [{pool: local, model: sim-large}]\n      - targets: [{pool: vendor, model: sim-large}]\n",
        )

    async with serving([engine()] * 4 + [account("k")], text) as stack:
        for server in stack.engines[:4]:
            server.add_faults([Fault(FaultKind.SILENT_BEFORE_HEADERS)])
        answers = Counter(await asyncio.gather(*(ask(stack) for _ in range(30))))
        assert sum(n for (code, _), n in answers.items() if code == 200) >= 20
        assert state(stack) is State.OPEN
        assert [await ask(stack) for _ in range(10)] == [(200, "vendor")] * 10
        out = stack.app.pools["local"].members.snapshot(stack.app.clock.monotonic())
        assert sum(one.breaker.state is not State.CLOSED for one in out.values()) <= 1


@pytest.mark.asyncio
async def test_breakers_of_targets_that_a_reload_takes_away_are_forgotten() -> None:
    async with serving([engine(), engine(), account("k")], two_tiers) as stack:
        stack.engines[0].add_faults([Fault(FaultKind.STATUS, status=500)])
        stack.engines[1].add_faults([Fault(FaultKind.STATUS, status=500)])
        assert (await ask(stack))[1] == "vendor"
        now = stack.app.clock.monotonic()
        assert {key.provider for key in stack.app.breakers.snapshot(now)} == {"local", "vendor"}
        config = stack.app.config
        pools = {"local": config.pools["local"]}
        model = config.models["chat-large"]
        models = {"chat-large": model.model_copy(update={"tiers": model.tiers[:1]})}
        stack.app.reload(config.model_copy(update={"pools": pools, "models": models}))
        assert {key.provider for key in stack.app.breakers.snapshot(now)} == {"local"}
        stack.app.reload(config)
        assert (await ask(stack))[1] == "vendor"
