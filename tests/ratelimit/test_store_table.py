"""The table of cases against the script: in fakeredis, in a real Valkey, and in a Valkey cluster."""

from __future__ import annotations

from typing import Any

import fakeredis
import pytest
from redis.asyncio.cluster import RedisCluster

from ratelimit.redis_calls import Client
from ratelimit.redis_connect import connect, disconnect
from ratelimit.redis_store import RedisLimiter
from tests.ratelimit.cases import CASES, Case, drive
from tests.ratelimit.servers import Server

SLOW_MACHINE_S = 5.0
"""These tests are about sums, not about time: no call is given up on."""


async def run(client: Client, case: Case) -> None:
    limiter = RedisLimiter(client, instance="one", leasing=False, server_time=False, budget_s=SLOW_MACHINE_S)
    await drive(limiter, case, limiter.flush)
    assert limiter.snapshot().records_lost == 0
    await limiter.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
async def test_case_in_fakeredis(case: Case) -> None:
    client = fakeredis.FakeAsyncRedis()
    await run(client, case)
    await client.aclose()


@pytest.mark.asyncio
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
async def test_case_in_valkey(valkey: Server, case: Case) -> None:
    client = connect(valkey.url)
    await run(client, case)
    store = valkey.sync()
    assert [key for key in store.scan_iter() if store.ttl(key) < 0] == [], "every key expires"
    await disconnect(client)


@pytest.mark.asyncio
async def test_all_cases_in_a_cluster(cluster_url: str) -> None:
    client: Any = connect(cluster_url)
    for case in CASES:
        await client.flushall(target_nodes=RedisCluster.PRIMARIES)
        await run(client, case)
    await disconnect(client)
