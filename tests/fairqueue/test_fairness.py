"""Shares: the service bound, lift, weights changed at run time, cancels, starvation, and the heap against an argmin."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqueue.bounds import Bounds
from fairqueue.classes import ClassClock
from fairqueue.fair import FairQueue, Flow, Tenant
from fairqueue.item import Costs, Item, Reason, RequestClass
from tests.fairqueue.pool import Slots, item, pool

COST = Costs()


def counter(admission, tenant: str, now: float = 0.0, cls: RequestClass = RequestClass.INTERACTIVE) -> float:  # type: ignore[no-untyped-def]
    return admission.snapshot(now).tenants[tenant].counters[cls]


@given(
    seed=st.integers(0, 2**32),
    seats=st.integers(1, 8),
    weights=st.tuples(st.integers(1, 10), st.integers(1, 10)),
    error=st.floats(0.0, 1.0),
)
@settings(max_examples=150, deadline=None)
def test_two_backlogged_tenants_never_drift_further_apart_than_the_bound(
    seed: int, seats: int, weights: tuple[int, int], error: float
) -> None:
    rng = Random(seed)

    def make(tenant: str) -> tuple[Item, int]:
        output = rng.randint(1, 200)
        guess = max(1, round(output * (1 + error * rng.uniform(-1, 1))))
        return item(tenant, prompt=rng.randint(1, 300), output=guess), output

    p = pool(seats=seats)
    server = Slots(p, rng, make)
    names = {"f": weights[0], "g": weights[1]}
    for name, weight in names.items():
        p.set_tenant(name, weight=float(weight), now=0.0)
        server.offer(name, 200)

    def cost(x: Item, output: int) -> float:
        return COST.of(x.demand.prompt_tokens, 0, output)

    service = dict.fromkeys(names, 0.0)  # by the truth, charged when settled; estimates while in flight
    largest = dict.fromkeys(names, 0.0)
    over = dict.fromkeys(names, 0.0)  # the most by which what is in flight exceeds its estimates
    under = dict.fromkeys(names, 0.0)
    for _ in range(150):
        for ticket in server.grant():
            x = ticket.item
            service[x.tenant] += x.cost
            largest[x.tenant] = max(largest[x.tenant], x.cost)
        for name in names:
            flying = [cost(t.item, server.truth[t.item]) - t.item.cost for t in server.running if t.item.tenant == name]
            over[name] = max(over[name], sum(d for d in flying if d > 0))
            under[name] = max(under[name], -sum(d for d in flying if d < 0))
        bound = sum((largest[f] + over[f]) / names[f] + under[g] / names[g] for f, g in (("f", "g"), ("g", "f")))
        assert abs(service["f"] / names["f"] - service["g"] / names["g"]) <= bound + 1e-6
        done = server.finish_one()
        service[done.item.tenant] += cost(done.item, server.truth[done.item]) - done.item.cost


def test_three_to_one_is_1500_to_500_of_2000() -> None:
    p = pool(seats=1, bounds=Bounds(items=None))
    p.set_tenant("three", weight=3.0, now=0.0)
    server = Slots(p, Random(1), lambda tenant: (item(tenant), 50))
    server.offer("three", 2000)
    server.offer("one", 2000)
    for _ in range(2000):
        server.grant()
        server.finish_one()
    assert server.order[:2000].count("three") == 1500


def test_a_tenant_idle_for_long_gets_half_from_then_on_and_nothing_for_the_past() -> None:
    p = pool(seats=1)
    server = Slots(p, Random(1), lambda tenant: (item(tenant), 50))
    server.offer("busy", 800)
    server.offer("sleeper", 1)
    for _ in range(500):
        server.grant()
        server.finish_one()
    server.offer("sleeper", 200)
    for _ in range(200):
        server.grant()
        server.finish_one()
    tail = server.order[500:700]
    assert tail.count("sleeper") == 100
    assert all(a != b for a, b in pairwise(tail))


def test_a_newcomer_goes_before_whoever_was_just_served() -> None:
    p = pool(seats=1)
    server = Slots(p, Random(1), lambda tenant: (item(tenant), 50))
    server.offer("flood", 50)
    for _ in range(10):
        server.grant()
        server.finish_one()
    server.grant()
    server.offer("quiet", 1)
    server.finish_one()
    server.grant()
    assert server.order[-1] == "quiet"


def test_a_weight_changed_while_running_counts_for_later_charges_only() -> None:
    p = pool(seats=2)
    p.enqueue(item(prompt=100, output=50), 0.0)
    (before,) = p.dispatch(0.0)
    p.set_tenant("acme", weight=10.0, now=0.0)
    p.enqueue(item(prompt=100, output=50), 0.0)
    (after,) = p.dispatch(0.0)
    assert counter(p, "acme") == pytest.approx(300.0 + 30.0)
    p.release(before, 1.0, output_tokens=100, served=True)
    assert counter(p, "acme", 1.0) == pytest.approx(300.0 + 30.0 + 200.0)
    p.release(after, 1.0, output_tokens=100, served=True)
    p.enqueue(item(), 1.0)
    assert counter(p, "acme", 1.0) == pytest.approx(300.0 + 30.0 + 200.0 + 20.0)


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_cancel_storms_leave_the_counters_as_if_those_requests_had_never_come(seed: int) -> None:
    def run(storm: bool) -> dict[str, float]:
        rng, noise = Random(seed), Random(seed + 1)
        p = pool(seats=3)
        server = Slots(p, rng, lambda tenant: (item(tenant, output=rng.randint(1, 99)), rng.randint(1, 99)))
        for _ in range(40):
            for name in "abc":
                if rng.random() < 0.6:
                    server.offer(name, rng.randint(1, 3))
            if storm:
                doomed = [item(noise.choice("abcd"), at=server.now) for _ in range(noise.randint(0, 20))]
                for x in doomed:
                    p.enqueue(x, server.now)
                noise.shuffle(doomed)
                assert all(p.cancel(x, server.now) for x in doomed)
            server.grant()
            if server.running:
                server.finish_one()
        flows = p.snapshot(server.now).tenants
        return {n: t.counters[RequestClass.INTERACTIVE] for n, t in flows.items() if n != "d" and t.counters}

    assert run(storm=True) == pytest.approx(run(storm=False))


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_the_heap_serves_what_a_plain_argmin_would(seed: int) -> None:
    rng = Random(seed)
    queue = FairQueue()
    flows = [Flow(Tenant(str(n), 2), 0) for n in range(6)]
    for flow in flows:
        flow.tenant.weight = rng.choice([1.0, 2.0, 5.0])
    waiting: list[Item] = []
    serial = 0
    for _ in range(200):
        action = rng.random()
        if action < 0.45:
            x = item()
            serial += 1
            x.seq, x.cost = serial, float(rng.randint(1, 50))
            queue.push(rng.choice(flows), x)
            waiting.append(x)
        elif action < 0.75 and waiting:
            least = min(flow.counter for flow in flows if flow.items)
            flow = queue.peek()
            assert flow is not None
            assert flow.counter == least
            x = flow.head()
            assert x.seq == min(flow.items)
            queue.follow()
            queue.remove(x, granted=True)
            waiting.remove(x)
            queue.charge(flow, x.cost / flow.tenant.weight)
        elif action < 0.9:
            queue.charge(rng.choice(flows), rng.uniform(-40, 40))
        elif waiting:
            x = waiting.pop(rng.randrange(len(waiting)))
            queue.remove(x, granted=False)
        assert queue.length == len(waiting)
        assert queue.backlog == pytest.approx(sum(x.cost for x in waiting))
        assert queue.weight == pytest.approx(sum(f.tenant.weight for f in flows if f.items))
        assert len(queue._heap) <= 2 * queue.flows + 66


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_nobody_starves_each_is_served_after_a_bounded_number_of_others(seed: int) -> None:
    rng = Random(seed)
    p = pool(seats=1)
    weights = {name: float(rng.randint(1, 10)) for name in "abcde"}
    server = Slots(p, rng, lambda tenant: (item(tenant, prompt=rng.randint(1, 200), output=1), 1))
    for name, weight in weights.items():
        p.set_tenant(name, weight=weight, now=0.0)
        server.offer(name, 300)
    for _ in range(300):
        server.grant()
        server.finish_one()
    # Between two services of a tenant its counter moves by at most the largest cost / w; each other tenant's counter
    # moves at least as far only by so many of its smallest requests.
    largest, smallest = 204.0, 5.0
    for name, weight in weights.items():
        served = [n for n, x in enumerate(server.order) if x == name]
        gap = 2 * largest / weight
        bound = sum(1 + (gap + largest / w) * w / smallest for other, w in weights.items() if other != name)
        assert max(b - a for a, b in pairwise(served)) <= bound


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_a_tenant_below_its_share_of_the_buffer_never_loses_a_request(seed: int) -> None:
    rng = Random(seed)
    weights = {name: float(rng.randint(1, 5)) for name in "abcd"}
    room = 5_000.0
    p = pool(seats=0, bounds=Bounds(items=None, cost=room))
    for name, weight in weights.items():
        p.set_tenant(name, weight=weight, now=0.0)
    total_weight = sum(weights.values())
    waiting: dict[Item, float] = {}
    for _ in range(150):
        x = item(rng.choice("aaabbcd"), prompt=rng.randint(1, 400), output=rng.randint(1, 50))
        refusals = p.enqueue(x, 0.0)
        waiting[x] = x.cost
        for refusal in refusals:
            loser = refusal.item
            mine = sum(c for y, c in waiting.items() if y.tenant == loser.tenant)
            assert mine / weights[loser.tenant] >= (room / total_weight) - 1e-6
            assert refusal.reason in (Reason.EVICTED, Reason.QUEUE_FULL)
            del waiting[loser]
        assert sum(waiting.values()) <= room + 1e-6


def test_classes_share_by_weight_and_batch_keeps_its_trickle() -> None:
    p = pool(seats=1, class_weights={RequestClass.INTERACTIVE: 9.0, RequestClass.BATCH: 1.0})
    for _ in range(300):
        p.enqueue(item("people"), 0.0)
        p.enqueue(item("jobs", batch=True), 0.0)
    granted = []
    for n in range(200):
        (ticket,) = p.dispatch(float(n) * 0.001)
        granted.append(ticket.item.cls)
        p.release(ticket, n * 0.001, output_tokens=50, served=True)
    assert granted.count(RequestClass.BATCH) == 20


def test_a_class_earns_nothing_while_it_has_nothing_to_do() -> None:
    clock = ClassClock([100.0, 1.0])
    clock.activate(1)
    for _ in range(50):
        clock.follow(1)
        clock.charge(1, 1000.0, 1.0)
    clock.activate(0)
    assert clock.counters[0] == clock.virtual == 49_000.0
    with pytest.raises(ValueError, match="above 0"):
        ClassClock([1.0, 0.0])


def test_idle_tenants_are_forgotten_and_configured_ones_keep_their_weight() -> None:
    p = pool(seats=4, forget_s=600.0)
    p.set_tenant("gold", weight=5.0, now=0.0)
    for name in ("gold", "passer-by"):
        p.enqueue(item(name), 0.0)
        (ticket,) = p.dispatch(0.0)
        p.release(ticket, 1.0, output_tokens=50, served=True)
    p.expire(600.9)
    assert set(p._waiting.tenants) == {"gold", "passer-by"}
    p.expire(601.1)
    assert set(p._waiting.tenants) == {"gold"}
    assert p._waiting.tenants["gold"].weight == 5.0
    assert p._waiting.tenants["gold"].flows == [None, None]


def test_heaps_do_not_grow_with_what_has_left() -> None:
    p = pool(seats=0, bounds=Bounds(items=None))
    for _ in range(20):
        items = [item(f"t{n % 50}") for n in range(500)]
        for x in items:
            p.enqueue(x, 0.0)
        for x in items[10:]:
            p.cancel(x, 0.0)
        w = p._waiting
        live = w.length
        assert len(w.expiry._heap) <= 2 * 500 + 66
        assert len(w.longest._heap) <= 2 * 50 + 66
        assert sum(len(f.heap) for t in w.tenants.values() for f in t.flows if f) <= 2 * live + 9 * 50
