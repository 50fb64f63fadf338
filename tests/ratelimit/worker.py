"""A process of its own that spends limits: for races between processes, and for being killed.

python -m tests.ratelimit.worker race URL LIMITS TRIES       prints how many were admitted, after a line on stdin
python -m tests.ratelimit.worker hold URL HOW_MANY HOLD_S    holds reservations and never settles them
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from ratelimit.limit import Refusal
from ratelimit.redis_connect import connect, disconnect
from ratelimit.redis_store import RedisLimiter
from tests.ratelimit.cases import CONC, ONE, OTPM, RPM, USD_DAY, limit, tok


def now() -> int:
    return time.time_ns() // 1_000


def say(what: object) -> None:
    """A line for the process that started this one."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


async def race(url: str, burst: int, tries: int) -> None:
    client = connect(url)
    limiter = RedisLimiter(client, instance=f"p{os.getpid()}", leasing=False, budget_s=20.0)
    group = limiter.group([limit(RPM, 1, burst, period_s=86_400), limit(CONC, 10_000)])
    say("ready")
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    decided = await asyncio.gather(*(limiter.reserve(f"{os.getpid()}-{n}", group, ONE, now()) for n in range(tries)))
    say(sum(not isinstance(d, Refusal) for d in decided))
    await limiter.close()
    await disconnect(client)


async def hold(url: str, count: int, hold_s: float) -> None:
    client = connect(url)
    limiter = RedisLimiter(client, instance="doomed", hold_s=hold_s, refresh_s=0.05, lease_s=0.2, budget_s=20.0)
    await limiter.start()
    group = limiter.group([limit(CONC, 40), limit(OTPM, 1, 10_000, period_s=86_400, exact=True), limit(USD_DAY, 10**6)])
    taken = [await limiter.reserve(f"h{n}", group, tok(0, 1_000, 500), now()) for n in range(count)]
    for reservation in taken:
        assert not isinstance(reservation, Refusal), reservation
        await limiter.progress(reservation, tok(0, 70, 20), now())
    await limiter.flush(now())
    leasable = limiter.group([limit(CONC, 40)])
    for n in range(3):
        await limiter.reserve(f"l{n}", leasable, ONE, now())
        await asyncio.sleep(0.02)
    say(limiter.snapshot().admitted)
    await asyncio.sleep(600)


if __name__ == "__main__":
    what, address, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    asyncio.run(
        race(address, number, int(sys.argv[4])) if what == "race" else hold(address, number, float(sys.argv[4]))
    )
