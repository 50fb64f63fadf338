"""Which replica, and why: bounded-load prefix affinity on token-weighted load.

Load is work, not requests: prompt tokens not yet through prefill, plus a part (`kv_weight`) of the KV tokens held,
which is what a held token costs in later decode steps against a prompt token's prefill. The views handed in count every
own dispatch at once and other gateways' by the last scrape, so grants between two scrapes do not herd.

A prompt's *home* is the replica that holds its longest known beginning. It is taken if, with the request itself (w),

    load + w <= 1.25 * (sum of loads + w) / n

so a hot prefix spills to the next replica before it hurts. In a pool that is far from full the average is so small that
one long prompt exceeds it; there the home is also taken up to the largest request lately sent beyond the bound, as long
as its load is above the least by at most `worth` times the prefill it saves. A replica is therefore never loaded beyond
1.25 of the average by more than one request. Otherwise the best by

    0.5 * share of the prompt held + 0.3 * free KV + 0.2 * (1 - load / greatest load)

is taken among the home, the least loaded and two random ones, of those with load <= 1.25 * (sum + w) / n.

A beginning that nobody holds, or all do alike, gives no home. Then the least loaded is taken, and by several gateways
the first replica within the bound that the hash ring offers from the prompt's key: they agree on it without talking.
Without any key, several gateways take the better of two at random: their views of each other are seconds old, and all
choosing the least would choose the same one. One request in a hundred ignores its prefix, to learn. A home that lately
answered later than its peers, by more than `penalty` times the prefill it saves, is passed by. Replicas that decode
speculatively are preferred by the interactive class while what they accept and how few they run say that it wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from providers.adapters import Adapters
from providers.ejection import Replicas
from providers.prefix import Affinity, PrefixIndex
from providers.ring import NEAR, Ring


class Size(Protocol):
    """How large a request is."""

    @property
    def prompt_tokens(self) -> int: ...


class Wanted(Protocol):
    """What a choice looks at in a request."""

    @property
    def affinity(self) -> int | None: ...
    @property
    def adapter(self) -> str | None: ...
    @property
    def cls(self) -> str: ...
    @property
    def demand(self) -> Size: ...


class View(Protocol):
    """What a choice looks at in a replica that has room for the request. None is unknown."""

    @property
    def name(self) -> str: ...
    @property
    def inflight(self) -> int: ...
    @property
    def seats_free(self) -> int: ...
    @property
    def kv_capacity(self) -> int | None: ...
    @property
    def kv_free(self) -> int | None: ...
    @property
    def prefill_waiting(self) -> int: ...


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """The numbers of a choice."""

    factor: float = 1.25
    kv_weight: float = 0.1
    """Load of one held KV token, in prompt tokens."""
    explore: float = 0.01
    instances: int = 1
    """Gateways that share the pool."""
    worth: float = 3.0
    """Times the prefill a hit saves: by how much the home's load may be above the least of all."""
    penalty: float = 1.5
    """Times the prefill time a hit saves: how much later a home may answer than its peers."""
    prefill_tokens_per_s: float | None = None
    """Measured; without it the time a hit saves is unknown and no home is passed by for lateness."""
    late_half_life_s: float = 10.0
    accept_min: float = 0.2
    """Accepted draft tokens per step under which speculation costs more than it gives."""
    speculative_batch: int = 16
    """Running requests up to which speculation wins; preferred again below three quarters of it."""


DEFAULT = BalanceSettings()


class _Held(NamedTuple):
    """Where a prompt's beginning is: the view to prefer, its known tokens, the mask of all who hold that much."""

    home: int | None
    tokens: int
    holders: int


NOTHING = _Held(None, 0, 0)


