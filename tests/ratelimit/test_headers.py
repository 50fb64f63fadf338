"""What callers read: three header families by value, Go durations, and a Retry-After that is never early."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit.headers import anthropic, go_duration, ietf, openai, retry
from ratelimit.limit import Dimension, Level, Reason, Refusal, Standing, request_amounts
from ratelimit.store import LocalLimiter
from tests.ratelimit.cases import CONC, ITPM, NOON, OTPM, RPM, SECOND, TPM, USD_DAY, limit


def standing(dimension: Dimension, amount: int, remaining: int, reset_us: int, level: Level = Level.TENANT) -> Standing:
    return Standing(limit(dimension, amount, level=level), remaining, reset_us)


STANDINGS = (
    standing(RPM, 600, 40, 6 * SECOND, Level.ORGANISATION),
    standing(RPM, 60, 9, 1_000),
    standing(TPM, 100_000, 5_000, 360_000_000),
    standing(ITPM, 80_000, 70_000, 1_500_001),
    standing(OTPM, 20_000, 100, 12_000),
    standing(CONC, 50, 3, 0),
    standing(USD_DAY, 1_000, 1, 0),
)


def test_openai_headers_tell_the_tightest_level() -> None:
    assert openai(STANDINGS) == [
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-remaining-requests", "9"),
        ("x-ratelimit-reset-requests", "1ms"),
        ("x-ratelimit-limit-tokens", "100000"),
        ("x-ratelimit-remaining-tokens", "5000"),
        ("x-ratelimit-reset-tokens", "6m0s"),
    ]
    assert openai(STANDINGS[3:])[1] == ("x-ratelimit-remaining-tokens", "100"), "no total: the tighter of in and out"
    assert openai(STANDINGS[5:]) == []


def test_anthropic_headers_tell_the_time_in_utc() -> None:
    headers = dict(anthropic(STANDINGS, NOON))
    assert headers["anthropic-ratelimit-requests-limit"] == "60"
    assert headers["anthropic-ratelimit-requests-remaining"] == "9"
    assert headers["anthropic-ratelimit-requests-reset"] == "2026-12-01T12:00:01Z"
    assert headers["anthropic-ratelimit-tokens-reset"] == "2026-12-01T12:06:00Z"
    assert headers["anthropic-ratelimit-input-tokens-remaining"] == "70000"
    assert headers["anthropic-ratelimit-input-tokens-reset"] == "2026-12-01T12:00:02Z"
    assert headers["anthropic-ratelimit-output-tokens-remaining"] == "100"
    assert len(headers) == 12


def test_ietf_headers_name_the_unit_in_the_policy() -> None:
    assert ietf(STANDINGS) == [
        (
            "ratelimit-policy",
            '"requests";q=60;w=60, "input_tokens";q=80000;w=60, "output_tokens";q=20000;w=60, '
            '"total_tokens";q=100000;w=60, "concurrency";q=50',
        ),
        (
            "ratelimit",
            '"requests";r=9;t=1, "input_tokens";r=70000;t=2, "output_tokens";r=100;t=1, '
            '"total_tokens";r=5000;t=360, "concurrency";r=3;t=0',
        ),
    ]
    assert ietf(STANDINGS[6:]) == []


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "0s"), (1, "1ms"), (12_000, "12ms"), (999_001, "1s"), (1_000_000, "1s"), (1_500_000, "1.5s"),
        (8_640_000, "8.64s"), (60_000_000, "1m0s"), (360_000_000, "6m0s"), (3_600_000_000, "1h0m0s"),
        (90_061_000_000, "25h1m1s"), (61_010_000, "1m1.01s"),
    ],
)  # fmt: skip
def test_go_duration(microseconds: int, text: str) -> None:
    assert go_duration(microseconds) == text


@given(st.integers(0, 10**13))
def test_a_go_duration_reads_back_rounded_up_to_a_millisecond(microseconds: int) -> None:
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)(?:\.(\d+))?s)?(?:(\d+)ms)?", go_duration(microseconds))
    assert parts is not None
    hours, minutes, seconds, fraction, ms = parts.groups()
    total = ((int(hours or 0) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)) * 1_000
    total += int((fraction or "0").ljust(3, "0")) + int(ms or 0)
    assert 0 <= total * 1_000 - microseconds < 1_000


def refusal(wait_us: int | None, reason: Reason = Reason.EXCEEDED) -> Refusal:
    return Refusal(limit(RPM, 60), 1, 0, wait_us, reason)


def test_a_refusal_says_when_to_come_back_and_whether() -> None:
    assert retry(refusal(1)) == [("retry-after", "1"), ("retry-after-ms", "1")]
    assert retry(refusal(2_000_001)) == [("retry-after", "3"), ("retry-after-ms", "2001")]
    assert retry(refusal(121 * SECOND))[-1] == ("x-should-retry", "false")
    assert retry(refusal(None, Reason.NEVER_FITS)) == [("x-should-retry", "false")]
    assert retry(refusal(30 * SECOND, Reason.BUDGET_EXHAUSTED)) == [
        ("retry-after", "30"),
        ("retry-after-ms", "30000"),
        ("x-should-retry", "false"),
    ]


@given(rate=st.integers(1, 10_000), burst=st.integers(1, 500), wait_us=st.integers(0, 10**8))
def test_a_call_at_the_time_that_was_told_succeeds_and_it_is_told_at_most_a_second_late(
    rate: int, burst: int, wait_us: int
) -> None:
    limiter = LocalLimiter()
    group = limiter.group([limit(ITPM, rate, burst)])
    limiter.reserve_now("a", group, request_amounts(burst, 0), NOON)
    now = NOON + wait_us
    told = limiter.reserve_now("b", group, request_amounts(burst, 0), now)
    if isinstance(told, Refusal):
        headers = dict(retry(told))
        for after in (int(headers["retry-after"]) * SECOND, int(headers["retry-after-ms"]) * 1_000):
            assert told.wait_us is not None
            assert told.wait_us <= after < told.wait_us + SECOND
        assert not isinstance(limiter.reserve_now("d", group, request_amounts(burst, 0), now + after), Refusal)
