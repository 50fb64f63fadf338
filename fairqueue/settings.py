"""What an operator may set about one pool's admission."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairqueue.bounds import Bounds
from fairqueue.item import Costs, RequestClass

CLASSES = (RequestClass.INTERACTIVE, RequestClass.BATCH)  # by class index


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Settings of one pool. Times in seconds, costs in cost units."""

    name: str
    ttft_slo_s: float = 1.0
    tpot_slo_s: float = 0.06
    engine: bool = True  # False: a provider account, with seats and nothing else
    costs: Costs = field(default_factory=Costs)
    class_weights: Mapping[RequestClass, float] = field(
        default_factory=lambda: {RequestClass.INTERACTIVE: 100.0, RequestClass.BATCH: 1.0}
    )
    queue_timeouts_s: Mapping[RequestClass, float] = field(
        default_factory=lambda: {RequestClass.INTERACTIVE: 10.0, RequestClass.BATCH: 600.0}
    )
    bounds: Bounds = field(default_factory=Bounds)
    kv_fraction: float = 0.95  # of KV tokens, for the predicted peak; above 1.0 lies the preemption cliff
    stale_kv_fraction: float = 0.85  # the same while scrapes are missing
    scrape_interval_s: float = 1.0
    headroom: float = 0.2  # of measured capacity that is never sold
    overtake: float = 1.0  # a request that does not fit may be passed by this many times its own cost
    locality_slack: float = 0.5  # of a mean request's cost: how far a cache hit may be served ahead of its turn
    prefill_allowance: float = 0.05  # of the TTFT objective: prefill that may wait in an engine of unknown chunk
    preempt_for_interactive: bool = True  # surplus batch work gives way to any interactive request
    forget_s: float = 600.0  # an idle tenant's counters are kept this long

    def __post_init__(self) -> None:
        for cls in CLASSES:
            if cls not in self.class_weights or cls not in self.queue_timeouts_s:
                raise ValueError(f"pool {self.name}: class {cls} needs a weight and a queue timeout")
        if not 0.0 < self.stale_kv_fraction <= self.kv_fraction <= 1.0:
            raise ValueError(f"pool {self.name}: 0 < stale_kv_fraction <= kv_fraction <= 1")
        if self.ttft_slo_s <= 0 or self.tpot_slo_s <= 0:
            raise ValueError(f"pool {self.name}: objectives must be above 0")
