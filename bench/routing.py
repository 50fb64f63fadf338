"""What routing costs a request: breaker, plan, attempt budget, replica choice, prefix names.

Prints microseconds of CPU time per call, the least of many short rounds, with no failure history and eight replicas.
Run with `python -m bench.routing`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from time import perf_counter

from fairqueue.admission import Admission, PoolSettings
from fairqueue.capacity import Capacity
from providers.balance import Chooser, View
from providers.breaker import Breakers
from providers.ejection import Replicas
from providers.health import BreakerKey, Event
from providers.prefix import PrefixIndex, affinity
from providers.retry import AttemptBudget, RetryRatios
from providers.route import FailureDomain, Feature, Needs, Route, Target, Tier, candidates

NAMES = [f"r{n}" for n in range(8)]


@dataclass(slots=True)
class Size:
    prompt_tokens: int = 2000


@dataclass(slots=True)
class Request:
    affinity: int | None
    demand: Size
    adapter: str | None = None
    cls: str = "interactive"


@dataclass(slots=True)
class Seen:
    name: str
    inflight: int
    seats_free: int
    kv_capacity: int | None
    kv_free: int | None
    prefill_waiting: int


def cost(call: Callable[[], object], rounds: int = 400, calls: int = 250) -> float:
    """The least mean of `rounds` rounds of `calls` calls, microseconds: what is left when nobody else runs."""
    best = 1e9
    for _ in range(rounds):
        start = perf_counter()
        for _ in range(calls):
            call()
        best = min(best, perf_counter() - start)
    return best / calls * 1e6


def breaker_rows() -> dict[str, Callable[[], object]]:
    breakers = Breakers(Random(1).random)
    key = BreakerKey("self", "eu", "llama", "main")
    breaker = breakers.of(key, 1.0)
    clock = [0.0]

    def record() -> None:
        clock[0] += 0.001
        breakers.record(key, Event.OK, clock[0], 0.2, 1000)

    def attempt() -> None:
        clock[0] += 0.001
        permit = breaker.enter("interactive", clock[0])
        assert permit is not None
        permit.answered(clock[0], 0.2, 1000)
        permit.end(Event.OK, clock[0])

    return {
        "breaker: allows": lambda: breakers.allows(key, "interactive", clock[0]),
        "breaker: record": record,
        "breaker: enter, answered, end": attempt,
    }


def choice_rows(kind: str, views: list[View]) -> dict[str, Callable[[], object]]:
    rng = Random(1)
    index, replicas = PrefixIndex(), Replicas(rng.random)
    for name in NAMES:
        index.set_replica(name, 200_000)
        replicas.add(name, 0.0)
    chooser = Chooser(rng.random, index=index, replicas=replicas)
    chooser.set_replicas(NAMES)
    known = Request(affinity("salt", None, ["user", "x" * 8000]), Size())
    unknown = Request(affinity("salt", None, ["user", "y" * 8000]), Size())
    plain = Request(None, Size())
    chooser.sent("r3", known)
    return {
        f"choice, {kind}: no prefix": lambda: chooser(plain, views, 1.0),
        f"choice, {kind}: unknown prefix": lambda: chooser(unknown, views, 1.0),
        f"choice, {kind}: known prefix": lambda: chooser(known, views, 1.0),
        f"choice, {kind}: sent": lambda: chooser.sent("r3", known),
    }


def route_rows() -> dict[str, Callable[[], object]]:
    here = FailureDomain("self", "eu", "llama")
    first, second = Target("a", "m", here, context=32_768), Target("b", "m", here)
    route = Route("chat", (Tier((first,)), Tier((second,))))
    needs = Needs(1000, 500, features=frozenset({Feature.TOOLS}))
    ratios = RetryRatios()
    return {
        "plan of two tiers": lambda: candidates(route, needs, lambda target, now: None, 1.0, 0.5),
        "attempt budget": lambda: AttemptBudget(ratios, "acme", 1.0, 100.0),
        "prefix names of 8 KB": lambda: affinity("salt", None, ["user", "x" * 8000]),
        "prefix names of 200 KB": lambda: affinity("salt", None, ["user", "x" * 200_000]),
    }


def queue_views() -> list[View]:
    """Replicas as the admission of a pool hands them over."""
    pool = Admission(PoolSettings(name="bench"))
    for name in NAMES:
        pool.set_replica(name, Capacity(64, 100_000, 8_000.0, 512), 0.0)
    return list(pool._dispatcher.replicas.values())


def main() -> None:
    plain: list[View] = [Seen(name, 3, 20, 100_000, 50_000 + 1000 * n, 100 * n) for n, name in enumerate(NAMES)]
    rows = breaker_rows() | route_rows() | choice_rows("plain views", plain)
    rows |= choice_rows("queue's views", queue_views())
    gc.freeze()
    for name, call in rows.items():
        slow = "200 KB" in name
        print(f"{name:<36}{cost(call, 40 if slow else 400, 20 if slow else 250):8.2f} us")


if __name__ == "__main__":
    main()
