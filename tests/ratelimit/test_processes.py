"""Real processes over a real Valkey: a race for a burst, a process killed with its slots, a primary with its data."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

import pytest

from ratelimit.limit import Amounts, Level, Limit, Mode, Reason, Refusal
from ratelimit.redis_connect import connect, disconnect
from ratelimit.redis_store import RedisLimiter
from ratelimit.reservation import Decider, Reservation
from ratelimit.store import StoreMode
from tests.ratelimit.cases import CONC, ITPM, ONE, OTPM, RPM, SECOND, USD_DAY, limit, tok
from tests.ratelimit.servers import Server, until


def now() -> int:
    return time.time_ns() // 1_000


def admitted(decided: Reservation | Refusal) -> Reservation:
    assert isinstance(decided, Reservation), decided
    return decided


def worker(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.ratelimit.worker", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_racing_processes_admit_the_burst_exactly(valkey: Server) -> None:
    processes = [worker("race", valkey.url, 50, 40) for _ in range(3)]
    try:
        assert [line(p) for p in processes] == ["ready"] * 3
        for p in processes:
            assert p.stdin is not None
            p.stdin.write("go\n")
            p.stdin.flush()
        assert sum(int(line(p)) for p in processes) == 50
    finally:
        for p in processes:
            p.communicate(timeout=30)


@pytest.mark.asyncio
async def test_a_killed_process_gives_back_its_slots_and_is_charged_what_it_streamed(valkey: Server) -> None:
    process = worker("hold", valkey.url, 5, 0.3)
    assert "STORE" in await asyncio.to_thread(line, process)
    store = valkey.sync()
    slots = "weighbridge:limit:{o:acme}:tenant:acme:concurrency"
    assert int(store.zcard(slots)) >= 8
    process.kill()
    process.communicate()
    killed = time.monotonic()

    client = connect(valkey.url)
    limiter = RedisLimiter(client, instance="heir", hold_s=0.3, refresh_s=0.05, lease_s=0.2, budget_s=5.0)
    await limiter.start()
    group = limiter.group([limit(CONC, 40), limit(OTPM, 1, 10_000, period_s=86_400, exact=True), limit(USD_DAY, 10**6)])
    while True:
        probe = await limiter.reserve(f"probe{time.monotonic()}", group, Amounts(), now())
        left = [s.remaining for s in limiter.standings(probe, now())]
        if isinstance(probe, Reservation):
            await limiter.settle(probe, Amounts(), now())
        if left == [39, 10_000 - 5 * 70, 10**6 - 5 * 20]:
            break
        assert time.monotonic() < killed + 15, left
        await asyncio.sleep(0.02)
    assert limiter.snapshot().swept >= 5
    await limiter.close()
    assert int(store.zcard(slots)) == 0
    await disconnect(client)


@pytest.mark.asyncio
async def test_a_process_that_was_only_paused_settles_the_true_figure_after_it_was_swept(valkey: Server) -> None:
    clients = [connect(valkey.url), connect(valkey.url)]
    paused, other = (
        RedisLimiter(c, instance=n, hold_s=10, leasing=False, server_time=False, budget_s=5.0)
        for c, n in zip(clients, "ab", strict=True)
    )
    limits = [limit(OTPM, 1, 10_000, period_s=86_400), limit(CONC, 9), limit(USD_DAY, 10_000)]
    at = now()
    taken = admitted(await paused.reserve("x", limits, tok(0, 4_000, 4_000), at))
    await paused.progress(taken, tok(0, 500, 500), at)
    await paused.flush(at)
    group = other.group(limits)
    await other.tick(at + 11 * SECOND)
    swept = admitted(await other.reserve("y", group, Amounts(), at + 11 * SECOND))
    assert [s.remaining for s in other.standings(swept, at)] == [9_500, 8, 9_500]
    await paused.progress(taken, tok(0, 900, 900), at + 12 * SECOND)  # it wakes up, and is still running
    await paused.flush(at + 12 * SECOND)
    woken = admitted(await other.reserve("z", group, Amounts(), at + 12 * SECOND))
    assert [s.remaining for s in other.standings(woken, at)] == [6_000, 6, 6_000], "its estimate is held again"
    await paused.settle(taken, tok(0, 1_200, 1_200), at + 13 * SECOND)
    await paused.flush(at + 13 * SECOND)
    after = admitted(await other.reserve("w", group, Amounts(), at + 13 * SECOND))
    assert [s.remaining for s in other.standings(after, at)] == [8_800, 6, 8_800]
    for limiter, client in ((paused, clients[0]), (other, clients[1])):
        await limiter.close()
        await disconnect(client)


def replicated(stack: ExitStack) -> tuple[Server, Server, Server]:
    """A primary with one replica, and a Sentinel that watches them."""
    primary = stack.enter_context(Server())
    replica = stack.enter_context(Server("--replicaof", f"127.0.0.1 {primary.port}"))
    until(lambda: replica.sync().info("replication")["master_link_status"] == "up", "the replica follows")
    watch = (
        f"sentinel monitor fleet 127.0.0.1 {primary.port} 1\n"
        "sentinel down-after-milliseconds fleet 300\nsentinel failover-timeout fleet 2000"
    )
    sentinel = stack.enter_context(Server(sentinel=watch))
    until(lambda: bool(sentinel.sync().execute_command("SENTINEL", "REPLICAS", "fleet")), "Sentinel knows the replica")
    return primary, replica, sentinel


@pytest.mark.asyncio
async def test_failover_loses_no_confirmed_write_and_running_requests_tell_the_new_primary() -> None:
    with ExitStack() as stack:
        primary, replica, sentinel = replicated(stack)
        client = connect(f"redis+sentinel://127.0.0.1:{sentinel.port}/fleet")
        limiter = RedisLimiter(client, instance="one", refresh_s=0.05, hold_s=0.6, wait_replicas=1, budget_s=1.0)
        await limiter.start()
        assert limiter.status().ready
        exact = limiter.group([limit(ITPM, 1, 10_000, period_s=86_400, exact=True), limit(CONC, 9)])
        running = admitted(await limiter.reserve("running", exact, tok(4_000), now()))
        assert limiter.snapshot().unconfirmed == 0
        primary.kill()
        shared = False
        for n in range(2_000):
            decided = await limiter.reserve(f"n{n}", exact, tok(100), now())
            if isinstance(decided, Reservation):
                await limiter.settle(decided, Amounts(), now())
                if decided.by is Decider.STORE:
                    shared = True
                    break
            await asyncio.sleep(0.01)
        assert shared, "the new primary answers"
        assert replica.sync().info("replication")["role"] == "master"
        refused = await limiter.reserve("large", exact, tok(7_000), now())
        assert isinstance(refused, Refusal), "what the old primary had confirmed is remembered"
        # No replica is left to confirm: counted, and a limit that would rather refuse does.
        assert limiter.snapshot().unconfirmed >= 1
        closed = [limit(RPM, 600, 100, exact=True, mode=Mode.CLOSED)]
        said = await limiter.reserve("closed", closed, ONE, now())
        assert isinstance(said, Refusal)
        assert said.reason is Reason.STORE_UNAVAILABLE
        await limiter.settle(running, tok(4_000), now())
        await limiter.close()
        await disconnect(client)


@pytest.mark.asyncio
async def test_a_store_that_lost_everything_hears_of_running_requests_again(valkey: Server) -> None:
    client = connect(valkey.url)
    limiter = RedisLimiter(client, instance="one", hold_s=3, leasing=False, server_time=False, budget_s=5.0)
    at = now()
    limits = [limit(ITPM, 1, 10_000, period_s=86_400), limit(CONC, 9), limit(USD_DAY, 10_000)]
    taken = admitted(await limiter.reserve("x", limits, tok(4_000, 0, 300), at))
    valkey.sync().flushall()
    await limiter.tick(at + 2 * SECOND)
    seen = admitted(await limiter.reserve("y", limits, Amounts(), at + 2 * SECOND))
    assert [s.remaining for s in limiter.standings(seen, at)] == [6_000, 7, 9_700]
    assert limiter.snapshot().records_lost == 1
    await limiter.settle(taken, tok(1_000, 0, 100), at + 2 * SECOND)
    await limiter.flush(at + 2 * SECOND)
    after = admitted(await limiter.reserve("z", limits, Amounts(), at + 2 * SECOND))
    assert [s.remaining for s in limiter.standings(after, at)] == [9_000, 7, 9_900]
    await limiter.close()
    await disconnect(client)


@pytest.mark.asyncio
async def test_a_cluster_decides_an_organisation_in_one_call_and_a_ceiling_by_lease(cluster_url: str) -> None:
    client: Any = connect(cluster_url)
    limiter = RedisLimiter(client, instance="one", budget_s=5.0)
    await limiter.start()
    assert limiter.status().mode is StoreMode.SHARED
    ceiling = limit(RPM, 6_000, 1_000, Level.MODEL)
    passed = 0
    for name in ("red", "blue", "green", "grey"):
        organisation = Limit(Level.ORGANISATION, name, ITPM, 60, burst=1_000, organisation=name)
        tenant = Limit(Level.TENANT, name, RPM, 6_000, burst=1_000, organisation=name)
        group = limiter.group([ceiling, organisation, tenant])
        before = limiter.calls
        decided = [await limiter.reserve(f"{name}{n}", group, tok(100), now()) for n in range(11)]
        assert limiter.calls - before < 2 * 11, "one call a request, and few for leases"
        passed += sum(isinstance(d, Reservation) for d in decided)
        for d in decided:
            if isinstance(d, Reservation):
                await limiter.settle(d, tok(90), now())
    assert passed == 40
    await limiter.close()
    await disconnect(client)


@pytest.mark.asyncio
async def test_a_cluster_confirms_exact_limits_or_says_that_it_does_not(cluster_url: str) -> None:
    client: Any = connect(cluster_url)
    limiter = RedisLimiter(client, instance="two", wait_replicas=1, budget_s=2.0)
    taken = admitted(await limiter.reserve("e", [limit(RPM, 600, 100, exact=True)], ONE, now()))
    assert limiter.snapshot().unconfirmed == 1, "these nodes have no replicas"
    await limiter.settle(taken, Amounts(), now())
    await limiter.close()
    await disconnect(client)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://x", "unknown limit store URL scheme 'http'"),
        ("redis+sentinel://h:1", "needs the service name"),
        ("redis+cluster://", "no host in ''"),
    ],
)
def test_a_wrong_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        connect(url)
