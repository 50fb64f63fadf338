"""Prices to the micro-dollar, tiers, weights, and a broken price that touches only its model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit.limit import Amounts
from ratelimit.prices import BadPrice, Prices, Unpriced, micro_usd_per_mtok, price_book, prices_from
from ratelimit.reservation import End, kept
from ratelimit.usage import TokenUse, Weights, weigh

PLAIN = {"input_usd_per_mtok": 0.5, "output_usd_per_mtok": "1.5"}
TIERED = {
    "input_usd_per_mtok": 3, "output_usd_per_mtok": 15, "cached_usd_per_mtok": 0.3, "cache_write_usd_per_mtok": 3.75,
    "long_context_above": 200_000, "long_input_usd_per_mtok": 6, "long_output_usd_per_mtok": 22.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "use", "micro_usd"),
    [
        (PLAIN, TokenUse(prompt=1_000_000, output=1_000_000), 2_000_000),
        (PLAIN, TokenUse(prompt=1), 1),  # half a micro-dollar is rounded up
        (PLAIN, TokenUse(), 0),
        (PLAIN, TokenUse(prompt=1_000, cached=400), 500),  # no cached price: as input
        (PLAIN | {"cached_usd_per_mtok": 0.05}, TokenUse(prompt=1_000, cached=400), 320),
        (PLAIN | {"reasoning_usd_per_mtok": 3}, TokenUse(output=100, reasoning=60), 240),
        (TIERED, TokenUse(prompt=10_000, output=100, cached=4_000, cache_write=1_000), 15_000 + 1_200 + 3_750 + 1_500),
        (TIERED, TokenUse(prompt=200_000), 600_000),
        (TIERED, TokenUse(prompt=200_001, output=1_000), 1_200_006 + 22_500),  # every token at the long price
        (TIERED, TokenUse(prompt=300_000, cached=300_000), 180_000),  # cached follows the input's factor
    ],
)
def test_cost(raw: dict[str, object], use: TokenUse, micro_usd: int) -> None:
    assert prices_from(raw).cost(use) == micro_usd


@given(
    prompt=st.integers(0, 500_000),
    output=st.integers(0, 50_000),
    cap=st.integers(0, 50_000),
    parts=st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)),
)
def test_the_worst_case_is_one(prompt: int, output: int, cap: int, parts: tuple[float, float, float]) -> None:
    prices = prices_from(TIERED | {"reasoning_usd_per_mtok": 20})
    output = min(output, cap)
    cached = int(prompt * parts[0])
    use = TokenUse(prompt, output, cached, int((prompt - cached) * parts[1]), int(output * parts[2]))
    assert prices.cost(use) <= prices.worst(prompt, cap)


def test_a_prompt_estimate_just_below_the_long_tier_is_priced_in_it() -> None:
    prices = prices_from(TIERED)
    assert prices.worst(160_000, 0) == 160_000 * 3_750_000 // 10**6
    assert prices.worst(160_001, 0) == -(-160_001 * 7_500_000 // 10**6)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "input_usd_per_mtok: missing"),
        ({"input_usd_per_mtok": 1}, "output_usd_per_mtok: missing"),
        (PLAIN | {"input_usd_per_mtok": "free"}, "input_usd_per_mtok: expected a number of USD, got 'free'"),
        (PLAIN | {"input_usd_per_mtok": True}, "expected a number of USD, got True"),
        (PLAIN | {"input_usd_per_mtok": -1}, "input_usd_per_mtok: -1 is not between 0"),
        (PLAIN | {"output_usd_per_mtok": "nan"}, "output_usd_per_mtok: nan is not between 0"),
        (PLAIN | {"input_usd_per_mtok": "0.0000001"}, "more than six decimals"),
        (PLAIN | {"inptu_usd_per_mtok": 1}, "inptu_usd_per_mtok: unknown price field"),
        (PLAIN | {"long_input_usd_per_mtok": 1}, "long_context_above: missing"),
        (PLAIN | {"long_context_above": 0}, "long_context_above: expected a positive number of tokens, got 0"),
    ],
)
def test_a_broken_price_is_named(raw: dict[str, object], message: str) -> None:
    with pytest.raises(BadPrice, match=message):
        prices_from(raw)


def test_decimal_dollars_never_pass_through_a_float() -> None:
    assert micro_usd_per_mtok("p", 0.1) == 100_000
    assert micro_usd_per_mtok("p", "0.000001") == 1
    assert micro_usd_per_mtok("p", 2.675) == 2_675_000


def test_an_unknown_or_broken_price_touches_only_its_model_and_is_not_zero() -> None:
    raw = {"good": PLAIN, "dear": TIERED, "broken": {"input_usd_per_mtok": "?", "output_usd_per_mtok": 1}}
    book = price_book(raw)
    assert set(book.prices) == {"good", "dear"}
    assert book.broken == {"broken": "input_usd_per_mtok: expected a number of USD, got '?'"}
    assert book.of("good") == prices_from(PLAIN)
    assert book.of("broken") is None, "refused where a money limit applies"
    assert book.of("unheard-of") is None
    dearest = price_book(raw, Unpriced.DEAREST).of("broken")
    assert isinstance(dearest, Prices)
    assert dearest.cost(TokenUse(prompt=1_000_000)) == 6_000_000
    assert dearest.cost(TokenUse(output=1_000_000)) == 22_500_000
    free = price_book(raw, Unpriced.FREE).of("broken")
    assert free is not None
    assert free.cost(TokenUse(prompt=10**6, output=10**6)) == 0
    assert price_book({}, Unpriced.DEAREST).of("any") is None


@pytest.mark.parametrize(
    ("use", "weights", "expected"),
    [
        (TokenUse(1_000, 200), Weights(), (1_000, 200)),
        (TokenUse(1_000, 200, cached=900), Weights(cached=0), (100, 200)),  # cache reads are free
        (TokenUse(1_000, 200, cached=900), Weights(cached=100), (190, 200)),
        (TokenUse(1_000, 200, cache_write=500), Weights(cache_write=1_250), (1_125, 200)),
        (TokenUse(1_000, 200, reasoning=150), Weights(reasoning=2_000), (1_000, 350)),
        (TokenUse(3, 0, cached=1), Weights(cached=1), (3, 0)),  # rounded up
        (TokenUse(10, 0, cached=30), Weights(cached=500), (15, 0)),  # contradicting figures, nothing negative
    ],
)
def test_weighed_tokens(use: TokenUse, weights: Weights, expected: tuple[int, int]) -> None:
    amounts = weigh(use, weights, micro_usd=7)
    assert (amounts.input_tokens, amounts.output_tokens) == expected
    assert amounts.total_tokens == sum(expected)
    assert (amounts.requests, amounts.micro_usd) == (1, 7)


USED = Amounts(1, 100, 40, 140, 900)


@pytest.mark.parametrize(
    ("end", "stays"),
    [
        (End.NEVER_SENT, Amounts()),
        (End.UPSTREAM_FAILED, Amounts()),
        (End.UPSTREAM_REFUSED, Amounts(requests=1)),
        (End.CLIENT_GONE, USED),
        (End.SUCCESS, USED),
        (End.BILLED_FAILURE, USED),
    ],
)
def test_refund_table(end: End, stays: Amounts) -> None:
    assert kept(end, USED) == stays
    assert kept(end, USED._replace(requests=0)) == stays, "a request that was sent counts as one"
