"""The watcher: what a poll says, no overlap, nobody delays anybody, clean start and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from providers.watch import Observation, Watched, Watcher, WatchSettings, aiohttp_get

PAGE = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
"""
FAST = WatchSettings(interval_s=0.01, jitter=0.0, budget_s=0.05)


def watched(name: str = "a", health: str | None = "h", metrics: str | None = "m") -> Watched:
    return Watched(name, "vllm", health and f"http://{name}/{health}", metrics and f"http://{name}/{metrics}")


def answering(health: int | Exception, metrics: int | Exception = 200) -> Callable[[str], Awaitable[tuple[int, str]]]:
    async def get(url: str) -> tuple[int, str]:
        given = health if url.endswith("/h") else metrics
        if isinstance(given, Exception):
            raise given
        return given, PAGE

    return get


async def polled(get: Callable[[str], Awaitable[tuple[int, str]]], one: Watched) -> Observation:
    return await Watcher(get, lambda seen: None, lambda: 0.5, FAST).poll(one)


@pytest.mark.asyncio
async def test_a_good_poll_hands_over_health_and_figures() -> None:
    seen = await polled(answering(200), watched())
    assert (seen.replica, seen.healthy, seen.error) == ("a", True, None)
    assert seen.figures is not None
    assert (seen.figures.running, seen.figures.waiting, seen.figures.kv_used_ratio) == (3, 1, 0.25)


@pytest.mark.parametrize(
    ("health", "metrics", "healthy", "error"),
    [
        (503, 200, False, "health: status 503"),
        (ConnectionRefusedError("refused"), 200, False, "health: ConnectionRefusedError: refused"),
        (404, 200, True, "health: status 404"),
        (200, 500, True, "metrics: status 500"),
        (TimeoutError(), TimeoutError(), None, "health: no answer within 0.05 s; metrics: no answer within 0.05 s"),
        (404, 501, None, "health: status 404; metrics: status 501"),
        (ValueError("odd"), 404, None, "health: ValueError: odd; metrics: status 404"),
    ],
)
@pytest.mark.asyncio
async def test_what_a_poll_says(
    health: int | Exception, metrics: int | Exception, healthy: bool | None, error: str
) -> None:
    seen = await polled(answering(health, metrics), watched())
    assert (seen.healthy, seen.error) == (healthy, error)
    assert (seen.figures is None) == (metrics != 200)


@pytest.mark.asyncio
async def test_a_replica_without_pages_is_neither_well_nor_ill() -> None:
    seen = await polled(answering(200), watched(health=None, metrics=None))
    assert (seen.healthy, seen.figures, seen.error) == (None, None, None)


@pytest.mark.asyncio
async def test_polls_of_one_replica_never_overlap_and_a_hung_one_delays_nobody() -> None:
    running: dict[str, int] = {}
    most: dict[str, int] = {}
    polls: dict[str, int] = {"dead": 0, "quick": 0}
    enough = asyncio.Event()

    async def get(url: str) -> tuple[int, str]:
        running[url] = running.get(url, 0) + 1
        most[url] = max(most.get(url, 0), running[url])
        try:
            if "dead" in url:
                await asyncio.Event().wait()
            return 200, PAGE
        finally:
            running[url] -= 1

    def sink(seen: Observation) -> None:
        polls[seen.replica] += 1
        if polls["dead"] >= 3:
            enough.set()

    watcher = Watcher(get, sink, lambda: 0.5, FAST)
    watcher.add(watched("dead"))
    watcher.add(watched("quick"))
    await watcher.start()
    await enough.wait()
    await watcher.stop()
    assert set(most.values()) == {1}
    assert polls["quick"] > 2 * polls["dead"]
    assert set(running.values()) == {0}


@pytest.mark.asyncio
async def test_nothing_is_seen_after_stop_or_remove_and_no_task_is_left() -> None:
    seen: list[str] = []
    got = asyncio.Event()

    def sink(observation: Observation) -> None:
        seen.append(observation.replica)
        if len(seen) >= 6:
            got.set()

    watcher = Watcher(answering(200), sink, lambda: 0.5, FAST)
    watcher.add(watched("a"))
    await watcher.start()
    watcher.add(watched("b"))
    await got.wait()
    await watcher.remove("a")
    seen.clear()
    got.clear()
    await got.wait()
    assert set(seen) == {"b"}
    await watcher.stop()
    await watcher.stop()
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("watch")] == []
    got.clear()
    seen.clear()
    await watcher.start()
    await got.wait()
    await watcher.stop()
    assert set(seen) == {"b"}


@pytest.mark.asyncio
async def test_adding_a_name_again_replaces_its_watch() -> None:
    asked: list[str] = []
    got = asyncio.Event()

    async def get(url: str) -> tuple[int, str]:
        asked.append(url)
        if url == "http://new/h" and asked.count(url) > 2:
            got.set()
        return 200, ""

    watcher = Watcher(get, lambda seen: None, lambda: 0.5, FAST)
    watcher.add(Watched("a", "vllm", "http://old/h", None))
    await watcher.start()
    await asyncio.sleep(0)
    watcher.add(Watched("a", "vllm", "http://new/h", None))
    await got.wait()
    await watcher.stop()
    assert asked[-1] == "http://new/h"
    assert "http://old/h" not in asked[2:]


@pytest.mark.asyncio
async def test_a_receiver_that_fails_does_not_blind_the_watch() -> None:
    calls = 0
    enough = asyncio.Event()

    def sink(seen: Observation) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            enough.set()
        raise RuntimeError("full")

    watcher = Watcher(answering(200), sink, lambda: 0.5, FAST)
    watcher.add(watched())
    await watcher.start()
    await enough.wait()
    await watcher.stop()
    assert watcher.sink_errors == 3
    assert watcher.last_sink_error == "RuntimeError: full"


@pytest.mark.asyncio
async def test_over_real_sockets_a_page_is_read_and_a_closed_port_is_unhealthy() -> None:
    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text=PAGE)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/health", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    one = Watched("a", "vllm", f"http://127.0.0.1:{port}/health", f"http://127.0.0.1:{port}/metrics")
    slow = WatchSettings(budget_s=5.0)
    async with aiohttp.ClientSession() as session:
        watcher = Watcher(aiohttp_get(session), lambda seen: None, lambda: 0.5, slow)
        alive = await watcher.poll(one)
        await runner.cleanup()
        dead = await watcher.poll(one)
    assert (alive.healthy, alive.figures is not None, alive.error) == (True, True, None)
    assert (dead.healthy, dead.figures) == (False, None)


@pytest.mark.parametrize(
    ("page", "models"),
    [
        ('{"data":[{"id":"base"},{"id":"ad","parent":"base"},{"x":1},7]}', (("base", None), ("ad", "base"))),
        ('{"data":[]}', ()),
        ('{"models":[]}', None),
        ("[1]", None),
        ("no JSON", None),
    ],
)
@pytest.mark.asyncio
async def test_models_and_adapters_are_listed_where_they_are_asked_for(
    page: str, models: tuple[tuple[str, str | None], ...] | None
) -> None:
    async def get(url: str) -> tuple[int, str]:
        return 200, page

    seen = await polled(get, Watched("a", "ollama", "http://a/h", None, "http://a/models"))
    assert seen.healthy is True
    assert (seen.models and tuple((one.name, one.parent) for one in seen.models)) == models or models == ()
    assert (seen.models is None) == (models is None)
