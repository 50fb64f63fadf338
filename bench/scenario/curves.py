"""Goodput over offered load, admission beside simpler policies: `python -m bench.scenario.curves [--plot F]`.

One fleet (two replicas, each about a server of eight GPUs with a model of 70 billion weights), one trace, one seed for
all. The sizes and gaps are those of the Azure conversation trace of 2023 (`--traces FOLDER` or WEIGHBRIDGE_TRACES) or,
without it, invented ones of the same medians. Ten tenants of equal weight send in proportion to 1 / rank^1.1.

A load of 1x is what the fleet carries within its objectives by the closed form of `fairqueue.fit` with the engine's
true constants. Goodput is requests a second that were served whole with TTFT and TPOT both within their objectives.
Who waits longer than 0.7 s leaves, whatever the policy. `light` are the tenants whose own offer stays below a tenth of
what the fleet carries even at 3x, so nobody may blame them at any load.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.scenario import measure as m
from bench.scenario.policies import Fifo, PlainGate
from bench.scenario.predict import Learned
from bench.scenario.traffic import Ask, Row, azure, from_rows, zipf_names
from bench.scenario.world import Gate, World
from fairqueue.admission import Admission, PoolSettings
from fairqueue.fit import EngineSpeed, solve_load
from fairqueue.item import RequestClass
from providers.simulated.settings import REFERENCE_70B, EngineSettings

LOADS = (0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0)
TENANTS = 10
REPLICAS = 2
TTFT_S, TPOT_S = 1.0, 0.06
PATIENCE_S = 0.7  # leaves 0.3 s of the TTFT objective for the prefill
WARM_UP_S = 20.0
TAIL_S = 15.0  # not counted: whoever asks then may still be served
FIXED = 128  # sequences a replica, about what it carries at 1x
POLICIES = ("weighbridge", "FIFO", "round robin", f"fixed {FIXED}", "no limit")


def gate(policy: str) -> Gate:
    """The gate of that name."""
    settings = PoolSettings(
        name="curves",
        ttft_slo_s=TTFT_S,
        tpot_slo_s=TPOT_S,
        queue_timeouts_s=dict.fromkeys(RequestClass, PATIENCE_S),
    )
    if policy == "weighbridge":
        return Admission(settings)
    if policy == "FIFO":
        return Fifo(settings)
    if policy == "round robin":
        return PlainGate(FIXED, turns=True, timeout_s=PATIENCE_S)
    return PlainGate(None if policy == "no limit" else FIXED, timeout_s=PATIENCE_S)


def rows_of(folder: Path | None) -> tuple[str, list[Row]]:
    """The trace and its name."""
    if folder is not None and (file := folder / "azure_llm_2023_conv.csv").exists():
        return "Azure conversation trace of 2023", azure(file)
    rng, at, rows = Random(3), 0.0, []
    for _ in range(20_000):
        at += rng.expovariate(5.5)
        prompt, output = int(rng.lognormvariate(6.8, 0.7)), int(rng.gammavariate(1.6, 130))
        rows.append(Row(at, min(8000, prompt + 1), min(1500, output + 1)))
    return "invented trace", rows


def capacity(engine: EngineSettings, rows: Sequence[Row]) -> float:
    """Requests a second that one replica carries within TPOT at the trace's mean sizes."""
    prompt = sum(r.prompt for r in rows) / len(rows)
    output = sum(r.output for r in rows) / len(rows)
    # A sequence's own part of a step counts as that of its cache.
    speed = EngineSpeed(engine.a_s, engine.c_s + engine.b_s / (prompt + output / 2), engine.d_s)
    load = solve_load(
        speed,
        tpot_slo_s=TPOT_S,
        prompt_tokens=prompt,
        output_tokens=output,
        kv_tokens=engine.kv_tokens,
        seats=engine.max_seqs,
    )
    assert load is not None
    return load.requests_per_s


@dataclass(frozen=True, slots=True)
class Point:
    """One policy at one load."""

    policy: str
    load: float
    good_per_s: float
    light_in_time: float  # part of the light tenants' requests, 0..1
    jain: float  # of the work done per tenant, among those that offer more than an equal share


@dataclass(frozen=True, slots=True)
class Curves:
    """All points of one trace."""

    trace: str
    carried: float  # requests a second of 1x
    points: Sequence[Point]

    def at(self, policy: str, load: float) -> Point:
        return next(p for p in self.points if p.policy == policy and p.load == load)


