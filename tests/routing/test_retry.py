"""One budget over everything that happens to a request, and one ratio for all requests."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.exchange import FailureKind
from providers.retry import NEXT, Around, AttemptBudget, RetryRatio, RetryRatios, RetrySettings, Step, Stop

ALL = Around(replicas=True, credentials=True, targets=True)
RICH = RetrySettings(begin=100.0)


def budget(**kwargs: object) -> AttemptBudget:
    given_: dict[str, object] = {"ratios": RetryRatios(RICH), "tenant": "acme", "now": 0.0, "deadline": 60.0}
    return AttemptBudget(**(given_ | kwargs))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [FailureKind.CLIENT, FailureKind.CONTENT])
def test_the_callers_fault_is_never_tried_again(kind: FailureKind) -> None:
    decision = budget().after(kind, 1.0, ALL, 0.5)
    assert (decision.step, decision.stop, decision.again) == (Step.GIVE_UP, Stop.NOT_RETRYABLE, False)


def test_every_kind_of_failure_has_its_ways_on() -> None:
    assert set(NEXT) == set(FailureKind)


@pytest.mark.parametrize(
    ("kind", "around", "step"),
    [
        (FailureKind.TRANSIENT, ALL, Step.OTHER_REPLICA),
        (FailureKind.TRANSIENT, Around(credentials=True, targets=True), Step.OTHER_CREDENTIAL),
        (FailureKind.TRANSIENT, Around(targets=True), Step.NEXT_TARGET),
        (FailureKind.TRANSIENT, Around(), Step.SAME_AGAIN),
        (FailureKind.CAPACITY, ALL, Step.OTHER_REPLICA),
        (FailureKind.RATE, ALL, Step.OTHER_CREDENTIAL),
        (FailureKind.AUTH, ALL, Step.OTHER_CREDENTIAL),
        (FailureKind.AUTH, Around(replicas=True, targets=True), Step.NEXT_TARGET),
        (FailureKind.CREDIT, Around(replicas=True, targets=True), Step.NEXT_TARGET),
        (FailureKind.CONFIG, ALL, Step.NEXT_TARGET),
        (FailureKind.CONTEXT, ALL, Step.NEXT_TARGET),
    ],
)
def test_the_way_on_follows_from_the_kind(kind: FailureKind, around: Around, step: Step) -> None:
    assert budget().after(kind, 1.0, around, 0.5).step is step


def test_the_same_place_is_never_asked_again_while_another_is_left() -> None:
    for kind in FailureKind:
        for around in (Around(replicas=True), Around(credentials=True), Around(targets=True)):
            assert budget().after(kind, 1.0, around, 0.5).step is not Step.SAME_AGAIN or not any(
                (step is Step.OTHER_REPLICA and around.replicas)
                or (step is Step.OTHER_CREDENTIAL and around.credentials)
                or (step is Step.NEXT_TARGET and around.targets)
                for step in NEXT[kind]
            )


def test_three_attempts_in_all_whatever_the_reasons() -> None:
    made = budget()
    assert made.after(FailureKind.TRANSIENT, 1.0, ALL, 0.5).step is Step.OTHER_REPLICA
    assert made.after(FailureKind.AUTH, 1.1, ALL, 0.5).step is Step.OTHER_CREDENTIAL
    last = made.after(FailureKind.CAPACITY, 1.2, ALL, 0.5)
    assert (last.step, last.stop, last.again) == (Step.GIVE_UP, Stop.ATTEMPTS, False)
    assert made.attempts == 3


@pytest.mark.parametrize(("sdk_retries", "tries"), [(0, 3), (1, 2), (2, 1), (7, 1)])
def test_the_sdks_own_retries_use_up_the_same_budget(sdk_retries: int, tries: int) -> None:
    made = budget(sdk_retries=sdk_retries)
    while made.after(FailureKind.TRANSIENT, 1.0, ALL, 0.5).step is not Step.GIVE_UP:
        pass
    assert made.attempts == tries


def test_an_sdk_retry_is_no_first_try_and_earns_nothing() -> None:
    ratios = RetryRatios(RetrySettings(begin=0.0))
    for _ in range(100):
        AttemptBudget(ratios, "acme", 0.0, 60.0, sdk_retries=1)
    assert ratios.fleet.level(0.0) == 0.0
    for _ in range(10):
        AttemptBudget(ratios, "acme", 0.0, 60.0)
    assert ratios.fleet.level(0.0) == pytest.approx(1.0)


def test_nothing_is_replayed_after_the_first_content_byte() -> None:
    for kind in FailureKind:
        decision = budget().after(kind, 1.0, ALL, 0.5, content_sent=True)
        assert (decision.step, decision.stop) == (Step.GIVE_UP, Stop.CONTENT_SENT)


def test_no_attempt_begins_that_could_not_end_in_time() -> None:
    made = budget(deadline=10.0)
    assert made.after(FailureKind.RATE, 5.0, Around(), 0.0, retry_after_s=4.0).step is Step.SAME_AGAIN
    late = made.after(FailureKind.RATE, 9.0, Around(), 0.0, retry_after_s=4.0)
    assert (late.step, late.stop) == (Step.GIVE_UP, Stop.DEADLINE)


def test_attempts_that_may_have_been_billed_count_against_the_ceiling() -> None:
    made = budget(ceiling_usd_micro=1000)
    assert made.after(FailureKind.TRANSIENT, 1.0, ALL, 0.0, billed_usd_micro=300, next_usd_micro=300).stop is None
    over = made.after(FailureKind.TRANSIENT, 2.0, ALL, 0.0, billed_usd_micro=500, next_usd_micro=300)
    assert (over.step, over.stop) == (Step.GIVE_UP, Stop.MONEY)


def test_a_way_around_needs_no_pause_and_the_same_place_gets_full_jitter() -> None:
    assert budget().after(FailureKind.TRANSIENT, 1.0, ALL, 0.9).wait_s == 0.0
    made = budget(settings=RetrySettings(max_attempts=9))
    waits = [made.after(FailureKind.TRANSIENT, 1.0, Around(), 0.5).wait_s for _ in range(8)]
    assert waits == pytest.approx([0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert made.waited == pytest.approx(sum(waits))


@pytest.mark.parametrize("kind", [FailureKind.AUTH, FailureKind.CREDIT, FailureKind.CONFIG])
def test_our_own_faults_alarm_the_operator_and_are_not_handed_to_the_client(kind: FailureKind) -> None:
    decision = budget().after(kind, 1.0, Around(targets=True), 0.5)
    assert (decision.step, decision.alarm) == (Step.NEXT_TARGET, True)
    last = budget().after(kind, 1.0, Around(), 0.5)
    assert (last.stop, last.alarm, last.again) == (Stop.NOTHING_LEFT, True, False)


def test_the_client_may_retry_only_where_we_have_not() -> None:
    once = budget().after(FailureKind.CAPACITY, 1.0, Around(same=False), 0.5)
    assert (once.stop, once.again) == (Stop.NOTHING_LEFT, True)
    made = budget()
    made.after(FailureKind.CAPACITY, 1.0, ALL, 0.5)
    assert made.after(FailureKind.CAPACITY, 1.0, Around(same=False), 0.5).again is False


def test_one_tenants_failing_target_does_not_use_up_everybodys_tries() -> None:
    ratios = RetryRatios(RICH)
    assert sum(ratios.take("noisy", 0.0) for _ in range(100)) == 50 + 20  # the plenty, and its own
    assert sum(ratios.take("quiet", 0.0) for _ in range(100)) == 20


def test_a_refusal_by_the_fleet_costs_the_tenant_nothing() -> None:
    ratios = RetryRatios(RetrySettings(begin=1.0, per_second=0.0))
    assert ratios.take("a", 0.0)
    assert not ratios.take("b", 0.0)
    ratios.fleet.give_back()
    assert ratios.take("b", 0.0)


def test_tenants_that_are_silent_longest_are_forgotten() -> None:
    ratios = RetryRatios(RICH, tenants=2)
    while ratios.take("a", 0.0):
        pass
    ratios.first("b", 0.0)
    ratios.first("c", 0.0)
    assert ratios.take("a", 0.0)


def test_the_time_allowance_is_shared_by_the_fleet() -> None:
    ratio = RetryRatio(RetrySettings(begin=0.0))
    ratio.set_instances(4, 0.0)
    assert ratio.level(8.0) == pytest.approx(2.0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.5, 400.0), st.integers(1, 60))
def test_a_total_outage_multiplies_by_at_most_a_tenth_and_one_a_second(seed: int, rate: float, seconds: int) -> None:
    """Every attempt fails; 20 tenants; upstream sees at most 1.1 x requests + 1/s + what was saved."""
    rng = random.Random(seed)
    numbers = RetrySettings()
    ratios = RetryRatios(numbers)
    requests = attempts = 0
    now = 0.0
    while now < seconds and requests < 2000:
        requests += 1
        made = AttemptBudget(ratios, f"t{rng.randrange(20)}", now, now + 60.0)
        while made.after(FailureKind.TRANSIENT, now, ALL, rng.random()).step is not Step.GIVE_UP:
            pass
        attempts += made.attempts
        now += rng.expovariate(rate)
    assert attempts <= 1.1 * requests + 1.0 * now + numbers.begin


def test_what_goes_on_where_an_attempt_stopped_asks_nothing_of_the_ratio() -> None:
    ratios = RetryRatios(RetrySettings(begin=0.0))
    one = budget(ratios=ratios)
    assert one.left == 2
    assert one.after(FailureKind.TRANSIENT, 0.0, ALL, 0.5, free=True).step is Step.OTHER_REPLICA
    assert one.left == 1
    assert ratios.fleet.spent == 0
    assert one.after(FailureKind.TRANSIENT, 0.0, ALL, 0.5).stop is Stop.RATIO
    assert budget(sdk_retries=2).left == 0
