"""Metric families of parts that keep their own counters: limits and their store, breakers."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.isolation import Verdict
from gateway.isolation_probe import Probes
from gateway.leaving import Leaving
from providers.breaker import Breakers
from providers.health import State
from ratelimit.redis_store import RedisLimiter
from ratelimit.store import LocalLimiter, StoreMode


def limits(limiter: LocalLimiter | RedisLimiter) -> Iterator[Metric]:
    """What the limiter holds, who decides at the moment, and what shadow limits would have refused."""
    snapshot, status = limiter.snapshot(), limiter.status()
    held = GaugeMetricFamily("weighbridge_reservations_open", "Requests whose limits are reserved, not settled.")
    held.add_metric([], snapshot.open)
    yield held
    mode = GaugeMetricFamily("weighbridge_limit_store", "1 for who decides limits at the moment.", labels=("mode",))
    for name in StoreMode:
        mode.add_metric([name], 1 if status.mode is name else 0)
    yield mode
    journal = GaugeMetricFamily("weighbridge_limit_store_journalled", "Settlements the store does not know yet.")
    journal.add_metric([], status.journalled)
    yield journal
    shadow = CounterMetricFamily("weighbridge_shadow_refusals", "What shadow limits would refuse.", labels=("limit",))
    for key, refused in snapshot.shadow_refused.items():
        shadow.add_metric([key], refused)
    yield shadow
    cut = CounterMetricFamily(
        "weighbridge_limit_debt_cut", "Units beyond a limit's debt ceiling, never charged.", labels=("limit",)
    )
    for key, units in snapshot.cut_units.items():
        cut.add_metric([key], units)
    yield cut


def breakers(found: Breakers, now: float) -> Iterator[Metric]:
    """The state of every breaker that has been asked."""
    labels = ("pool", "region", "model", "credential")
    state = GaugeMetricFamily(
        "weighbridge_breaker_state", "1 for the state a breaker is in.", labels=(*labels, "state")
    )
    for key, snapshot in found.snapshot(now).items():
        for one in State:
            state.add_metric([*key, one], 1 if snapshot.state is one else 0)
    yield state


def leaving(found: Leaving) -> Iterator[Metric]:
    """What became of answers whose clients left."""
    ends = CounterMetricFamily(
        "weighbridge_left_answers",
        "Answers whose client left: closed at once, read to their usage, or unread and settled with an estimate.",
        labels=("pool", "result"),
    )
    for (pool, result), count in found.ends.items():
        ends.add_metric([pool, result], count)
    yield ends
    running = GaugeMetricFamily("weighbridge_left_answers_running", "Answers read on although their client left.")
    running.add_metric([], found.running)
    yield running


def isolation(found: Probes) -> Iterator[Metric]:
    """Whether salts part the prefix caches of tenants, as the probe saw it."""
    state = GaugeMetricFamily(
        "weighbridge_isolation",
        "1 for what the isolation probe last saw of a replica that is to keep tenants' prefix caches apart.",
        labels=("pool", "replica", "verdict"),
    )
    for name, separation in found.pools.items():
        for replica, (verdict, _) in separation.verdicts.items():
            for one in Verdict:
                state.add_metric([name, replica, one], 1 if verdict is one else 0)
    yield state
    runs = CounterMetricFamily(
        "weighbridge_isolation_probes", "Probes of a pool's isolation by what they saw.", labels=("pool", "verdict")
    )
    for (name, verdict_seen), count in found.runs.items():
        runs.add_metric([name, verdict_seen], count)
    yield runs
