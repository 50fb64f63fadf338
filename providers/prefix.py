"""Which replica probably holds the beginning of a prompt in its cache: an index with a hard cap on memory.

A prompt is cut at growing boundaries (every 256 tokens up to 2,048, then each a quarter longer, to about 160 k). The
hash of what stands before a boundary names that prefix; each hash is made from the one before, so equal hashes mean
equal beginnings, and a prompt of n tokens costs O(log n) entries however long it is. Salt and adapter stand at the
start of the chain, framed by their lengths: two tenants never share a name, nor can one craft another's.

The index keeps, per replica, the prefixes it was sent, least recently used first, within the smaller of the replica's
own cache and its part of the cap. That is a guess at the engine's cache; where the engine reports its hits the guess is
weighed by how true it has been (`observe`), and shrinks where it is mostly wrong.

An `Affinity` is an int, so that it passes where only a key is known: the position on the hash ring. It also carries the
chain for this index.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b, sha256
from zlib import crc32


def _boundaries() -> tuple[int, ...]:
    cuts = list(range(256, 2049, 256))
    while cuts[-1] < 160_000:
        cuts.append(cuts[-1] * 5 // 4 // 64 * 64)
    return tuple(cuts)


BOUNDARIES = _boundaries()
"""Tokens at which prefixes are named."""
SEGMENTS = tuple(cut - before for cut, before in zip(BOUNDARIES, (0, *BOUNDARIES), strict=False))
"""Tokens a boundary adds to the one before it."""
RING_TOKENS = 1024
RING_CHAIN = BOUNDARIES.index(RING_TOKENS) + 1
"""A conversation keeps its first tokens: the ring's key is made of these, or of the first 256 of a shorter prompt."""
ENTRY_BYTES = 300
"""What one (replica, prefix) entry takes, rounded up: an ordered-dict link, a dict slot, an int, its part of a mask."""


class Affinity(int):
    """A key on the ring (64 bits) that also carries the names of the prompt's beginnings."""

    chain: tuple[int, ...]
    """One name a boundary, shortest prefix first."""
    session: int | None
    """The name of the caller's session, when it gave one: a hint, forgotten as prefixes are."""

    def __new__(cls, key: int, chain: tuple[int, ...] = (), session: int | None = None) -> Affinity:
        made = super().__new__(cls, key)
        made.chain = chain
        made.session = session
        return made


def salt(secret: bytes, tenant: str, namespace: str = "") -> str:
    """The cache salt of a tenant: a keyed hash over length-framed names, 43 URL-safe characters.

    Engines mix it into their cache keys, so tenants never share prefixes and timing tells nothing. `namespace` is the
    caller's own division inside the tenant; its raw value never reaches an engine, nor can it reach another tenant.
    """
    mac = hmac.new(secret, b"".join(_framed(part.encode()) for part in (tenant, namespace)), sha256)
    return urlsafe_b64encode(mac.digest()).rstrip(b"=").decode()


def affinity(
    salt: str,
    adapter: str | None,
    pieces: Iterable[str | bytes],
    *,
    bytes_per_token: float = 4.0,
    session: str | None = None,
    boundaries: int = len(BOUNDARIES),
) -> Affinity | None:
    """Name the beginnings of a prompt given as `pieces` (roles and contents, in order).

    None when the prompt is shorter than the first boundary and no session is named: there is nothing worth finding
    again. Time grows with the bytes up to the last of `boundaries` and not beyond. Names of the chain hold within this
    process; the ring key is the same in every process.
    """
    start = _framed(salt.encode()) + _framed((adapter or "").encode())
    last = int(BOUNDARIES[boundaries - 1] * bytes_per_token)
    parts = []
    size = 0
    for piece in pieces:
        data = piece.encode() if isinstance(piece, str) else piece
        parts.append(data)
        # Behind the piece, or two texts that begin alike and differ in length would share nothing.
        parts.append(len(data).to_bytes(8, "big"))
        size += len(data) + 8
        if size >= last:
            break
    text = b"".join(parts)
    name = hash(start)
    chain = []
    at = 0
    for tokens in BOUNDARIES[:boundaries]:
        cut = int(tokens * bytes_per_token)
        if cut > size:
            break
        name = hash((name, text[at:cut]))
        chain.append(name)
        at = cut
    if session is not None:
        framed = start + _framed(session.encode())
        return Affinity(_key(framed), tuple(chain), hash((0, framed)))
    if not chain:
        return None
    first = int((RING_TOKENS if len(chain) >= RING_CHAIN else BOUNDARIES[0]) * bytes_per_token)
    return Affinity(_key(start + crc32(text[:first]).to_bytes(4, "big")), tuple(chain))


