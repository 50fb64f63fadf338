"""Seeded chance without a generator object: mixed integers, the same on every machine and in every process.

The mixer is the finaliser of splitmix64 (Steele, Lea and Flood): two multiplications and three shifts turn a counter
into 64 well spread bits, so the n-th number of a stream needs no state but n.
"""

from __future__ import annotations

import math
from hashlib import blake2b

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(seed: int, index: int) -> int:
    """The `index`-th 64-bit number of the stream named `seed`."""
    z = (seed + (index + 1) * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, index: int) -> float:
    """The `index`-th number of the stream, evenly in [0, 1)."""
    return (mix(seed, index) >> 11) * (1.0 / (1 << 53))


def log_normal(seed: int, index: int, median: float, sigma: float) -> float:
    """A log-normal draw: exp of a normal one with this sigma, around `median`. Box-Muller on two numbers."""
    u = 1.0 - uniform(seed, 2 * index)
    v = uniform(seed, 2 * index + 1)
    return median * math.exp(sigma * math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * v))


def seed_of(*parts: bytes | str | int) -> int:
    """A 64-bit seed from some values. Lengths are hashed too, so no two lists of parts are joined to the same text."""
    digest = blake2b(digest_size=8)
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return int.from_bytes(digest.digest(), "little")
