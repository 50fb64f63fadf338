"""The hash ring: even, stable, the same everywhere."""

from __future__ import annotations

import random

import pytest

from providers.ring import NEAR, Ring

RNG = random.Random(4)
KEYS = [RNG.getrandbits(64) for _ in range(20_000)]


def test_keys_are_spread_over_the_replicas_within_a_quarter() -> None:
    ring = Ring(f"r{n}" for n in range(8))
    homes = [ring.home(key) for key in KEYS]
    shares = [homes.count(f"r{n}") / len(KEYS) * 8 for n in range(8)]
    assert min(shares) > 0.75
    assert max(shares) < 1.25


@pytest.mark.parametrize("size", [2, 3, 8, 16])
def test_a_replica_that_joins_or_leaves_moves_at_most_two_nths_of_the_keys(size: int) -> None:
    names = [f"r{n}" for n in range(size)]
    before, after = Ring(names), Ring(names)
    homes = [before.home(key) for key in KEYS]
    after.set([*names, "new"])
    moved = [(old, new) for old, key in zip(homes, KEYS, strict=True) if (new := after.home(key)) != old]
    assert len(moved) / len(KEYS) <= 2 / (size + 1)
    assert {new for _, new in moved} == {"new"}
    after.set(names[1:])
    lost = [old for old, key in zip(homes, KEYS, strict=True) if after.home(key) != old]
    assert len(lost) / len(KEYS) <= 2 / size
    assert set(lost) == {"r0"}


def test_the_order_of_names_does_not_matter() -> None:
    names = [f"r{n}" for n in range(5)]
    one, other = Ring(names), Ring(reversed(names))
    assert [one.home(key) for key in KEYS] == [other.home(key) for key in KEYS]


def test_a_walk_offers_every_replica_once_and_begins_with_the_near_ones() -> None:
    ring = Ring(f"r{n}" for n in range(7))
    for key in (*KEYS[:200], 0, (1 << 64) - 1):
        walk = list(ring.walk(key))
        assert sorted(walk) == [f"r{n}" for n in range(7)]
        assert tuple(walk[:NEAR]) == ring.near(key)
        assert ring.home(key) == walk[0]


def test_small_and_empty_rings() -> None:
    assert Ring().near(1) == ()
    assert list(Ring().walk(1)) == []
    assert Ring(["only"]).near(1) == ("only",)
    with pytest.raises(IndexError):
        Ring().home(1)
