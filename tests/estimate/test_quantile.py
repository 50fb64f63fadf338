"""Output lengths: bins, calibration of quantiles, and answers that were cut."""

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.quantile import BINS, Lengths, bin_of
from gateway.replay.shapes import NAMES, invent


def outputs(name: str, rows: int = 6000) -> list[int]:
    return [request.output_tokens for request in invent(name, rows)]


def coverage(lengths: Sequence[int], q: float) -> float:
    """Share of answers not longer than the quantile known just before each, from the 20th on."""
    known = Lengths()
    covered = asked = 0
    for length in lengths:
        if known.samples >= 20:
            quantile = known.quantile(q)
            assert quantile is not None
            covered += length <= quantile
            asked += 1
        known.add(length)
    return covered / asked


@given(st.integers(0, 1 << 22))
def test_a_bin_is_exact_below_32_and_never_wider_than_a_sixteenth(length: int) -> None:
    index = bin_of(length)
    assert 0 <= index < BINS
    if length < 32:
        assert index == length
    if index < BINS - 1:  # the last bin takes everything longer
        assert bin_of(length + max(1, length // 16) + 1) > index
        assert bin_of(max(0, length - 1)) in (index, index - 1)


@pytest.mark.parametrize("name", NAMES)
def test_p90_covers_88_to_92_percent(name: str) -> None:
    assert 0.88 <= coverage(outputs(name), 0.9) <= 0.92


@pytest.mark.parametrize("name", NAMES)
def test_p99_covers_98_to_100_percent(name: str) -> None:
    assert 0.98 <= coverage(outputs(name), 0.99) <= 0.997


def test_p90_covers_as_much_when_lengths_are_wider_than_their_bins() -> None:
    # nine of ten answers are of 460 to 580 tokens, six bins: without interpolation the quantile would be a bin's edge
    rng = random.Random(3)
    lengths = [round(rng.gauss(520, 36)) for _ in range(6000)]
    assert 0.88 <= coverage(lengths, 0.9) <= 0.92


def test_twenty_samples_do_not_cover_too_little() -> None:
    # over many fresh starts of 20 samples, the next answer is under the 0.9 quantile in nine of ten
    rng = random.Random(4)
    covered = 0
    for _ in range(2000):
        known = Lengths()
        for _ in range(20):
            known.add(int(rng.lognormvariate(5, 1)))
        quantile = known.quantile(0.9)
        assert quantile is not None
        covered += int(rng.lognormvariate(5, 1)) <= quantile
    assert 0.88 <= covered / 2000 <= 0.92


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 31), min_size=1, max_size=60), st.sampled_from([0.25, 0.5, 0.75, 0.9]))
def test_exact_bins_give_the_order_statistic(lengths: list[int], q: float) -> None:
    known = Lengths(half_life=1e12)
    for length in lengths:
        known.add(length)
    rank = min(len(lengths), math.ceil(q * (len(lengths) + 1) - 1e-6))
    assert known.quantile(q) == sorted(lengths)[rank - 1]


def test_a_drift_to_three_times_longer_answers_is_followed() -> None:
    rng = random.Random(5)
    known = Lengths()
    for _ in range(5000):
        known.add(int(rng.expovariate(1 / 100)))
    for _ in range(1500):
        known.add(int(rng.expovariate(1 / 300)))
    quantile = known.quantile(0.9)
    assert quantile is not None
    assert quantile == pytest.approx(300 * math.log(10), rel=0.15)


def test_cancelled_answers_do_not_bias_the_quantile() -> None:
    # clients lose patience at a constant rate: a third of the answers are cut, the long ones most
    rng = random.Random(6)
    truth = outputs("azure-conv", 12000)
    known, dropped, taken_as_whole = Lengths(1000), Lengths(1000), Lengths(1000)
    covered = {"known": 0, "dropped": 0, "taken": 0}
    asked = cut = 0
    for length in truth:
        if known.samples >= 200:
            asked += 1
            for name, lengths in (("known", known), ("dropped", dropped), ("taken", taken_as_whole)):
                covered[name] += length <= (lengths.quantile(0.9) or 0)
        patience = int(rng.expovariate(1 / 500))
        if patience < length:
            cut += 1
            known.add(patience, ended=False)
            taken_as_whole.add(patience)
        else:
            known.add(length)
            dropped.add(length)
            taken_as_whole.add(length)
    assert cut > len(truth) // 4
    assert 0.88 <= covered["known"] / asked <= 0.92
    assert covered["dropped"] / asked < 0.85  # what would have been
    assert covered["taken"] / asked < 0.82


def test_a_quantile_beyond_everything_that_ended_is_not_made_up() -> None:
    known = Lengths()
    for _ in range(20):
        known.add(10)
    for _ in range(20):
        known.add(400, ended=False)
    assert known.quantile(0.4) == 10
    assert known.quantile(0.9) is None
    assert known.longest == 415  # 400 to 415 is one bin
    assert known.remaining(0, 0.5) is None
    assert known.open_ended
    known.add(500)
    assert not known.open_ended  # what is cut is now known to end by then


def test_remaining_is_the_conditional_quantile() -> None:
    rng = random.Random(7)
    truth = [int(rng.lognormvariate(5.5, 0.8)) + 1 for _ in range(20000)]
    known = Lengths(1e9)
    for length in truth:
        known.add(length)
    for generated in (0, 5, 50, 200, 600):
        longer = sorted(length for length in truth if length > generated)
        for q in (0.5, 0.75, 0.9):
            expected = longer[int(q * len(longer))] - generated
            assert known.remaining(generated, q) == pytest.approx(expected, rel=0.05, abs=2)


def test_remaining_is_at_least_one_and_unknown_past_the_longest() -> None:
    known = Lengths()
    for _ in range(100):
        known.add(50)
    assert known.remaining(49, 0.5) == 1
    assert known.remaining(10, 0.5) is not None
    assert known.remaining(60, 0.5) is None
    assert not known.open_ended


def test_nothing_seen_answers_nothing() -> None:
    known = Lengths()
    assert known.quantile(0.9) is None
    assert known.remaining(0, 0.5) is None
    assert known.longest == 0


def test_a_long_life_keeps_its_figures() -> None:
    # past the point where the growing weights are scaled back several times
    rng = random.Random(8)
    known = Lengths(half_life=20)
    for _ in range(20000):
        known.add(rng.randint(90, 110), ended=rng.random() < 0.9)
    assert known.effective == pytest.approx(20 / math.log(2), rel=0.05)
    assert known.quantile(0.5) == pytest.approx(101, abs=6)


def test_a_copy_goes_its_own_way() -> None:
    known = Lengths()
    for _ in range(30):
        known.add(10)
    twin = known.copy()
    for _ in range(300):
        twin.add(20)
    assert (known.quantile(0.5), twin.quantile(0.5)) == (10, 20)
