"""API keys: format, checksum, hash, comparison.

    wb_<id>_<43 characters of secret><6 characters of checksum>

The secret is 256 random bits in base 62 (62^43 > 2^256); the checksum is the CRC-32 of everything before it, in base
62 and padded with `0`. A typing error or a random string found by a scanner is told from a key without any look-up.
The id is not secret: it finds the record, whose hash then decides. A random 256-bit secret needs no slow hash; with a
pepper (a secret kept outside the records) a stolen list of hashes cannot even confirm a guess.

Credentials of the admin API have the same form behind another prefix, so that neither can pass for the other.

Scanners can look for: wba?_[a-z0-9]{1,16}_[0-9A-Za-z]{49}
"""

from __future__ import annotations

import hashlib
import hmac
import re
import zlib
from dataclasses import dataclass
from typing import Final

ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PREFIX: Final = "wb_"
ADMIN_PREFIX: Final = "wba_"
RANDOM_BYTES: Final = 32
SECRET_LENGTH: Final = 43
CHECKSUM_LENGTH: Final = 6
MAX_LENGTH: Final = len(ADMIN_PREFIX) + 16 + 1 + SECRET_LENGTH + CHECKSUM_LENGTH
ID_PATTERN: Final = re.compile(r"[a-z0-9]{1,16}")
KEY_PATTERN: Final = re.compile(r"wb_([a-z0-9]{1,16})_[0-9A-Za-z]{49}")
_PATTERNS: Final = {PREFIX: KEY_PATTERN, ADMIN_PREFIX: re.compile(r"wba_([a-z0-9]{1,16})_[0-9A-Za-z]{49}")}
KEY_TEXT: Final = re.compile(r"wba?_[a-z0-9]{1,16}_[0-9A-Za-z]{49}")
"""Anything in a text that may be a key."""
HASH_PATTERN: Final = re.compile(r"(?:sha256|hmac):[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """A key whose form and checksum are right. Whether it is anybody's is for the records to say."""

    id: str


def mint(key_id: str, random_bytes: bytes, prefix: str = PREFIX) -> str:
    """A new key for `key_id` from 32 bytes of a cryptographic random source. Raises ValueError on a wrong argument."""
    if not ID_PATTERN.fullmatch(key_id):
        raise ValueError("a key id is 1 to 16 of a-z and 0-9")
    if len(random_bytes) != RANDOM_BYTES:
        raise ValueError(f"a key is made of {RANDOM_BYTES} random bytes, not {len(random_bytes)}")
    body = f"{prefix}{key_id}_{_base62(int.from_bytes(random_bytes, 'big'), SECRET_LENGTH)}"
    return body + checksum(body)


def checksum(body: str) -> str:
    """CRC-32 of an ASCII text, six characters in base 62."""
    return _base62(zlib.crc32(body.encode("ascii")), CHECKSUM_LENGTH)


def parse(presented: str | bytes, prefix: str = PREFIX) -> ParsedKey | None:
    """The key's id if form and checksum are right, None otherwise, whatever the text or bytes are."""
    if len(presented) > MAX_LENGTH:
        return None
    if isinstance(presented, bytes):
        presented = presented.decode("latin-1")
    found = _PATTERNS[prefix].fullmatch(presented)
    if found is None or checksum(presented[:-CHECKSUM_LENGTH]) != presented[-CHECKSUM_LENGTH:]:
        return None
    return ParsedKey(found[1])


def digest(key: str, pepper: bytes = b"") -> str:
    """What is stored of a key: `sha256:…`, or `hmac:…` (HMAC-SHA-256) with a pepper."""
    data = key.encode("utf-8", "surrogatepass")
    if pepper:
        return "hmac:" + hmac.digest(pepper, data, "sha256").hex()
    return "sha256:" + hashlib.sha256(data).hexdigest()


def matches(key: str, stored: str, peppers: tuple[bytes, ...] = ()) -> bool:
    """Whether `stored` is the hash of `key`, compared in constant time.

    `peppers` are tried from the newest: a pepper is rotated by adding the new one in front while hashes of the old
    one are still around.
    """
    expected = stored.encode()
    if stored.startswith("hmac:"):
        found = False
        for pepper in peppers:  # all of them, so that the time does not tell which one it was
            found |= bool(pepper) and hmac.compare_digest(digest(key, pepper).encode(), expected)
        return found
    return hmac.compare_digest(digest(key).encode(), expected)


def _base62(number: int, width: int) -> str:
    digits = []
    while number:
        number, digit = divmod(number, 62)
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits)).rjust(width, "0")
