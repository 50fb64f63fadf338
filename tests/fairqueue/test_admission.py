"""A pool from outside: grants, refusals, cancellation, and figures that return to nothing."""

from __future__ import annotations

import pytest

from fairqueue.bounds import Bounds
from fairqueue.capacity import Capacity, Scrape
from fairqueue.item import Reason, RequestClass
from fairqueue.reservations import Reservation
from tests.fairqueue.pool import item, pool


def test_an_uncontended_request_is_granted_at_once_and_leaves_nothing_behind() -> None:
    p = pool(seats=2, kv=10_000)
    assert p.enqueue(item(prompt=100, output=50), 1.0) == []
    (ticket,) = p.dispatch(1.0)
    assert (ticket.replica, ticket.granted_at, ticket.waited_s) == ("r0", 1.0, 1.0)
    busy = p.snapshot(1.1)
    assert (busy.seats_held, busy.kv_tokens_held, busy.prefill_tokens, busy.inflight) == (1, 100, 100, 1)
    p.first_token(ticket, 1.2)
    p.progress(ticket, 20, 1.5)
    assert (p.snapshot(1.5).kv_tokens_held, p.snapshot(1.5).prefill_tokens) == (120, 0)
    p.release(ticket, 2.0, prompt_tokens=100, cached_tokens=0, output_tokens=50, served=True)
    p.release(ticket, 2.0, prompt_tokens=100, cached_tokens=0, output_tokens=50, served=True)
    rest = p.snapshot(2.0)
    assert (rest.seats_held, rest.kv_tokens_held, rest.prefill_tokens, rest.inflight, rest.waiting) == (0, 0, 0, 0, 0)


def test_a_hundred_waiting_requests_leave_in_weighted_order_not_in_order_of_arrival() -> None:
    p = pool(seats=1)
    p.set_tenant("heavy", weight=3.0, now=0.0)
    p.set_tenant("light", weight=1.0, now=0.0)
    for tenant in ("heavy", "light"):
        for _ in range(100):
            p.enqueue(item(tenant), 0.0)
    served = []
    for step in range(100):
        (ticket,) = p.dispatch(float(step))
        served.append(ticket.item.tenant)
        p.release(ticket, step + 0.5, output_tokens=50, served=True)
    assert served.count("heavy") == 75
    assert all(served[i : i + 8].count("light") == 2 for i in range(0, 96, 8))


def test_within_a_tenant_priority_then_deadline_then_arrival_decide() -> None:
    p = pool(seats=1)
    first = item(deadline=50.0)
    p.enqueue(first, 0.0)
    (running,) = p.dispatch(0.0)
    late, soon, urgent, twin = (
        item(deadline=40.0),
        item(deadline=20.0),
        item(deadline=60.0, priority=-1),
        item(deadline=40.0),
    )
    for x in (late, soon, urgent, twin):
        p.enqueue(x, 0.0)
    order = []
    for t in range(1, 5):
        p.release(running, float(t), output_tokens=50, served=True)
        (running,) = p.dispatch(float(t))
        order.append(running.item)
    assert order == [urgent, soon, late, twin]


def test_a_prompt_larger_than_any_cache_is_refused_with_the_figures() -> None:
    p = pool(kv=1000)
    (refusal,) = p.enqueue(item(prompt=1000), 0.0)
    assert refusal.reason is Reason.NEVER_FITS
    assert refusal.detail == "prompt of 1000 tokens and one more do not fit into 1000 KV tokens"
    assert p.enqueue(item(prompt=999), 0.0) == []
    assert len(p.dispatch(0.0)) == 1


def test_an_item_that_no_replica_may_serve_is_refused_and_one_for_a_resting_replica_waits() -> None:
    p = pool(replicas=2)
    (refusal,) = p.enqueue(item(replicas=frozenset({"r0"}), excluded=frozenset({"r0"})), 0.0)
    assert refusal.reason is Reason.NO_REPLICA
    p.set_usable("r0", False, 0.0)
    assert p.enqueue(item(replicas=frozenset({"r0"})), 0.0) == []
    assert p.dispatch(0.0) == []
    p.set_usable("r0", True, 1.0)
    assert [t.replica for t in p.dispatch(1.0)] == ["r0"]


def test_cancel_takes_a_waiting_item_out_once_and_never_a_granted_one() -> None:
    p = pool(seats=1)
    running, waiting = item(), item()
    p.enqueue(running, 0.0)
    assert len(p.dispatch(0.0)) == 1
    p.enqueue(waiting, 0.0)
    assert p.cancel(running, 0.0) is False
    assert p.cancel(waiting, 0.0) is True
    assert p.cancel(waiting, 0.0) is False
    assert p.snapshot(0.0).waiting == 0


