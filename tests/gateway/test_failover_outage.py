"""Hours of outage in virtual time: the whole gateway, with a clock that jumps and upstreams without sockets.

The first tier is gone for four hours. The second is an account of six seats, dearer and not ours to flood. What must
hold throughout: people's time to first token, five seats at most at the account, no call that only repeats a failure,
every budget and every ceiling; and a return without a wave.
"""

from __future__ import annotations

import asyncio
import random
import types
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson
import pytest

from gateway import clock as clock_module
from gateway import config, keys
from gateway.app import App
from gateway.clock import Clock
from providers.transport import ConnectFailed, Origin
from tests.gateway.failover import route
from tests.transport.virtual import VirtualLoop, run

PEOPLE, JOBS, SPARING, FRUGAL = (keys.mint(f"k{n}", bytes([n] * 32)) for n in range(4))
TOKENS = 40  # of each answer
SEATS = 6

POOLS = route(
    """  ours:
    kind: simulated
    replicas: [{name: a, url: "http://10.0.0.1:8000"}]
    capacity: {seats: 64, kv_tokens: 200000, chunk_tokens: 4096}
    failure_domain: {vendor: self}
  theirs:
    kind: openai-compatible
    account: {url: "https://10.0.0.2/v1", credentials: [{name: main, key: k}]}
    capacity: {seats: 6}
    failure_domain: {vendor: there}""",
    """      - targets: [{pool: ours, model: m, prices: {input_usd_per_mtok: 1, output_usd_per_mtok: 10}}]
      - targets: [{pool: theirs, model: m, prices: {input_usd_per_mtok: 10, output_usd_per_mtok: 100}}]
""",
)
TENANTS = f"""
tenants:
  people: {{keys: [{{id: k0, hash: "{keys.digest(PEOPLE)}"}}]}}
  jobs: {{class: batch, keys: [{{id: k1, hash: "{keys.digest(JOBS)}"}}]}}
  sparing: {{policy: {{ceiling_usd: 0.001}}, keys: [{{id: k2, hash: "{keys.digest(SPARING)}"}}]}}
  frugal: {{limits: {{usd_per_day: 0.5}}, keys: [{{id: k3, hash: "{keys.digest(FRUGAL)}"}}]}}
"""


@dataclass
class Upstream:
    """Answers after `first` seconds, a token each `each` seconds, slower in proportion when more than its seats run."""

    loop: VirtualLoop
    first: float
    each: float
    seats: int
    down: tuple[float, float] = (0.0, 0.0)
    running: int = 0
    peak: int = 0
    calls: list[float] = field(default_factory=list)


