"""The future-peak test: against a step-by-step simulation, with shared prefixes, and back to nothing at the end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqueue.kv import Ledger, Running, kv_bytes_per_token, peak, whole_blocks

pairs = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 300)), max_size=40)


def simulated_peak(sequences: list[tuple[int, int]]) -> int:
    """Runs every sequence to its end, one token each a step; the most that was held at any step."""
    running = [[used, left] for used, left in sequences]
    best = sum(used for used, _ in running)
    while any(left > 0 for _, left in running):
        running = [[used + 1, left - 1] for used, left in running if left > 0]
        best = max(best, sum(used for used, _ in running))
    return best


@given(pairs)
def test_peak_is_what_a_simulation_of_every_step_reaches(sequences: list[tuple[int, int]]) -> None:
    assert peak(sequences) == simulated_peak(sequences)


@given(
    st.integers(0, 2**32),
    st.integers(0, 80),
    st.sampled_from([1, 16]),
)
@settings(max_examples=60, deadline=None)
def test_the_quick_test_says_what_the_definition_says_whatever_came_and_went(seed: int, size: int, block: int) -> None:
    rng = random.Random(seed)
    ledger = Ledger(block)
    live: list[Running] = []

    def add() -> None:
        x = Running()
        ledger.add(x, rng.randint(1, 500), 0, None, rng.randint(0, 400))
        live.append(x)

    for _ in range(size):
        add()
    for _ in range(60):
        action = rng.random()
        if action < 0.3 or not live:
            add()
        elif action < 0.5:
            x = live.pop(rng.randrange(len(live)))
            ledger.remove(x, 0.0)
        else:  # one step of all, exactly as predicted
            for x in live:
                if x.left:
                    ledger.progress(x, x.generated + 1, x.left - 1)
        need, left = rng.randint(1, 500), rng.randint(0, 400)
        truth = peak([(x.own + x.generated, x.left) for x in live] + [(need, left)])
        # Progress is booked as it is heard, so the profile may be a few tokens per sequence behind, never more.
        slack = 2 * 16 * (len(live) + 1)
        assert ledger.fits(need, left, truth + slack)
        assert not ledger.fits(need, left, truth - 1 - slack)
    assert ledger.peak() == peak((x.own + x.generated, x.left) for x in live)
    for x in live:
        ledger.remove(x, 0.0)
    assert (ledger.total, ledger.now_used) == (0, 0)


@given(pairs, st.integers(1, 400), st.integers(0, 300))
def test_the_quick_test_is_exact_for_a_standing_set(sequences: list[tuple[int, int]], need: int, left: int) -> None:
    ledger = Ledger(1)
    for used, rest in sequences:
        ledger.add(Running(), used, 0, None, rest)
    truth = peak([*sequences, (need, left)])
    assert ledger.fits(need, left, truth)
    assert not ledger.fits(need, left, truth - 1)


def test_the_textbook_pool_holds_41_sessions_and_not_256() -> None:
    per_token = kv_bytes_per_token(layers=80, kv_heads=8, head_dim=128, bytes_per_value=2)
    assert per_token == 320 * 1024
    tokens = int((640e9 - 140e9) / per_token)
    assert tokens // 32_768 == 46
    assert int(0.9 * tokens) // 32_768 == 41


def test_whole_blocks_round_up() -> None:
    assert [whole_blocks(n, 16) for n in (0, 1, 16, 17)] == [0, 16, 16, 32]


def test_a_sequence_counts_the_block_it_will_have_begun() -> None:
    ledger = Ledger(16)
    ledger.add(Running(), 100, 0, None, 50)
    assert ledger.total == 165
    assert all(whole_blocks(100 + n, 16) <= 115 + n for n in range(51))


def test_first_chunk_trap_whole_prompts_are_counted_at_once() -> None:
    ledger = Ledger(1)
    for _ in range(3):
        assert ledger.fits(100_000, 10, 350_000)
        ledger.add(Running(), 100_000, 0, None, 10)
    assert not ledger.fits(100_000, 10, 350_000)


def test_a_shared_prefix_is_counted_once_while_anybody_uses_it() -> None:
    ledger = Ledger(16)
    first, second, third = Running(), Running(), Running()
    ledger.add(first, 1000, 0, 7, 0)
    assert ledger.now_used == 1015
    assert ledger.need(1000, 800, 7) == 215
    ledger.add(second, 1000, 800, 7, 0)
    ledger.add(third, 1000, 805, 7, 0)
    assert ledger.now_used == 800 + 3 * 215
    ledger.remove(first, 0.0)
    assert ledger.now_used == 800 + 2 * 215
    ledger.remove(second, 0.0)
    ledger.remove(third, 0.0)
    assert (ledger.now_used, ledger.total) == (0, 0)


def test_a_cached_prefix_that_nobody_runs_is_counted_in_full() -> None:
    ledger = Ledger(16)
    assert ledger.need(1000, 800, 7) == 1015
    ledger.add(Running(), 1000, 800, 7, 0)
    assert ledger.now_used == 1015
    assert ledger.need(1000, 800, 8) == 1015


@given(st.lists(st.tuples(st.integers(1, 600), st.integers(0, 600), st.integers(0, 3)), max_size=30), st.randoms())
@settings(deadline=None)
def test_prefix_groups_leave_nothing_behind_in_any_order(asks: list[tuple[int, int, int]], rng: random.Random) -> None:
    ledger = Ledger(16)
    live = []
    for prompt, cached, group in asks:
        x = Running()
        ledger.add(x, prompt, min(cached, prompt), group or None, 10)
        live.append(x)
        assert ledger.now_used >= 0
    rng.shuffle(live)
    for x in live:
        ledger.remove(x, 0.0)
        assert ledger.total >= ledger.now_used >= 0
    assert (ledger.total, ledger.now_used) == (0, 0)


@pytest.mark.parametrize("count", [1, 15, 16, 31, 32, 33, 256])
def test_equal_lengths_do_not_confuse_the_profile(count: int) -> None:
    ledger = Ledger(1)
    live = [Running() for _ in range(count)]
    for x in live:
        ledger.add(x, 10, 0, None, 5)
    assert ledger.fits(10, 5, 15 * count + 15)
    assert not ledger.fits(10, 5, 15 * count + 14)
    for x in live:
        ledger.remove(x, 0.0)
    assert ledger.fits(10, 5, 15)
