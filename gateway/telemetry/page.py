"""The metrics page: the instruments and the snapshots of every part, in Prometheus' text form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from gateway.telemetry.instruments import PHASES, Histogram, Instruments, Series

if TYPE_CHECKING:
    from fairqueue.admission import PoolSnapshot

_SERIES_LABELS = ("model", "pool", "class", "tenant")


def _labels(series: Series) -> list[str]:
    return [series.model, series.pool, series.cls, series.tenant]


def _add(family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram) -> None:
    running = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        running += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(running)))
    family.add_metric(list(labels), buckets=buckets, sum_value=histogram.total)


class Page(Collector):
    """Collects everything at the moment of a scrape; between scrapes it costs nothing.

    `pools` gives the snapshot of each pool, `extra` further families of parts that know their own.
    """

    def __init__(
        self,
        instruments: Instruments,
        pools: Callable[[], Iterable[PoolSnapshot]],
        extra: Callable[[], Iterable[Metric]],
    ) -> None:
        self._instruments = instruments
        self._pools = pools
        self._extra = extra
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        """The whole page, text format 0.0.4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield from self._requests()
        yield from self._times()
        yield from self._queues()
        yield from self._extra()

    def _requests(self) -> Iterator[Metric]:
        instruments = self._instruments
        requests = CounterMetricFamily(
            "weighbridge_requests", "Requests by how they ended.", labels=(*_SERIES_LABELS, "outcome")
        )
        tokens = CounterMetricFamily("weighbridge_tokens", "Tokens settled.", labels=(*_SERIES_LABELS, "type"))
        estimated = CounterMetricFamily(
            "weighbridge_usage_estimated",
            "Requests settled from counts of our own because the upstream reported no usage.",
            labels=_SERIES_LABELS,
        )
        for series in instruments.series.values():
            labels = _labels(series)
            for outcome, count in series.requests.items():
                requests.add_metric([*labels, outcome], count)
            tokens.add_metric([*labels, "prompt"], series.prompt_tokens)
            tokens.add_metric([*labels, "cached"], series.cached_tokens)
            tokens.add_metric([*labels, "output"], series.output_tokens)
            estimated.add_metric(labels, series.estimated_usage)
        yield from (requests, tokens, estimated)
        inflight = GaugeMetricFamily("weighbridge_inflight_requests", "Requests between first byte and settlement.")
        inflight.add_metric([], instruments.inflight)
        yield inflight
        strangers = CounterMetricFamily(
            "weighbridge_unauthenticated_requests", "Requests refused before a key was known.", labels=("outcome",)
        )
        for outcome, count in instruments.unauthenticated.items():
            strangers.add_metric([outcome], count)
        yield strangers
        attempts = CounterMetricFamily(
            "weighbridge_upstream_attempts", "Attempts at a replica by result.", labels=("pool", "replica", "result")
        )
        for (pool, replica, result), count in instruments.attempts.items():
            attempts.add_metric([pool, replica, result], count)
        yield attempts
        limited = CounterMetricFamily(
            "weighbridge_limit_refusals", "Requests refused by a limit.", labels=("level", "dimension")
        )
        for (level, dimension), count in instruments.refusals_by_limit.items():
            limited.add_metric([level, dimension], count)
        yield limited
        reloads = CounterMetricFamily("weighbridge_config_reloads", "Configuration reloads.", labels=("result",))
        for result, count in instruments.reloads.items():
            reloads.add_metric([result], count)
        yield reloads

    def _times(self) -> Iterator[Metric]:
        phases = HistogramMetricFamily(
            "weighbridge_phase_seconds",
            "A request's time by phase; the phases of a request sum to its whole time.",
            labels=(*_SERIES_LABELS, "phase"),
        )
        ttft = HistogramMetricFamily(
            "weighbridge_time_to_first_token_seconds", "Arrival to first token.", labels=_SERIES_LABELS
        )
        tpot = HistogramMetricFamily(
            "weighbridge_time_per_output_token_seconds",
            "Mean time per output token after the first.",
            labels=_SERIES_LABELS,
        )
        for series in self._instruments.series.values():
            labels = _labels(series)
            for phase in PHASES:
                _add(phases, [*labels, phase], series.phases[phase])
            _add(ttft, labels, series.ttft)
            _add(tpot, labels, series.tpot)
        yield from (phases, ttft, tpot)

    def _queues(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily("weighbridge_queue_depth", "Requests waiting for a ticket.", labels=("pool",))
        seats = GaugeMetricFamily("weighbridge_seats_held", "Seats held by tickets.", labels=("pool", "replica"))
        kv = GaugeMetricFamily("weighbridge_kv_tokens_held", "KV tokens held by tickets.", labels=("pool", "replica"))
        prefill = GaugeMetricFamily(
            "weighbridge_prefill_tokens_held",
            "Prompt tokens granted and not yet through prefill.",
            labels=("pool", "replica"),
        )
        usable = GaugeMetricFamily(
            "weighbridge_replica_usable", "1 when the replica takes new work.", labels=("pool", "replica")
        )
        capacity = GaugeMetricFamily(
            "weighbridge_capacity",
            "What a replica can take (seats, tokens, tokens/s) and where the figure is from.",
            labels=("pool", "replica", "dimension", "source", "provisional"),
        )
        held = GaugeMetricFamily(
            "weighbridge_reserved_room_held", "Room kept free for reservations.", labels=("pool", "dimension")
        )
        oversold = GaugeMetricFamily(
            "weighbridge_pool_oversold", "1 while sold guarantees exceed what is measured.", labels=("pool",)
        )
        for pool in self._pools():
            held.add_metric([pool.name, "seats"], pool.held_seats)
            held.add_metric([pool.name, "kv_tokens"], pool.held_kv_tokens)
            oversold.add_metric([pool.name], 1 if pool.oversold else 0)
            depth.add_metric([pool.name], pool.waiting)
            for replica in pool.replicas:
                labels = [pool.name, replica.name]
                seats.add_metric(labels, replica.seats_held)
                kv.add_metric(labels, replica.kv_tokens_held)
                prefill.add_metric(labels, replica.prefill_tokens)
                usable.add_metric(labels, 1 if replica.usable else 0)
                for dimension, figure in (
                    ("seats", replica.seats),
                    ("kv_tokens", replica.kv_tokens),
                    ("prefill_tokens_per_s", replica.prefill_rate),
                    ("chunk_tokens", replica.chunk_tokens),
                ):
                    if figure.value is not None:
                        provisional = "true" if figure.provisional else "false"
                        capacity.add_metric([*labels, dimension, figure.source, provisional], figure.value)
        yield from (depth, seats, kv, prefill, usable, capacity, held, oversold)
