"""LoRA adapters: where they are, where they may be loaded, and no stampede."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.adapters import Adapters, AdapterSettings, Cannot, Load, Ready, Residency, Wait


def pool(*replicas: str, slots: int = 2, known: list[str] | None = None) -> Adapters:
    made = Adapters(known, AdapterSettings(slots=slots))
    for name in replicas:
        made.set_replica(name)
    return made


def test_a_resident_adapter_is_used_where_it_is() -> None:
    adapters = pool("a")
    adapters.set_replica("b", 2, ["fr"])
    assert adapters.want("fr", ["a", "b"], 0.0) == Ready(frozenset({"b"}))
    assert [adapters.score(name, "fr", 0.0) for name in ("a", "b")] == [0.8, 1.0]


def test_one_load_is_begun_and_everybody_else_waits_for_it() -> None:
    adapters = pool("a", "b")
    assert adapters.want("fr", ["b", "a"], 0.0) == Load("b", "fr", None)
    assert [adapters.want("fr", ["b", "a"], 0.1) for _ in range(50)] == [Wait("b", 5.0)] * 50
    adapters.loaded("b", "fr", 3.0)
    assert adapters.want("fr", ["b", "a"], 3.0) == Ready(frozenset({"b"}))


def test_a_replica_loads_one_at_a_time_in_order_of_arrival() -> None:
    adapters = pool("a", slots=4)
    assert isinstance(adapters.want("fr", ["a"], 0.0), Load)
    assert adapters.want("de", ["a"], 0.0) == Wait("a", 10.0)
    assert adapters.want("it", ["a"], 0.0) == Wait("a", 15.0)
    assert adapters.next_load("a", 1.0) is None
    adapters.loaded("a", "fr", 5.0)
    assert adapters.next_load("a", 5.0) == Load("a", "de", None)
    adapters.failed("a", "de", 6.0, "no such file")
    assert adapters.next_load("a", 6.0) == Load("a", "it", None)


def test_the_longest_unused_idle_adapter_makes_room_and_a_serving_one_never_does() -> None:
    adapters = pool("a")
    for name in ("fr", "de"):
        adapters.want(name, ["a"], 0.0)
        adapters.loaded("a", name, 0.0)
    adapters.begin("a", "fr")
    assert adapters.want("it", ["a"], 1.0) == Load("a", "it", "de")
    adapters.loaded("a", "it", 2.0)
    adapters.begin("a", "it")
    assert adapters.standing("a", "de", 2.0) is Residency.FULL
    assert adapters.want("de", ["a"], 2.0) == Cannot("all adapter slots serve others, de must wait", None)
    adapters.end("a", "fr")
    assert adapters.want("de", ["a"], 3.0) == Load("a", "de", "fr")


def test_a_failed_load_is_not_tried_again_before_its_pause_and_says_why() -> None:
    adapters = pool("a")
    pauses = []
    causes = []
    now = 0.0
    for _ in range(8):
        assert isinstance(adapters.want("fr", ["a"], now), Load)
        adapters.failed("a", "fr", now, "rank 64 exceeds max_lora_rank 16")
        refused = adapters.want("fr", ["a"], now)
        assert isinstance(refused, Cannot)
        assert refused.until is not None
        assert adapters.standing("a", "fr", now) is Residency.FAILED
        pauses.append(refused.until - now)
        causes.append(refused.cause)
        now = refused.until
    assert causes[-1] == "loading fr failed 8 times: rank 64 exceeds max_lora_rank 16"
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]


def test_after_a_failure_another_replica_is_asked() -> None:
    adapters = pool("a", "b")
    adapters.want("fr", ["a", "b"], 0.0)
    adapters.failed("a", "fr", 1.0, "out of memory")
    assert adapters.want("fr", ["a", "b"], 1.0) == Load("b", "fr", None)


def test_failures_of_adapters_that_nobody_has_do_not_fill_the_memory() -> None:
    adapters = pool("a")
    for n in range(1000):
        adapters.want(f"made-up-{n}", ["a"], float(n))
        adapters.failed("a", f"made-up-{n}", float(n), "not found")
    assert len(adapters.snapshot()["a"].failures) == 256
    assert isinstance(adapters.want("made-up-999", ["a"], 999.0), Cannot)


def test_a_load_without_an_answer_counts_as_failed() -> None:
    adapters = pool("a")
    adapters.want("fr", ["a"], 0.0)
    assert isinstance(adapters.want("fr", ["a"], 120.0), Wait)
    late = adapters.want("fr", ["a"], 121.0)
    assert isinstance(late, Cannot)
    assert late.cause == "loading fr failed 1 times: no answer to the load for 121 s"


def test_a_hot_adapter_is_spread_to_one_more_replica() -> None:
    adapters = pool("a", "b")
    adapters.want("fr", ["a", "b"], 0.0)
    adapters.loaded("a", "fr", 1.0)
    for _ in range(16):
        assert adapters.want("fr", ["a", "b"], 1.0) == Ready(frozenset({"a"}))
        adapters.begin("a", "fr")
    assert adapters.want("fr", ["a", "b"], 2.0) == Load("b", "fr", None)
    assert adapters.want("fr", ["a", "b"], 2.0) == Ready(frozenset({"a"}))


def test_unknown_adapters_and_replicas_without_slots_are_impossible() -> None:
    adapters = pool("a", known=["fr"])
    adapters.set_replica("plain", 0)
    assert adapters.want("xx", ["a"], 0.0) == Cannot("no replica takes adapter xx", None)
    assert adapters.score("plain", "fr", 0.0) == 0.0
    assert adapters.want("fr", ["plain"], 0.0) == Cannot("no replica takes adapter fr", None)


def test_what_the_engine_reports_is_believed_except_for_adapters_in_use() -> None:
    adapters = pool("a")
    adapters.observe("a", ["fr", "de"])
    adapters.begin("a", "fr")
    adapters.observe("a", ["it"], slots=3)
    assert adapters.snapshot()["a"].resident == {"fr": 1, "it": 0}
    assert adapters.snapshot()["a"].slots == 3


@pytest.mark.parametrize("times", [1, 3])
def test_ending_more_often_than_beginning_does_no_harm(times: int) -> None:
    adapters = pool("a")
    adapters.observe("a", ["fr"])
    for _ in range(times):
        adapters.end("a", "fr")
    assert adapters.snapshot()["a"].resident == {"fr": 0}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["want", "loaded", "failed", "next", "begin", "end"]), st.integers(0, 5)),
        max_size=120,
    )
)
def test_slots_loads_and_running_requests_are_never_overdrawn(steps: list[tuple[str, int]]) -> None:
    adapters = pool("a", "b")
    running: list[tuple[str, str]] = []
    for now, (what, which) in enumerate(steps):
        adapter = f"x{which}"
        before = adapters.snapshot()
        if what == "want":
            decision = adapters.want(adapter, ["a", "b"], float(now))
            if isinstance(decision, Load):
                assert before[decision.replica].loading is None
                assert decision.evict is None or before[decision.replica].resident[decision.evict] == 0
            if isinstance(decision, Ready):
                assert all(adapter in before[name].resident for name in decision.replicas)
        elif what in ("loaded", "failed"):
            for name, seen in before.items():
                if seen.loading is not None and what == "loaded":
                    adapters.loaded(name, seen.loading, float(now))
                elif seen.loading is not None:
                    adapters.failed(name, seen.loading, float(now), "cause")
        elif what == "next":
            adapters.next_load("ab"[which % 2], float(now))
        elif what == "begin":
            name = "ab"[which % 2]
            if adapter in before[name].resident:
                adapters.begin(name, adapter)
                running.append((name, adapter))
        elif running:
            adapters.end(*running.pop(which % len(running)))
        for name, seen in adapters.snapshot().items():
            assert len(seen.resident) + (seen.loading is not None) <= seen.slots
            for resident, count in seen.resident.items():
                assert count == running.count((name, resident))
            for one in running:
                assert one[0] != name or one[1] in seen.resident
