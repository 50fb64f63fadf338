"""The breaker: what trips it, what never does, and how a target comes back."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.breaker import TABLE, Breaker, Breakers, Move, Permit
from providers.exchange import FailureKind
from providers.health import EVENT_OF, BreakerKey, BreakerSettings, Event, State
from providers.route import SkipReason


def breaker(**kwargs: float) -> Breaker:
    return Breaker(lambda: 0.5, BreakerSettings(), **kwargs)  # type: ignore[arg-type]


def state(made: Breaker) -> State:
    return made.state


def opened(at: float = 0.0) -> Breaker:
    """A breaker that five refused connections have opened at `at`; it may be probed five seconds later."""
    made = breaker()
    for _ in range(5):
        made.record(Event.CONNECT, at)
    assert state(made) is State.OPEN
    return made


def probed(made: Breaker, at: float) -> None:
    """Fifteen good batch probes, one after the other."""
    for _ in range(15):
        permit = made.enter("batch", at)
        assert permit is not None
        permit.end(Event.OK, at)
    assert state(made) is State.RAMPING


def test_it_opens_on_the_failure_that_crosses_half_of_twenty() -> None:
    made = breaker()
    for n in range(19):
        made.record(Event.OK if n < 10 else Event.FAILURE, n * 0.1)
    assert state(made) is State.CLOSED
    made.record(Event.FAILURE, 2.0)
    assert state(made) is State.OPEN
    assert made.cause == "10 of 20 answers failed"


def test_it_opens_on_a_good_answer_too_when_that_one_makes_the_sample_large_enough() -> None:
    made = breaker()
    for n in range(19):
        made.record(Event.OK if n in (3, 5, 7, 9, 11, 13, 15) else Event.FAILURE, n * 0.1)
    assert state(made) is State.CLOSED
    made.record(Event.OK, 2.0)
    assert state(made) is State.OPEN


def test_failures_older_than_the_window_are_forgotten() -> None:
    made = breaker()
    for n in range(9):
        made.record(Event.FAILURE, n * 0.01)
    for n in range(25):
        made.record(Event.OK, 31.0 + n)
    assert state(made) is State.CLOSED
    assert made.snapshot(56.0).failures == 0


def test_half_a_minute_of_good_answers_does_not_hide_a_target_that_has_just_died() -> None:
    made = breaker()
    for n in range(3000):
        made.record(Event.OK, n * 0.01)
    for n in range(10):
        made.record(Event.FAILURE, 30.0 + n * 0.01)
    assert state(made) is State.OPEN
    assert made.cause == "10 failures in a row"


def test_nor_one_that_fails_three_times_out_of_five() -> None:
    made = breaker()
    for n in range(3000):
        made.record(Event.OK, n * 0.01)
    failed_for = 0.0
    while state(made) is State.CLOSED:
        for event in (Event.FAILURE, Event.OK, Event.FAILURE, Event.OK, Event.FAILURE):
            made.record(event, 30.0 + failed_for)
            failed_for += 0.01
    assert failed_for < 6.0
    assert "of the newest" in made.cause


def test_five_connect_errors_in_a_row_open_it_without_a_sample() -> None:
    made = breaker()
    for _ in range(4):
        made.record(Event.CONNECT, 1.0)
    made.record(Event.OK, 1.0)
    for _ in range(4):
        made.record(Event.CONNECT, 2.0)
    assert state(made) is State.CLOSED
    made.record(Event.CONNECT, 2.0)
    assert state(made) is State.OPEN


def test_a_connect_error_counts_twice() -> None:
    made = breaker()
    for n in range(10):
        made.record(Event.OK, n * 0.1)
        if n % 2:
            made.record(Event.CONNECT, n * 0.1)
    assert state(made) is State.OPEN
    assert made.cause == "10 of 20 answers failed"


@pytest.mark.parametrize("event", [Event.NEUTRAL, Event.RATE, Event.QUOTA])
def test_the_callers_faults_cancels_and_rate_limits_never_open_it(event: Event) -> None:
    made = breaker()
    for n in range(1000):
        made.record(event, n * 0.01)
    assert state(made) is State.CLOSED
    assert made.snapshot(10.0).answers == 0


def test_ninety_percent_cancelling_clients_do_not_open_it() -> None:
    made = breaker()
    for n in range(500):
        permit = made.enter("interactive", n * 0.05)
        assert permit is not None
        permit.end(Event.NEUTRAL if n % 10 else Event.OK, n * 0.05)
    assert state(made) is State.CLOSED


def test_a_429_storm_moves_traffic_away_without_opening() -> None:
    made = breaker()
    made.record(Event.RATE, 10.0, retry_after_s=7.0)
    skip = made.hindrance("interactive", 16.9)
    assert skip is not None
    assert (skip.reason, skip.until) == (SkipReason.COOLING_DOWN, 17.0)
    assert made.allows("interactive", 17.0)


def test_of_two_cool_downs_the_later_stands() -> None:
    made = breaker()
    made.record(Event.RATE, 0.0, retry_after_s=30.0)
    made.record(Event.RATE, 1.0, retry_after_s=2.0)
    assert made.snapshot(1.0).not_before == 30.0


def test_a_429_without_a_time_waits_twice_as_long_each_time_in_a_row() -> None:
    made = breaker()
    waits = []
    for _ in range(7):
        made.record(Event.RATE, 100.0)
        waits.append(made.not_before - 100.0)
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    made.record(Event.OK, 200.0)
    made.record(Event.RATE, 200.0)
    assert made.not_before == 201.0


def test_hints_are_clamped() -> None:
    made = breaker()
    made.record(Event.RATE, 0.0, retry_after_s=86_400.0)
    assert made.not_before == 300.0
    made.record(Event.QUOTA, 0.0, retry_after_s=86_400.0)
    assert made.not_before == 3600.0


def test_a_refused_credential_bars_at_once_and_blames_nobody() -> None:
    breakers = Breakers(lambda: 0.5)
    key = BreakerKey("openai", "us", "gpt", "main")
    breakers.of(key).record(Event.MISCONFIGURED, 5.0, cause="401 invalid api key")
    skip = breakers.of(key).hindrance("interactive", 6.0)
    assert skip is not None
    assert (skip.reason, skip.detail, skip.until) == (SkipReason.MISCONFIGURED, "401 invalid api key", 65.0)
    assert breakers.barred() == [(key, "401 invalid api key")]
    seen = breakers.of(key).snapshot(6.0)
    assert (seen.answers, seen.failures, seen.trips) == (0, 0, 0)


def test_a_barred_target_is_tried_by_one_request_a_minute_and_comes_back_when_it_works() -> None:
    made = breaker()
    made.record(Event.MISCONFIGURED, 0.0)
    first = made.enter("interactive", 60.0)
    assert first is not None
    assert made.enter("interactive", 60.0) is None
    first.end(Event.MISCONFIGURED, 61.0)
    assert made.enter("interactive", 120.0) is None
    second = made.enter("interactive", 121.0)
    assert second is not None
    second.end(Event.OK, 122.0)
    assert state(made) is State.RAMPING


def test_slow_is_judged_against_prompts_of_the_same_size() -> None:
    made = breaker(ttft_slo_s=1.0)
    for n in range(60):
        made.record(Event.OK, n * 1.0, ttft=0.2, prompt_tokens=500)
        made.record(Event.OK, n * 1.0, ttft=4.0, prompt_tokens=50_000)
    for n in range(40):  # four seconds is usual for the long ones
        made.record(Event.OK, 100 + n * 0.1, ttft=4.2, prompt_tokens=50_000)
    assert state(made) is State.CLOSED
    for n in range(40):
        made.record(Event.OK, 200 + n * 0.1, ttft=4.2, prompt_tokens=500)
    assert state(made) is State.OPEN
    assert "were slow" in made.cause


def test_slower_than_usual_but_within_the_goal_is_not_slow() -> None:
    made = breaker(ttft_slo_s=1.0)
    for n in range(60):
        made.record(Event.OK, n * 1.0, ttft=0.05, prompt_tokens=500)
    for n in range(100):
        made.record(Event.OK, 100 + n * 0.1, ttft=0.9, prompt_tokens=500)
    assert state(made) is State.CLOSED


def test_a_target_that_is_merely_slow_is_a_last_resort_and_not_refused() -> None:
    made = breaker(ttft_slo_s=0.1)
    for n in range(60):
        made.record(Event.OK, n * 0.1 - 100.0, ttft=0.05, prompt_tokens=500)
    for n in range(20):
        made.record(Event.OK, n * 0.1, ttft=5.0, prompt_tokens=500)
    assert state(made) is State.OPEN
    skip = made.hindrance("interactive", 2.0)
    assert skip is not None
    assert skip.soft
    assert made.enter("interactive", 2.0, last_resort=False) is None
    permit = made.enter("interactive", 2.0)
    assert permit is not None
    assert not permit.probe


def test_open_lasts_five_seconds_doubling_with_each_failed_probe_up_to_five_minutes() -> None:
    made = opened(0.0)
    now = 0.0
    lasted = []
    for _ in range(9):
        lasted.append(made.until - now)
        now = made.until
        permit = made.enter("batch", now)
        assert permit is not None
        permit.end(Event.FAILURE, now)
    assert lasted == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_probes_go_1_2_4_8_and_each_step_waits_for_the_one_before() -> None:
    made = opened(0.0)
    now = 5.0
    for step in (1, 2, 4, 8):
        permits = [made.enter("batch", now) for _ in range(step)]
        assert all(permits)
        assert made.enter("batch", now) is None
        for permit in permits[:-1]:
            assert permit is not None
            permit.end(Event.OK, now)
        assert made.enter("batch", now) is None
        assert permits[-1] is not None
        permits[-1].end(Event.OK, now)
    assert state(made) is State.RAMPING


def test_probes_are_taken_from_the_lowest_class_while_it_sends_any() -> None:
    made = opened(0.0)
    assert not made.allows("interactive", 5.0)
    assert made.allows("batch", 5.0)
    assert not made.allows("interactive", 6.9)
    assert made.allows("interactive", 7.0)


def test_a_probe_is_decided_at_its_first_token_and_can_still_fail_after_it() -> None:
    made = opened(0.0)
    first = made.enter("batch", 5.0)
    assert first is not None
    first.answered(5.3, 0.3, 100)
    second = made.enter("batch", 5.4)
    assert second is not None
    first.end(Event.FAILURE, 6.0)
    assert state(made) is State.OPEN
    assert made.trips == 1


def test_a_cancelled_probe_gives_its_place_back() -> None:
    made = opened(0.0)
    permit = made.enter("batch", 5.0)
    assert permit is not None
    assert made.enter("batch", 5.0) is None
    permit.end(Event.NEUTRAL, 5.5)
    assert made.enter("batch", 5.5) is not None
    assert state(made) is State.HALF_OPEN


def test_a_probe_nobody_reported_on_gives_its_place_back_in_time() -> None:
    made = opened(0.0)
    assert made.enter("batch", 5.0) is not None
    assert made.enter("batch", 305.0) is None
    assert made.enter("batch", 305.1) is not None


def test_late_reports_from_before_the_opening_say_nothing_new() -> None:
    made = breaker()
    early = [made.enter("interactive", 0.0) for _ in range(10)]
    for _ in range(5):
        made.record(Event.CONNECT, 1.0)
    probe = made.enter("batch", 6.0)
    assert probe is not None
    for permit in early:
        assert permit is not None
        permit.end(Event.FAILURE, 6.5)
    assert state(made) is State.HALF_OPEN
    probe.end(Event.OK, 7.0)
    assert state(made) is State.HALF_OPEN


def test_traffic_comes_back_little_by_little_after_a_clean_minute() -> None:
    made = opened(0.0)
    probed(made, 5.0)
    assert made.share(64.9) == pytest.approx(0.1)
    assert made.share(67.0) == pytest.approx(0.3)
    assert made.share(70.0) == pytest.approx(0.6)
    let_in = sum(made.allows("interactive", 67.0, n / 1000) for n in range(1000))
    assert let_in == pytest.approx(300, abs=15)
    skip = next(s for n in range(100) if (s := made.hindrance("interactive", 67.0, n / 100)))
    assert (skip.reason, skip.soft) == (SkipReason.SLOW_START, True)
    assert made.allows("interactive", 74.1, 0.99)
    assert state(made) is State.CLOSED


def test_a_failure_while_ramping_starts_the_clean_minute_anew() -> None:
    made = opened(0.0)
    probed(made, 5.0)
    made.record(Event.FAILURE, 50.0)
    assert made.share(100.0) == pytest.approx(0.1)
    assert made.share(112.0) == pytest.approx(0.3)


def test_a_flapping_target_is_switched_to_at_most_once_a_minute() -> None:
    """It serves for 20 s after each return to life and dies for 10 s, over an hour: full traffic never comes back."""
    rng = random.Random(1)
    made = Breaker(rng.random)
    shares = []
    for tick in range(36_000):
        now = tick * 0.1
        alive = (now % 30.0) >= 10.0
        permit = made.enter("batch" if rng.random() < 0.3 else "interactive", now, rng.random(), last_resort=False)
        if permit is not None:
            permit.end(Event.OK if alive else Event.CONNECT, now)
        shares.append(made.share(now) >= 0.5)
    switches = sum(a != b for a, b in pairwise(shares))
    assert switches <= 60


def test_k_is_forgiven_one_for_five_clean_minutes() -> None:
    made = opened(0.0)
    for _ in range(3):
        permit = made.enter("batch", made.until)
        assert permit is not None
        permit.end(Event.FAILURE, made.until)
    assert made.trips == 3
    probed(made, made.until)
    closed = made.since + 70.0
    assert made.allows("batch", closed, 0.99)
    assert state(made) is State.CLOSED
    for _ in range(5):
        made.record(Event.CONNECT, closed + 601.0)
    assert made.trips == 1
    assert made.until == pytest.approx(closed + 601.0 + 10.0)


def test_a_health_probe_shortens_only_what_connect_errors_opened() -> None:
    refused = opened(0.0)
    refused.reachable(1.0)
    assert refused.allows("batch", 1.0)
    failing = breaker()
    for _ in range(20):
        failing.record(Event.FAILURE, 0.0)
    failing.reachable(1.0)
    assert not failing.allows("batch", 1.0)


def test_every_kind_of_failure_has_a_meaning_here() -> None:
    assert set(EVENT_OF) == set(FailureKind)
    assert {kind for kind, event in EVENT_OF.items() if event in (Event.FAILURE, Event.CONNECT, Event.TIMEOUT)} == {
        FailureKind.CAPACITY,
        FailureKind.TRANSIENT,
    }


def test_no_state_is_a_dead_end() -> None:
    for state in State:
        assert any(start is state and end is not state for (start, _), end in TABLE.items())
        assert any(end is state and start is not state for (start, _), end in TABLE.items())


class Watched(Breaker):
    """Checks each change of state against the table, and the time spent open against the jitter."""

    __slots__ = ("edges", "open_times")

    def __init__(self, rng: random.Random) -> None:
        self.edges: list[tuple[State, Move, State]] = []
        self.open_times: list[tuple[int, float]] = []
        super().__init__(rng.random)

    def _move(self, move: Move, now: float) -> None:
        before = self.state
        super()._move(move, now)
        if self.state is not before:
            self.edges.append((before, move, self.state))
            if self.state is State.OPEN:
                self.open_times.append((self.trips, self.until - now))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "end", "record", "answer"]),
        st.sampled_from(list(Event)),
        st.floats(0.0, 20.0),
        st.integers(0, 30),
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(0, 1000), st.booleans())
def test_no_illegal_edge_no_probe_too_many_no_time_outside_the_jitter(
    steps: list[tuple[str, Event, float, int]], seed: int, harsh: bool
) -> None:
    made = Watched(random.Random(seed))
    running: list[Permit] = []
    now = 0.0
    for what, event, wait, which in steps:
        now += wait
        if what == "enter":
            permit = made.enter("batch" if which % 2 else "interactive", now, which / 31, last_resort=False)
            if permit is not None:
                assert state(made) is not State.OPEN
                running.append(permit)
        elif what == "record":
            for _ in range(which if harsh else 1):
                made.record(event, now, ttft=wait, prompt_tokens=which)
        elif running and what == "answer":
            running[which % len(running)].answered(now, wait, which)
        elif running:
            running.pop(which % len(running)).end(event, now, wait, which)
        seen = made.snapshot(now)
        limit = {State.HALF_OPEN: 8, State.BARRED: 1}.get(made.state, 0)
        assert seen.probes <= limit
        assert seen.failures >= 0
        assert 0.0 <= seen.share <= 1.0
    for before, move, after in made.edges:
        assert TABLE[before, move] is after
    for trips, lasted in made.open_times:
        whole = min(5.0 * 2.0**trips, 300.0)
        assert whole * 0.8 - 1e-9 <= lasted <= whole * 1.2 + 1e-9


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([Event.NEUTRAL, Event.RATE, Event.QUOTA, Event.OK]), max_size=300))
def test_nothing_but_failures_ever_opens_it(events: list[Event]) -> None:
    made = breaker()
    for n, event in enumerate(events):
        made.record(event, n * 0.1)
    assert state(made) is State.CLOSED
    assert math.isinf(made.since)


def test_of_many_that_ask_before_the_first_has_entered_only_the_probes_are_let_come() -> None:
    made = opened(0.0)
    asked = [made.hindrance("batch", 5.0) for _ in range(100)]
    assert [skip is None for skip in asked].count(True) == 1
    refused = asked[-1]
    assert refused is not None
    assert (refused.reason, refused.detail) == (SkipReason.PROBE_LIMIT, "all 1 probes are spoken for")
    assert made.hindrance("batch", 5.9) is not None
    assert made.hindrance("batch", 6.0) is None  # the first never came
    assert made.enter("batch", 6.5) is not None
    assert made.enter("batch", 6.5) is None


def test_a_target_that_accepts_and_never_answers_opens_and_its_health_page_changes_nothing() -> None:
    made = breaker()
    for n in range(10):
        made.record(Event.TIMEOUT, n * 1.0)
    assert state(made) is State.OPEN
    made.reachable(10.0)
    assert not made.allows("batch", 10.0)


def test_a_half_broken_region_opens_and_a_third_broken_one_does_not() -> None:
    for share, expected in ((0.6, State.OPEN), (0.33, State.CLOSED)):
        rng = random.Random(2)
        made = breaker()
        for n in range(2000):
            made.record(Event.FAILURE if rng.random() < share else Event.OK, n * 0.05)
            if state(made) is State.OPEN:
                break
        assert state(made) is expected


def test_streams_cut_after_their_first_token_open_it() -> None:
    made = breaker()
    for n in range(20):
        permit = made.enter("interactive", n * 0.5)
        assert permit is not None
        permit.answered(n * 0.5 + 0.2, 0.2, 100)
        permit.end(Event.FAILURE, n * 0.5 + 0.4)
    assert state(made) is State.OPEN
    assert made.cause == "19 of 20 answers failed"


def test_what_another_instance_or_the_health_polls_found_opens_it_and_the_return_is_gradual() -> None:
    made = breaker()
    made.trip(1.0, "no replica is usable")
    skip = made.hindrance("interactive", 2.0)
    assert skip is not None
    assert (skip.detail, skip.until, skip.soft) == ("no replica is usable", 6.0, False)
    made.reachable(3.0)
    probed(made, 3.0)
    assert made.share(3.0) == pytest.approx(0.1)


def test_after_the_operators_repair_it_is_tried_at_once() -> None:
    made = breaker()
    made.record(Event.MISCONFIGURED, 0.0)
    made.record(Event.QUOTA, 0.0, retry_after_s=3600.0)
    assert not made.allows("batch", 1.0)
    made.reset(1.0)
    assert made.allows("batch", 1.0)


def test_breakers_of_removed_targets_are_forgotten() -> None:
    breakers = Breakers(lambda: 0.5)
    kept, gone = BreakerKey("a", "eu", "m", "k"), BreakerKey("b", "eu", "m", "k")
    for key in (kept, gone):
        breakers.record(key, Event.OK, 1.0, 0.2, 100)
    breakers.retain([kept])
    assert list(breakers.snapshot(1.0)) == [kept]
    assert breakers.snapshot(1.0)[kept].answers == 1
    assert breakers.allows(kept, "batch", 1.0)
