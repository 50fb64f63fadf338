"""When to come back and how much is left, in every form upstreams say it."""

from __future__ import annotations

from typing import Any

import pytest

from providers.hints import RETRY_MAX_S, LimitHints, Window, duration_s, limit_hints, retry_after_s

DATE = {"date": "Tue, 01 Dec 2026 12:00:00 GMT"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("12ms", 0.012),
        ("1h2m3.5s", 3723.5),
        ("2m59.56s", 179.56),
        ("34s", 34.0),
        ("20", 20.0),
        ("0.5", 0.5),
        ("1d", 86400.0),
        ("", None),
        ("soon", None),
        ("-3", None),
        ("nan", None),
        ("inf", None),
        ("5s later", None),
        ("5 s", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert duration_s(text) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("headers", "error", "message", "seconds"),
    [
        ({"retry-after": "7"}, None, "", 7.0),
        ({"retry-after": "0.25"}, None, "", 0.25),
        ({"retry-after": "0"}, None, "", 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, None, "", 1.5),
        ({"retry-after-ms": "x", "retry-after": "9"}, None, "", 9.0),
        ({"retry-after": "Tue, 01 Dec 2026 12:00:30 GMT", **DATE}, None, "", 30.0),
        ({"retry-after": "Tue, 01 Dec 2026 11:00:00 GMT", **DATE}, None, "", 0.0),
        ({"retry-after": "Tue, 01 Dec 2026 12:00:30 GMT"}, None, "", None),
        ({"retry-after": "99999"}, None, "", RETRY_MAX_S),
        ({"retry-after": "nonsense"}, None, "", None),
        ({}, {"details": [{"@type": "x"}, {"@type": "RetryInfo", "retryDelay": "34.07s"}]}, "", 34.07),
        ({}, {"details": {"error_code": "x"}}, "", None),
        ({}, None, "Please try again in 20s.", 20.0),
        ({}, None, "Please retry in 750ms.", 0.75),
        ({}, None, "Please retry after 6 seconds.", 6.0),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, None, "", 360.0),
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "2s",
                "x-ratelimit-remaining-tokens": "500",
                "x-ratelimit-reset-tokens": "50s",
            },
            None,
            "",
            2.0,
        ),
        ({"x-ratelimit-remaining-tokens": "-1", "x-ratelimit-reset-tokens": "3"}, None, "", 3.0),
        (
            {
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": "2026-12-01T12:00:45Z",
                "anthropic-ratelimit-requests-remaining": "3",
                "anthropic-ratelimit-requests-reset": "2026-12-01T12:01:00Z",
                **DATE,
            },
            None,
            "",
            45.0,
        ),
        ({"x-ratelimit-reset-requests": "1735689600000"}, None, "", None),
        ({}, None, "no idea", None),
    ],
)
def test_every_form_of_a_hint(headers: dict[str, str], error: Any, message: str, seconds: float | None) -> None:
    found = retry_after_s(headers, error, message)
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_the_limits_of_an_account() -> None:
    assert limit_hints({}) == LimitHints()
    found = limit_hints(
        {
            "x-ratelimit-limit-requests": "60",
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-limit-tokens": "150000",
            "x-ratelimit-remaining-tokens": "-1",
        }
    )
    assert found == LimitHints(requests=Window(60, 59, 1.0), tokens=Window(150000, None, None))
    found = limit_hints(
        {
            "anthropic-ratelimit-output-tokens-limit": "8000",
            "anthropic-ratelimit-output-tokens-remaining": "0",
            "anthropic-ratelimit-output-tokens-reset": "2026-12-01T12:00:10Z",
            **DATE,
        }
    )
    assert found == LimitHints(output_tokens=Window(8000, 0, 10.0))
