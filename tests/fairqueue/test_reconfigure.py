"""Settings that change while requests wait and run: each takes effect, and nobody loses a place or a ticket."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from fairqueue.admission import Admission
from fairqueue.bounds import Bounds
from fairqueue.item import Costs, Reason, RequestClass
from tests.fairqueue.pool import item, pool

INTERACTIVE, BATCH = RequestClass.INTERACTIVE, RequestClass.BATCH


def change(p: Admission, now: float = 0.0, **changes: Any) -> list[Any]:
    return p.reconfigure(replace(p._settings, **changes), now)


def served(p: Admission, count: int) -> list[RequestClass]:
    """The classes of the next grants of a pool with one seat."""
    classes = []
    for _ in range(count):
        (ticket,) = p.dispatch(0.0)
        classes.append(ticket.item.cls)
        p.release(ticket, 0.0, output_tokens=50, served=True)
    return classes


def test_class_weights_change_for_later_charges_and_keep_what_was_charged() -> None:
    p = pool(seats=1, class_weights={INTERACTIVE: 9.0, BATCH: 1.0})
    for _ in range(300):
        p.enqueue(item("people"), 0.0)
        p.enqueue(item("jobs", batch=True), 0.0)
    assert served(p, 100).count(BATCH) == 10
    assert change(p, class_weights={INTERACTIVE: 1.0, BATCH: 1.0}) == []
    assert served(p, 100).count(BATCH) == pytest.approx(50, abs=5)
    assert p.snapshot(0.0).waiting == 600 - 200


def test_a_refund_after_the_change_gives_back_what_was_charged_and_no_more() -> None:
    p = pool(seats=4, class_weights={INTERACTIVE: 100.0, BATCH: 1.0})
    p.enqueue(item(), 0.0)
    (ticket,) = p.dispatch(0.0)
    charged = p._waiting.classes.counters[0]
    assert charged == pytest.approx(3.0)  # 300 cost units / 100
    change(p, class_weights={INTERACTIVE: 1.0, BATCH: 1.0})
    p.release(ticket, 1.0, output_tokens=0, served=False)
    assert p._waiting.classes.counters[0] == pytest.approx(0.0)


def test_a_shorter_timeout_catches_who_waits_and_a_longer_one_lets_them_stay() -> None:
    p = pool(seats=0, queue_timeouts_s={INTERACTIVE: 10.0, BATCH: 600.0})
    first, second = item(at=0.0), item(at=4.0)
    p.enqueue(first, 0.0)
    p.enqueue(second, 4.0)
    change(p, 5.0, queue_timeouts_s={INTERACTIVE: 3.0, BATCH: 600.0})
    assert p.next_wake(5.0) == 5.0
    assert [r.item for r in p.expire(5.0)] == [first]
    change(p, 6.0, queue_timeouts_s={INTERACTIVE: 30.0, BATCH: 600.0})
    assert p.expire(33.9) == []
    (refusal,) = p.expire(34.0)
    assert (refusal.item, refusal.reason) == (second, Reason.QUEUE_TIMEOUT)


def test_a_request_set_aside_alone_keeps_its_place_too() -> None:
    p = pool(seats=1)
    x = item()
    p.enqueue(x, 0.0)
    assert change(p, kv_fraction=0.9) == []
    (ticket,) = p.dispatch(0.0)
    assert ticket.item is x


def test_a_smaller_bound_drops_the_newest_of_the_longest_queue_with_the_figures() -> None:
    p = pool(seats=0, bounds=Bounds(items=100))
    few = [item("few") for _ in range(3)]
    many = [item("many") for _ in range(20)]
    for x in few + many:
        assert p.enqueue(x, 0.0) == []
    refusals = change(p, bounds=Bounds(items=8))
    assert {r.item.tenant for r in refusals} == {"many"}
    assert [r.item for r in refusals] == many[:4:-1]
    assert {r.reason for r in refusals} == {Reason.EVICTED}
    assert "tenant many has the longest queue" in refusals[0].detail
    assert p.snapshot(0.0).waiting == 8
    assert change(p, bounds=Bounds(items=8, tenant_cost=400.0)) == []  # who waits, waits; the next one is refused
    (refusal,) = p.enqueue(item("few"), 0.0)
    assert refusal.reason is Reason.QUEUE_FULL


def test_other_prices_weigh_what_waits_anew_and_settle_what_runs() -> None:
    p = pool(seats=1)
    p.enqueue(item(prompt=100, output=50), 0.0)
    (running,) = p.dispatch(0.0)
    for _ in range(3):
        p.enqueue(item(prompt=100, output=50), 0.0)
    assert p.snapshot(0.0).waiting_cost == 900.0
    change(p, costs=Costs(output=1.0))
    assert p.snapshot(0.0).waiting_cost == 450.0
    assert p.snapshot(0.0).tenants["acme"].waiting_cost == 450.0
    p.release(running, 1.0, output_tokens=50, served=True)
    assert p.snapshot(1.0).tenants["acme"].counters[INTERACTIVE] == pytest.approx(150.0)


def test_what_was_measured_in_old_cost_units_is_told_in_new_ones() -> None:
    p = pool(seats=4, kv=10_000)
    meter = p._replicas["r0"].meter
    meter.ended(100, 50, 300.0)
    meter.sample(3000.0, 0.0)
    change(p, costs=Costs(output=8.0))
    assert meter.cost == 500.0
    assert meter.capacity(1.0).value == 5000.0


def test_the_cache_fraction_counts_from_the_next_grant_on() -> None:
    p = pool(seats=9, kv=1000, kv_fraction=0.5, stale_kv_fraction=0.5)
    p.enqueue(item(prompt=400, output=16), 0.0)
    (first,) = p.dispatch(0.0)
    waits = item(prompt=400, output=16)
    p.enqueue(waits, 0.0)
    assert p.dispatch(0.0) == []
    change(p, kv_fraction=0.95, stale_kv_fraction=0.85)
    (second,) = p.dispatch(0.0)
    assert second.item is waits
    for ticket in (first, second):
        p.release(ticket, 1.0, output_tokens=16, served=True)
    rest = p.snapshot(1.0)
    assert (rest.inflight, rest.seats_held, rest.kv_tokens_held) == (0, 0, 0)


def test_a_looser_objective_forgets_the_restraint_and_a_stricter_one_does_not() -> None:
    p = pool(seats=100, kv=1_000_000, tpot_slo_s=0.05)
    steering = p._replicas["r0"].steering
    steering.net.factor = 0.5
    steering.pace.set_rate(500.0, 1000.0, 0.0)
    change(p, tpot_slo_s=0.04)
    assert p._replicas["r0"].seat_limit == 50
    change(p, tpot_slo_s=0.1)
    assert (p._replicas["r0"].seat_limit, steering.pace.rate) == (100, None)


@given(st.integers(0, 2**32))
@examples(max_examples=40, deadline=None)
def test_any_changes_at_any_time_leave_every_sum_equal_to_a_recount(seed: int) -> None:
    rng = Random(seed)
    p = pool(seats=3, kv=20_000, bounds=Bounds(items=50))
    waiting, live = set(), []
    for n in range(150):
        now = n * 0.05
        if rng.random() < 0.6:
            x = item(rng.choice("abc"), prompt=rng.randint(1, 900), output=rng.randint(1, 90), at=now)
            waiting.add(x)
            waiting -= {r.item for r in p.enqueue(x, now)}
        if rng.random() < 0.2:
            changed = change(
                p,
                now,
                class_weights={INTERACTIVE: rng.choice([1.0, 100.0]), BATCH: 1.0},
                queue_timeouts_s={INTERACTIVE: rng.choice([0.5, 1e9]), BATCH: 1e9},
                costs=Costs(output=rng.choice([1.0, 4.0, 9.0])),
                bounds=Bounds(items=rng.choice([5, 50]), cost=rng.choice([None, 5000.0])),
                tpot_slo_s=rng.choice([0.02, 0.2]),
            )
            waiting -= {r.item for r in changed}
        waiting -= {r.item for r in p.expire(now)}
        for ticket in p.dispatch(now):
            waiting.remove(ticket.item)
            live.append(ticket)
        if live and rng.random() < 0.5:
            ticket = live.pop(rng.randrange(len(live)))
            p.release(ticket, now, output_tokens=rng.randint(0, 99), served=rng.random() < 0.8)
        shot = p.snapshot(now)
        w = p._waiting
        assert shot.waiting == len(waiting)
        assert shot.inflight == len(live)
        assert shot.waiting_cost == pytest.approx(sum(x.cost for x in waiting))
        assert sum(t.backlog for t in w.tenants.values()) == pytest.approx(shot.waiting_cost)
        assert sum(q.backlog for q in w.queues) == pytest.approx(shot.waiting_cost)
        longest = w.longest.longest()
        if waiting:
            assert longest is not None
            assert longest.backlog == pytest.approx(max(t.backlog for t in w.tenants.values()))
    for ticket in live:
        p.release(ticket, 99.0, output_tokens=1, served=True)
    rest = p.snapshot(99.0)
    assert (rest.inflight, rest.seats_held, rest.kv_tokens_held, rest.prefill_tokens) == (0, 0, 0, 0)
