"""Which targets a request may use, in which order, and what is said about the others."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.route import (
    FailureDomain,
    Feature,
    Needs,
    Policy,
    Route,
    Skip,
    SkipReason,
    Target,
    Tier,
    candidates,
    cycles,
    faults,
    other_domain_first,
    shared_fates,
)

HERE = FailureDomain("self", "eu", "llama")
THERE = FailureDomain("openai", "us", "gpt")


def fine(target: Target, now: float) -> Skip | None:
    return None


def route(*tiers: Tier) -> Route:
    return Route("chat-large", tiers)


SMALL = Target("local", "small", HERE, context=8_000, features=frozenset({Feature.TOOLS}))
LARGE = Target("vendor", "large", THERE, context=128_000, input_usd_per_mtok=2.0, output_usd_per_mtok=10.0)
TWO = route(Tier((SMALL,)), Tier((LARGE,)))


def reasons(needs: Needs, of: Route = TWO) -> dict[str, SkipReason]:
    return {target.pool: skip.reason for target, skip in candidates(of, needs, fine, 0.0, 0.5).skipped}


def test_tiers_come_in_order() -> None:
    assert candidates(TWO, Needs(100), fine, 0.0, 0.5).targets == [SMALL, LARGE]


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        (Needs(8_000, 500, exact=True), SkipReason.CONTEXT_TOO_SMALL),
        (Needs(100, features=frozenset({Feature.IMAGES})), SkipReason.FEATURE_MISSING),
        (Needs(100, features=frozenset({Feature.TOOLS, Feature.JSON_SCHEMA})), SkipReason.FEATURE_MISSING),
        (Needs(100, policy=Policy(pools=frozenset({"vendor"}))), SkipReason.POOL_FORBIDDEN),
        (Needs(100, policy=Policy(regions=frozenset({"us"}))), SkipReason.REGION_FORBIDDEN),
        (Needs(100, failed=frozenset({("local", "small")})), SkipReason.ALREADY_FAILED),
    ],
)
def test_a_target_that_cannot_serve_is_skipped_with_its_reason(needs: Needs, reason: SkipReason) -> None:
    plan = candidates(TWO, needs, fine, 0.0, 0.5)
    assert plan.targets == [LARGE]
    assert [(target.pool, skip.reason) for target, skip in plan.skipped] == [("local", reason)]
    assert plan.skipped[0][1].detail


def test_the_detail_names_the_figures() -> None:
    plan = candidates(TWO, Needs(8_000, 500, exact=True), fine, 0.0, 0.5)
    assert plan.skipped[0][1].detail == "needs 8500 tokens, has 8000"


def test_a_fallback_with_a_smaller_context_is_not_used() -> None:
    assert reasons(Needs(20_000, exact=True), route(Tier((LARGE,)), Tier((SMALL,)))) == {
        "local": SkipReason.CONTEXT_TOO_SMALL
    }


def test_an_estimate_that_may_be_too_high_puts_the_small_target_last_instead_of_away() -> None:
    plan = candidates(TWO, Needs(9_000), fine, 0.0, 0.5)
    assert plan.targets == [LARGE, SMALL]
    assert candidates(TWO, Needs(11_000), fine, 0.0, 0.5).targets == [LARGE]


@pytest.mark.parametrize(
    ("policy", "reason"),
    [(Policy(spill=False), SkipReason.SPILL_FORBIDDEN), (Policy(ceiling_usd_micro=1_000), SkipReason.TOO_DEAR)],
)
def test_spill_stays_within_what_the_tenant_allows_and_pays(policy: Policy, reason: SkipReason) -> None:
    assert reasons(Needs(400, output_tokens=30, policy=policy)) == {"vendor": reason}


def test_the_ceiling_is_the_estimated_price() -> None:
    assert LARGE.price(400, 30) == 1_100
    assert reasons(Needs(400, output_tokens=30, policy=Policy(ceiling_usd_micro=1_100))) == {}
    assert SMALL.price(1_000, 1_000) == 0


def test_a_hard_hindrance_skips_and_a_soft_one_comes_last() -> None:
    def state(target: Target, now: float) -> Skip | None:
        return Skip(SkipReason.SLOW_START, "10% of the traffic is back", soft=True) if target is SMALL else None

    plan = candidates(TWO, Needs(1), state, 0.0, 0.5)
    assert plan.targets == [LARGE, SMALL]
    assert plan.skipped == [(SMALL, Skip(SkipReason.SLOW_START, "10% of the traffic is back", None, True))]


def test_weights_are_kept_over_many_requests_and_so_is_the_order_behind_the_first() -> None:
    a, b, c = (Target(name, "m", HERE, weight=weight) for name, weight in (("a", 6.0), ("b", 3.0), ("c", 1.0)))
    tier = route(Tier((a, b, c)))
    rng = random.Random(7)
    orders = Counter(
        "".join(target.pool for target in candidates(tier, Needs(1), fine, 0.0, rng.random()).targets)
        for _ in range(20_000)
    )
    first = {name: sum(n for order, n in orders.items() if order[0] == name) / 20_000 for name in "abc"}
    assert first == pytest.approx({"a": 0.6, "b": 0.3, "c": 0.1}, abs=0.015)
    assert orders["abc"] / (orders["abc"] + orders["acb"]) == pytest.approx(0.75, abs=0.02)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.0, 5.0), min_size=1, max_size=6), st.floats(0.0, 1.0, exclude_max=True))
def test_every_target_stands_in_the_plan_or_among_the_skipped_exactly_once(weights: list[float], pick: float) -> None:
    targets = tuple(Target(f"p{n}", "m", HERE, weight=weight) for n, weight in enumerate(weights))
    plan = candidates(route(Tier(targets)), Needs(1), fine, 0.0, pick)
    assert sorted(t.pool for t in plan.targets) + sorted(t.pool for t, _ in plan.skipped) == sorted(
        t.pool for t in targets if t.weight > 0
    ) + sorted(t.pool for t in targets if t.weight <= 0)


def test_the_same_number_keeps_a_session_on_its_target() -> None:
    tier = route(Tier(tuple(Target(f"p{n}", "m", HERE) for n in range(5))))
    plans = [candidates(tier, Needs(1), fine, 0.0, 0.37).targets for _ in range(3)]
    assert plans[0] == plans[1] == plans[2]


def test_a_later_tier_comes_first_when_the_wait_before_it_is_too_long() -> None:
    spilling = route(Tier((SMALL,)), Tier((LARGE,), after_s=2.0))
    assert candidates(spilling, Needs(1), fine, 0.0, 0.5, lambda target, now: 1.9).targets == [SMALL, LARGE]
    assert candidates(spilling, Needs(1), fine, 0.0, 0.5, lambda target, now: 2.1).targets == [LARGE, SMALL]


def test_an_unknown_wait_becomes_patience() -> None:
    spilling = route(Tier((SMALL,)), Tier((LARGE,), after_s=2.0))
    for wait in (None, lambda target, now: None, lambda target, now: 0.5):
        plan = candidates(spilling, Needs(1), fine, 0.0, 0.5, wait)
        assert [(leg.target, leg.tier, leg.patience_s) for leg in plan.legs] == [(SMALL, 0, 2.0), (LARGE, 1, None)]


def test_a_tenant_that_may_not_spill_has_all_its_patience() -> None:
    spilling = route(Tier((SMALL,)), Tier((LARGE,), after_s=2.0))
    plan = candidates(spilling, Needs(1, policy=Policy(spill=False)), fine, 0.0, 0.5, lambda target, now: 60.0)
    assert [(leg.target, leg.patience_s) for leg in plan.legs] == [(SMALL, None)]


def test_what_shares_the_failed_ones_fate_is_tried_after_what_does_not() -> None:
    dead = Target("a", "m", FailureDomain("azure", "eu", "gpt"))
    near = Target("b", "m", FailureDomain("azure", "eu", "gpt"))
    same_vendor = Target("c", "m", FailureDomain("azure", "us", "llama"))
    far = Target("d", "m", FailureDomain("bedrock", "us", "claude"))
    later = Target("e", "m", FailureDomain("self", "eu", "llama"))
    plan = candidates(route(Tier((dead, near, same_vendor, far)), Tier((later,))), Needs(1), fine, 0.0, 0.0)
    assert [leg.target for leg in other_domain_first(plan.legs, dead)] == [far, same_vendor, near, later]


def test_cycles_are_found_when_the_configuration_is_read() -> None:
    assert cycles({"a": ["b"], "b": ["c"], "c": []}) == []
    assert cycles({"a": ["b"], "b": ["c", "d"], "c": ["a"], "e": ["e"]}) == [("a", "b", "c"), ("e",)]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (route(), "model chat-large has no tier"),
        (route(Tier(())), "tier 1 of model chat-large has no target"),
        (
            route(Tier((Target("a", "m", HERE, weight=0.0),))),
            "no target of tier 1 of model chat-large has a weight above 0",
        ),
        (route(Tier((SMALL,)), Tier((SMALL,))), "model chat-large names local/small in tiers 1 and 2"),
        (route(Tier((SMALL, SMALL))), "model chat-large names local/small twice in a tier"),
        (
            route(Tier((SMALL,), after_s=1.0)),
            "tier 1 of model chat-large cannot have after_ms: nothing comes before it",
        ),
    ],
)
def test_each_fault_of_a_route_has_its_sentence(broken: Route, message: str) -> None:
    assert faults(broken) == [message]
    assert faults(TWO) == []


def test_tiers_that_would_fail_together_are_named() -> None:
    twin = Target("local2", "small", FailureDomain("self", "us", "llama"))
    assert shared_fates(route(Tier((SMALL,)), Tier((twin,)))) == [
        "tiers 1 and 2 of model chat-large share the vendor self"
    ]
    assert shared_fates(TWO) == []