def test_waiting_items_leave_at_their_deadline_or_at_the_queue_timeout_of_their_class() -> None:
    p = pool(seats=1, queue_timeouts_s={RequestClass.INTERACTIVE: 10.0, RequestClass.BATCH: 600.0})
    p.enqueue(item(), 0.0)
    assert len(p.dispatch(0.0)) == 1
    impatient, patient, batch = item(deadline=3.0), item(), item(batch=True)
    for x in (impatient, patient, batch):
        p.enqueue(x, 0.0)
    assert p.expire(2.9) == []
    (refusal,) = p.expire(3.0)
    assert (refusal.item, refusal.reason) == (impatient, Reason.QUEUE_TIMEOUT)
    assert [r.item for r in p.expire(10.0)] == [patient]
    assert p.snapshot(10.0).waiting_by_class == {RequestClass.INTERACTIVE: 0, RequestClass.BATCH: 1}


def test_the_longest_queue_pays_when_the_pool_overflows() -> None:
    p = pool(seats=0, bounds=Bounds(items=10))
    quiet = item("quiet")
    p.enqueue(quiet, 0.0)
    noisy = [item("noisy") for _ in range(9)]
    for x in noisy:
        assert p.enqueue(x, 0.0) == []
    newcomer = item("third")
    (refusal,) = p.enqueue(newcomer, 0.0)
    assert (refusal.item, refusal.reason) == (noisy[-1], Reason.EVICTED)
    own = item("noisy")
    (refusal,) = p.enqueue(own, 0.0)
    assert (refusal.item, refusal.reason) == (own, Reason.QUEUE_FULL)


def test_a_failed_attempt_is_refunded_in_full() -> None:
    p = pool(seats=1)
    p.enqueue(item(), 0.0)
    (ticket,) = p.dispatch(0.0)
    assert p.snapshot(0.0).tenants["acme"].counters[RequestClass.INTERACTIVE] == pytest.approx(300.0)
    p.release(ticket, 1.0, output_tokens=0, served=False)
    p.enqueue(item(), 1.0)
    assert p.snapshot(1.0).tenants["acme"].counters[RequestClass.INTERACTIVE] == 0.0


def test_what_exceeds_the_estimate_is_charged_while_it_streams_and_the_rest_at_the_end() -> None:
    p = pool(seats=2)
    p.enqueue(item(prompt=100, output=50), 0.0)
    (ticket,) = p.dispatch(0.0)
    counter = lambda: p.snapshot(1.0).tenants["acme"].counters[RequestClass.INTERACTIVE]  # noqa: E731
    p.progress(ticket, 50, 0.5)
    assert counter() == 300.0
    p.progress(ticket, 60, 0.6)
    assert counter() == 340.0
    p.enqueue(item(), 1.0)
    p.dispatch(1.0)
    p.release(ticket, 1.0, prompt_tokens=80, cached_tokens=20, output_tokens=70, served=True)
    assert counter() == pytest.approx(300.0 + 60 + 2 + 280)


def test_an_account_learns_its_seats_and_obeys_retry_after() -> None:
    p = pool(seats=None)
    running = []
    for n in range(200):
        p.enqueue(item(at=n * 0.1), n * 0.1)
        running += p.dispatch(n * 0.1)
        for t in running:
            p.first_token(t, n * 0.1)
    before = p.snapshot(20.0).replicas[0].seat_limit
    assert before is not None
    assert before > 50
    p.throttled("r0", 20.0, 3.0)
    after = p.snapshot(20.0).replicas[0].seat_limit
    assert after == int(before * 0.9) or after == int(before * 0.9) + 1
    for t in running[10:]:
        p.release(t, 20.0, output_tokens=50, served=True)
    p.enqueue(item(at=20.0), 20.0)
    assert p.dispatch(20.0) == []
    assert p.next_wake(20.0) == 20.5
    assert len(p.dispatch(23.0)) >= 1


def test_a_missing_metric_is_unknown_and_a_waiting_engine_is_full_until_it_says_otherwise() -> None:
    p = pool(seats=8, kv=100_000)
    tickets = []
    for _ in range(6):
        p.enqueue(item(), 0.0)
        tickets += p.dispatch(0.0)
    for t in tickets:
        p.first_token(t, 0.1)
    p.observe("r0", Scrape(at=1.0), 1.0)
    p.enqueue(item(), 1.0)
    tickets += p.dispatch(1.0)
    assert len(tickets) == 7
    p.first_token(tickets[-1], 1.1)
    p.observe("r0", Scrape(at=2.0, running=6, waiting=1), 2.0)
    p.enqueue(item(at=2.0), 2.0)
    assert p.dispatch(2.0) == []
    p.observe("r0", Scrape(at=3.0, running=6, waiting=0), 3.0)
    assert len(p.dispatch(3.0)) == 1


