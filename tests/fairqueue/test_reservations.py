"""Reservations: floors kept under any flood, room held and lent and taken back, what may be sold, and schedules."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from random import Random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqueue.admission import Admission, Ticket
from fairqueue.reservations import Floors, LocalWindow, Reservation, Vector, sellable, total, windows_from_local
from tests.fairqueue.pool import item, pool


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_a_backlogged_tenant_gets_its_floor_in_every_window_against_any_weights(seed: int) -> None:
    rng = Random(seed)
    p = pool(seats=1)
    pace = 1000.0  # cost units/s of the server, at its nominal speed
    floors = {"gold": 0.3 * 0.85 * pace, "silver": 0.5 * 0.85 * pace * rng.random()}
    for name, rate in floors.items():
        p.set_tenant(name, weight=1.0, reservation=Reservation(rate=rate), now=0.0)
    p.set_tenant("crowd", weight=20.0, now=0.0)
    for name in ("gold", "silver", "crowd"):
        for _ in range(400):
            p.enqueue(item(name, prompt=rng.randint(1, 200), output=1), 0.0)
    now = 0.0
    ends: dict[str, list[tuple[float, float]]] = {"gold": [(0.0, 0.0)], "silver": [(0.0, 0.0)], "crowd": [(0.0, 0.0)]}
    while now < 40.0:
        (ticket,) = p.dispatch(now)
        x = ticket.item
        now += x.cost / (pace * rng.uniform(0.85, 1.3))
        p.release(ticket, now, output_tokens=1, served=True)
        ends[x.tenant].append((now, ends[x.tenant][-1][1] + x.cost))
    largest = 204.0
    for name, rate in floors.items():
        points = ends[name]
        for _ in range(60):
            start, end = sorted((rng.uniform(0, 40), rng.uniform(0, 40)))
            got = max(s for t, s in points if t <= end) - max(s for t, s in points if t <= start)
            assert got >= rate * (end - start) - 2 * largest - rate * 3 * largest / (0.85 * pace) - 1e-6


def test_a_guarantee_is_corrected_by_what_was_really_used() -> None:
    """With estimates twice too high the clock runs at half speed unless it is corrected, and the floor is missed."""
    p = pool(seats=1)
    p.set_tenant("gold", weight=0.001, reservation=Reservation(rate=500.0), now=0.0)
    for _ in range(400):
        p.enqueue(item("gold", prompt=1, output=50), 0.0)
        p.enqueue(item("crowd", prompt=100, output=0), 0.0)
    now, gold = 0.0, 0.0
    while now < 20.0:
        (ticket,) = p.dispatch(now)
        mine = ticket.item.tenant == "gold"
        cost = 101.0 if mine else 100.0
        now += cost / 1000.0
        gold += cost if mine else 0.0
        p.release(ticket, now, output_tokens=25 if mine else 0, served=True)
    assert gold / 20.0 == pytest.approx(500.0, rel=0.03)


def test_idle_time_earns_nothing_beyond_the_burst() -> None:
    for burst, expected in ((0.0, 1), (600.0, 3)):
        p = pool(seats=1)
        p.set_tenant("gold", weight=1e-9, reservation=Reservation(rate=10.0, burst=burst), now=0.0)
        p.enqueue(item("crowd"), 0.0)
        (running,) = p.dispatch(0.0)
        for _ in range(10):
            p.enqueue(item("crowd"), 0.0)
            p.enqueue(item("gold"), 1000.0)
        order = []
        for n in range(8):
            p.release(running, 1000.0 + n * 1e-3, output_tokens=50, served=True)
            (running,) = p.dispatch(1000.0 + n * 1e-3)
            order.append(running.item.tenant)
        assert order.count("gold") == expected


def grants(p: Admission, now: float) -> list[str]:
    return [t.item.tenant for t in p.dispatch(now)]


def test_held_seats_stay_free_for_their_owner_and_the_rest_is_lent() -> None:
    p = pool(seats=10)
    p.set_tenant("gold", weight=1.0, reservation=Reservation(seats=4, hold=0.5), now=0.0)
    for _ in range(20):
        p.enqueue(item("crowd"), 0.0)
    assert len(p.dispatch(0.0)) == 8
    assert p.snapshot(0.0).held_seats == 2.0
    for _ in range(4):
        p.enqueue(item("gold"), 0.0)
    assert grants(p, 0.0) == ["gold", "gold"]
    assert p.snapshot(0.0).held_seats == 1.0


def test_held_kv_stays_free_for_its_owner() -> None:
    p = pool(seats=100, kv=1000, kv_fraction=1.0)
    p.set_tenant("gold", weight=1.0, reservation=Reservation(seats=50, kv_tokens=600, hold=1.0), now=0.0)
    for _ in range(20):
        p.enqueue(item("crowd", prompt=90, output=10), 0.0)
    assert len(p.dispatch(0.0)) == 4
    for _ in range(20):
        p.enqueue(item("gold", prompt=90, output=10), 0.0)
    assert grants(p, 0.0) == ["gold"] * 6


def test_batch_fills_held_room_and_gives_it_back_newest_first() -> None:
    p = pool(seats=4)
    p.set_tenant("gold", weight=1.0, reservation=Reservation(seats=2, hold=1.0), now=0.0)
    for _ in range(6):
        p.enqueue(item("jobs", batch=True, gathered=True), 0.0)
    jobs = p.dispatch(0.0)
    assert len(jobs) == 4
    wanted = item("gold", at=1.0)
    p.enqueue(wanted, 1.0)
    assert p.dispatch(1.0) == []
    (victim,) = p.preemptions(1.0)
    assert victim is jobs[3]
    assert p.preemptions(1.0) == []
    p.release(victim, 1.1, output_tokens=0, served=False)
    assert p.enqueue(victim.item, 1.1) == []
    assert [t.item for t in p.dispatch(1.1)] == [wanted]
    p.release(jobs[0], 2.0, output_tokens=50, served=True)
    assert [t.item for t in p.dispatch(2.0)] == [victim.item]  # its place is where it was, before the younger ones


def test_a_batch_stream_does_not_fill_held_room_as_it_cannot_always_be_taken_back() -> None:
    p = pool(seats=4)
    p.set_tenant("gold", weight=1.0, reservation=Reservation(seats=2, hold=1.0), now=0.0)
    for _ in range(6):
        p.enqueue(item("jobs", batch=True, gathered=False), 0.0)
    assert len(p.dispatch(0.0)) == 2


def test_batch_whose_caller_has_seen_something_is_not_taken_back() -> None:
    p = pool(seats=3)
    p.set_tenant("gold", weight=1.0, reservation=Reservation(seats=2, hold=0.0), now=0.0)
    streamed, gathered, fresh = (
        item("jobs", batch=True),
        item("jobs", batch=True, gathered=True),
        item("jobs", batch=True),
    )
    for x in (streamed, gathered, fresh):
        p.enqueue(x, 0.0)
    tickets = p.dispatch(0.0)
    for t in tickets[:2]:
        p.first_token(t, 0.5)
    for _ in range(3):
        p.enqueue(item("gold", at=1.0), 1.0)
    p.dispatch(1.0)
    taken = [t.item for t in p.preemptions(1.0)]
    assert taken == [fresh]
    p.release(tickets[2], 1.1, output_tokens=0, served=False)
    p.dispatch(1.1)
    assert [t.item for t in p.preemptions(1.1)] == [gathered]
    p.release(tickets[1], 1.2, output_tokens=0, served=False)
    p.dispatch(1.2)
    assert p.preemptions(1.2) == []


def test_surplus_batch_gives_way_to_any_interactive_request_but_its_trickle_does_not() -> None:
    p = pool(seats=2)
    for _ in range(2):
        p.enqueue(item("jobs", batch=True), 0.0)
    surplus = p.dispatch(0.0)
    p.enqueue(item("people"), 0.0)
    p.dispatch(0.0)
    (victim,) = p.preemptions(0.0)
    assert victim is surplus[1]
    p.release(victim, 0.1, output_tokens=0, served=False)
    p.enqueue(victim.item, 0.1)
    for _ in range(300):
        p.enqueue(item("people"), 0.1)
    running: list[Ticket] = [surplus[0], *p.dispatch(0.1)]
    now, batch_served = 0.1, 0
    while p.snapshot(now).waiting > 100:
        now += 0.01
        for victim in p.preemptions(now):
            running.remove(victim)
            p.release(victim, now, output_tokens=0, served=False)
            p.enqueue(victim.item, now)
        running += p.dispatch(now)
        done = running.pop(0)
        batch_served += done.item.tenant == "jobs"
        p.release(done, now, output_tokens=50, served=True)
        running += p.dispatch(now)
    assert batch_served == 2


def test_floors_shrink_together_when_capacity_falls_and_nothing_new_is_sold() -> None:
    p = pool(seats=10, replicas=2)
    p.set_tenant("gold", weight=1.0, reservation=Reservation(seats=6), now=0.0)
    p.set_tenant("silver", weight=1.0, reservation=Reservation(seats=3), now=0.0)
    assert not p.snapshot(0.0).oversold
    assert p.sellable("gold", Reservation(seats=5), 0.0).ok
    p.set_usable("r1", False, 1.0)
    snapshot = p.snapshot(1.0)
    assert snapshot.oversold
    assert snapshot.tenants["gold"].reserved_seats == pytest.approx(6 * 8 / 9)
    assert snapshot.tenants["silver"].reserved_seats == pytest.approx(3 * 8 / 9)
    p.set_tenant("bronze", weight=1.0, reservation=Reservation(seats=1), now=1.0)
    sale = p.sellable("bronze", Reservation(seats=1), 1.0)
    assert not sale.ok
    assert sale.detail == "measured capacity is below what is sold; nothing new is sold until it recovers"
    p.set_usable("r1", True, 2.0)
    assert p.snapshot(2.0).tenants["gold"].reserved_seats == 6.0


def test_at_most_four_fifths_are_sold_also_without_the_largest_replica() -> None:
    replicas = [Vector(1000.0, 10, None), Vector(1000.0, 30, None)]
    assert total(replicas) == Vector(2000.0, 40, None)
    assert sellable(Reservation(seats=8), [], replicas).ok
    refused = sellable(Reservation(seats=9), [], replicas)
    assert refused.detail == "seats: asked 9 + sold 0 > 8 sellable of 40 measured"
    assert sellable(Reservation(seats=32), [], replicas, survive_loss=False).ok
    assert not sellable(Reservation(seats=33), [], replicas, survive_loss=False).ok
    unknown = sellable(Reservation(kv_tokens=1), [], replicas)
    assert unknown.detail == "kv_tokens: asked 1, sold 0, capacity not measured"
    assert sellable(Reservation(rate=640.0), [Reservation(rate=160.0)], replicas).ok
    assert not sellable(Reservation(rate=641.0), [Reservation(rate=160.0)], replicas).ok


def test_reservations_for_different_hours_do_not_add_up() -> None:
    day = Reservation(seats=8, windows=((0.0, 10.0), (20.0, 30.0)))
    night = Reservation(seats=8, windows=((10.0, 20.0),))
    pool_of_ten = [Vector(None, 10, None)]
    assert sellable(night, [day], pool_of_ten).ok
    assert not sellable(Reservation(seats=1), [day], pool_of_ten).ok
    assert not sellable(Reservation(seats=1, windows=((9.0, 11.0),)), [day], pool_of_ten).ok


@given(seed=st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_what_is_sold_never_exceeds_four_fifths_at_any_time(seed: int) -> None:
    rng = Random(seed)
    sold: list[Reservation] = []
    for _ in range(12):
        windows = None
        if rng.random() < 0.7:
            edges = sorted(rng.sample(range(100), 4))
            windows = ((float(edges[0]), float(edges[1])), (float(edges[2]), float(edges[3])))
        wanted = Reservation(rate=rng.uniform(0, 400), windows=windows)
        if sellable(wanted, sold, [Vector(1000.0, None, None)]).ok:
            sold.append(wanted)
    for t in range(100):
        assert sum(r.rate for r in sold if r.active(t + 0.5)) <= 800.0 + 1e-6


def test_a_schedule_switches_the_guarantee_on_and_off() -> None:
    p = pool(seats=4)
    p.set_tenant("gold", weight=1.0, reservation=Reservation(seats=2, hold=1.0, windows=((10.0, 20.0),)), now=0.0)
    for _ in range(9):
        p.enqueue(item("crowd"), 0.0)
    running = p.dispatch(0.0)
    assert len(running) == 4
    wake = p.next_wake(9.9)
    assert wake is not None
    assert wake <= 10.0
    p.release(running[0], 11.0, output_tokens=50, served=True)
    assert p.dispatch(11.0) == []
    assert len(p.dispatch(20.0)) == 1


def test_floors_are_whole_while_they_fit() -> None:
    sold = [Reservation(rate=100.0, seats=4), Reservation(rate=300.0, kv_tokens=10)]
    assert Floors.of(sold, Vector(500.0, 5, None), 0.2, 0.0) == Floors()
    scaled = Floors.of(sold, Vector(250.0, 5, None), 0.2, 0.0)
    assert (scaled.rate, scaled.seats, scaled.oversold) == (0.5, 1.0, True)


def unix(*at: int) -> float:
    return datetime(*at, tzinfo=UTC).timestamp()  # type: ignore[misc, arg-type]


def test_local_windows_follow_the_clock_on_the_wall() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    office = [LocalWindow(frozenset(range(5)), time(9), time(17))]
    # Friday 2026-03-27 is winter time, Monday 2026-03-30 summer time: 9 o'clock is 8 and then 7 in UTC.
    spans = windows_from_local(office, berlin, date(2026, 3, 27), 4, 0.0)
    assert spans == (
        (unix(2026, 3, 27, 8), unix(2026, 3, 27, 16)),
        (unix(2026, 3, 30, 7), unix(2026, 3, 30, 15)),
    )


def test_windows_over_midnight_join_and_clock_changes_never_shorten_them() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    night = [LocalWindow(frozenset(range(7)), time(22), time(6)), LocalWindow(frozenset(range(7)), time(6), time(7))]
    assert windows_from_local(night, berlin, date(2026, 6, 1), 1, 100.0) == (
        (unix(2026, 6, 1, 4) + 100, unix(2026, 6, 1, 5) + 100),
        (unix(2026, 6, 1, 20) + 100, unix(2026, 6, 2, 4) + 100),
    )
    # On 2026-10-25 the hour from 2 to 3 occurs twice: a window until 2:30 ends at its second occurrence.
    late = [LocalWindow(frozenset({6}), time(2, 15), time(2, 30))]
    assert windows_from_local(late, berlin, date(2026, 10, 25), 1, 0.0) == (
        (unix(2026, 10, 25, 0, 15), unix(2026, 10, 25, 1, 30)),
    )


@pytest.mark.parametrize("bad", [{"rate": -1.0}, {"seats": -1}, {"kv_tokens": -1}, {"hold": 1.5}, {"burst": -1.0}])
def test_nonsense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Reservation(**bad)  # type: ignore[arg-type]
