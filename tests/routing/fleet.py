"""A small model of a pool for the tests: first-come prefill, steady decode, a prefix cache per replica."""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from providers.balance import View
from providers.prefix import BOUNDARIES, Affinity

BLOCK = 512


@dataclass(slots=True)
class Sized:
    prompt_tokens: int


@dataclass(slots=True)
class Request:
    """What a chooser sees of a request, and what the model needs."""

    demand: Sized
    affinity: int | None = None
    adapter: str | None = None
    cls: str = "interactive"
    at: float = 0.0
    output_tokens: int = 100
    blocks: tuple[int, ...] = ()


@dataclass(slots=True)
class Seen:
    """A replica as handed to a chooser."""

    name: str
    inflight: int = 0
    seats_free: int = 64
    kv_capacity: int | None = 100_000
    kv_free: int | None = 100_000
    prefill_waiting: int = 0


def request(
    tokens: int = 1000, affinity: int | None = None, adapter: str | None = None, cls: str = "interactive"
) -> Request:
    return Request(Sized(tokens), affinity, adapter, cls)


def block_affinity(blocks: Sequence[int], key: int) -> Affinity:
    """The chain of a prompt whose 512-token blocks are named, as traces give them (a name covers all before it)."""
    tokens = len(blocks) * BLOCK
    chain = tuple(hash((cut, blocks[max(0, cut // BLOCK - 1)])) for cut in BOUNDARIES if cut <= tokens)
    return Affinity(key, chain)


@dataclass(slots=True)
class Server:
    """One replica: `rate` prompt tokens a second, `tpot` seconds a token, a cache of `cache` blocks."""

    name: str
    rate: float
    tpot: float = 0.03
    kv: int = 1_000_000
    cache: int = 1 << 30
    held: OrderedDict[int, None] = field(default_factory=OrderedDict)
    busy_until: float = 0.0
    kv_used: int = 0
    running: int = 0
    busy_s: float = 0.0

    def view(self, now: float) -> Seen:
        waiting = int(max(0.0, self.busy_until - now) * self.rate)
        return Seen(self.name, self.running, 1 << 20, self.kv, self.kv - self.kv_used, waiting)

    def hit(self, blocks: Sequence[int]) -> int:
        """Tokens of the beginning that the cache holds; they and the rest are its freshest then."""
        known = 0
        for block in blocks:
            if block not in self.held:
                break
            known += 1
        for block in reversed(blocks):
            self.held[block] = None
            self.held.move_to_end(block)
        while len(self.held) > self.cache:
            self.held.popitem(last=False)
        return known * BLOCK


@dataclass(slots=True)
class Outcome:
    """What a run showed. `over` is the most by which a load exceeded its bound, `waits` are seconds before prefill."""

    hit_share: float
    busiest: float
    waits: list[float]
    counts: dict[str, int]


def drive(
    requests: Sequence[Request],
    servers: Sequence[Server],
    choose: Callable[[Request, Sequence[View], float], str],
    sent: Callable[[str, Request], None] = lambda name, request: None,
) -> Outcome:
    """Send every request where `choose` says, at its time."""
    by_name = {server.name: server for server in servers}
    ends: list[tuple[float, int, str, int]] = []
    waits = []
    hits = total = 0
    counts = dict.fromkeys(by_name, 0)
    for number, one in enumerate(requests):
        now = one.at
        while ends and ends[0][0] <= now:
            _, _, name, tokens = heapq.heappop(ends)
            by_name[name].running -= 1
            by_name[name].kv_used -= tokens
        name = choose(one, [server.view(now) for server in servers], now)
        sent(name, one)
        server = by_name[name]
        counts[name] += 1
        hit = min(server.hit(one.blocks), one.demand.prompt_tokens)
        hits += hit
        total += one.demand.prompt_tokens
        work = (one.demand.prompt_tokens - hit) / server.rate
        waits.append(max(0.0, server.busy_until - now))
        server.busy_until = max(server.busy_until, now) + work
        server.busy_s += work
        tokens = one.demand.prompt_tokens + one.output_tokens
        server.kv_used += tokens
        server.running += 1
        heapq.heappush(ends, (server.busy_until + one.output_tokens * server.tpot, number, name, tokens))
    span = max(requests[-1].at - requests[0].at, 1e-9)
    return Outcome(hits / total if total else 0.0, max(server.busy_s for server in servers) / span, waits, counts)


def conversations(count: int, rate: float, seed: int = 1) -> list[Request]:
    """Chats like those of public traces: a common opening, 1 to 12 turns, each longer by what was said before."""
    rng = random.Random(seed)
    made = []
    block = 1_000
    for talk in range(count):
        at = rng.expovariate(1.0) * count / rate
        blocks = [0, 1 + rng.randrange(4)]
        for _ in range(min(12, 1 + int(rng.expovariate(0.35)))):
            grown = 1 + int(rng.lognormvariate(0.6, 0.8))
            blocks = blocks + list(range(block, block + grown))
            block += grown
            at += 2.0 + rng.expovariate(1 / 15.0)
            tokens = len(blocks) * BLOCK
            made.append(
                Request(
                    Sized(tokens),
                    block_affinity(blocks, hash(("talk", talk)) & ((1 << 64) - 1)),
                    at=at,
                    output_tokens=50 + int(rng.expovariate(1 / 200)),
                    blocks=tuple(blocks),
                )
            )
    made.sort(key=lambda one: one.at)
    return made
