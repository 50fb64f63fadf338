"""Cached prefixes: a little ahead of turn, within the bound, and to the replica that has them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqueue.admission import Admission, PoolSettings
from fairqueue.capacity import Capacity
from fairqueue.item import Item
from tests.fairqueue.pool import Slots, item, pool


def test_a_request_whose_prefix_is_cached_goes_a_little_ahead_of_its_turn() -> None:
    p = pool(seats=1)
    p.enqueue(item("c", affinity=1), 0.0)
    (running,) = p.dispatch(0.0)
    for name in "abc":
        for _ in range(3):
            p.enqueue(item(name, affinity={"a": 7, "b": 8, "c": 1}[name]), 0.0)
    order = []
    for n in range(9):
        p.release(running, float(n), output_tokens=50, served=True)
        (running,) = p.dispatch(float(n))
        order.append(running.item.tenant)
    assert sorted(order) == list("aaabbbccc")
    flat = pool(seats=1, locality_slack=0.0)
    flat.enqueue(item("c", affinity=1), 0.0)
    (running,) = flat.dispatch(0.0)
    for name in "abc":
        flat.enqueue(item(name, affinity={"a": 7, "b": 8, "c": 1}[name]), 0.0)
    flat.release(running, 1.0, output_tokens=50, served=True)
    assert flat.dispatch(1.0)[0].item.tenant == "a"


@given(seed=st.integers(0, 2**32), weights=st.tuples(st.integers(1, 10), st.integers(1, 10)))
@settings(max_examples=80, deadline=None)
def test_the_slack_widens_the_service_bound_by_twice_itself_and_no_more(seed: int, weights: tuple[int, int]) -> None:
    rng = Random(seed)

    def make(tenant: str) -> tuple[Item, int]:
        output = rng.randint(1, 100)
        return item(tenant, prompt=rng.randint(1, 200), output=output, affinity=rng.randint(1, 3)), output

    p = pool(seats=rng.randint(1, 4), locality_slack=0.5)
    server = Slots(p, rng, make)
    names = {"f": float(weights[0]), "g": float(weights[1])}
    for name, weight in names.items():
        p.set_tenant(name, weight=weight, now=0.0)
        server.offer(name, 150)
    service = dict.fromkeys(names, 0.0)
    largest = 1.0
    for _ in range(120):
        for ticket in server.grant():
            service[ticket.item.tenant] += ticket.item.cost
            largest = max(largest, ticket.item.cost)
        bound = sum(largest / w for w in names.values()) + 2 * max(0.5 * largest / w for w in names.values())
        assert abs(service["f"] / names["f"] - service["g"] / names["g"]) <= bound + 1e-6
        server.finish_one()


def test_the_replica_that_has_the_prefix_is_chosen_unless_it_is_much_fuller() -> None:
    p = pool(seats=10, replicas=2)
    p.enqueue(item(affinity=5), 0.0)
    (first,) = p.dispatch(0.0)
    for expected in (first.replica, first.replica):
        p.enqueue(item(affinity=5), 0.0)
        assert p.dispatch(0.0)[0].replica == expected
    other = {"r0": "r1", "r1": "r0"}[first.replica]
    p.enqueue(item(affinity=5), 0.0)
    assert p.dispatch(0.0)[0].replica == other


def test_the_caller_may_choose_among_the_replicas_that_fit() -> None:
    seen = []

    def choose(x: Item, fitting, now: float) -> str:  # type: ignore[no-untyped-def]
        seen.append(sorted(r.name for r in fitting))
        assert all(r.seats_free > 0 for r in fitting)
        return max(r.name for r in fitting)

    p = Admission(PoolSettings(name="p", engine=False), choose)
    for name in ("a", "b", "c"):
        p.set_replica(name, Capacity(seats=1), 0.0)
    for _ in range(3):
        p.enqueue(item(), 0.0)
    assert [t.replica for t in p.dispatch(0.0)] == ["c", "b", "a"]
    assert seen == [["a", "b", "c"], ["a", "b"], ["a"]]


def test_prefixes_of_long_ago_are_forgotten() -> None:
    p = pool(seats=1)
    for n in range(600):
        p.enqueue(item(affinity=n), float(n))
        (t,) = p.dispatch(float(n))
        p.release(t, n + 0.5, output_tokens=50, served=True)
    assert len(p._replicas["r0"].recent) == 512
    assert next(iter(p._replicas["r0"].recent)) == pytest.approx(88)