class Coming:
    """One answer on its way."""

    status = 200
    headers = (("content-type", "text/event-stream"),)
    connect_s = 0.0
    idle_s = 0.0
    abides = False

    def __init__(self, upstream: Upstream, prompt: int) -> None:
        self._upstream = upstream
        self._slow = max(1.0, upstream.running / upstream.seats)
        self._prompt = prompt
        self._step = 0
        self._open = True

    def _chunk(self, delta: dict[str, object], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return b"data: %b\n\n" % orjson.dumps({"id": "x", "created": 1, "model": "m", "choices": [choice]})

    async def read(self) -> bytes:
        self._step += 1
        if self._step == 1:
            await asyncio.sleep(self._upstream.first * self._slow)
            return self._chunk({"role": "assistant", "content": "a"})
        if self._step == 2:
            await asyncio.sleep(self._upstream.each * self._slow * TOKENS)
            usage = {"prompt_tokens": self._prompt, "completion_tokens": TOKENS, "total_tokens": self._prompt + TOKENS}
            tail = {"id": "x", "created": 1, "model": "m", "choices": [], "usage": usage}
            told = self._chunk({"content": "b"}) * (TOKENS - 1) + self._chunk({}, "stop")
            return told + b"data: %b\n\ndata: [DONE]\n\n" % orjson.dumps(tail)
        self.close()
        return b""

    def close(self) -> None:
        if self._open:
            self._open = False
            self._upstream.running -= 1


class Wires:
    """In the place of the transport."""

    def __init__(self, loop: VirtualLoop, by_host: dict[str, Upstream]) -> None:
        self._loop = loop
        self._by_host = by_host

    async def send(self, origin: Origin, method: str, path: str, headers: object, body: bytes, *rest: object) -> Coming:
        upstream = self._by_host[origin.host]
        now = self._loop.now
        upstream.calls.append(now)
        if upstream.down[0] <= now < upstream.down[1]:
            await asyncio.sleep(0.01)
            raise ConnectFailed("refused")
        upstream.running += 1
        upstream.peak = max(upstream.peak, upstream.running)
        for went in rest[1:]:
            went()  # type: ignore[operator]
        return Coming(upstream, len(body) // 4)

    async def close(self) -> None:
        pass


class Asked:
    """One request and what its caller saw."""

    method, path, peer, gone = "POST", "/v1/chat/completions", "10.9.9.9", False

    def __init__(self, loop: VirtualLoop, key: str, body: bytes) -> None:
        self._loop = loop
        self._headers = {"authorization": f"Bearer {key}"}
        self._body = body
        self.started = False
        self.at = loop.now
        self.first: float | None = None
        self.status = 0
        self.tier = 1

    def header(self, name: str) -> str | None:
        return self._headers.get(name)

    async def body(self, limit: int, timeout_s: float) -> bytes:
        return self._body

    async def respond(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        self.status = status

    async def head(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self.started, self.status = True, status
        self.tier = int(dict(headers).get("x-weighbridge-tier", "1"))
        self.first = self._loop.now - self.at

    async def write(self, data: bytes) -> None:
        pass

    async def end(self) -> None:
        pass

    def abort(self) -> None:
        pass


@dataclass
class Day:
    """What a run showed."""

    asked: list[tuple[str, Asked]]
    ours: Upstream
    theirs: Upstream
    spent: Counter[str]


def live_through(
    monkeypatch: pytest.MonkeyPatch, outage_s: float, *, rate: float = 0.5, before: float = 60.0, after: float = 600.0
) -> Day:
    """`before` seconds of calm, the outage, `after` seconds of return; people and jobs ask `rate` times a second."""
    seen: list[Day] = []

    async def main(loop: VirtualLoop) -> None:
        wall = types.SimpleNamespace(monotonic=lambda: loop.now, time=lambda: 1.8e9 + loop.now)
        monkeypatch.setattr(clock_module, "time", wall)
        monkeypatch.setattr(Clock, "monotonic", staticmethod(lambda: loop.now))
        text = "listen: {port: 0}\nadmin: {port: 0, key: admin-key-for-tests}\n" + POOLS + TENANTS
        app = App(config.parse(text, "test.yaml", {}).config)
        start = loop.now
        ours = Upstream(loop, 0.2, 0.02, 64, (start + before, start + before + outage_s))
        theirs = Upstream(loop, 0.4, 0.04, SEATS)
        app.lifecycle._dispatcher._transport = Wires(loop, {"10.0.0.1": ours, "10.0.0.2": theirs})  # type: ignore[assignment]
        rng = random.Random(7)
        random.seed(7)  # the gateway's own jitter
        asked: list[tuple[str, Asked]] = []
        spent: Counter[str] = Counter()
        tasks: set[asyncio.Task[None]] = set()
        settle = app.lifecycle._settler._log.write
        app.lifecycle._settler._log.write = lambda line: spent.update({line["tenant"]: line["micro_usd"]})  # type: ignore
        assert settle is not None
        rates = {"people": (PEOPLE, rate), "jobs": (JOBS, rate), "sparing": (SPARING, 0.02), "frugal": (FRUGAL, 0.05)}
        names = list(rates)
        total = sum(each for _, each in rates.values())
        body = {"model": "chat-large", "stream": True, "max_tokens": 100, "temperature": 1}
        while loop.now < start + before + outage_s + after:
            await asyncio.sleep(rng.expovariate(total))
            name = rng.choices(names, [rates[one][1] for one in names])[0]
            said = {**body, "messages": [{"role": "user", "content": "weigh this " * rng.randrange(10, 60)}]}
            one = Asked(loop, rates[name][0], orjson.dumps(said))
            asked.append((name, one))
            task = loop.create_task(app.lifecycle.serve(one))  # type: ignore[arg-type]
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            if len(asked) % 100 == 0:
                for parts in app.pools.values():
                    parts.polled.keep(loop.now)
        await asyncio.gather(*tasks)
        assert app.limiter.snapshot().open == 0
        assert theirs.running == ours.running == 0
        for parts in app.pools.values():
            assert parts.polled.spillway.waiting == 0
            await app._close_parts(parts)
        seen.append(Day(asked, ours, theirs, spent))

    run(main)
    return seen[0]


def check(day: Day, outage_s: float) -> None:
    start, end = day.ours.down
    during = [(name, one) for name, one in day.asked if start + 30.0 <= one.at < end]
    people = [one for name, one in during if name == "people"]
    # People are served, by the second tier, in their time.
    served = [one for one in people if one.status == 200]
    assert len(served) >= 0.995 * len(people)
    assert {one.tier for one in served} == {2}
    waits = sorted(one.first for one in served if one.first is not None)
    assert waits[len(waits) // 2] < 1.0
    assert waits[int(0.99 * len(waits))] < 2.0
    # The account is never flooded, and what is left of it goes to batch.
    assert day.theirs.peak <= 5
    jobs = Counter(one.status for name, one in during if name == "jobs")
    assert jobs[200] > 0.25 * sum(jobs.values())
    # The dead tier is asked for a probe now and then, and nothing is repeated.
    calls = sum(start + 30.0 <= at < end for at in day.ours.calls)
    assert calls <= 20 + outage_s / 100.0
    everything = len(day.ours.calls) + len(day.theirs.calls)
    assert everything <= 1.1 * len(day.asked) + 10
    # Nobody pays more than allowed: a dear substitute is not bought, a budget is not passed.
    sparing = Counter(one.status for name, one in during if name == "sparing")
    assert set(sparing) <= {502, 503}  # 502 where it was the one that found the first tier still gone
    assert day.spent["frugal"] <= 500_000
    assert Counter(one.status for name, one in day.asked if name == "frugal")[429] > 0 or outage_s < 7200
    # It comes back within the longest rest of a breaker and its ramp, little by little, and stays.
    back = [one.tier for name, one in day.asked if name == "people" and one.at > end + 480.0 and one.status == 200]
    assert back
    assert back.count(1) >= 0.98 * len(back)
    per_second = Counter(int(at) for at in day.ours.calls if at >= end)
    assert max(per_second.values()) <= 12


def test_a_quarter_of_an_hour_without_the_first_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    check(live_through(monkeypatch, 900.0), 900.0)


@pytest.mark.long
def test_four_hours_without_the_first_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    """At full load: the account can serve all people and a part of the jobs."""
    check(live_through(monkeypatch, 4 * 3600.0, rate=1.2, before=300.0), 4 * 3600.0)
