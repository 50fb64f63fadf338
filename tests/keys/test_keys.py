"""API keys: what a good one looks like, and that nothing else passes for one."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import keys

RANDOM = bytes(range(32))
ids = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=16)
secrets = st.binary(min_size=32, max_size=32)


def test_checksum_by_value() -> None:
    # CRC-32 as gzip has it: 0xcbf43926 for the usual check text, 0x020c1005 for the other.
    assert keys.checksum("123456789") == "3jZRME"
    assert keys.checksum("wb_" + 43 * "A") == "02K6h3"


def test_checksum_is_padded_to_six() -> None:
    # CRC-32 of nothing is 0.
    assert keys.checksum("") == "000000"


def test_mint_by_value() -> None:
    # Worked out by hand from the definition: 32 bytes as one number in base 62, then CRC-32 of all before it.
    assert keys.mint("k1", RANDOM) == "wb_k1_003aUlTJC7tjlCTQj2uNU3MFagCXG9LRKRcwGkBIDlf0aZxm8"


def test_secret_is_the_number_in_base_62() -> None:
    assert keys.mint("a", bytes(32))[5:48] == "0" * 43
    assert keys.mint("a", bytes(31) + b"\x3e")[5:48] == "0" * 41 + "10"
    # 2^256 - 1 still fits 43 characters.
    secret = keys.mint("a", b"\xff" * 32)[5:48]
    number = 0
    for character in secret:
        number = number * 62 + keys.ALPHABET.index(character)
    assert number == 2**256 - 1


@pytest.mark.parametrize("key_id", ["", "K1", "a_b", "ü", "a" * 17, "a b", "a\n"])
def test_mint_refuses_an_id_that_would_not_parse(key_id: str) -> None:
    with pytest.raises(ValueError, match="1 to 16 of a-z and 0-9"):
        keys.mint(key_id, RANDOM)


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_mint_refuses_less_or_more_than_256_bits(size: int) -> None:
    with pytest.raises(ValueError, match=f"not {size}"):
        keys.mint("k1", bytes(size))


@given(ids, secrets)
@settings(max_examples=100)
def test_what_is_minted_is_parsed(key_id: str, random_bytes: bytes) -> None:
    key = keys.mint(key_id, random_bytes)
    assert keys.parse(key) == keys.ParsedKey(key_id)
    assert keys.parse(key.encode()) == keys.ParsedKey(key_id)
    assert keys.KEY_PATTERN.fullmatch(key)
    assert len(key) <= keys.MAX_LENGTH


@given(ids, secrets, st.data())
@settings(max_examples=200)
def test_any_one_character_mistyped_is_noticed(key_id: str, random_bytes: bytes, data: st.DataObject) -> None:
    key = keys.mint(key_id, random_bytes)
    at = data.draw(st.integers(0, len(key) - 1))
    other = data.draw(st.sampled_from(string.printable).filter(lambda character: character != key[at]))
    assert keys.parse(key[:at] + other + key[at + 1 :]) is None


@given(ids, secrets, st.data())
@settings(max_examples=100)
def test_two_characters_swapped_or_one_lost_are_noticed(key_id: str, random_bytes: bytes, data: st.DataObject) -> None:
    key = keys.mint(key_id, random_bytes)
    at = data.draw(st.integers(0, len(key) - 2))
    if key[at] != key[at + 1]:
        assert keys.parse(key[:at] + key[at + 1] + key[at] + key[at + 2 :]) is None
    assert keys.parse(key[:at] + key[at + 1 :]) is None


@given(st.one_of(st.text(), st.binary(), st.text().map(lambda text: "wb_" + text)))
@settings(max_examples=300)
def test_anything_can_be_presented(presented: str | bytes) -> None:
    assert keys.parse(presented) is None


@pytest.mark.parametrize(
    "presented",
    ["", "wb_", "wb__" + "A" * 49, "\ud800" * 60, "wb_k1_" + "A" * 49, "WB_k1_" + "A" * 49, "x" * 10_000_000],
)
def test_odd_texts_are_no_keys(presented: str) -> None:
    assert keys.parse(presented) is None


def test_spaces_and_line_ends_are_not_forgiven() -> None:
    key = keys.mint("k1", RANDOM)
    for wrong in (f" {key}", f"{key} ", f"{key}\n", f"{key}\0"):
        assert keys.parse(wrong) is None


def test_digest_by_value() -> None:
    # SHA-256 of "abc" (FIPS 180-2) and HMAC-SHA-256 of RFC 4231, case 2.
    assert keys.digest("abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert (
        keys.digest("what do ya want for nothing?", b"Jefe")
        == "hmac:5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    )


def test_matches_only_its_own_hash() -> None:
    key, other = keys.mint("k1", RANDOM), keys.mint("k1", bytes(32))
    assert keys.matches(key, keys.digest(key))
    assert not keys.matches(other, keys.digest(key))
    assert not keys.matches("\ud800ü", keys.digest(key))


def test_pepper_is_needed_and_rotates() -> None:
    key = keys.mint("k1", RANDOM)
    stored = keys.digest(key, b"old")
    assert keys.matches(key, stored, (b"old",))
    assert keys.matches(key, stored, (b"new", b"old"))
    assert not keys.matches(key, stored, (b"new",))
    assert not keys.matches(key, stored)
    # An empty pepper is none: it must not turn the hash into one anybody can compute.
    assert not keys.matches(key, "hmac:" + keys.digest(key).removeprefix("sha256:"), (b"",))
    assert not keys.matches(key, keys.digest(key).replace("sha256:", "hmac:"), (b"", b"old"))
