"""Figures taken from a run: percentiles, shares, and what met its objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.scenario.world import Outcome, Record, Sample


def percentile(values: Sequence[float], part: float) -> float:
    """The value below which `part` of them lie; infinity if there are none."""
    if not values:
        return float("inf")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def of_tenant(outcome: Outcome, tenant: str) -> list[Record]:
    return [r for r in outcome.records if r.ask.tenant == tenant]


def within_slo(record: Record, ttft_s: float, tpot_s: float) -> bool:
    """Served whole, its first token and its mean token time within the objectives."""
    if record.outcome != "served" or record.ttft is None:
        return False
    return record.ttft <= ttft_s and (record.tpot or 0.0) <= tpot_s


def at(outcome: Outcome, second: float) -> Sample:
    """The sample nearest to a time."""
    return min(outcome.samples, key=lambda s: abs(s.at - second))


def output_rate(outcome: Outcome, start: float, end: float) -> float:
    """Output tokens a second that the engines made between two times, whoever got them."""
    a, b = at(outcome, start), at(outcome, end)
    return (b.output_tokens - a.output_tokens) / (b.at - a.at)


def service(outcome: Outcome, start: float, end: float) -> dict[str, float]:
    """Cost units done for each tenant between two times."""
    a, b = at(outcome, start), at(outcome, end)
    return {name: done - a.service.get(name, 0.0) for name, done in b.service.items()}


def share_errors(done: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """How far each tenant's share of the work is from its share of the weights, in parts of the latter."""
    total, all_weights = sum(done.values()), sum(weights.values())
    return {name: done.get(name, 0.0) / total / (w / all_weights) - 1.0 for name, w in weights.items()}


def jain(done: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Jain's index of service per weight: 1 is perfectly fair, 1/n is all for one."""
    parts = [done.get(name, 0.0) / w for name, w in weights.items()]
    squares = sum(x * x for x in parts)
    return sum(parts) ** 2 / (len(parts) * squares) if squares else 0.0
