"""What limits cost: in process, by lease, and by one call to a real Valkey.

python -m bench.limits            four levels of four dimensions each, one principal
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence

from ratelimit.limit import Dimension, Level, Limit, Refusal, request_amounts
from ratelimit.redis_connect import connect, disconnect
from ratelimit.redis_store import RedisLimiter
from ratelimit.store import LocalLimiter
from tests.ratelimit.servers import Server

LEVELS = (Level.ORGANISATION, Level.TENANT, Level.KEY, Level.TENANT_MODEL)
ROUNDS = 7
RATES = (Dimension.REQUESTS, Dimension.INPUT_TOKENS, Dimension.OUTPUT_TOKENS, Dimension.TOTAL_TOKENS)
MIXED = (Dimension.REQUESTS, Dimension.TOTAL_TOKENS, Dimension.CONCURRENCY, Dimension.MONEY_DAY)
ESTIMATE = request_amounts(1_200, 400, micro_usd=900, worst_micro_usd=2_000)
ACTUAL = request_amounts(1_190, 333, micro_usd=800)
AMOUNTS = {
    Dimension.REQUESTS: 60_000,
    Dimension.CONCURRENCY: 2_000,
    Dimension.MONEY_DAY: 10**12,
    Dimension.MONEY_MONTH: 10**13,
}
TOKENS = 200_000_000


def now() -> int:
    return time.time_ns() // 1_000


def limits(dimensions: Sequence[Dimension], *, exact: bool = False) -> list[Limit]:
    return [
        Limit(level, "acme", d, AMOUNTS.get(d, TOKENS), organisation="acme", exact=exact)
        for level in LEVELS
        for d in dimensions
    ]


def in_process(dimensions: Sequence[Dimension]) -> tuple[float, float]:
    """CPU microseconds of a reserve with its settle, and of a refused reserve; the best of several rounds."""
    limiter = LocalLimiter()
    group = limiter.group(limits(dimensions))
    tight = limiter.group([Limit(Level.KEY, "tight", Dimension.REQUESTS, 1, burst=1), *limits(dimensions)])
    limiter.reserve_now("first", tight, ESTIMATE, now())
    passed = refused = float("inf")
    count = 20_000
    for _ in range(ROUNDS):
        at = now()
        start = time.process_time()
        for n in range(count):
            taken = limiter.reserve_now("r", group, ESTIMATE, at + n * 1_000)
            assert not isinstance(taken, Refusal)
            limiter.settle_now(taken, ACTUAL, at + n * 1_000 + 500)
        passed = min(passed, (time.process_time() - start) / count)
        start = time.process_time()
        for _ in range(count):
            limiter.reserve_now("s", tight, ESTIMATE, at)
        refused = min(refused, (time.process_time() - start) / count)
    return passed * 1e6, refused * 1e6


async def by_lease(url: str) -> tuple[float, float]:
    """Store calls per 50 requests, and CPU microseconds of a request, at 250 requests a second."""
    client = connect(url)
    limiter = RedisLimiter(client, instance="bench", budget_s=1.0)
    await limiter.start()
    group = limiter.group(limits(MIXED))
    for n in range(20):  # warm
        taken = await limiter.reserve(f"w{n}", group, ESTIMATE, now())
        assert not isinstance(taken, Refusal)
        await limiter.settle(taken, ACTUAL, now())
        await asyncio.sleep(0.01)
    before, count, busy = limiter.calls, 0, 0.0
    for burst in range(20):
        start = time.process_time()
        for n in range(50):
            taken = await limiter.reserve(f"l{burst}-{n}", group, ESTIMATE, now())
            assert not isinstance(taken, Refusal)
            await limiter.settle(taken, ACTUAL, now())
        busy += time.process_time() - start
        count += 50
        await asyncio.sleep(0.2)
    calls = (limiter.calls - before) * 50 / count
    await limiter.close()
    await disconnect(client)
    return calls, busy / count * 1e6


async def exact(server: Server, dimensions: Sequence[Dimension]) -> tuple[list[float], float, float]:
    """Seconds of single reserves, reserves per second with 32 waiting at once, and server microseconds of a reserve."""
    client = connect(server.url)
    limiter = RedisLimiter(client, instance="bench", leasing=False, budget_s=5.0)
    await limiter.start()
    group = limiter.group(limits(dimensions, exact=True))
    times = []
    for n in range(1_000):
        start = time.perf_counter()
        taken = await limiter.reserve(f"e{n}", group, ESTIMATE, now())
        times.append(time.perf_counter() - start)
        assert not isinstance(taken, Refusal)
        await limiter.settle(taken, ACTUAL, now())
        await asyncio.sleep(0)
    server.sync().config_resetstat()

    async def client_loop(name: int) -> None:
        for n in range(60):
            taken = await limiter.reserve(f"c{name}-{n}", group, ESTIMATE, now())
            assert not isinstance(taken, Refusal)
            await limiter.settle(taken, ACTUAL, now())

    start = time.perf_counter()
    await asyncio.gather(*(client_loop(n) for n in range(32)))
    rate = 32 * 60 / (time.perf_counter() - start)
    stats = server.sync().info("commandstats")["cmdstat_evalsha"]
    await limiter.close()
    await disconnect(client)
    return times, rate, float(stats["usec_per_call"])


def main() -> None:
    for name, dimensions in (("4 rates", RATES), ("requests, tokens, slots, money", MIXED)):
        passed, refused = in_process(dimensions)
        print(f"in process, 4 levels of {name:31s} reserve + settle {passed:5.2f} us CPU, refused {refused:5.2f} us")
    with Server() as server:
        calls, cpu = asyncio.run(by_lease(server.url))
        print(f"by lease, 4 levels of the last: {calls:.1f} store calls per 50 requests, {cpu:.1f} us CPU a request")
        for name, dimensions in (("4 rates", RATES), ("requests, tokens, slots, money", MIXED)):
            server.sync().flushall()
            times, rate, server_us = asyncio.run(exact(server, dimensions))
            quantiles = statistics.quantiles(times, n=100)
            print(
                f"by call, 4 levels of {name:31s} p50 {quantiles[49] * 1e3:.2f} ms, p99 {quantiles[98] * 1e3:.2f} ms; "
                f"32 at once {rate:,.0f} reserve + settle/s; {server_us:.0f} us in the server a script call"
            )


if __name__ == "__main__":
    main()
