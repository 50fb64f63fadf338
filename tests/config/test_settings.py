"""What settings mean to those who use them: addresses, secrets, domains, windows."""

from __future__ import annotations

from datetime import date
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import limit_rules
from gateway.settings_models import Feature, Prices
from gateway.settings_pools import Kind, Pool
from gateway.settings_tenants import Limits, Reservation, Window
from providers.engines import FACTS
from providers.route import Feature as RouteFeature
from ratelimit.limit import Dimension, Level

KEYS = [{"name": "main", "key": "k1"}, {"name": "spare", "key": "k2"}]


def pool(**values: object) -> Pool:
    return Pool.model_validate(values)


def test_kinds_are_those_that_can_be_spoken_to() -> None:
    assert set(get_args(Kind)) == set(FACTS)


def test_features_are_those_that_routes_know() -> None:
    assert set(get_args(Feature)) == {feature.value for feature in RouteFeature}


def test_levels_and_dimensions_are_those_of_the_limiter() -> None:
    assert set(limit_rules.LEVELS) == {level.value for level in Level}
    every = Limits.model_validate(dict.fromkeys(Limits().given() or _figures(), 1))
    assert {rule.dimension for rule in limit_rules.flatten(every, "tenant", "t")} == {d.value for d in Dimension}


def _figures() -> list[str]:
    return [name for name in Limits.model_fields if name.endswith(("_minute", "_day", "_month", "concurrency"))]


@pytest.mark.parametrize(
    ("kind", "account", "url"),
    [
        ("openai", {}, "https://api.openai.com/v1"),
        ("anthropic", {}, "https://api.anthropic.com"),
        ("gemini-openai", {}, "https://generativelanguage.googleapis.com/v1beta/openai"),
        ("bedrock", {"region": "eu-west-1"}, "https://bedrock-runtime.eu-west-1.amazonaws.com"),
        ("openai", {"url": "http://127.0.0.1:9/v1/"}, "http://127.0.0.1:9/v1"),
        ("azure", {"url": "https://r.openai.azure.com"}, "https://r.openai.azure.com"),
    ],
)
def test_addresses_of_accounts(kind: str, account: dict[str, str], url: str) -> None:
    assert pool(kind=kind, account={**account, "credentials": KEYS}).addresses() == (("account", url),)


def test_secrets_of_accounts_and_replicas() -> None:
    assert pool(kind="openai", account={"credentials": KEYS}).secrets() == (("main", "k1"), ("spare", "k2"))
    replicas = [{"name": "a", "url": "http://h:1"}]
    assert pool(kind="vllm", replicas=replicas).secrets() == ()
    assert pool(kind="vllm", replicas=replicas, key="k").secrets() == (("replicas", "k"),)
    signing = [{"name": "a", "key": "sk", "access_key_id": "AK"}]
    assert pool(kind="bedrock", account={"credentials": signing}).secrets() == (("a", "AK:sk"),)
    signing[0]["session_token"] = "st"
    assert pool(kind="bedrock", account={"credentials": signing}).secrets() == (("a", "AK:sk:st"),)


def test_what_adapters_read_by_name() -> None:
    assert pool(kind="vllm", replicas=[]).extra() == {}
    account = {"credentials": KEYS, "region": "eu", "api_version": "2024-10-21", "organization": "o", "project": "p"}
    quirks = {"stream_options": False, "max_tokens_field": "max_tokens"}
    assert pool(kind="openai", account=account, quirks=quirks).extra() == {
        "api_version": "2024-10-21",
        "region": "eu",
        "organization": "o",
        "project": "p",
        "max_tokens_field": "max_tokens",
        "stream_options": "false",
    }


def test_failure_domains_that_are_not_told() -> None:
    assert pool(kind="vllm", replicas=[]).domain() == ("", "", "")
    assert pool(kind="openai", account={"credentials": KEYS, "region": "eu"}).domain() == ("openai", "eu", "")
    compatible = {"credentials": KEYS, "url": "https://api.example.com/v1"}
    assert pool(kind="openai-compatible", account=compatible).domain() == ("api.example.com", "", "")
    told = {"vendor": "self", "family": "llama"}
    assert pool(kind="vllm", replicas=[], failure_domain=told).domain() == ("self", "", "llama")


