"""The token rule that clients may rely on, and text and JSON made to order."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.simulated.ask import Kind, prompt_tokens, read_ask
from providers.simulated.chance import log_normal, mix, seed_of, uniform
from providers.simulated.schema import smallest
from providers.simulated.text import WORDS, block_keys, chat_of, text_of, tokens_of, word


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("üüü", 2), ("𝄞", 1)])
def test_four_bytes_are_a_token(text: str, tokens: int) -> None:
    assert tokens_of(text) == tokens


@settings(max_examples=50, deadline=None)
@given(st.integers(3, 5_000), st.integers(0, 9))
def test_prompts_can_be_made_to_length(tokens: int, seed: int) -> None:
    assert tokens_of(text_of(tokens, seed)) == tokens
    ask = read_ask(Kind.CHAT, {"model": "m", "messages": chat_of(tokens, seed)})
    assert prompt_tokens(ask.prompts[0]) == tokens


def test_a_chat_shorter_than_its_headers_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        chat_of(2)


def test_no_word_follows_itself_and_all_are_plain_ascii_of_four_bytes() -> None:
    assert len(set(WORDS)) == 1024
    assert all(len(w) == 4 and w.isascii() and w[0] == " " and w[1:].isalpha() for w in WORDS)
    text = [word(5, position) for position in range(20_000)]
    assert all(one != other for one, other in pairwise(text))
    assert min(Counter(text).values()) > 4


def test_keys_are_equal_up_to_the_first_difference_and_never_after() -> None:
    one, other = text_of(64, 1), text_of(64, 1)[:130] + "X" + text_of(64, 1)[131:]
    a, b = block_keys(one.encode(), 16), block_keys(other.encode(), 16)
    assert len(a) == len(b) == 4
    assert [x == y for x, y in zip(a, b, strict=True)] == [True, True, False, False]
    assert block_keys(one.encode()[:255], 16) == a[:3]
    assert block_keys(one.encode()[128:], 16, a[1]) == a[2:]


def test_chance_is_even_and_the_same_everywhere() -> None:
    assert [mix(0, 0), mix(0, 1)] == [16294208416658607535, 7960286522194355700]
    draws = [uniform(9, n) for n in range(20_000)]
    assert sum(draws) / len(draws) == pytest.approx(0.5, abs=0.01)
    assert 0 <= min(draws) < 0.001 < 0.999 < max(draws) < 1
    lengths = sorted(log_normal(9, n, 100.0, 0.8) for n in range(5_001))
    assert lengths[2_500] == pytest.approx(100, rel=0.05)
    # A log-normal of sigma 0.8 has its 84th percentile at exp(0.8) medians.
    assert lengths[4_207] == pytest.approx(222.6, rel=0.06)


def test_seeds_tell_where_one_part_ends() -> None:
    assert seed_of("ab", "c") != seed_of("a", "bc")
    assert seed_of("m", b"x", 1) == seed_of("m", b"x", 1)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object"}, {}),
        (
            {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]},
            {"a": 0},
        ),
        ({"type": "array", "items": {"type": "number", "minimum": 1.5}, "minItems": 2}, [1.5, 1.5]),
        ({"enum": ["red", "blue"]}, "red"),
        ({"const": 7}, 7),
        ({"type": ["string", "null"], "minLength": 3}, "xxx"),
        ({"type": "string", "format": "date"}, "2026-01-01"),
        ({"anyOf": [{"type": "boolean"}, {"type": "string"}]}, False),
        ({"type": "integer", "exclusiveMinimum": 4}, 5),
        ({"type": "integer", "minimum": 1.2}, 2),
        ({"type": "integer", "maximum": -3}, -4),
        ({"type": "null"}, None),
        (
            {"$defs": {"p": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/p"}}, "required": ["x"]},
            {"x": ""},
        ),
        ({"allOf": [{"type": "object", "required": ["a"]}, {"properties": {"a": {"type": "boolean"}}}]}, {"a": False}),
        (True, None),
        ({"type": "array", "minItems": "many"}, []),
        ({"type": "object", "required": 5}, {}),
        ({"type": "integer", "minimum": "low"}, 0),
    ],
)
def test_the_smallest_value_of_a_schema(schema: Any, value: Any) -> None:
    assert smallest(schema) == value


def test_a_schema_without_end_ends() -> None:
    endless = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    value = smallest(endless)
    depth = 0
    while value is not None:
        value, depth = value["next"], depth + 1
    assert 5 < depth < 50
