"""Polls replicas for health and metrics and hands numbers to the core.

One task per replica, so a slow or dead one delays nobody; polls of one replica never overlap, since its task waits for
one to end before it sleeps until the next. Each poll fetches the health and the metrics page side by side within a
budget and hands one `Observation` to a callback. Nothing is decided here.

What a poll says of health: an answer below 300 is well; a 5xx, a refused or broken connection is not; anything else
(no such page, a time-out of a busy server) says nothing, and then the metrics page is asked the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

import aiohttp
import orjson

from providers.engines import EngineFigures, parse_metrics

Get = Callable[[str], Awaitable[tuple[int, str]]]
"""Fetches a URL: its status and its text. Raises OSError or aiohttp.ClientError when the server cannot be reached."""

MAX_PAGE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Watched:
    """One replica to poll. A URL that is None is not asked for."""

    name: str
    kind: str
    health_url: str | None
    metrics_url: str | None
    models_url: str | None = None
    """Lists its models and adapters; asked only where adapters matter."""


@dataclass(frozen=True, slots=True)
class Served:
    """One model that a server lists. `parent` is the base model of an adapter."""

    name: str
    parent: str | None


@dataclass(frozen=True, slots=True)
class Observation:
    """What one poll found."""

    replica: str
    at: float
    """When the answer was there, monotonic seconds."""
    healthy: bool | None
    """None: the poll says nothing, not even that the replica is there."""
    figures: EngineFigures | None
    """None: no metrics, or none that could be read."""
    error: str | None
    """What went wrong, for people; None when nothing did."""
    took_s: float
    models: tuple[Served, ...] | None = None
    """None: not asked, or no answer."""


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """Times in seconds."""

    interval_s: float = 1.0
    jitter: float = 0.1
    """The part of the interval by which each pause differs, both ways."""
    budget_s: float = 2.0
    """What one poll may take."""


DEFAULT = WatchSettings()


def aiohttp_get(session: aiohttp.ClientSession, headers: Mapping[str, str] | None = None) -> Get:
    """A `Get` on an aiohttp session, which the caller opens and closes. Pages above 8 MiB are cut off."""

    async def get(url: str) -> tuple[int, str]:
        async with session.get(url, headers=headers, allow_redirects=False) as answer:
            body = await answer.content.read(MAX_PAGE_BYTES)
            while len(body) < MAX_PAGE_BYTES and (more := await answer.content.read(MAX_PAGE_BYTES - len(body))):
                body += more
            return answer.status, body.decode("utf-8", "replace")

    return get


def aiohttp_post(
    session: aiohttp.ClientSession, headers: Mapping[str, str] | None = None
) -> Callable[[str, dict[str, str]], Awaitable[tuple[int, str]]]:
    """Posts JSON on a session: status and text. Raises OSError when the server cannot be reached, TimeoutError."""

    async def post(url: str, body: dict[str, str]) -> tuple[int, str]:
        try:
            async with session.post(url, json=body, headers=headers, allow_redirects=False) as answer:
                return answer.status, (await answer.content.read(MAX_PAGE_BYTES)).decode("utf-8", "replace")
        except aiohttp.ClientError as fault:
            raise OSError(f"{type(fault).__name__}: {fault}") from fault

    return post


class Watcher:
    """Polls replicas from `start` to `stop`. `sink` is called in the event loop and must not block."""

    def __init__(
        self,
        get: Get,
        sink: Callable[[Observation], None],
        uniform: Callable[[], float],
        settings: WatchSettings = DEFAULT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`uniform` gives numbers in [0, 1) for the jitter."""
        self._get = get
        self._sink = sink
        self._uniform = uniform
        self._settings = settings
        self._clock = clock
        self._watched: dict[str, Watched] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running = False
        self.sink_errors = 0
        """Calls of `sink` that raised; the watch goes on."""
        self.last_sink_error: str | None = None

    def every(self, interval_s: float) -> None:
        """Another interval between polls, from the next one on."""
        self._settings = replace(self._settings, interval_s=interval_s)

    def add(self, watched: Watched) -> None:
        """Watch one more replica, or the same name anew. Polls begin at once if started."""
        self._watched[watched.name] = watched
        if self._running:
            self._begin(watched)

    async def remove(self, name: str) -> None:
        """Stop watching; no observation of `name` comes after this returns."""
        self._watched.pop(name, None)
        await _ended([self._tasks.pop(name)] if name in self._tasks else [])

    async def start(self) -> None:
        """Begin polling. Does nothing when already started."""
        if not self._running:
            self._running = True
            for watched in self._watched.values():
                self._begin(watched)

    async def stop(self) -> None:
        """Stop polling; no observation comes after this returns. Can be started again."""
        self._running = False
        tasks = list(self._tasks.values())
        self._tasks.clear()
        await _ended(tasks)

    async def poll(self, watched: Watched) -> Observation:
        """One poll, without the callback. Takes at most the budget and never raises for what the replica does."""
        began = self._clock()
        health, metrics, models = await asyncio.gather(
            self._fetch(watched.health_url), self._fetch(watched.metrics_url), self._fetch(watched.models_url)
        )
        errors = []
        healthy: bool | None = None
        if watched.health_url is not None:
            healthy = health.healthy
            if health.error:
                errors.append(f"health: {health.error}")
        figures = None
        if watched.metrics_url is not None:
            if metrics.text is None:
                errors.append(f"metrics: {metrics.error}")
            else:
                try:
                    figures = parse_metrics(watched.kind, metrics.text)
                except Exception as fault:  # a page that breaks the parser must not end the watch
                    errors.append(f"metrics: unreadable ({type(fault).__name__}: {fault})")
            if healthy is None:
                healthy = metrics.healthy
        served = None if models.text is None else read_models(models.text)
        now = self._clock()
        return Observation(watched.name, now, healthy, figures, "; ".join(errors) or None, now - began, served)

    async def look(self, name: str) -> Observation | None:
        """One poll of a replica by its name, without the callback; None when it is not watched."""
        watched = self._watched.get(name)
        return None if watched is None else await self.poll(watched)

    def _begin(self, watched: Watched) -> None:
        before = self._tasks.pop(watched.name, None)
        if before is not None:
            before.cancel()
        self._tasks[watched.name] = asyncio.create_task(self._watch(watched, before), name=f"watch {watched.name}")

    async def _watch(self, watched: Watched, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await _ended([before])
        while True:
            began = self._clock()
            observation = await self.poll(watched)
            try:
                self._sink(observation)
            except Exception as fault:  # a fault of the receiver must not blind the gateway
                self.sink_errors += 1
                self.last_sink_error = f"{type(fault).__name__}: {fault}"
            settings = self._settings
            spread = 1.0 + settings.jitter * (2.0 * self._uniform() - 1.0)
            await asyncio.sleep(max(0.0, settings.interval_s * spread - (self._clock() - began)))

    async def _fetch(self, url: str | None) -> _Page:
        if url is None:
            return _Page(None, None, None)
        try:
            async with asyncio.timeout(self._settings.budget_s):
                status, text = await self._get(url)
        except TimeoutError:
            return _Page(None, None, f"no answer within {self._settings.budget_s:g} s")
        except (OSError, aiohttp.ClientError) as fault:
            return _Page(None, False, f"{type(fault).__name__}: {fault}")
        except Exception as fault:
            return _Page(None, None, f"{type(fault).__name__}: {fault}")
        if status < 300:
            return _Page(text, True, None)
        return _Page(None, False if status >= 500 and status != 501 else None, f"status {status}")


def read_models(text: str) -> tuple[Served, ...] | None:
    """What a list of models names; None for what is no such list."""
    try:
        listed = orjson.loads(text)["data"]
        return tuple(
            Served(entry["id"], parent if isinstance(parent := entry.get("parent"), str) else None)
            for entry in listed
            if isinstance(entry, dict) and isinstance(entry.get("id"), str)
        )
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class _Page:
    text: str | None
    healthy: bool | None
    error: str | None


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
