"""The paged cache: blocks are never made nor lost, prompts that start alike share, the longest idle goes first."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from providers.simulated.blocks import BlockPool
from providers.simulated.engine import Engine
from providers.simulated.settings import preset
from providers.simulated.text import block_keys, text_of
from tests.simulated.checks import ask, run


def test_published_blocks_outlive_their_sequence_until_room_is_needed() -> None:
    pool = BlockPool(4)
    assert pool.take(3)
    assert [pool.publish(key) for key in "abc"] == [True] * 3
    pool.release(list("abc"), 0)
    assert (pool.available, pool.held, pool.match("abcd")) == (4, 0, (3, 3))
    pool.acquire("a")
    assert (pool.held, pool.match("abc")) == (1, (3, 2))
    assert pool.take(2)
    # One blank and one idle: of those released together the end of the prompt goes first.
    assert (pool.match("abc"), pool.evictions) == ((2, 1), 1)
    assert not pool.take(2)
    assert pool.held == 3


def test_a_key_that_exists_leaves_the_block_private() -> None:
    pool = BlockPool(4)
    pool.take(2)
    assert pool.publish("k")
    assert not pool.publish("k")
    pool.release(["k"], 1)
    assert (pool.held, pool.available, pool.published) == (0, 4, 1)


def test_forget_drops_idle_blocks_and_keeps_held_ones() -> None:
    pool = BlockPool(4)
    pool.take(2)
    pool.publish("held")
    pool.publish("idle")
    pool.release(["idle"], 0)
    pool.forget()
    assert (pool.match(["held"]), pool.match(["idle"]), pool.available) == ((1, 0), (0, 0), 3)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)), max_size=40))
def test_blocks_are_conserved(moves: list[tuple[int, int]]) -> None:
    """Sequences take what prompts of five kinds need and leave in turn; at the end nothing is held."""
    pool = BlockPool(12)
    holding: list[tuple[list[str], int]] = []
    for kind, length in moves:
        keys = [f"{kind}/{n}" for n in range(length)]
        hits, idle = pool.match(keys)
        if length - hits + idle > pool.available:
            if holding:
                pool.release(*holding.pop(0))
            continue
        pool.acquire(keys[:hits])
        assert pool.take(length - hits)
        refs = keys[:hits] + [key for key in keys[hits:] if pool.publish(key)]
        holding.append((refs, length - len(refs)))
        assert pool.held == len({k for held, _ in holding for k in held}) + sum(private for _, private in holding)
    for refs, private in holding:
        pool.release(refs, private)
    assert (pool.held, pool.available) == (0, 12)


def _keys(text: str) -> tuple[object, ...]:
    return block_keys(text.encode(), 16)


def test_a_second_prompt_finds_the_whole_blocks_it_shares() -> None:
    engine = Engine(preset("small"))
    shared = text_of(100)
    engine.submit(ask("a", 150, 2, keys=_keys(shared + text_of(50, 1))), 0.0)
    run(engine)
    second = engine.submit(ask("b", 150, 2, keys=_keys(shared + text_of(50, 2))), 0.0)
    run(engine)
    # 100 tokens are six whole blocks of sixteen and a part of a seventh.
    assert second.cached_tokens == 96
    counts = engine.snapshot()
    assert (counts.prefix_queries_total, counts.prefix_hits_total, counts.prefill_tokens_total) == (300, 96, 204)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    engine = Engine(preset("small"))
    for name in "ab":
        sequence = engine.submit(ask(name, 64, 1, keys=_keys(text_of(64))), 0.0)
        run(engine)
    assert sequence.cached_tokens == 48


def test_running_sequences_share_blocks_that_count_once() -> None:
    engine = Engine(preset("small", chunk_tokens=64))
    keys = _keys(text_of(64))
    engine.submit(ask("a", 65, 50, keys=keys), 0.0)
    engine.step(0.0)
    engine.step(0.0)
    engine.submit(ask("b", 65, 50, keys=keys), 0.0)
    engine.step(0.0)
    # Four shared blocks, and one for each of the two 65th tokens.
    assert engine.snapshot().kv_blocks_held == 6


def test_salt_and_adapter_keep_prompts_apart() -> None:
    keys = _keys(text_of(160))
    tries = [(None, None), ("acme", None), ("globex", None), ("acme", "lora"), ("acme", None), (None, None)]
    engine = Engine(preset("small", lora_slots=2))
    found = []
    for number, (salt, adapter) in enumerate(tries):
        sequence = engine.submit(ask(str(number), 161, 1, keys=keys, salt=salt, adapter=adapter), 0.0)
        run(engine)
        found.append(sequence.cached_tokens)
    assert found == [0, 0, 0, 0, 160, 160]


def test_an_answer_is_found_by_the_next_prompt_of_its_conversation() -> None:
    engine = Engine(preset("small"))
    prompt, answer = text_of(40, 1), text_of(41, 2)
    first_keys = _keys(prompt)

    def grown(tokens: int) -> tuple[object, ...]:
        return _keys(prompt + answer[: 4 * tokens])[len(first_keys) :]

    engine.submit(ask("turn 1", 40, 41, keys=first_keys, grown=grown), 0.0)
    run(engine)
    second = engine.submit(ask("turn 2", 101, 1, keys=_keys(prompt + answer + text_of(20, 3))), 0.0)
    run(engine)
    # 40 + 40 computed tokens (the 41st never was) are five whole blocks.
    assert second.cached_tokens == 80
    assert engine.snapshot().kv_blocks_held == 0


def test_without_a_prefix_cache_nothing_is_found() -> None:
    engine = Engine(preset("small", prefix_cache=False))
    for name in "ab":
        sequence = engine.submit(ask(name, 160, 1, keys=_keys(text_of(160))), 0.0)
        run(engine)
    assert (sequence.cached_tokens, engine.snapshot().prefix_queries_total) == (0, 320)
