"""A pool as it stands: frozen figures for the debug page, the metrics and the tests alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairqueue.capacity import Figure
from fairqueue.item import RequestClass


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """One replica. Tokens and seats; figures carry their source."""

    name: str
    usable: bool
    open: bool  # would take a request that fits
    inflight: int
    seats_held: int
    seats: Figure
    seat_limit: int | None  # what is enforced now
    kv_tokens_held: int  # in use now by own tickets
    kv_tokens_peak: int  # predicted peak
    kv_tokens: Figure
    prefill_tokens: int  # granted, first token not seen
    prefill_rate: Figure
    pace: float | None  # prefill tokens/s let in; None = not paced
    capacity: Figure  # cost units/s within the objectives, at the mix seen
    step_s: float | None  # fitted: seconds of an empty engine step
    safety: float  # factor that the safety net puts on its budget now
    chunk_tokens: Figure
    scrape_age_s: float | None
    full: bool  # the engine itself has requests waiting
    claimed_by: str | None  # request for which room is gathered


@dataclass(frozen=True, slots=True)
class TenantSnapshot:
    """One tenant that waits, runs or has a reservation."""

    waiting: int
    waiting_cost: float
    inflight: int
    weight: float
    counters: Mapping[RequestClass, float]
    reserved_rate: float  # effective, cost units/s
    reserved_seats: float
    reserved_kv_tokens: float
    reservation_lag_s: float  # how far its clock is behind now: above 0 = owed service


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """Everything countable about a pool. All the held figures are 0 at rest."""

    name: str
    seats_held: int
    kv_tokens_held: int
    prefill_tokens: int
    inflight: int
    waiting: int
    waiting_cost: float
    waiting_by_class: Mapping[RequestClass, int]
    tenants: Mapping[str, TenantSnapshot]
    replicas: tuple[ReplicaSnapshot, ...]
    service_rate: float | None  # cost units/s granted while requests waited
    oversold: bool  # sold floors exceed measured capacity and are scaled down
    held_seats: float  # kept free for reservations
    held_kv_tokens: float
