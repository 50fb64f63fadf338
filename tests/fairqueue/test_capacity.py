"""What is believed of a replica: where figures come from, what a scrape adds, and what a missing one takes away."""

from __future__ import annotations

import pytest

from fairqueue.capacity import Capacity, Figure, Scrape, ScrapeState, Source, resolve
from fairqueue.learn import CacheLearner, SafetyNet, SeatLearner
from tests.fairqueue.pool import item, pool


def test_a_configured_figure_is_a_ceiling_and_unknown_is_not_zero() -> None:
    assert resolve(None, None) == Figure(None, Source.UNKNOWN)
    assert resolve(32, None) == Figure(32, Source.CONFIGURED)
    assert resolve(None, 64) == Figure(64, Source.ENGINE)
    assert resolve(32, 64) == Figure(32, Source.CONFIGURED)
    assert resolve(64, 32) == Figure(32, Source.ENGINE)
    assert resolve(0, None) == Figure(0, Source.CONFIGURED)


def test_engine_figures_come_in_later_and_show_their_source() -> None:
    p = pool(seats=None, kv=5000)
    p.set_engine("r0", Capacity(seats=16, kv_tokens=4000), 1.0)
    replica = p.snapshot(1.0).replicas[0]
    assert replica.seats == Figure(16, Source.ENGINE)
    assert replica.kv_tokens == Figure(4000, Source.ENGINE)
    assert replica.chunk_tokens == Figure(1_000_000, Source.CONFIGURED)
    assert replica.capacity == Figure(None, Source.UNKNOWN)


def test_own_dispatches_since_a_scrape_count_on_top_of_it() -> None:
    state = ScrapeState(1.0)
    assert state.kv(500, 10_000, 0.0) == 500
    state.take(Scrape(at=1.0, running=3, waiting=0, kv_used_ratio=0.4), own_seats=3, own_kv=1000)
    assert state.kv(1000, 10_000, 1.5) == 4000
    assert state.kv(1800, 10_000, 1.5) == 4800
    assert state.kv(200, 10_000, 1.5) == 3200
    assert state.kv(200, 10_000, 4.1) == 200  # stale: own only
    assert not state.take(Scrape(at=0.5, kv_used_ratio=0.9), 0, 0)  # an older scrape arrives late


def test_others_on_the_replica_take_seats_while_a_scrape_tells_of_them() -> None:
    state = ScrapeState(1.0)
    state.take(Scrape(at=0.0, running=10, waiting=2), own_seats=4, own_kv=0)
    assert state.seats(4, 1.0) == 12
    assert state.seats(6, 1.0) == 14
    assert state.seats(6, 3.1) == 6
    state.take(Scrape(at=4.0, running=5, waiting=None), own_seats=4, own_kv=0)
    assert state.seats(4, 4.0) == 4  # one more is only a request that ended while the answer came


def test_stale_scrapes_never_move_the_backlog_into_the_engine() -> None:
    p = pool(seats=100, kv=10_000)
    p.observe("r0", Scrape(at=0.0, running=0, waiting=0, kv_used_ratio=0.0), 0.0)
    for _ in range(100):
        p.enqueue(item(prompt=500, output=1), 0.0)
    assert len(p.dispatch(0.0)) == 18  # own count: 19 * 501 > 9500
    for n in range(50):
        p.observe("r0", Scrape(at=0.0, running=0, waiting=0, kv_used_ratio=0.0), n * 0.01)
        assert p.dispatch(n * 0.01) == []


def test_without_scrapes_the_watermark_is_lower_and_after_ten_intervals_fresh_peers_are_preferred() -> None:
    p = pool(seats=100, kv=10_000)
    p.observe("r0", Scrape(at=0.0, kv_used_ratio=0.0), 0.0)
    for _ in range(100):
        p.enqueue(item(prompt=500, output=1), 0.0)
    assert len(p.dispatch(3.5)) == 16
    q = pool(seats=4, kv=10_000, replicas=2)
    for name in ("r0", "r1"):
        q.observe(name, Scrape(at=0.0), 0.0)
    q.observe("r1", Scrape(at=11.0), 11.0)
    for _ in range(8):
        q.enqueue(item(), 11.0)
    assert {t.replica for t in q.dispatch(11.0)} == {"r1"}
    assert {t.replica for t in q.dispatch(14.5)} == {"r0"}  # r1 is not fresh either: all are equal again


