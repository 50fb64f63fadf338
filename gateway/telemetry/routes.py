"""Metric families of routing: what spills where, adapters and their loads, streams that broke."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.lora import Loras
from gateway.spillway import Spillway
from gateway.telemetry.instruments import Instruments


def spill(pools: Mapping[str, Spillway], now: float) -> Iterator[Metric]:
    """What each pool has to spare for work that lost its tier, and who was not let in."""
    rates = GaugeMetricFamily(
        "weighbridge_spill_rate",
        "Cost units (or an account's tokens) a second that a pool has to spare, may take now, runs itself, took over.",
        labels=("pool", "rate"),
    )
    waiting = GaugeMetricFamily("weighbridge_spill_waiting", "Requests that wait to spill to a pool.", labels=("pool",))
    shed = CounterMetricFamily(
        "weighbridge_spill_shed", "Times a request found no room to spill.", labels=("pool", "class")
    )
    for pool, way in pools.items():
        found = way.snapshot(now)
        named = {"spare": found.spare, "allowed": found.allowed, "own": found.own, "spilled": found.spilled}
        for name, rate in named.items():
            if rate is not None:
                rates.add_metric([pool, name], rate)
        waiting.add_metric([pool], way.waiting)
        for cls, count in found.shed.items():
            shed.add_metric([pool, cls], count)
    yield from (rates, waiting, shed)


def adapters(pools: Mapping[str, Loras]) -> Iterator[Metric]:
    """Where adapters are resident, how many requests run with each, and how their loads ended."""
    resident = GaugeMetricFamily(
        "weighbridge_adapter_running", "Requests that run with an adapter.", labels=("pool", "replica", "adapter")
    )
    loads = CounterMetricFamily(
        "weighbridge_adapter_loads", "Adapter loads by how they ended.", labels=("pool", "replica", "adapter", "result")
    )
    for pool, loras in pools.items():
        for replica, found in loras.snapshot().items():
            for adapter, running in found.resident.items():
                resident.add_metric([pool, replica, adapter], running)
        for (replica, adapter, result), count in loras.loads.items():
            loads.add_metric([pool, replica, adapter, result], count)
    yield from (resident, loads)


def continuations(instruments: Instruments) -> Iterator[Metric]:
    """Streams that broke after their first token, by what became of them."""
    found = CounterMetricFamily(
        "weighbridge_broken_streams",
        "Streams that broke after content was out: continued elsewhere, tried in vain, or not to be continued.",
        labels=("pool", "result"),
    )
    for (pool, result), count in instruments.broken_streams.items():
        found.add_metric([pool, result], count)
    yield found
