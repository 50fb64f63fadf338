"""Arrivals: Poisson, bursts, and published traces, with tenants by Zipf. All seeded."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from random import Random


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of the traffic: when, whose, and how long it really is (tokens)."""

    at: float
    tenant: str
    prompt: int
    output: int
    cap: int
    batch: bool = False
    prefix: int | None = None  # names a shared prefix
    shared: int = 0  # tokens of it
    leaves_after: float | None = None  # the client goes this long after it asked


def even(rate: float, seconds: float, **ask: object) -> Iterator[Ask]:
    """`rate` requests a second, evenly spaced."""
    for n in range(int(rate * seconds)):
        yield Ask(at=n / rate, **ask)  # type: ignore[arg-type]


def poisson(rng: Random, rate: float, seconds: float, start: float = 0.0, **ask: object) -> Iterator[Ask]:
    """Exponential gaps at `rate` requests a second."""
    at = start + rng.expovariate(rate)
    while at < start + seconds:
        yield Ask(at=at, **ask)  # type: ignore[arg-type]
        at += rng.expovariate(rate)


def zipf_names(rng: Random, tenants: int, exponent: float = 1.1) -> Iterator[str]:
    """Tenant names, the n-th most frequent in proportion to n ** -exponent."""
    weights = list(accumulate((n + 1) ** -exponent for n in range(tenants)))
    names = [f"t{n:02}" for n in range(tenants)]
    while True:
        yield rng.choices(names, cum_weights=weights)[0]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a trace: seconds from its start, tokens, and prefix blocks where the trace has them."""

    at: float
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()


def azure(path: Path) -> list[Row]:
    """An Azure LLM inference trace (TIMESTAMP, ContextTokens, GeneratedTokens)."""
    rows: list[Row] = []
    start: datetime | None = None
    with path.open(encoding="utf-8-sig", newline="") as file:
        for line in csv.DictReader(file):
            stamp = datetime.fromisoformat(line["TIMESTAMP"][:26])
            start = start or stamp
            rows.append(
                Row((stamp - start).total_seconds(), int(line["ContextTokens"]), max(1, int(line["GeneratedTokens"])))
            )
    return rows


def mooncake(path: Path) -> list[Row]:
    """A Mooncake trace (timestamp in ms, input_length, output_length, hash_ids of 512-token blocks)."""
    with path.open(encoding="utf-8") as file:
        return [
            Row(line["timestamp"] / 1e3, line["input_length"], max(1, line["output_length"]), tuple(line["hash_ids"]))
            for line in map(json.loads, file)
        ]


def from_rows(rows: Sequence[Row], names: Iterator[str], *, rate: float, seconds: float, cap: int) -> Iterator[Ask]:
    """The sizes and relative gaps of a trace, sped up or slowed down to `rate` requests a second."""
    span = rows[-1].at - rows[0].at
    stretch = len(rows) / span / rate
    for row in rows:
        at = (row.at - rows[0].at) * stretch
        if at >= seconds:
            return
        yield Ask(at=at, tenant=next(names), prompt=max(1, row.prompt), output=row.output, cap=max(cap, row.output))