def test_capacity_that_is_measured_is_unknown_and_not_zero() -> None:
    for given_as in ("auto", None, {}, {"seats": "auto"}):
        assert pool(kind="vllm", capacity=given_as).capacity.seats is None
    assert pool(kind="vllm", capacity={"seats": 4, "kv_tokens": "auto"}).capacity.seats == 4


def test_prices_given_to_the_price_book() -> None:
    prices = Prices.model_validate({"input_usd_per_mtok": 0.5, "output_usd_per_mtok": 0, "cached_usd_per_mtok": None})
    assert prices.given() == {"input_usd_per_mtok": 0.5, "output_usd_per_mtok": 0.0}


@pytest.mark.parametrize(
    ("per_minute", "burst_s", "burst"),
    [(60, 60, 60), (60, 1, 1), (90, 10, 15), (100, 0.6, 1), (10, 1, 1), (6, 600, 60)],
)
def test_burst_by_value(per_minute: int, burst_s: float, burst: int) -> None:
    assert limit_rules.burst(per_minute, burst_s) == burst


def test_money_is_whole_micro_dollars() -> None:
    limits = Limits(usd_per_day=0.1, usd_per_month=19.99)
    amounts = [rule.amount for rule in limit_rules.flatten(limits, "tenant", "t")]
    assert amounts == [100_000, 19_990_000]


def reservation(*windows: dict[str, object], timezone: str = "UTC") -> Reservation:
    return Reservation(
        rate_share=0.5, timezone=timezone, schedule=tuple(Window.model_validate(window) for window in windows)
    )


MONDAY = 1_798_416_000.0  # 2026-12-28 00:00 UTC
HOUR = 3600.0


def test_windows_of_a_week() -> None:
    found = reservation({"days": ["mon"], "from": "08:00", "to": "18:00"}).windows(date(2026, 12, 28), 14)
    week = 7 * 24 * HOUR
    assert found == (
        (MONDAY + 8 * HOUR, MONDAY + 18 * HOUR),
        (MONDAY + week + 8 * HOUR, MONDAY + week + 18 * HOUR),
    )


def test_windows_over_midnight_all_day_and_in_a_zone() -> None:
    first = date(2026, 12, 28)
    assert reservation({"days": ["mon"], "from": "22:00", "to": "06:00"}).windows(first, 1) == (
        (MONDAY + 22 * HOUR, MONDAY + 30 * HOUR),
    )
    assert reservation({"days": ["mon"]}).windows(first, 1) == ((MONDAY, MONDAY + 24 * HOUR),)
    assert reservation({"days": ["mon"], "from": "08:00", "to": "24:00"}, timezone="Europe/Berlin").windows(
        first, 1
    ) == ((MONDAY + 7 * HOUR, MONDAY + 23 * HOUR),)
    assert reservation().windows(first, 1) is None
    assert reservation({"days": ["mon"]}).windows(first, 1, to_monotonic=-MONDAY) == ((0.0, 24 * HOUR),)


clocks = st.integers(0, 23).map(lambda hour: f"{hour:02}:00")


@given(clocks, clocks, st.sets(st.sampled_from(["mon", "wed", "sun"]), min_size=1))
@settings(max_examples=100)
def test_windows_by_the_hour(start: str, end: str, days: set[str]) -> None:
    """Against the definition: an hour is inside when a window that began on its day, or the day before, covers it."""
    found = reservation({"days": sorted(days), "from": start, "to": end}).windows(date(2026, 12, 28), 15)
    assert found is not None
    names = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    begin, finish = int(start[:2]), int(end[:2])
    length = (finish - begin) % 24 or 24
    for hour in range(24, 14 * 24):
        inside = any(
            names[(hour // 24 - back) % 7] in days and 0 <= hour % 24 + 24 * back - begin < length for back in (0, 1)
        )
        at = MONDAY + hour * HOUR
        assert any(left <= at < right for left, right in found) == inside
