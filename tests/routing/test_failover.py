"""The parts together, in virtual time: routes, breakers, budgets and spill as one gateway uses them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from providers.breaker import Breakers
from providers.exchange import FailureKind
from providers.health import EVENT_OF, BreakerKey, Event, State
from providers.retry import Around, AttemptBudget, RetryRatios, Step
from providers.route import FailureDomain, Needs, Route, Skip, Target, Tier, candidates
from providers.spill import Rate, Spill

FIRST = Target("first", "m", FailureDomain("self", "eu", "llama"))
SECOND = Target("second", "m", FailureDomain("vendor", "us", "gpt"))
ROUTE = Route("chat", (Tier((FIRST,)), Tier((SECOND,))))


@dataclass
class World:
    """Upstreams that fail as they are told to, and a gateway that sends one request at a time to them."""

    rng: random.Random
    spill: Spill | None = None
    down: dict[str, FailureKind] = field(default_factory=dict)
    attempts: Counter[tuple[int, str]] = field(default_factory=Counter)
    """By second and pool."""
    failed: Counter[int] = field(default_factory=Counter)
    """Requests that nobody served, by second."""

    def __post_init__(self) -> None:
        self.breakers = Breakers(self.rng.random)
        self.ratios = RetryRatios()
        self.cost = {"first": Rate(5.0), "second": Rate(5.0)}

    def key(self, target: Target) -> BreakerKey:
        return BreakerKey(target.pool, target.failure_domain.region, target.model, "main")

    def send(self, now: float, cls: str = "interactive", cost: float = 100.0) -> str | None:
        """One request; the pool that served it, or None."""
        pick = self.rng.random()

        def usable(target: Target, at: float) -> Skip | None:
            skip = self.breakers.of(self.key(target)).hindrance(cls, at, pick)
            if skip is None and self.spill is not None and target is SECOND:
                return self.spill.hindrance(cls, at)
            return skip

        budget = AttemptBudget(self.ratios, "acme", now, now + 60.0)
        plan = candidates(ROUTE, Needs(500), usable, now, pick)
        left = len(plan.legs)
        for leg in plan.legs:
            left -= 1
            target = leg.target
            permit = self.breakers.of(self.key(target)).enter(cls, now, pick)
            if permit is None or (self.spill and target is SECOND and not self.spill.take(cls, cost, now)):
                continue
            self.attempts[int(now), target.pool] += 1
            kind = self.down.get(target.pool)
            if kind is None:
                permit.answered(now, 0.2, 500)
                permit.end(Event.OK, now)
                self.cost[target.pool].add(cost, now)
                return target.pool
            permit.end(EVENT_OF[kind], now)
            around = Around(targets=left > 0, same=False)
            if budget.after(kind, now, around, self.rng.random()).step is Step.GIVE_UP:
                break
        self.failed[int(now)] += 1
        return None

    def run(self, start: float, end: float, rate: float) -> Counter[str | None]:
        served: Counter[str | None] = Counter()
        now = start
        while (now := now + self.rng.expovariate(rate)) < end:
            served[self.send(now, "batch" if self.rng.random() < 0.3 else "interactive")] += 1
        return served


def world(spill: Spill | None = None) -> World:
    return World(random.Random(1), spill)


@pytest.mark.parametrize("kind", [FailureKind.TRANSIENT, FailureKind.CAPACITY])
def test_the_first_tier_dies_and_nobody_notices(kind: FailureKind) -> None:
    made = world()
    assert made.run(0.0, 60.0, 50.0)["first"] > 2000
    made.down["first"] = kind
    served = made.run(60.0, 160.0, 50.0)
    assert served[None] == 0
    assert served["first"] == 0
    after = sum(n for (second, pool), n in made.attempts.items() if pool == "first" and second >= 62)
    assert after <= 10  # 5, 10, 20, 40 and 80 s: one probe each
    assert made.attempts[60, "first"] + made.attempts[61, "first"] < 110


def test_an_unknown_upstream_model_fails_over_at_once_and_blames_nobody() -> None:
    made = world()
    made.down["first"] = FailureKind.CONFIG
    served = made.run(0.0, 100.0, 50.0)
    assert served[None] == 0
    assert sum(n for (_, pool), n in made.attempts.items() if pool == "first") == 2
    assert [key.provider for key, _ in made.breakers.barred()] == ["first"]
    assert made.breakers.snapshot(100.0)[made.key(FIRST)].trips == 0


def test_a_429_storm_moves_traffic_without_opening_and_without_an_error() -> None:
    made = world()
    made.down["first"] = FailureKind.RATE
    served = made.run(0.0, 300.0, 50.0)
    assert served[None] == 0
    assert made.breakers.of(made.key(FIRST)).state is State.CLOSED
    assert sum(n for (_, pool), n in made.attempts.items() if pool == "first") <= 20


def test_everybody_down_multiplies_the_load_by_little_and_then_hardly_touches_the_upstreams() -> None:
    made = world()
    made.down = dict.fromkeys(("first", "second"), FailureKind.TRANSIENT)
    made.run(0.0, 120.0, 50.0)
    requests = sum(made.failed.values())
    assert sum(made.attempts.values()) <= 1.1 * requests + 120.0 + 10.0
    assert sum(n for (second, _), n in made.attempts.items() if second >= 5) <= 20


def test_the_return_is_no_wave() -> None:
    made = world()
    made.run(0.0, 30.0, 100.0)
    made.down["first"] = FailureKind.TRANSIENT
    made.run(30.0, 60.0, 100.0)
    made.down.clear()
    made.run(60.0, 200.0, 100.0)
    per_second = [made.attempts[second, "first"] for second in range(60, 200)]
    back = next(n for n, count in enumerate(per_second) if count >= 90)
    grown = next(n for n, count in enumerate(per_second) if count >= 25)
    assert back - grown >= 5
    assert grown >= 60
    assert all(later - before <= 45 for before, later in pairwise(per_second))
    assert sum(made.failed.values()) == 0


def test_a_dead_first_tier_at_full_load_never_pushes_the_second_over_its_limit() -> None:
    """Each holds 10,000 units/s; the first ran full, the second at 60 %. Batch is shed, interactive is served first."""
    spill = Spill()
    spill.configure(10_000.0)
    made = world(spill)
    served: Counter[tuple[str, bool]] = Counter()
    peak = 0.0
    now = 0.0
    while now < 200.0:
        now += made.rng.expovariate(160.0)
        if now > 60.0:
            made.down["first"] = FailureKind.TRANSIENT
        if made.rng.random() < 60.0 / 160.0:
            spill.served(100.0, now)
            made.cost["second"].add(100.0, now)
            made.breakers.of(made.key(SECOND)).record(Event.OK, now, 0.2, 500)
        else:
            cls = "batch" if made.rng.random() < 0.3 else "interactive"
            pool = made.send(now, cls)
            if now > 100.0:
                served[cls, pool == "second"] += 1
        peak = max(peak, made.cost["second"].per_s(now))
    assert made.cost["second"].per_s(now) <= 9_300.0  # 85 % and the noise of a five-second measure
    assert peak <= 9_700.0
    assert served["batch", True] < 0.05 * served["batch", False]
    share = served["interactive", True] / (served["interactive", True] + served["interactive", False])
    assert share > 0.3  # of 70/s that want to, about 25/s fit
