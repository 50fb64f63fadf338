"""The short way to an answer's rate-limit headers gives the figures of the general one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import limit_headers
from ratelimit import headers as general
from ratelimit.limit import Amounts, Dimension, Level, Limit, Refusal
from ratelimit.store import LocalLimiter

SECOND = 1_000_000
RATES = (Dimension.REQUESTS, Dimension.INPUT_TOKENS, Dimension.OUTPUT_TOKENS, Dimension.TOTAL_TOKENS)
NOON = 1_796_126_400 * SECOND


@settings(max_examples=150, deadline=None)
@given(
    figures=st.lists(
        st.tuples(
            st.sampled_from((Level.ORGANISATION, Level.TENANT, Level.KEY)),
            st.sampled_from((*RATES, Dimension.CONCURRENCY)),
            st.integers(1, 50),
            st.booleans(),
        ),
        max_size=10,
        unique_by=lambda figure: figure[:2],
    ),
    taken=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3 * SECOND)), min_size=1, max_size=6),
)
def test_both_ways_tell_the_same(
    figures: list[tuple[Level, Dimension, int, bool]], taken: list[tuple[int, int]]
) -> None:
    limits = [
        Limit(level, "acme", dimension, amount, burst=amount, shadow=shadow)
        for level, dimension, amount, shadow in figures
    ]
    limiter = LocalLimiter()
    group = limiter.group(limits)
    now = NOON
    for number, (tokens, later) in enumerate(taken):
        now += later
        decided = limiter.reserve_now(str(number), group, Amounts(1, tokens, tokens, 2 * tokens), now)
        told = limit_headers.openai(limiter, decided, now)
        assert told == general.openai(limiter.standings(decided, now))
        if not isinstance(decided, Refusal) and tokens % 2:
            limiter.settle_now(decided, Amounts(1, tokens // 2, 0, tokens // 2), now)
