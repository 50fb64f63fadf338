"""Names of prompt beginnings, and the index of who holds them."""

from __future__ import annotations

import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.prefix import BOUNDARIES, ENTRY_BYTES, Affinity, PrefixIndex, affinity, salt


def named(*pieces: str, tenant: str = "s", adapter: str | None = None) -> Affinity:
    made = affinity(tenant, adapter, pieces)
    assert made is not None
    return made


def common(a: Affinity, b: Affinity) -> int:
    """Tokens of the beginning that two prompts share by their names."""
    same = sum(1 for x, y in zip(a.chain, b.chain, strict=False) if x == y)
    return BOUNDARIES[same - 1] if same else 0


def test_prompts_share_the_names_of_what_they_begin_with() -> None:
    first = named("user", "x" * 10_000)
    longer = named("user", "x" * 10_000, "assistant", "y" * 10_000)
    other = named("user", "x" * 5_000 + "z" * 5_000)
    assert common(first, longer) == 2048
    assert common(first, other) == 1024
    assert common(first, named("user", "z" * 10_000)) == 0


@pytest.mark.parametrize(
    "others",
    [
        {"tenant": "t"},
        {"adapter": "fr"},
    ],
)
def test_salt_and_adapter_stand_at_the_start_of_every_name(others: dict[str, str]) -> None:
    ours, theirs = named("user", "x" * 10_000), named("user", "x" * 10_000, **others)
    assert not set(ours.chain) & set(theirs.chain)
    assert int(ours) != int(theirs)


def test_texts_that_begin_alike_share_names_whatever_their_lengths() -> None:
    assert common(named("x" * 5_000 + "y" * 50), named("x" * 5_000)) == 1024


def test_fields_are_framed_so_that_none_can_be_crafted_from_others() -> None:
    assert named("x" * 5_000, tenant="ab", adapter="c").chain != named("x" * 5_000, tenant="a", adapter="bc").chain
    assert named("us", "er" + "x" * 5_000).chain != named("user", "x" * 5_000).chain


def test_the_ring_key_is_made_of_the_first_thousand_tokens_and_so_lasts_through_a_conversation() -> None:
    first = named("user", "x" * 5_000)
    assert int(first) == int(named("user", "x" * 5_000, "assistant", "y" * 50_000))
    assert int(first) == 6_340_042_300_763_604_248  # the same in every process


def test_a_short_prompt_has_no_affinity_unless_a_session_is_named() -> None:
    assert affinity("s", None, ["user", "hello"]) is None
    said = affinity("s", None, ["user", "hello"], session="7")
    assert said is not None
    assert said.chain == ()
    assert said.session is not None


def test_a_chain_is_short_however_long_the_prompt() -> None:
    assert len(named("x" * 100_000).chain) == 19
    assert len(named("x" * 5_000_000).chain) == len(BOUNDARIES) == 28


def test_bytes_and_text_are_the_same_prompt() -> None:
    assert affinity("s", None, ["é" * 3000]) == affinity("s", None, [("é" * 3000).encode()])


def test_the_salt_is_keyed_framed_and_fit_for_engines() -> None:
    made = salt(b"secret", "acme")
    assert len(made) == 43
    assert not set(made) & set("@/\\\0")
    assert made != salt(b"other secret", "acme")
    assert salt(b"secret", "ab", "c") != salt(b"secret", "a", "bc")
    assert salt(b"secret", "acme", "x") != made
    assert salt(b"secret", "acme") == made


def index_of(*names: str, max_bytes: int = 1 << 20) -> PrefixIndex:
    index = PrefixIndex(max_bytes)
    for name in names:
        index.set_replica(name)
    return index


def who(index: PrefixIndex, prompt: Affinity) -> tuple[int, set[str]]:
    tokens, mask = index.match(prompt, index.all)
    return tokens, {name for name, bit in index.bits.items() if bit & mask}


