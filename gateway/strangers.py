"""A limiter for whoever comes without a valid key: one small bucket for each client address."""

from __future__ import annotations

from collections import OrderedDict


class Strangers:
    """Leaky buckets by address, GCRA form: `tat` is when the bucket will be full again.

    A request passes while tat' - now <= burst * interval with tat' = max(tat, now) + interval.
    Memory is bounded: past `most` addresses the one seen longest ago is forgotten.
    """

    def __init__(self, per_minute: float, burst: int, most: int = 10_000) -> None:
        self._interval = 60.0 / per_minute
        self._tolerance = burst * self._interval
        self._most = most
        self._tat: OrderedDict[str, float] = OrderedDict()

    def refuse(self, address: str, now: float) -> float | None:
        """Counts one request; None when it may be told 401, else seconds until one may come again."""
        tat = max(self._tat.get(address, now), now) + self._interval
        wait = tat - now - self._tolerance
        if wait > 0.0:
            return wait
        self._tat[address] = tat
        self._tat.move_to_end(address)
        if len(self._tat) > self._most:
            self._tat.popitem(last=False)
        return None

    def resize(self, per_minute: float, burst: int) -> None:
        """Takes over new figures; what was counted stays."""
        self._interval = 60.0 / per_minute
        self._tolerance = burst * self._interval