class Chooser:
    """The replica choice of one pool. Calling it changes nothing but which probes are taken; tell it by `sent`."""

    __slots__ = (
        "_adapters", "_index", "_largest", "_late", "_replicas", "_ring", "_settings", "_speculative", "_typical",
        "_uniform",
    )  # fmt: skip

    def __init__(
        self,
        uniform: Callable[[], float],
        settings: BalanceSettings = DEFAULT,
        *,
        index: PrefixIndex | None = None,
        replicas: Replicas | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        """`uniform` gives numbers in [0, 1)."""
        self._uniform = uniform
        self._settings = settings
        self._index = index
        self._replicas = replicas
        self._adapters = adapters
        self._ring = Ring()
        self._late: dict[str, tuple[float, float]] = {}
        """Replica to (seconds its answers are late by, when last seen); only those that are late."""
        self._speculative: dict[str, bool] = {}
        """Replicas that speculate, and whether it wins now."""
        self._typical = 1000.0
        self._largest = 0.0
        """Load of the largest request sent lately; forgotten over about a thousand."""
        """Tokens of an ordinary request, for replicas that do not know their KV."""

    def configure(self, settings: BalanceSettings) -> None:
        """New numbers: another count of gateways, a measured prefill rate."""
        self._settings = settings

    def set_replicas(self, names: Sequence[str]) -> None:
        """The pool's replicas, usable or not: the ring is made of these, and what is known of others is dropped."""
        self._ring.set(names)
        kept = set(names)
        for known in (self._late, self._speculative):
            for name in known.keys() - kept:
                del known[name]

    def __call__(self, item: Wanted, fitting: Sequence[View], now: float) -> str:
        """The name of one of `fitting`, all of which have room. Raises IndexError if there is none."""
        views = fitting
        watchful = self._replicas is not None and not self._replicas.calm(now)
        if len(views) > 1:
            if watchful:
                views = self._well(item, views, now)
            if item.adapter is not None and self._adapters is not None:
                views = self._with_adapter(item.adapter, views, now)
            if self._speculative and item.cls == "interactive":
                views = [view for view in views if self._speculative.get(view.name)] or views
        name = self._choose(item, views, now) if len(views) > 1 else views[0].name
        if watchful and self._replicas is not None:
            self._replicas.chosen(name, item.cls, now)
        return name

    def sent(self, name: str, item: Wanted) -> None:
        """A request was sent to `name`: its prompt will be in the cache there."""
        tokens = item.demand.prompt_tokens
        self._typical += 0.02 * (tokens - self._typical)
        whole = tokens * (1.0 + self._settings.kv_weight)
        self._largest = whole if whole > self._largest else self._largest + 0.001 * (whole - self._largest)
        if self._index is not None and isinstance(item.affinity, Affinity):
            self._index.sent(name, item.affinity, tokens)

    def held(self, name: str, item: Wanted) -> int:
        """Tokens of the request's beginning that `name` is believed to have in its cache."""
        index = self._index
        if index is None or not isinstance(item.affinity, Affinity):
            return 0
        return min(index.match(item.affinity, index.bits.get(name, 0))[0], item.demand.prompt_tokens)

    def answered(self, name: str, now: float, ttft: float, uncached_tokens: int) -> None:
        """The first token came `ttft` seconds after sending a prompt of which `uncached_tokens` had to be prefilled."""
        rate = self._settings.prefill_tokens_per_s
        if rate is None:
            return
        over = max(0.0, ttft - uncached_tokens / rate)
        late = self._lateness(name, now)
        late += 0.25 * (over - late)
        if late > 0.05:
            self._late[name] = (late, now)
        else:
            self._late.pop(name, None)

    def speculates(self, name: str, accepted_per_step: float | None, running: int) -> None:
        """What was measured on a replica with speculative decoding; None for one that has it off."""
        if accepted_per_step is None:
            self._speculative.pop(name, None)
            return
        most = self._settings.speculative_batch
        if not self._speculative.get(name, False):
            most = most * 3 // 4
        self._speculative[name] = accepted_per_step >= self._settings.accept_min and running < most

    # -- the choice ---------------------------------------------------------------------------------------------------

    def _choose(self, item: Wanted, views: Sequence[View], now: float) -> str:
        settings = self._settings
        weight = settings.kv_weight
        try:
            # Without a test for None in each round: replicas mostly know their KV, and this is the hot loop.
            loads = [v.prefill_waiting + weight * (v.kv_capacity - v.kv_free) for v in views]  # type: ignore[operator]
        except TypeError:
            loads = [self._load(view) for view in views]
        affinity = item.affinity
        if affinity is None or self._uniform() < settings.explore:
            return views[self._by_load(loads)].name
        tokens = item.demand.prompt_tokens
        whole = tokens * (1.0 + weight)
        limit = settings.factor * (sum(loads) + whole) / len(views)
        held = NOTHING if self._index is None else self._held(affinity, views, loads)
        home = held.home
        if home is None:
            if self._index is not None and settings.instances == 1:
                return views[self._by_load(loads)].name
            home = self._on_ring(affinity, views, loads, limit - whole)
            held = _Held(home, 0, 0)
        if home is not None:
            if self._late and self._is_late(views, held, now):
                return self._choose(item, [view for at, view in enumerate(views) if at != home], now)
            over = loads[home] + whole - limit
            if over <= 0.0:
                return views[home].name
            if over <= self._largest and loads[home] - min(loads) <= settings.worth * held.tokens:
                return views[home].name
        return views[self._best(views, loads, limit, held, tokens)].name

    def _load(self, view: View) -> float:
        capacity, free = view.kv_capacity, view.kv_free
        if capacity is None or free is None:
            return view.prefill_waiting + view.inflight * self._typical
        return view.prefill_waiting + self._settings.kv_weight * (capacity - free)

    def _held(self, affinity: int, views: Sequence[View], loads: list[float]) -> _Held:
        """The longest beginning held by some of `views`. No home where nobody holds any or all hold the same."""
        index = self._index
        if index is None or type(affinity) is not Affinity:
            return NOTHING
        bits = index.bits
        if len(views) == len(bits):
            among = index.all
        else:
            among = 0
            for view in views:
                among |= bits.get(view.name, 0)
        tokens, mask = index.match(affinity, among)
        if not mask or mask == among:
            return NOTHING
        owner = index.owner.get(mask)
        if owner is not None:
            for at, view in enumerate(views):
                if view.name == owner:
                    return _Held(at, tokens, mask)
        home, least = None, 0.0
        for at, view in enumerate(views):
            if bits.get(view.name, 0) & mask and (home is None or loads[at] < least):
                home, least = at, loads[at]
        return _Held(home, tokens, mask)

    def _on_ring(self, key: int, views: Sequence[View], loads: list[float], room: float) -> int | None:
        """The first replica from `key` whose load is at most `room`, else the first of all that is in `views`."""
        first = None
        for name in self._ring.near(key):
            at = _place(views, name)
            if at is not None:
                if loads[at] <= room:
                    return at
                if first is None:
                    first = at
                    if room < 0.0:
                        return first
        if first is not None and len(self._ring) <= NEAR:
            return first
        for name in self._ring.walk(key):
            at = _place(views, name)
            if at is not None and (loads[at] <= room or room < 0.0):
                return at
        return first

    def _best(self, views: Sequence[View], loads: list[float], limit: float, held: _Held, tokens: int) -> int:
        """The best score among the home, the least loaded and two random ones, of those within the bound."""
        least = min(range(len(views)), key=loads.__getitem__)
        some = {least, self._random(len(views)), self._random(len(views))}
        if held.home is not None:
            some.add(held.home)
        greatest = max(loads) or 1.0
        best, best_score = least, -1.0
        for at in some:
            if loads[at] > limit:
                continue
            view = views[at]
            prefix = 0.1 if at == held.home else 0.0
            if self._index is not None and self._index.bits.get(view.name, 0) & held.holders and tokens:
                prefix = max(prefix, held.tokens / tokens * self._index.trust(view.name))
            capacity, free = view.kv_capacity, view.kv_free
            free_share = free / capacity if capacity and free is not None else 0.5
            score = 0.5 * prefix + 0.3 * free_share + 0.2 * (1.0 - loads[at] / greatest)
            if score > best_score:
                best, best_score = at, score
        return best

    def _by_load(self, loads: list[float]) -> int:
        """The least loaded of all; of two at random when other gateways choose too, or to break a tie."""
        one = self._random(len(loads))
        if self._settings.instances > 1:
            other = (one + 1 + self._random(len(loads) - 1)) % len(loads)
            return one if loads[one] <= loads[other] else other
        least = min(loads)
        return one if loads[one] == least else loads.index(least)

    def _random(self, n: int) -> int:
        return min(int(self._uniform() * n), n - 1)

    def _lateness(self, name: str, now: float) -> float:
        late, at = self._late.get(name, (0.0, now))
        return late * 0.5 ** ((now - at) / self._settings.late_half_life_s) if late else 0.0

    def _is_late(self, views: Sequence[View], held: _Held, now: float) -> bool:
        """Whether the home answers later than its quickest peer by more than the hit is worth."""
        rate = self._settings.prefill_tokens_per_s
        if rate is None or held.home is None or views[held.home].name not in self._late:
            return False
        quickest = min(self._lateness(view.name, now) for view in views)
        late = self._lateness(views[held.home].name, now) - quickest
        return late > max(self._settings.penalty * held.tokens / rate, 0.05)

    def _well(self, item: Wanted, views: Sequence[View], now: float) -> Sequence[View]:
        """Those that should get work now; failing them those that merely failed lately; failing them all."""
        assert self._replicas is not None
        pick = self._uniform()
        good, doubtful = [], []
        for view in views:
            skip = self._replicas.hindrance(view.name, item.cls, now, pick)
            if skip is None:
                good.append(view)
            elif skip.soft:
                doubtful.append(view)
        return good or doubtful or views

    def _with_adapter(self, adapter: str, views: Sequence[View], now: float) -> Sequence[View]:
        """Those where the adapter stands best. None of them can take it only if the request should not be here."""
        assert self._adapters is not None
        scores = [self._adapters.score(view.name, adapter, now) for view in views]
        best = max(scores)
        return [view for view, score in zip(views, scores, strict=True) if score == best] if best > 0 else views


def _place(views: Sequence[View], name: str) -> int | None:
    for at, view in enumerate(views):
        if view.name == name:
            return at
    return None