def test_the_longest_known_beginning_and_its_holders_are_found() -> None:
    index = index_of("a", "b", "c")
    short, long = named("x" * 4_000), named("x" * 40_000)
    index.sent("a", short, 1000)
    index.sent("b", long, 10_000)
    assert who(index, named("x" * 4_000 + "y" * 1_000)) == (768, {"a", "b"})
    assert who(index, long) == (9600, {"b"})
    assert index.match(long, index.bits["a"]) == (768, index.bits["a"])
    assert index.match(long, index.bits["c"]) == (0, 0)


def test_a_replica_that_left_or_restarted_holds_nothing() -> None:
    index = index_of("a", "b")
    prompt = named("x" * 40_000)
    index.sent("a", prompt, 10_000)
    index.forget("a")
    assert who(index, prompt) == (0, set())
    index.set_replica("a")
    assert who(index, prompt) == (0, set())
    assert index.entries == 0


def test_what_was_used_longest_ago_is_forgotten_first_and_ends_before_beginnings() -> None:
    index = PrefixIndex()
    index.set_replica("a", cache_tokens=4096)
    old, new = named("a" * 13_000), named("b" * 13_000)
    index.sent("a", old, 3000)
    index.sent("a", new, 3000)
    assert who(index, new)[0] == 3200
    assert who(index, old)[0] == 768


def test_the_cap_on_memory_holds_whatever_the_traffic() -> None:
    index = index_of("a", "b", "c", "d", max_bytes=60_000)
    for n in range(2_000):
        index.sent("abcd"[n % 4], named(f"{n:08}" * 10_000), 20_000)
        assert index.entries <= index.most == 200
    index.set_replica("e")
    assert index.entries <= 200


def test_an_entry_takes_no_more_bytes_than_the_cap_assumes() -> None:
    prompts = [tuple(hash((n, cut)) for cut in BOUNDARIES) for n in range(700)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    index = index_of("a", max_bytes=ENTRY_BYTES * 20_000)
    for chain in prompts:
        index.sent("a", Affinity(0, tuple(chain)), 100)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert index.entries >= 19_000
    assert used + index.entries * sys.getsizeof(1 << 62) <= ENTRY_BYTES * index.most


def test_an_index_that_is_mostly_wrong_is_trusted_less_and_forgets() -> None:
    index = index_of("a")
    prompt = named("x" * 40_000)
    assert index.trust("a") == 1.0
    index.sent("a", prompt, 10_000)
    for _ in range(4):
        index.sent("a", prompt, 10_000)
        index.observe("a", asked_tokens=10_000, hit_tokens=9_500)
    assert index.trust("a") > 0.9
    entries = index.entries
    for _ in range(12):
        index.sent("a", prompt, 10_000)
        index.observe("a", asked_tokens=10_000, hit_tokens=0)
    assert index.trust("a") < 0.6
    index.sent("a", named("y" * 40_000), 10_000)
    assert index.entries <= 2 * entries


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 28), st.booleans()), max_size=60),
    st.integers(1, 60),
)
def test_the_index_agrees_with_its_own_books(steps: list[tuple[int, int, int, bool]], most: int) -> None:
    """Masks name exactly the replicas whose books hold the prefix, and a match is never longer than the truth."""
    index = PrefixIndex(most * ENTRY_BYTES)
    held: dict[str, set[int]] = {}
    for which, text, length, leaves in steps:
        name = f"r{which}"
        if leaves:
            index.forget(name)
            held.pop(name, None)
            continue
        index.set_replica(name)
        prompt = Affinity(0, tuple(hash((text, n)) for n in range(length)))
        index.sent(name, prompt, 100)
        held.setdefault(name, set()).update(prompt.chain)
        assert index.entries <= max(most, len(index.bits))
        for name_, bit in index.bits.items():
            tokens, mask = index.match(prompt, bit)
            if mask:
                assert mask == bit
                assert prompt.chain[BOUNDARIES.index(tokens)] in held[name_]
