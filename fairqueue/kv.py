"""KV arithmetic and the future-peak test.

A running sequence j holds `used` KV tokens now and is expected to generate `left` more; then all of it is freed.
Holding prompt + max_tokens for each wastes most of the cache, holding only today's use makes the engine preempt.
What must fit is the peak of the predicted use over time. All sequences advance one token per step, so with the
sequences sorted by `left`, longest first,

    peak = max over k of  (used_1 + ... + used_k) + k * left_k          (just before the k-th longest ends)

Two observations make the test cheap.

1. `peak <= sum(used + left)`, a running sum. While that sum fits, nothing else is looked at.
2. Let s count steps. With base = used - s and finish = s + left, the k-th value is sum(base) + k * finish, and a
   step changes neither: progress at the expected pace costs nothing. `Profile` keeps the sequences sorted by finish
   in blocks of about 16. A block whose members are preceded by K sequences peaks at
   h(K) = max_i (base_1 + ... + base_i + (K + i) * finish_i), and h(K') <= h(K) + (K' - K) * largest finish for K' > K,
   h(K') <= h(K) below; only a block that this bound cannot clear is computed anew.

Engines give cache in whole blocks (16 tokens by default), so a sequence of n tokens occupies at most n + block - 1.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

_BLOCK = 16  # sequences in a profile block when it is split
_ROUNDING = 1e-3  # tokens: steps are counted in fractions
_DRIFT = 16  # tokens by which a sequence may leave its expected course before the profile is corrected


def whole_blocks(tokens: int, block_tokens: int) -> int:
    """Tokens of cache that `tokens` occupy: rounded up to whole blocks."""
    return -(-tokens // block_tokens) * block_tokens


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, bytes_per_value: int) -> int:
    """Bytes of one token's keys and values in a plain attention model (2 = one key and one value)."""
    return 2 * layers * kv_heads * head_dim * bytes_per_value


def peak(sequences: Iterable[tuple[int, int]]) -> int:
    """Peak of predicted KV tokens over time of `(used, left)` pairs. O(n log n); the definition the fast path obeys."""
    total = best = 0
    for k, (used, left) in enumerate(sorted(sequences, key=lambda pair: -pair[1]), 1):
        total += used
        best = max(best, total + k * left)
    return best


class Running:
    """KV of one sequence in flight, counted by one `Ledger`."""

    __slots__ = ("_base", "_block", "_finish", "generated", "group", "left", "own")

    own: int  # prompt tokens counted for this sequence alone, whole-block rounding allowance included
    generated: int
    left: int  # output tokens still expected
    group: _Group | None  # counts the shared prefix in its place
    _base: float
    _finish: float
    _block: _Block | None


class _Group:
    """Sequences on one replica that share a prefix. The shared blocks are counted once, by the group."""

    __slots__ = ("cold", "key", "members", "tokens")

    def __init__(self, key: int) -> None:
        self.key = key
        self.tokens = 0  # the longest prefix that two members share
        self.members = 0
        self.cold: dict[Running, None] = {}  # members that still count their prefix themselves


class _Block:
    __slots__ = ("at", "bases", "finishes", "height", "items", "total")

    def __init__(self, items: list[Running]) -> None:
        self.items = items  # by finish, latest first; `finishes` (negated, so ascending) and `bases` run parallel
        self.finishes = [-x._finish for x in items]
        self.bases = [x._base for x in items]
        self.total = sum(self.bases)
        self.at = 0  # number of sequences before this block when `height` was computed
        self.height = self.peak(0)

    def peak(self, before: int) -> float:
        """h(before), relative to the bases before this block."""
        k = before
        total = 0.0
        best = float("-inf")
        for base, finish in zip(self.bases, self.finishes, strict=True):
            k += 1
            total += base
            value = total - k * finish
            if value > best:
                best = value
        self.at = before
        self.height = best
        return best


