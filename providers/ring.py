"""A hash ring: which replica a key belongs to, with few moves when replicas come and go.

Each replica owns `VNODES` points of a 64-bit circle; a key belongs to the first point at or after it. When one of n
replicas joins or leaves, only the keys of the arcs it gains or loses move: about 1/n of them. All gateways that know
the same names build the same ring, so they agree without talking.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from hashlib import blake2b

VNODES = 256
NEAR = 4
"""Replicas of each arc that are worked out when the ring is made."""


class Ring:
    """The circle of one pool's replica names."""

    __slots__ = ("_names", "_near", "_owners", "_points")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: set[str] = set()
        self._points: list[int] = []
        """Sorted; `_owners[i]` owns the arc that ends at `_points[i]`."""
        self._owners: list[str] = []
        self._near: list[tuple[str, ...]] = []
        """The first `NEAR` replicas of each arc, in the ring's order; as long as `_points`."""
        self.set(names)

    def __len__(self) -> int:
        return len(self._names)

    def set(self, names: Iterable[str]) -> None:
        """Make the ring of these names; nothing is done if they are the same as before."""
        wanted = set(names)
        if wanted == self._names:
            return
        self._names = wanted
        points = sorted((_point(name, vnode), name) for name in wanted for vnode in range(VNODES))
        self._points = [point for point, _ in points]
        self._owners = [name for _, name in points]
        self._near = [()] * len(points)
        following: tuple[str, ...] = ()
        for at in (*range(len(points) - 1, -1, -1), *range(len(points) - 1, -1, -1)):  # twice, to pass the seam
            owner = self._owners[at]
            following = (owner, *(name for name in following if name != owner))[:NEAR]
            self._near[at] = following

    def home(self, key: int) -> str:
        """The replica a key (0 to 2^64 - 1) belongs to. Raises IndexError on an empty ring."""
        return self.near(key)[0]

    def near(self, key: int) -> tuple[str, ...]:
        """The first few replicas of `walk`, at little cost; none on an empty ring."""
        if not self._near:
            return ()
        at = bisect_left(self._points, key)
        return self._near[at if at < len(self._near) else 0]

    def walk(self, key: int) -> Iterator[str]:
        """All replicas, each once, in the order in which the ring offers them from `key`."""
        at = bisect_left(self._points, key)
        seen: set[str] = set()
        owners = self._owners
        for step in range(len(owners)):
            name = owners[(at + step) % len(owners)]
            if name not in seen:
                seen.add(name)
                yield name
                if len(seen) == len(self._names):
                    return


def _point(name: str, vnode: int) -> int:
    return int.from_bytes(blake2b(f"{vnode}:{name}".encode(), digest_size=8).digest(), "big")