class PrefixIndex:
    """The prefixes the replicas of one pool were sent lately."""

    __slots__ = ("_most", "_replicas", "_where", "all", "bits", "owner")

    def __init__(self, max_bytes: int = 32 << 20) -> None:
        """`max_bytes` caps the whole index, whatever the traffic and the number of replicas."""
        self._most = max(1, max_bytes // ENTRY_BYTES)
        self._replicas: dict[str, _Held] = {}
        self._where: dict[int, int] = {}
        """Name to the bits of the replicas that hold it; never 0. An entry exists exactly while one of them has it."""
        self.bits: dict[str, int] = {}
        """The bit that stands for each replica in masks. Read only."""
        self.owner: dict[int, str] = {}
        """The replica of each bit. Read only."""
        self.all = 0
        """The bits of all replicas. Read only."""

    def set_replica(self, name: str, cache_tokens: int | None = None) -> None:
        """A replica joined, or its cache (in tokens) is now known."""
        held = self._replicas.get(name)
        if held is None:
            bit = 1
            while bit & self.all:
                bit <<= 1
            self.all |= bit
            self.bits[name] = bit
            self.owner[bit] = name
            held = self._replicas[name] = _Held(bit)
        if cache_tokens is not None:
            held.cache_tokens = cache_tokens
        self._fit()

    def forget(self, name: str) -> None:
        """A replica left or restarted: what it held is gone. Call `set_replica` again for one that restarted."""
        held = self._replicas.pop(name, None)
        if held is not None:
            for prefix in held.order:
                self._drop(prefix, held.bit)
            self.all &= ~held.bit
            del self.bits[name], self.owner[held.bit]
            self._fit()

    def match(self, affinity: Affinity, among: int) -> tuple[int, int]:
        """The longest known beginning held by any replica of the mask `among`: its tokens, and who holds it.

        (0, mask) with a mask means that only the session is remembered there; (0, 0) that nothing is.
        """
        where = self._where
        chain = affinity.chain
        low, high = 0, len(chain)
        if high and (mask := where.get(chain[-1], 0) & among):
            return BOUNDARIES[high - 1], mask
        found = 0
        high -= 1
        while low < high:
            middle = (low + high) // 2
            mask = where.get(chain[middle], 0) & among
            if mask:
                found = mask
                low = middle + 1
            else:
                high = middle
        if found:
            return BOUNDARIES[low - 1], found
        if affinity.session is not None:
            return 0, where.get(affinity.session, 0) & among
        return 0, 0

    def trust(self, name: str) -> float:
        """How true the index has been about this replica, 0 to 1."""
        held = self._replicas.get(name)
        return 0.0 if held is None else held.trust

    def sent(self, name: str, affinity: Affinity, prompt_tokens: int) -> None:
        """A request went to `name`: it holds these beginnings now, and they are its freshest."""
        held = self._replicas.get(name)
        if held is None:
            return
        known, mask = self.match(affinity, held.bit)
        held.asked += prompt_tokens
        held.expected += known if mask else 0
        # Longest first, so that a beginning always outlives its continuations: the search above relies on it.
        if affinity.session is not None:
            self._touch(held, affinity.session, 0)
        for at in range(len(affinity.chain) - 1, -1, -1):
            self._touch(held, affinity.chain[at], SEGMENTS[at])
        self._trim(held)

    def observe(self, name: str, asked_tokens: int, hit_tokens: int) -> None:
        """What the engine itself counted since the last call: prompt tokens looked up and found.

        Compared with what was expected of the same tokens, it moves the trust; an index that is wrong twice out of
        three times forgets the older half of what it believes about the replica.
        """
        held = self._replicas.get(name)
        if held is None or held.asked < 1024 or asked_tokens <= 0:
            return
        expected = held.expected / held.asked
        if expected > 0.01:
            true = min(1.0, hit_tokens / asked_tokens / expected)
            held.trust += 0.2 * (true - held.trust)
        held.asked = held.expected = 0
        if held.trust < 1.0 / 3.0:
            self._trim(held, len(held.order) // 2)
            held.trust = 0.5

    @property
    def entries(self) -> int:
        """Entries (replica, prefix) held now."""
        return sum(len(held.order) for held in self._replicas.values())

    @property
    def most(self) -> int:
        """Entries that may be held."""
        return self._most

    def _touch(self, held: _Held, prefix: int, tokens: int) -> None:
        if prefix in held.order:
            held.order.move_to_end(prefix)
        else:
            held.order[prefix] = tokens
            held.tokens += tokens
            self._where[prefix] = self._where.get(prefix, 0) | held.bit

    def _drop(self, prefix: int, bit: int) -> None:
        left = self._where[prefix] & ~bit
        if left:
            self._where[prefix] = left
        else:
            del self._where[prefix]

    def _fit(self) -> None:
        """Divide the cap anew and drop what no longer fits."""
        part = max(1, self._most // max(1, len(self._replicas)))
        for held in self._replicas.values():
            held.most = part
            self._trim(held)

    def _trim(self, held: _Held, most: int | None = None) -> None:
        """Drop what was used longest ago until the entries and the replica's cache are within their bounds."""
        entries = held.most if most is None else most
        while len(held.order) > entries or (held.cache_tokens is not None and held.tokens > held.cache_tokens):
            prefix, tokens = held.order.popitem(last=False)
            held.tokens -= tokens
            self._drop(prefix, held.bit)


class _Held:
    """What one replica is believed to hold."""

    __slots__ = ("asked", "bit", "cache_tokens", "expected", "most", "order", "tokens", "trust")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.cache_tokens: int | None = None
        self.most = 1
        self.order: OrderedDict[int, int] = OrderedDict()
        """Name to the tokens it adds to the one before it, least recently used first; at most `most` entries."""
        self.tokens = 0
        """Sum of `order`'s values; at most `cache_tokens` where that is known."""
        self.trust = 1.0
        self.asked = 0
        """Prompt tokens sent since the last `observe`, and of them those expected to be found."""
        self.expected = 0


def _framed(part: bytes) -> bytes:
    return len(part).to_bytes(8, "big") + part


def _key(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")
