"""A request that does not fit is passed by a bounded amount of work, then a replica is kept for it."""

from __future__ import annotations

from fairqueue.admission import Admission, Ticket
from fairqueue.item import Item
from tests.fairqueue.pool import item, pool


def small(tenant: str = "small") -> Item:
    return item(tenant, prompt=100, output=10)  # cost 140, 110 KV tokens


def fill(p: Admission, count: int) -> list[Ticket]:
    for _ in range(count):
        p.enqueue(small("first"), 0.0)
    tickets = p.dispatch(0.0)
    assert len(tickets) == count
    return tickets


def test_others_pass_a_large_head_until_they_were_granted_its_own_cost_then_wait_for_it() -> None:
    p = pool(seats=100, kv=1000, kv_fraction=1.0)
    running = fill(p, 6)  # 660 of 1000
    large = item("large", prompt=500, output=10)  # cost 540, fits once two more ended
    p.enqueue(large, 0.0)
    for _ in range(20):
        p.enqueue(small(), 0.0)
    passed = p.dispatch(0.0)
    assert [t.item.tenant for t in passed] == ["small"] * 3  # 340 KV tokens free = 3 small ones
    now = 1.0
    while True:
        done = (running + passed).pop(0)
        (running if done in running else passed).remove(done)
        p.release(done, now, output_tokens=10, served=True)
        granted = p.dispatch(now)
        if any(t.item is large for t in granted):
            break
        passed += granted
        now += 1.0
        assert now < 20
    by_small = sum(1 for t in p._waiting.tenants["small"].flows if t for _ in t.items)
    assert 20 - by_small == 4  # 4 * 140 >= 540: from then on nobody but the large one
    assert large.bypassed == 560.0


def test_a_claim_ends_when_its_owner_leaves() -> None:
    p = pool(seats=100, kv=1000, kv_fraction=1.0)
    running = fill(p, 8)
    large = item("large", prompt=800, output=10, at=0.0)
    p.enqueue(large, 0.0)
    large.bypassed = large.cost
    p.enqueue(small(), 0.0)
    assert len(p.dispatch(0.0)) == 1
    assert p.snapshot(0.0).replicas[0].claimed_by == large.request_id
    p.enqueue(small(), 0.0)
    p.release(running[0], 1.0, output_tokens=10, served=True)
    assert p.dispatch(1.0) == []
    assert p.cancel(large, 1.0)
    assert len(p.dispatch(1.0)) == 1
    assert p.snapshot(1.0).replicas[0].claimed_by is None


def test_a_claim_takes_one_replica_and_leaves_the_others_working() -> None:
    p = pool(seats=100, kv=1000, kv_fraction=1.0, replicas=2)
    running = fill(p, 16)
    large = item("large", prompt=900, output=10)
    p.enqueue(large, 0.0)
    large.bypassed = large.cost
    for _ in range(60):
        p.enqueue(small(), 0.0)
    granted = p.dispatch(0.0)
    (claimed,) = [r.name for r in p.snapshot(0.0).replicas if r.claimed_by == large.request_id]
    now = 1.0
    live = running + granted
    while live:
        now += 0.1
        done = live.pop(0)
        p.release(done, now, output_tokens=10, served=True)
        fresh = p.dispatch(now)
        if any(t.item is large for t in fresh):
            assert [t.replica for t in fresh if t.item is large] == [claimed]
            break
        assert all(t.replica != claimed for t in fresh)
        live += fresh
    else:
        raise AssertionError("the large request was never served")


def test_the_largest_prompt_that_fits_at_all_is_served_in_a_busy_pool() -> None:
    p = pool(seats=8, kv=1000)
    waiting = item("large", prompt=999, output=1)
    live = fill(p, 5)
    p.enqueue(waiting, 0.0)
    now = 0.0
    for step in range(200):
        now = step * 0.1
        p.enqueue(small(f"s{step % 3}"), now)
        live += p.dispatch(now)
        if waiting.granted:
            return
        if live:
            p.release(live.pop(0), now, output_tokens=10, served=True)
            live += p.dispatch(now)
    raise AssertionError("the large request starved")


def test_a_fitting_request_is_found_behind_any_number_that_do_not_fit() -> None:
    p = pool(seats=100, kv=1000, replicas=2)
    for _ in range(7):
        p.enqueue(item(replicas=frozenset({"r0"})), 0.0)
    assert len(p.dispatch(0.0)) == 6
    for n in range(150):
        p.enqueue(item(f"t{n}", replicas=frozenset({"r0"})), 0.0)
    wanted = item("last", replicas=frozenset({"r1"}))
    for flow in p._waiting.queues[0].in_order():
        flow.counter -= 1.0  # all of them stand before the newcomer
    p.enqueue(wanted, 0.0)
    p._dispatcher.room_grew()  # an event, so that all heads are looked at again
    calls = 0
    while not p.dispatch(0.0):
        assert p.next_wake(0.0) == 0.0
        calls += 1
        assert calls < 10
    assert wanted.granted == 1
    assert wanted.flow is None