class Profile:
    """Sequences by expected finish, for the exact peak test with one more sequence."""

    __slots__ = ("blocks", "tops")

    def __init__(self, items: Iterable[Running]) -> None:
        ordered = sorted(items, key=lambda x: -x._finish)
        self.blocks = [_Block(ordered[i : i + _BLOCK]) for i in range(0, len(ordered), _BLOCK)]
        self.tops = [b.finishes[0] for b in self.blocks]
        for block in self.blocks:
            for x in block.items:
                x._block = block

    def add(self, x: Running) -> None:
        key = -x._finish
        if not self.blocks:
            block = _Block([x])
            self.blocks.append(block)
            self.tops.append(key)
            x._block = block
            return
        n = max(bisect_right(self.tops, key) - 1, 0)
        block = self.blocks[n]
        i = bisect_right(block.finishes, key)
        block.finishes.insert(i, key)
        block.bases.insert(i, x._base)
        block.items.insert(i, x)
        block.total += x._base
        x._block = block
        if len(block.items) >= 2 * _BLOCK:
            first, second = _Block(block.items[:_BLOCK]), _Block(block.items[_BLOCK:])
            self.blocks[n : n + 1] = [first, second]
            self.tops[n : n + 1] = [first.finishes[0], second.finishes[0]]
            for half in (first, second):
                for y in half.items:
                    y._block = half
        else:
            block.peak(block.at)
            self.tops[n] = block.finishes[0]

    def remove(self, x: Running) -> None:
        block = x._block
        assert block is not None
        x._block = None
        i = block.items.index(x)
        del block.items[i], block.finishes[i]
        block.total -= block.bases.pop(i)
        if i and block.items:
            block.peak(block.at)
            return
        n = bisect_left(self.tops, -x._finish)
        while self.blocks[n] is not block:
            n += 1
        if block.items:
            block.peak(block.at)
            self.tops[n] = block.finishes[0]
        else:
            del self.blocks[n], self.tops[n]

    def fits(self, base: float, finish: float, limit: float) -> bool:
        """Whether the peak with one more sequence stays at or under `limit`."""
        blocks = self.blocks
        key = -finish
        where = bisect_right(self.tops, key) - 1
        total = 0.0
        count = 0
        if where < 0:
            if base + finish > limit:
                return False
            total = base
            count = 1
        for n, block in enumerate(blocks):
            if n == where:  # the newcomer lies inside this block
                k = count
                run = total
                pending = True
                for b, f in zip(block.bases, block.finishes, strict=True):
                    if pending and f > key:
                        pending = False
                        k += 1
                        run += base
                        if run - k * key > limit:
                            return False
                    k += 1
                    run += b
                    if run - k * f > limit:
                        return False
                if pending:
                    k += 1
                    run += base
                    if run - k * key > limit:
                        return False
                total = run
                count = k
                continue
            value = total + block.height
            more = count - block.at
            if more > 0:
                value -= more * block.finishes[0]
            if value > limit and total + block.peak(count) > limit:
                return False
            total += block.total
            count += len(block.items)
        return True


