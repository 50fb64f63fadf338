"""Replicas of one pool: liveness, outliers with their cap, shunning and staleness."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.ejection import Replicas
from providers.health import Event, State
from providers.route import SkipReason


def pool(n: int, now: float = 0.0) -> Replicas:
    made = Replicas(lambda: 0.5)
    for i in range(n):
        made.add(f"r{i}", now)
    return made


def fail(replicas: Replicas, name: str, now: float, times: int = 5, event: Event = Event.FAILURE) -> None:
    for _ in range(times):
        replicas.enter(name, "interactive", now).end(event, now)


def out(replicas: Replicas, now: float) -> list[str]:
    return [name for name, seen in replicas.snapshot(now).items() if seen.out]


@pytest.mark.parametrize(("size", "most"), [(1, 0), (2, 1), (3, 1), (5, 1), (6, 2), (9, 3)])
def test_at_most_a_third_is_taken_out_but_one_of_two_may_go(size: int, most: int) -> None:
    replicas = pool(size)
    for name in replicas.usable(0.0):
        fail(replicas, name, 1.0)
    assert out(replicas, 1.0) == [f"r{i}" for i in range(most)]


def test_five_failures_in_a_row_take_a_replica_out_and_its_peers_stay() -> None:
    replicas = pool(3)
    fail(replicas, "r1", 1.0, times=4)
    assert out(replicas, 1.0) == []
    fail(replicas, "r1", 1.0, times=1)
    assert out(replicas, 1.0) == ["r1"]
    assert replicas.usable(1.0) == {"r0": True, "r1": False, "r2": True}
    skip = replicas.hindrance("r1", "interactive", 1.0)
    assert skip is not None
    assert (skip.reason, skip.detail, skip.until) == (SkipReason.BREAKER_OPEN, "5 failures in a row", 6.0)


def test_the_callers_faults_never_take_a_replica_out() -> None:
    replicas = pool(3)
    fail(replicas, "r1", 1.0, times=500, event=Event.NEUTRAL)
    assert out(replicas, 1.0) == []
    assert replicas.calm(1.0)


def test_the_first_failure_is_remembered_by_the_next_request() -> None:
    replicas = pool(2)
    fail(replicas, "r0", 10.0, times=1)
    skip = replicas.hindrance("r0", "interactive", 10.4)
    assert skip is not None
    assert (skip.reason, skip.soft, skip.until) == (SkipReason.JUST_FAILED, True, 10.5)
    assert replicas.hindrance("r0", "interactive", 10.5) is None
    fail(replicas, "r0", 11.0, times=2)
    skip = replicas.hindrance("r0", "interactive", 11.1)
    assert skip is not None
    assert skip.until == 13.0
    replicas.enter("r0", "interactive", 11.2).end(Event.OK, 11.3)
    assert replicas.hindrance("r0", "interactive", 11.4) is None


def test_two_bad_polls_take_a_replica_out_and_one_good_one_brings_it_back() -> None:
    replicas = pool(3)
    replicas.polled("r2", False, 1.0)
    assert replicas.usable(1.0)["r2"]
    replicas.polled("r2", False, 2.0)
    assert not replicas.usable(2.0)["r2"]
    replicas.polled("r2", True, 3.0)
    assert replicas.usable(3.0)["r2"]


def test_all_replicas_may_be_down_by_their_polls() -> None:
    replicas = pool(3)
    for now in (1.0, 2.0):
        for name in ("r0", "r1", "r2"):
            replicas.polled(name, False, now)
    assert not replicas.any_usable(2.0)


def test_a_stale_replica_gets_nothing_while_a_peer_is_fresh_and_all_do_when_none_is() -> None:
    replicas = pool(2)
    for now in range(1, 16):
        replicas.polled("r0", True, float(now))
    skip = replicas.hindrance("r1", "interactive", 15.0)
    assert skip is not None
    assert (skip.reason, skip.detail) == (SkipReason.NO_REPLICA, "not seen for 15 s")
    assert not replicas.calm(15.0)
    assert replicas.hindrance("r1", "interactive", 40.0) is None


def test_a_pool_that_is_never_polled_never_grows_stale() -> None:
    replicas = pool(2)
    assert replicas.calm(1e6)
    assert replicas.usable(1e6) == {"r0": True, "r1": True}


def test_an_ejected_replica_is_probed_then_comes_back_over_ten_seconds() -> None:
    replicas = pool(3)
    fail(replicas, "r0", 0.0)
    assert replicas.next_change(0.0) == 5.0
    for _ in range(7):
        replicas.enter("r0", "batch", 5.0).end(Event.OK, 5.0)
    shares = [replicas.snapshot(now)["r0"].breaker.share for now in (5.0, 8.0, 13.0)]
    assert shares == pytest.approx([0.1, 0.4, 0.9])
    assert replicas.hindrance("r0", "interactive", 14.1, 0.999) is None
    assert replicas.calm(14.1)


def test_choices_made_before_any_dispatch_take_the_places_of_probes() -> None:
    replicas = pool(3)
    fail(replicas, "r0", 0.0)
    assert replicas.hindrance("r0", "batch", 5.0) is None
    replicas.chosen("r0", "batch", 5.0)
    skip = replicas.hindrance("r0", "batch", 5.0)
    assert skip is not None
    assert skip.reason is SkipReason.PROBE_LIMIT
    permit = replicas.enter("r0", "batch", 5.1)
    assert permit.probe
    permit.end(Event.FAILURE, 5.2)
    assert replicas.snapshot(5.2)["r0"].breaker.state is State.OPEN


def test_a_health_page_brings_back_only_what_could_not_be_reached() -> None:
    for event, back in ((Event.CONNECT, True), (Event.FAILURE, False)):
        replicas = pool(3)
        fail(replicas, "r0", 0.0, event=event)
        replicas.polled("r0", True, 1.0)
        assert replicas.usable(1.0)["r0"] is back


def test_removed_replicas_are_forgotten() -> None:
    replicas = pool(3)
    fail(replicas, "r0", 0.0)
    replicas.remove("r0", 1.0)
    assert replicas.calm(1.0)
    assert replicas.usable(1.0) == {"r1": True, "r2": True}
    fail(replicas, "r1", 2.0)
    assert out(replicas, 2.0) == ["r1"]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from(list(Event)), st.floats(0.0, 10.0)), max_size=150),
)
def test_never_more_than_a_third_or_one_is_out(size: int, steps: list[tuple[int, Event, float]]) -> None:
    replicas = pool(size)
    now = 0.0
    most = 0 if size < 2 else max(1, size // 3)
    for which, event, wait in steps:
        now += wait
        fail(replicas, f"r{which % size}", now, 3, event)
        assert len(out(replicas, now)) <= most
        if replicas.calm(now):
            assert all(replicas.hindrance(f"r{i}", "interactive", now, 0.99) is None for i in range(size))


def test_a_pool_is_well_as_long_as_one_replica_s_last_answer_was_good() -> None:
    replicas = pool(2)
    assert replicas.any_well()
    fail(replicas, "r0", 1.0, times=1)
    assert replicas.any_well()
    fail(replicas, "r1", 1.0, times=1)
    assert not replicas.any_well()
    replicas.enter("r0", "interactive", 2.0).end(Event.OK, 2.0)
    assert replicas.any_well()
    replicas.polled("r0", False, 3.0)
    assert not replicas.any_well()
