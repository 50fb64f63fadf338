"""Early refusal: the predicted wait comes true, is not claimed before it is known, and spares who can make it."""

from __future__ import annotations

import pytest

from fairqueue.item import Reason, RequestClass
from fairqueue.predict import ServiceRate
from fairqueue.reservations import Reservation
from tests.fairqueue.pool import item, pool


def test_what_cannot_meet_its_deadline_is_refused_at_once_with_the_wait() -> None:
    p = pool(seats=1, queue_timeouts_s={RequestClass.INTERACTIVE: 10.0, RequestClass.BATCH: 600.0})
    now, refused, served = 0.0, [], []
    running = None
    # One request takes a second; three arrive in each.
    for second in range(60):
        for part in range(3):
            now = second + part / 3
            x = item(at=now)
            refused += p.enqueue(x, now)
            refused += p.expire(now)
            if running is None:
                (running,) = p.dispatch(now)
        now = second + 0.99
        assert running is not None
        p.release(running, now, output_tokens=50, served=True)
        (running,) = p.dispatch(now)
        served.append(running)
    late = [r for r in refused if r.reason is Reason.QUEUE_TIMEOUT]
    early = [r for r in refused if r.reason is Reason.DEADLINE_UNMEETABLE]
    assert len(early) > 100
    assert len(late) <= 8  # from before the rate was known
    assert all(r.predicted_wait_s > 10.0 for r in early)
    assert "predicted wait" in early[0].detail
    waits = [t.waited_s for t in served[20:]]
    assert 8.0 < sum(waits) / len(waits) <= 10.1


def test_a_quiet_tenant_is_not_refused_for_the_queue_of_a_noisy_one() -> None:
    p = pool(seats=1, queue_timeouts_s={RequestClass.INTERACTIVE: 5.0, RequestClass.BATCH: 600.0})
    for _ in range(100):
        p.enqueue(item("noisy", at=0.0), 0.0)
    running = p.dispatch(0.0)[0]
    for n in range(1, 5):
        p.release(running, n * 1.0, output_tokens=50, served=True)
        (running,) = p.dispatch(n * 1.0)
    for n in range(5, 12):
        p.release(running, 4.0 + n * 0.01, output_tokens=50, served=True)
        (running,) = p.dispatch(4.0 + n * 0.01)
    (refusal,) = p.enqueue(item("noisy", at=4.2), 4.2)
    assert refusal.reason is Reason.DEADLINE_UNMEETABLE
    assert p.enqueue(item("quiet", at=4.2), 4.2) == []


def test_a_guarantee_bounds_the_predicted_wait() -> None:
    p = pool(seats=1, queue_timeouts_s={RequestClass.INTERACTIVE: 5.0, RequestClass.BATCH: 600.0})
    p.set_tenant("gold", weight=0.0001, reservation=Reservation(rate=300.0), now=0.0)
    p.set_tenant("lead", weight=0.0001, now=0.0)
    for name in ("gold", "lead"):
        p.enqueue(item(name, at=0.0, deadline=1e9), 0.0)
    running = p.dispatch(0.0)[0]
    for _ in range(100):
        p.enqueue(item("crowd", at=0.0), 0.0)
    for n in range(1, 13):
        p.release(running, n * 0.2, output_tokens=50, served=True)
        (running,) = p.dispatch(n * 0.2)
    now = 2.5
    (refusal,) = p.enqueue(item("lead", at=now), now)
    assert refusal.reason is Reason.DEADLINE_UNMEETABLE
    assert p.enqueue(item("gold", at=now), now) == []


def test_the_rate_counts_only_while_something_waits() -> None:
    rate = ServiceRate()
    rate.granted(100.0, 0.0, still_waiting=False)
    assert rate.value is None
    now = 0.0
    for _ in range(20):
        rate.waiting(now)
        now += 0.5
        rate.granted(100.0, now, still_waiting=False)
        now += 10.0  # idle
    assert rate.value == pytest.approx(200.0, rel=0.01)
    rate.waiting(now)
    rate.drained()
    rate.waiting(now + 100.0)
    rate.granted(100.0, now + 100.5, still_waiting=False)
    assert rate.value == pytest.approx(200.0, rel=0.01)


def test_looking_at_the_wait_tells_what_a_newcomer_meets_and_changes_nothing() -> None:
    p = pool(seats=1)
    assert p.expected_wait("noisy", RequestClass.INTERACTIVE, 0.0) == 0.0
    for _ in range(100):
        p.enqueue(item("noisy", at=0.0), 0.0)
    (running,) = p.dispatch(0.0)
    assert p.expected_wait("noisy", RequestClass.INTERACTIVE, 0.1) is None  # no rate is known yet
    for n in range(1, 21):
        p.release(running, n * 0.5, output_tokens=50, served=True)
        (running,) = p.dispatch(n * 0.5)
    before = p.snapshot(10.0)
    assert p.expected_wait("noisy", RequestClass.INTERACTIVE, 10.0) == pytest.approx(79 * 0.5, rel=0.1)
    quiet = p.expected_wait("quiet", RequestClass.INTERACTIVE, 10.0)
    assert quiet is not None
    assert quiet < 2.0
    assert p.snapshot(10.0) == before
    assert p.seats() == (1, 1)