class Ledger:
    """One replica's own KV count. Invariant: `total` = sum over sequences of own + generated + left, plus shared.

    `now_used` is the same without `left`: what the engine holds at this moment if every prompt is through prefill.
    """

    __slots__ = ("_groups", "_profile", "_shared", "_step", "block_tokens", "now_used", "running", "total")

    def __init__(self, block_tokens: int = 16) -> None:
        self.block_tokens = block_tokens
        self.running: dict[Running, None] = {}
        self.total = 0
        self.now_used = 0
        self._shared = 0  # tokens counted by groups; part of `total` and `now_used`
        self._groups: dict[int, _Group] = {}
        self._step = 0.0
        self._profile: Profile | None = None

    def need(self, prompt_tokens: int, cached_tokens: int, affinity: int | None) -> int:
        """Tokens a newcomer would count by itself before its first output token, rounding allowance included."""
        if cached_tokens and affinity is not None:
            group = self._groups.get(affinity)
            if group is not None:
                shared = cached_tokens - cached_tokens % self.block_tokens
                prompt_tokens -= shared if group.cold else min(shared, group.tokens)
        return prompt_tokens + self.block_tokens - 1

    def fits(self, need: int, left: int, limit: float) -> bool:
        """Whether a newcomer of `need` + `left` tokens keeps the predicted peak at or under `limit` tokens."""
        if self.total + need + left <= limit:
            return True
        if self.now_used + need > limit:
            return False
        profile = self._profile
        if profile is None:
            # Built on first need, from then on kept up to date until the plain sum is small again.
            step = self._step
            for x in self.running:
                x._finish = step + x.left
                x._base = x.own + x.generated - step
            profile = self._profile = Profile(self.running)
        return profile.fits(need - self._step, self._step + left, limit - self._shared + _ROUNDING)

    def peak(self) -> int:
        """The predicted peak in tokens, exactly, for people to look at. O(n log n)."""
        return self._shared + peak((x.own + x.generated, x.left) for x in self.running)

    def add(self, x: Running, prompt_tokens: int, cached_tokens: int, affinity: int | None, left: int) -> None:
        x.own = own = prompt_tokens + self.block_tokens - 1
        x.generated = 0
        x.left = left
        x.group = None
        x._block = None
        self.running[x] = None
        self.total += own + left
        self.now_used += own
        if self._profile is not None:
            x._finish = self._step + left
            x._base = own - self._step
            self._profile.add(x)
        if affinity is not None:
            self._join(x, affinity, cached_tokens)

    def _join(self, x: Running, affinity: int, cached_tokens: int) -> None:
        group = self._groups.get(affinity)
        if group is None:
            group = self._groups[affinity] = _Group(affinity)
        x.group = group
        group.members += 1
        group.cold[x] = None
        shared = cached_tokens - cached_tokens % self.block_tokens
        if shared and group.members > 1:
            # From here on the prefix is counted once; members that counted it themselves stop doing so.
            if shared > group.tokens:
                self._shared += shared - group.tokens
                self.total += shared - group.tokens
                self.now_used += shared - group.tokens
                group.tokens = shared
            for member in group.cold:
                prompt = member.own - self.block_tokens + 1
                self._recount(member, min(shared, prompt - prompt % self.block_tokens))
            group.cold.clear()

    def _recount(self, x: Running, cached: int) -> None:
        x.own -= cached
        self.total -= cached
        self.now_used -= cached
        if self._profile is not None:
            self._profile.remove(x)
            x._base -= cached
            self._profile.add(x)

    def progress(self, x: Running, generated: int, left: int) -> None:
        """`generated` output tokens so far, `left` still expected."""
        more = generated - x.generated
        x.generated = generated
        self.now_used += more
        self.total += more + left - x.left
        x.left = left
        step = self._step = self._step + more / len(self.running)
        if self._profile is not None:
            finish = step + left
            base = x.own + generated - step
            if abs(finish - x._finish) > _DRIFT or abs(base - x._base) > _DRIFT:
                self._profile.remove(x)
                x._finish = finish
                x._base = base
                self._profile.add(x)

    def remove(self, x: Running, limit: float) -> None:
        """The sequence ended, however. Dropping far under `limit` also drops the profile."""
        del self.running[x]
        held = x.own + x.generated
        self.now_used -= held
        self.total -= held + x.left
        if self._profile is not None:
            if self.total < 0.8 * limit:
                self._profile = None
            else:
                self._profile.remove(x)
        group = x.group
        if group is not None:
            x.group = None
            group.members -= 1
            group.cold.pop(x, None)
            if group.members == 0:
                self._shared -= group.tokens
                self.total -= group.tokens
                self.now_used -= group.tokens
                del self._groups[group.key]
