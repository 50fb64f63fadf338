"""What a poll of a replica teaches: its health, its capacity, its cache, its adapters, whether its guesses pay.

Counters of an engine are read against the poll before. One that has fallen belongs to an engine that was started anew:
its cache is empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fairqueue.capacity import Capacity, Scrape
from gateway.clock import Clock
from gateway.gate import Gate
from gateway.lora import Loras
from gateway.routing import Routing
from gateway.spillway import Spillway
from providers.balance import BalanceSettings, Chooser
from providers.ejection import Replicas
from providers.engines import EngineFigures
from providers.prefix import PrefixIndex
from providers.watch import Observation

_NOTHING = EngineFigures()
_TELLING = 0.1  # a measured rate is passed on when it differs by more than this part


@dataclass(slots=True)
class Polled:
    """One pool's replicas as their polls show them."""

    name: str
    clock: Clock
    routing: Routing
    gate: Gate
    members: Replicas
    chooser: Chooser
    index: PrefixIndex
    loras: Loras
    spillway: Spillway
    balance: BalanceSettings
    seen: set[str] = field(default_factory=set)  # replicas that have been polled at least once
    _before: dict[str, EngineFigures] = field(default_factory=dict)  # the figures of the poll before

    def add(self, replica: str, capacity: Capacity, now: float) -> None:
        """A replica is there, with its capacity as configured."""
        self.gate.core.set_replica(replica, capacity, now)
        self.members.add(replica, now)
        self.index.set_replica(replica)

    def remove(self, replica: str, now: float) -> None:
        """A replica is gone."""
        self.gate.core.remove_replica(replica, now)
        self.members.remove(replica, now)
        self.index.forget(replica)
        self._before.pop(replica, None)

    def take(self, found: Observation) -> None:
        """A replica was polled: its health and its figures go to those who decide by them."""
        now = self.clock.monotonic()
        self.seen.add(found.replica)
        self.members.polled(found.replica, found.healthy, now)
        figures = found.figures
        if figures is not None:
            self._measure(found, figures, now)
        self.loras.observed(found.replica, found.models, None if figures is None else figures.lora_slots)
        self.routing.refresh(self.name, self.gate, self.members, now)

    def _measure(self, found: Observation, figures: EngineFigures, now: float) -> None:
        name, core = found.replica, self.gate.core
        core.set_engine(
            name,
            Capacity(
                seats=figures.max_seqs,
                kv_tokens=figures.kv_tokens_total,
                block_tokens=figures.block_tokens or 16,
            ),
            now,
        )
        core.observe(
            name,
            Scrape(
                at=found.at,
                running=figures.running,
                waiting=figures.waiting,
                kv_used_ratio=figures.kv_used_ratio,
                preemptions_total=figures.preemptions_total,
            ),
            now,
        )
        before = self._before.get(name, _NOTHING)
        self._before[name] = figures
        if (_grown(before.prompt_tokens_total, figures.prompt_tokens_total) or 0) < 0:
            self.index.forget(name)
            before = _NOTHING
        if before.kv_tokens_total != figures.kv_tokens_total or before is _NOTHING:
            self.index.set_replica(name, figures.kv_tokens_total)
        asked = _grown(before.prefix_queries_total, figures.prefix_queries_total)
        hits = _grown(before.prefix_hits_total, figures.prefix_hits_total)
        if asked and hits is not None:
            self.index.observe(name, asked, hits)
        drafts = _grown(before.drafts_total, figures.drafts_total)
        accepted = _grown(before.accepted_total, figures.accepted_total)
        if drafts and accepted is not None:
            self.chooser.speculates(name, accepted / drafts, figures.running or 0)
        elif figures.drafts_total is None:
            self.chooser.speculates(name, None, 0)

    def keep(self, now: float) -> None:
        """Passes on what admission has measured meanwhile. Called every few seconds."""
        snapshot = self.gate.core.snapshot(now)
        rates = [r.prefill_rate.value for r in snapshot.replicas if r.usable and r.prefill_rate.value]
        if rates:
            rate, known = sum(rates) / len(rates), self.balance.prefill_tokens_per_s
            if known is None or abs(rate - known) > _TELLING * known:
                self.balance = replace(self.balance, prefill_tokens_per_s=rate)
                self.chooser.configure(self.balance)
        reserved = sum(tenant.reserved_rate for tenant in snapshot.tenants.values())
        self.spillway.measured(self.gate.core.measured(now).rate, reserved)


def _grown(before: int | None, now: int | None) -> int | None:
    """By how much a counter has grown; None where one of the two is not known."""
    return None if before is None or now is None else now - before