def offered(rows: Sequence[Row], load: float, carried: float, seconds: float) -> list[Ask]:
    """The requests of one load: the same rows and tenants whatever the policy."""
    return list(from_rows(rows, zipf_names(Random(1), TENANTS), rate=load * carried, seconds=seconds, cap=4096))


def _point(policy: str, load: float, asks: Sequence[Ask], carried: float, seconds: float, light: set[str]) -> Point:
    engines = {f"r{n}": REFERENCE_70B for n in range(REPLICAS)}
    outcome = World(gate(policy), engines, asks, Learned(), until=seconds).run()
    counted = [r for r in outcome.records if WARM_UP_S <= r.ask.at < seconds - TAIL_S]
    good = [r for r in counted if m.within_slo(r, TTFT_S, TPOT_S)]
    few = [r for r in counted if r.ask.tenant in light]
    few_good = sum(1 for r in good if r.ask.tenant in light)
    done = m.service(outcome, WARM_UP_S, seconds)
    share = carried / TENANTS * seconds
    heavy = {name: 1.0 for name in done if sum(a.tenant == name for a in asks) > share}
    return Point(
        policy,
        load,
        len(good) / (seconds - TAIL_S - WARM_UP_S),
        few_good / len(few) if few else 1.0,
        m.jain(done, heavy) if heavy else 1.0,
    )


def curves(folder: Path | None, seconds: float = 90.0, loads: Sequence[float] = LOADS) -> Curves:
    """Every policy at every load."""
    name, rows = rows_of(folder)
    carried = REPLICAS * capacity(REFERENCE_70B, rows)
    most = offered(rows, max(loads), carried, seconds)
    counts = Counter(ask.tenant for ask in most)
    light = {tenant for tenant, count in counts.items() if count / seconds < carried / TENANTS}
    points = [
        _point(policy, load, asks, carried, seconds, light)
        for load in loads
        for asks in [offered(rows, load, carried, seconds)]
        for policy in POLICIES
    ]
    return Curves(name, carried, points)


def table(found: Curves) -> str:
    """Markdown: goodput as part of 1x, and behind it the light tenants' part in time."""
    loads = sorted({p.load for p in found.points})
    lines = ["| policy | " + " | ".join(f"{load:g}x" for load in loads) + " |", "|---|" + "---:|" * len(loads)]
    for policy in POLICIES:
        cells = [found.at(policy, load) for load in loads]
        text = (f"{p.good_per_s / found.carried:.2f} ({p.light_in_time:.0%})" for p in cells)
        lines.append(f"| {policy} | " + " | ".join(text) + " |")
    return "\n".join(lines)


def plot(found: Curves, file: Path) -> None:
    """The same as a picture: goodput on the left, light tenants in time on the right."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "curves", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot as plt

    loads = sorted({p.load for p in found.points})
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for policy, style in zip(POLICIES, ("-o", "--s", "-.^", ":d", "--x"), strict=True):
        cells = [found.at(policy, load) for load in loads]
        left.plot(loads, [p.good_per_s / found.carried for p in cells], style, label=policy, markersize=4)
        right.plot(loads, [100 * p.light_in_time for p in cells], style, label=policy, markersize=4)
    left.set(xlabel="offered load (1 = carried within the objectives)", ylabel="goodput (same unit)", ylim=(0, None))
    right.set(xlabel="offered load", ylabel="light tenants' requests in time, %", ylim=(-3, 103))
    left.legend(frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(file, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = os.environ.get("WEIGHBRIDGE_TRACES")
    parser.add_argument("--traces", type=Path, default=Path(given) if given else None, help="folder with the trace")
    parser.add_argument("--seconds", type=float, default=90.0, help="of traffic at each point")
    parser.add_argument("--plot", type=Path, help="write the picture (SVG) there")
    options = parser.parse_args()
    found = curves(options.traces, options.seconds)
    print(f"{found.trace}; 1x = {found.carried:.1f} requests/s; goodput in units of 1x (light tenants in time)\n")
    print(table(found))
    print("\nJain index of the work done, among tenants that want more than an equal share:")
    for policy in POLICIES:
        row = [p for p in found.points if p.policy == policy and p.load >= 1.5]
        print(f"  {policy:<14}" + "  ".join(f"{p.load:g}x {p.jain:.3f}" for p in row))
    if options.plot:
        plot(found, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
