"""What spills to a later tier: no more than it has to spare, people before batch, and only where the tenant allows."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from providers.simulated.faults import Fault, FaultKind
from providers.simulated.settings import EngineSettings
from tests.gateway.failover import account, engine, route, serving
from tests.gateway.stack import ALICE, BOB, Stack, until

SLOW = EngineSettings(a_s=0.02, d_s=1e-5, kv_tokens=32_000, max_seqs=1)


def two_tiers(url: str, other: str, *, seats: str = "seats: 8", after: str = "") -> str:
    return route(
        f"""  first: {{kind: simulated, poll_ms: 60000, replicas: [{{name: r0, url: "{url}"}}]}}
  second:
    kind: openai-compatible
    capacity: {{{seats}}}
    account: {{url: "{other}/v1", credentials: [{{name: main, key: k}}]}}
    failure_domain: {{vendor: there}}""",
        f"      - targets: [{{pool: first, model: sim-large}}]\n"
        f"      - {{targets: [{{pool: second, model: sim-large}}]{after}}}\n",
    )


async def keep_asking(stack: Stack, key: str, seconds: float, statuses: Counter[int], **fields: object) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        code, _, _ = await stack.post(stack.chat(**fields), key=key)
        statuses[code] += 1
        if code != 200:
            await asyncio.sleep(0.02)


@pytest.mark.asyncio
async def test_a_dead_first_tier_under_load() -> None:
    """40 callers, half of them batch, before a second tier of 8 seats: upstream calls, its load, and who is served."""
    async with serving([engine(), account("k")], two_tiers) as stack:
        first, second = stack.engines
        first.add_faults([Fault(FaultKind.STATUS, status=500)])
        people: Counter[int] = Counter()
        batch: Counter[int] = Counter()
        peak = 0

        async def watch() -> None:
            nonlocal peak
            while True:
                peak = max(peak, len(second.engine.live))
                await asyncio.sleep(0.002)

        watching = asyncio.ensure_future(watch())
        later = asyncio.gather(*(keep_asking(stack, BOB, 2.0, batch, max_tokens=30) for _ in range(20)))
        await asyncio.gather(*(keep_asking(stack, ALICE, 2.0, people, max_tokens=30) for _ in range(20)))
        beside = batch[200]
        await asyncio.wait_for(later, 60.0)
        watching.cancel()
        lines = stack.lines()
        calls = sum(server.state()["requests_total"] for server in stack.engines)
        assert calls <= 1.1 * len(lines) + 2.0 + 10.0
        assert first.state()["requests_total"] <= 60  # the breaker sees to it that the dead one is left alone
        assert 4 <= peak <= 6  # of 8 seats at most 85 % are spilled to
        assert people[200] > 30
        assert set(people) == {200}  # 10 s of patience: nobody is refused
        assert beside <= 0.1 * people[200]
        assert batch == {200: batch[200]}  # it waits, and is served when there is room
        assert await stack.metric("weighbridge_spill_waiting") == 0
        await stack.at_rest()


@pytest.mark.asyncio
async def test_what_an_account_says_it_takes_a_minute_bounds_what_spills_to_it() -> None:
    """12,000 tokens a minute are 200 a second; spill gets 85 % of it, a tenth at first and a fifth more each second."""

    def text(url: str, other: str) -> str:
        return two_tiers(url, other, seats="seats: 1000")

    async with serving([engine(), account("k", tokens_per_minute=12_000)], text) as stack:
        first, second = stack.engines
        first.add_faults([Fault(FaultKind.STATUS, status=500)])
        await stack.post(stack.chat(max_tokens=5))  # from here on its limits are known
        statuses: Counter[int] = Counter()
        began = asyncio.get_running_loop().time()
        before = second.state()
        asking = [keep_asking(stack, ALICE, 2.0, statuses, max_tokens=5) for _ in range(12)]
        await asyncio.wait_for(asyncio.gather(*asking), 40.0)
        took = asyncio.get_running_loop().time() - began
        after = second.state()
        tokens = sum(after[name] - before[name] for name in ("prompt_tokens_total", "generation_tokens_total"))
        assert tokens <= 0.85 * 200 * took + 0.85 * 200  # and a second's burst
        assert tokens >= 40
        snapshot = stack.app.pools["second"].polled.spillway.snapshot(stack.app.clock.monotonic())
        assert snapshot.spare == pytest.approx(170, rel=0.01)


@pytest.mark.asyncio
async def test_a_queue_that_is_too_long_spills_where_the_tenant_allows_it() -> None:
    def text(url: str, other: str) -> str:
        made = two_tiers(url, other, after=", after_ms: 150")
        return made.replace("kind: simulated,", "kind: simulated, capacity: {seats: 1},")

    async with serving([engine(SLOW), account("k")], text, limits="policy: {spill: false}") as stack:
        asked = [asyncio.ensure_future(stack.post(stack.chat(max_tokens=40), key=BOB)) for _ in range(4)]
        await until(lambda: stack.app.pools["first"].gate.waiting == 3)
        stays = asyncio.ensure_future(stack.post(stack.chat(max_tokens=2)))
        answers = await asyncio.gather(*asked, stays)
        assert [code for code, _, _ in answers] == [200] * 5
        by_tenant = Counter((line["tenant"], line["pool"]) for line in stack.lines())
        assert by_tenant["bob", "second"] >= 2
        assert by_tenant["bob", "first"] >= 1
        assert by_tenant["alice", "first"] == 1
        spilled = [line for line in stack.lines() if line["pool"] == "second"]
        assert all(line["phases_ms"]["queue"] >= 140 for line in spilled[:1])
        await stack.at_rest()


@pytest.mark.asyncio
async def test_what_does_not_fit_the_second_tier_stays_in_its_own_queue() -> None:
    def text(url: str, other: str) -> str:
        made = two_tiers(url, other, seats="seats: 2", after=", after_ms: 100")
        return made.replace("kind: simulated,", "kind: simulated, capacity: {seats: 1},")

    async with serving([engine(SLOW), account("k", settings=SLOW)], text) as stack:
        asked = [asyncio.ensure_future(stack.post(stack.chat(max_tokens=10))) for _ in range(8)]
        answers = await asyncio.gather(*asked)
        assert [code for code, _, _ in answers] == [200] * 8
        pools = Counter(line["pool"] for line in stack.lines())
        assert pools["first"] >= 3
        assert pools["second"] >= 1


@pytest.mark.asyncio
async def test_a_dear_substitute_is_not_bought() -> None:
    def text(url: str, other: str) -> str:
        made = two_tiers(url, other)
        return made.replace(
            "context: 16000", "context: 16000\n    prices: {input_usd_per_mtok: 1, output_usd_per_mtok: 100}"
        )

    async with serving([engine(), account("k")], text, limits="policy: {ceiling_usd: 0.001}") as stack:
        stack.engines[0].add_faults([Fault(FaultKind.STATUS, status=500)])
        code, _, _ = await stack.post(stack.chat(max_tokens=5))
        assert (code, stack.lines()[-1]["pool"]) == (200, "second")  # half a milli-dollar
        code, _, _ = await stack.post(stack.chat(max_tokens=500))
        assert (code, stack.lines()[-1]["pool"]) == (502, "first")  # fifty


@pytest.mark.asyncio
async def test_attempts_that_a_provider_may_bill_count_against_the_ceiling() -> None:
    def text(url: str) -> str:
        account = f'account: {{url: "{url}/v1", credentials: [{{name: main, key: k}}]}}'
        return route(
            f"  theirs: {{kind: openai-compatible, capacity: {{seats: 4}}, {account}}}",
            "      - targets: [{pool: theirs, model: sim-large}]\n",
            "prices: {input_usd_per_mtok: 100, output_usd_per_mtok: 100}",
        )

    for fault, tries in ((FaultKind.UNFINISHED, 2), (FaultKind.STATUS, 3)):  # an error status is never billed
        async with serving([account("k")], text, limits="policy: {ceiling_usd: 0.004}") as stack:
            stack.engines[0].add_faults([Fault(fault, tokens=0, status=500)])
            code, _, _ = await stack.post(stack.chat(max_tokens=5))
            assert code == 502
            assert stack.lines()[-1]["attempts"] == tries


@pytest.mark.asyncio
async def test_a_caller_that_leaves_the_line_leaves_nothing_behind() -> None:
    async with serving([engine(), account("k", settings=replace(SLOW, max_seqs=8))], two_tiers) as stack:
        first, second = stack.engines
        first.add_faults([Fault(FaultKind.STATUS, status=500)])
        way = stack.app.pools["second"].polled.spillway
        running = [asyncio.ensure_future(stack.post(stack.chat(max_tokens=60))) for _ in range(6)]
        await until(lambda: len(second.engine.live) == 6)
        leaving = [asyncio.ensure_future(stack.post(stack.chat(max_tokens=60))) for _ in range(5)]
        await until(lambda: way.waiting == 5)
        for one in leaving:
            one.cancel()
        await until(lambda: way.waiting == 0)
        assert [code for code, _, _ in await asyncio.gather(*running)] == [200] * 6
        assert Counter(line["outcome"] for line in stack.lines()) == {"finished": 6, "gone_queued": 5}
        await stack.at_rest()
