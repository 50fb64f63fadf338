"""Builds a pool's snapshot from its live parts, touching none of them."""

from __future__ import annotations

from collections.abc import Iterable

from fairqueue.fair import Tenant
from fairqueue.replica import Replica
from fairqueue.settings import CLASSES
from fairqueue.snapshot import PoolSnapshot, TenantSnapshot
from fairqueue.waiting import Waiting


def _tenant(tenant: Tenant, now: float) -> TenantSnapshot:
    return TenantSnapshot(
        waiting=tenant.waiting,
        waiting_cost=tenant.backlog,
        inflight=tenant.inflight,
        weight=tenant.weight,
        counters={c: flow.counter for c, flow in zip(CLASSES, tenant.flows, strict=True) if flow is not None},
        reserved_rate=tenant.rate,
        reserved_seats=tenant.room_seats,
        reserved_kv_tokens=tenant.room_kv,
        reservation_lag_s=max(0.0, now - tenant.clock) if tenant.rate and tenant.waiting else 0.0,
    )


def pool_snapshot(
    name: str, waiting: Waiting, replicas: Iterable[Replica], service_rate: float | None, now: float
) -> PoolSnapshot:
    """Frozen figures of one pool. O(tenants + replicas)."""
    parts = tuple(replica.snapshot(now) for replica in replicas)
    guarantees = waiting.guarantees
    return PoolSnapshot(
        name=name,
        seats_held=sum(r.seats_held for r in parts),
        kv_tokens_held=sum(r.kv_tokens_held for r in parts),
        prefill_tokens=sum(r.prefill_tokens for r in parts),
        inflight=sum(r.inflight for r in parts),
        waiting=waiting.length,
        waiting_cost=waiting.cost,
        waiting_by_class={c: queue.length for c, queue in zip(CLASSES, waiting.queues, strict=True)},
        tenants={
            name: _tenant(tenant, now)
            for name, tenant in waiting.tenants.items()
            if tenant.waiting or tenant.inflight or tenant.reservation is not None
        },
        replicas=parts,
        service_rate=service_rate,
        oversold=guarantees.floors.oversold,
        held_seats=guarantees.held_seats,
        held_kv_tokens=guarantees.held_kv,
    )
