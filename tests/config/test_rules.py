"""Rules across settings where an example is not enough: what must pass, and sums over schedules."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import config_rules_pools, yaml_tree
from gateway.settings import Config
from tests.config.files import ENVIRON, GOOD, complaints, good

POOL = 'pools: {p: {kind: vllm, replicas: [{name: a, url: "http://10.0.0.1:8000"}]}}\n'
MODEL = "models: {m: {context: 4096, tiers: [{targets: [{pool: p, model: x}]}]}}\n"


def test_a_good_file_is_not_complained_about() -> None:
    assert complaints(GOOD) == []
    assert complaints(POOL + MODEL) == []


@pytest.mark.parametrize(
    "text",
    [
        "listen: {port: 0}\nadmin: {port: 0}\n" + POOL + MODEL,
        "admin: {host: '::1', key: short}\n" + POOL + MODEL,
        "admin: {host: 0.0.0.0, key: 0123456789abcdef, tls: {certificate: c.pem, private_key: k.pem}}\n" + POOL + MODEL,
        # One process needs no Redis for exact limits.
        POOL + MODEL + "tenants: {t: {limits: {concurrency: 5, exact: true}}}\n",
        # A narrower limit that is as large as the wider one, and a wider one that only watches.
        POOL
        + MODEL
        + "organisations: {o: {limits: {concurrency: 5}}, w: {limits: {concurrency: 1, shadow: true}}}\n"
        + "tenants: {t: {organisation: o, limits: {concurrency: 5}}, u: {organisation: w, limits: {concurrency: 5}}}\n",
        # Exactly what may be sold.
        POOL
        + MODEL
        + "tenants: {s: {reservations: {p: {rate_share: 0.5}}}, t: {reservations: {p: {rate_share: 0.3}}}}\n",
        # A provider that is not reached over TLS, but on this machine.
        'pools: {p: {kind: openai-compatible, account: {url: "http://127.0.0.1:9/v1", '
        "credentials: [{name: main, key: k}]}}}\n" + MODEL,
        "redis: rediss://:p@cache:6380/0\nlimits_when_store_is_away: closed\n" + POOL + MODEL,
        # Two models may share a target.
        POOL
        + "models:\n  m: {context: 4096, tiers: [{targets: [{pool: p, model: x}]}]}\n"
        + "  n: {context: 4096, aliases: [o], tiers: [{targets: [{pool: p, model: x}]}]}\n",
        # Money with a price on every target instead of on the model.
        POOL
        + "models: {m: {context: 4096, tiers: [{targets: [{pool: p, model: x, "
        + "prices: {input_usd_per_mtok: 1, output_usd_per_mtok: 2}}]}]}}\ntenants: {t: {limits: {usd_per_day: 1}}}\n",
    ],
)
def test_what_is_fine(text: str) -> None:
    assert complaints(text) == []


def test_a_fault_in_one_section_does_not_hide_or_invent_others() -> None:
    """A section that is damaged is not read by rules: nothing is said that only follows from the damage."""
    broken = GOOD.replace("kind: vllm", "kind: vlm").replace("organisation: acme-corp", "organisation: acme-crop")
    said = complaints(broken)
    assert len(said) == 2
    assert said[0].startswith("5: pools.local.kind: 'vlm' is not a kind")
    assert said[1] == (
        "26: tenants.acme.organisation: there is no organisation 'acme-crop'; "
        "did you mean 'acme-corp'? defined: acme-corp"
    )


def test_a_section_under_a_wrong_name_is_not_missed_too() -> None:
    said = complaints(GOOD.replace("pools:", "pool:"))
    assert [line.split("; one")[0].split("? one")[0] for line in said] == ["3: pool: unknown key; did you mean 'pools'"]


def test_a_kind_that_this_version_cannot_speak_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_rules_pools, "kind_names", lambda: ("vllm",))
    assert complaints(GOOD) == ["10: pools.vendor.kind: 'openai' cannot be spoken to by this version; it can: vllm"]


def test_every_error_names_file_line_and_key() -> None:
    for line in complaints(GOOD.replace("k1", "K1").replace("context: 32768", "context: -1").replace("8080", "x")):
        number, path, _ = line.split(":", 2)
        assert int(number) > 0
        assert path.strip().split(".")[0] in {"listen", "models", "tenants"}


DAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
hours = st.integers(0, 23)
windows = st.tuples(st.sampled_from(DAYS), hours, hours)
bookings = st.lists(
    st.tuples(st.integers(1, 10), st.lists(windows, max_size=3)), min_size=1, max_size=4
)  # tenths of the pool, and when


@given(bookings)
@settings(max_examples=60, deadline=None)
def test_reservations_against_every_hour_of_a_week(sold: list[tuple[int, list[tuple[str, int, int]]]]) -> None:
    """The file is refused exactly when some hour of the week is sold beyond 80 %."""
    lines = []
    for number, (tenths, slots) in enumerate(sold):
        schedule = ", ".join(f'{{days: [{day}], from: "{a:02}:00", to: "{b:02}:00"}}' for day, a, b in slots)
        lines.append(f"  t{number}: {{reservations: {{p: {{room_share: {tenths / 10}, schedule: [{schedule}]}}}}}}\n")
    said = complaints(POOL + MODEL + "tenants:\n" + "".join(lines))

    def held(hour: int) -> int:
        total = 0
        for tenths, slots in sold:
            inside = any(
                (hour - DAYS.index(day) * 24 - begin) % 168 < ((end - begin) % 24 or 24) for day, begin, end in slots
            )
            total += tenths if inside or not slots else 0
        return total

    most = max(held(hour) for hour in range(168))
    assert bool(said) == (most > 8)
    if said:
        assert f"add up to {most * 10}% of its room" in said[0]


def test_the_peak_is_told_with_its_time_and_holders() -> None:
    text = (
        POOL
        + MODEL
        + "tenants:\n"
        + "  a: {reservations: {p: {rate_share: 0.5}}}\n"
        + '  b: {reservations: {p: {rate_share: 0.2, schedule: [{days: [sat], from: "10:00", to: "12:00"}]}}}\n'
        + '  c: {reservations: {p: {rate_share: 0.2, schedule: [{days: [sat], from: "11:00", to: "13:00"}]}}}\n'
        + '  d: {reservations: {p: {rate_share: 0.2, schedule: [{days: [sat], from: "12:00", to: "14:00"}]}}}\n'
    )
    assert complaints(text) == [
        "6: tenants.c.reservations.p.rate_share: reservations of pool 'p' add up to 90% of its rate (Sat 11:00 UTC): "
        "a 50%, b 20%, c 20%; at most 80% may be sold (headroom 20%)"
    ]


def test_headroom_is_the_pools_own() -> None:
    text = POOL.replace("kind: vllm", "kind: vllm, headroom: 0.5") + MODEL
    assert (
        "at most 50% may be sold (headroom 50%)"
        in complaints(text + "tenants: {t: {reservations: {p: {room_share: 0.6}}}}\n")[0]
    )


def test_a_reservation_expires_with_its_window_in_local_time() -> None:
    """Summer and winter: 08:00 in Berlin is 06:00 or 07:00 UTC."""
    text = GOOD.replace(
        "    weight: 2\n",
        "    weight: 2\n    reservations:\n      local: {rate_share: 0.1, timezone: Europe/Berlin, "
        'schedule: [{from: "08:00", to: "09:00"}]}\n',
    )
    windows_of_year = (
        good(text).tenants["acme"].reservations["local"].windows(datetime(2027, 1, 1, tzinfo=UTC).date(), 365)
    )
    assert windows_of_year is not None
    assert {datetime.fromtimestamp(start, UTC).hour for start, _ in windows_of_year} == {6, 7}


def test_rules_change_nothing() -> None:
    tree = yaml_tree.read(GOOD, ENVIRON)
    before = Config.model_validate(tree.value)
    assert good().digest() == before.digest()