def test_a_replica_without_metrics_is_not_stale() -> None:
    p = pool(seats=100, kv=10_000)
    for _ in range(100):
        p.enqueue(item(prompt=500, output=1), 0.0)
    assert len(p.dispatch(1000.0)) == 18


def test_an_engine_that_tells_only_its_share_used_has_its_cache_learned() -> None:
    p = pool(seats=100, kv=10_000)
    p.set_replica("r0", Capacity(seats=100, chunk_tokens=10_000), 0.0)
    assert p.snapshot(0.0).replicas[0].kv_tokens == Figure(None, Source.UNKNOWN)
    tickets = []
    for _ in range(2):
        p.enqueue(item(prompt=985), 0.0)
        tickets += p.dispatch(0.0)
    for t in tickets:
        p.first_token(t, 0.1)
    p.observe("r0", Scrape(at=1.0, kv_used_ratio=0.25), 1.0)
    assert p.snapshot(1.0).replicas[0].kv_tokens == Figure(8000, Source.LEARNED, provisional=True)


def test_preemptions_in_the_engine_shrink_the_cache_that_is_used_until_they_stop() -> None:
    p = pool(seats=100, kv=10_000)
    replica = p._replicas["r0"]
    p.enqueue(item(prompt=6000, output=1000), 0.0)
    (t,) = p.dispatch(0.0)
    p.first_token(t, 0.0)
    p.observe("r0", Scrape(at=0.0, preemptions_total=7), 0.0)
    for n in range(1, 40):
        p.progress(t, 10 * n, n * 0.25)
        if n == 16:
            assert replica.steering.kv_net.factor == 1.0
            p.observe("r0", Scrape(at=4.0, preemptions_total=9), 4.0)
        if n == 24:
            assert replica.steering.kv_net.factor == pytest.approx(0.9)
    assert replica.steering.kv_net.factor == pytest.approx(0.94)


def test_seats_grow_with_every_proof_and_shrink_by_a_tenth_when_full() -> None:
    seats = SeatLearner(calm_s=1.0)
    assert seats.limit == 2
    rounds = 0
    while seats.limit < 64:
        inflight = seats.limit
        for _ in range(inflight):
            seats.accepted(inflight, 9.0)
        rounds += 1
    assert rounds == 5
    seats.congested(10.0, None)
    assert seats.limit == 57
    seats.congested(10.5, None)  # the same congestion
    assert seats.limit == 57
    for _ in range(58):
        seats.accepted(58, 11.0)
    assert seats.limit == 58
    seats.congested(12.0, 60)  # it runs 60: it has 60 seats
    assert seats.limit == 60


def test_a_hiccup_in_the_first_seconds_is_made_up_for() -> None:
    seats = SeatLearner(calm_s=1.0)
    seats.congested(0.0, None)  # full, and it was so for a moment only
    for second in range(5):
        seats.accepted(seats.limit, float(second))
    assert seats.limit < 4
    for _ in range(40):
        seats.accepted(seats.limit, 7.0)
    assert seats.limit > 40
    slow = SeatLearner(calm_s=1.0)
    slow.congested(0.0, None, certain=False)  # slow, while nothing waits in the engine
    for _ in range(40):
        slow.accepted(slow.limit, 1.0)
    assert slow.limit > 40


def test_an_unused_limit_does_not_grow() -> None:
    seats = SeatLearner()
    while seats.limit < 40:
        seats.accepted(seats.limit, 0.0)
    for _ in range(100):
        seats.accepted(19, 0.0)
    assert seats.limit == 40
    seats.congested(0.0, None)
    for _ in range(100):
        seats.accepted(34, 1.0)
    assert seats.limit == 36


def test_the_safety_net_stays_within_its_clamp() -> None:
    net = SafetyNet()
    for _ in range(50):
        net.window(breached=True, used=1.0)
    assert net.factor == 0.5
    net.window(breached=False, used=0.4)
    assert net.factor == 0.5
    for _ in range(50):
        net.window(breached=False, used=0.5)
    assert net.factor == 1.2


def test_a_cache_is_learned_from_a_share_that_says_something() -> None:
    cache = CacheLearner()
    cache.seen(100.0, 0.05)
    assert cache.value is None
    cache.seen(1000.0, 0.1)
    assert cache.value == 10_000.0