def test_saturation_does_not_outlive_the_metrics_that_said_so() -> None:
    p = pool(seats=8, kv=100_000)
    tickets = []
    for _ in range(3):
        p.enqueue(item(), 0.0)
        tickets += p.dispatch(0.0)
    for t in tickets:
        p.first_token(t, 0.1)
    p.observe("r0", Scrape(at=1.0, running=2, waiting=1), 1.0)
    p.enqueue(item(at=1.0), 1.0)
    assert p.dispatch(1.0) == []
    assert p.dispatch(3.9) == []
    assert len(p.dispatch(4.1)) == 1


def test_an_unknown_chunk_lets_one_prompt_in_at_a_time_until_the_speed_is_known() -> None:
    p = pool(seats=8, kv=1_000_000, chunk=None)
    for _ in range(4):
        p.enqueue(item(prompt=2000), 0.0)
    (first,) = p.dispatch(0.0)
    assert p.dispatch(0.1) == []
    p.first_token(first, 0.2)
    (second,) = p.dispatch(0.2)
    assert p.dispatch(0.2) == []
    wake = p.next_wake(0.2)
    assert wake is not None
    assert wake == pytest.approx(0.2 + 0.2 - 0.05, abs=0.002)
    assert len(p.dispatch(wake)) == 1
    assert second.item.tenant == "acme"


def test_a_removed_replica_still_takes_its_tickets_back() -> None:
    p = pool(seats=2, kv=10_000, replicas=2)
    p.enqueue(item(replicas=frozenset({"r1"})), 0.0)
    (ticket,) = p.dispatch(0.0)
    p.remove_replica("r1", 1.0)
    p.first_token(ticket, 1.0)
    p.progress(ticket, 10, 1.5)
    p.release(ticket, 2.0, output_tokens=50, served=True)
    assert p.snapshot(2.0).inflight == 0
    p.set_replica("r1", Capacity(seats=1), 3.0)
    assert p.snapshot(3.0).replicas[1].seats_held == 0


def test_an_item_that_waits_cannot_be_queued_twice() -> None:
    p = pool(seats=0)
    waiting = item()
    p.enqueue(waiting, 0.0)
    with pytest.raises(ValueError, match="waits already"):
        p.enqueue(waiting, 0.0)


def test_tenants_that_were_only_refused_or_cancelled_are_forgotten_too() -> None:
    p = pool(seats=0, bounds=Bounds(items=2, tenant_cost=100.0))
    x = item("cancelled")
    p.enqueue(x, 0.0)
    p.cancel(x, 0.0)
    for n in range(4):
        p.enqueue(item("waits", deadline=5.0), 0.0)
        p.enqueue(item(f"evicted{n}"), 0.0)
    p.expire(5.0)
    p.expire(700.0)
    assert all(t.waiting for t in p._waiting.tenants.values())


def test_what_a_tenant_holds_already_counts_when_it_gets_a_reservation() -> None:
    p = pool(seats=4)
    p.enqueue(item("gold"), 0.0)
    (ticket,) = p.dispatch(0.0)
    p.set_tenant("gold", weight=1.0, reservation=Reservation(seats=2, hold=1.0), now=0.0)
    assert p.snapshot(0.0).held_seats == 1.0
    p.release(ticket, 1.0, output_tokens=50, served=True)
    assert p.snapshot(1.0).held_seats == 2.0
    p.set_tenant("gold", weight=1.0, now=1.0)
    assert p.snapshot(1.0).held_seats == 0.0


def test_answers_that_come_whole_do_not_hold_up_the_prefill_of_others() -> None:
    p = pool(seats=50, kv=1_000_000, chunk=256, rate=10_000.0)
    now, granted = 0.0, 0
    for _ in range(20):
        p.enqueue(item(prompt=1000, silent=True), now)
    while granted < 20:
        granted += len(p.dispatch(now))
        wake = p.next_wake(now)
        if granted < 20:
            assert wake is not None
            now = wake
    assert now == pytest.approx(1.9 - 0.0256, abs=0.15)  # 10,000 prompt tokens a second, one chunk ahead


def test_embeddings_teach_the_speed_although_they_show_no_first_token() -> None:
    p = pool(seats=50, kv=1_000_000, chunk=None)
    p.enqueue(item(prompt=1000, output=0), 0.0)
    (t,) = p.dispatch(0.0)
    p.release(t, 0.1, output_tokens=0, served=True)
    assert p.snapshot(0.1).replicas[0].prefill_rate.value == pytest.approx(10_000.0)


def test_a_busy_account_is_not_steered_by_its_own_slowness() -> None:
    p = pool(seats=10)
    tickets = []
    for _ in range(10):
        p.enqueue(item(), 0.0)
        tickets += p.dispatch(0.0)
    for second in range(1, 30):
        for t in tickets:
            p.progress(t, second, float(second))
    assert p.snapshot(30.0).replicas[0].seat_limit == 10
    assert p.snapshot(30.0).replicas[0].safety == 1.0
