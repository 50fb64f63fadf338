"""Traces at 1.5 times a fleet's capacity, through the gateway and through simpler admissions: `python -m bench.replay`.

Each case is a gateway of its own over real HTTP in front of two simulated engines (each about one server of eight GPUs
with a model of 70 billion weights), whose time runs `speed` times as fast as ours; objectives and timeouts run with it.
Requests come at the trace's own times, stretched so that their mean rate is 1.5 times the fleet's capacity, from eight
tenants in proportion to 1 / rank^1.1. All figures are in the engines' time.

A request is good when it has all its tokens and TTFT and TPOT met their targets; TTFT counts from the moment it was
due. Goodput is good requests a second of the time in which requests were sent. A case fails unless it ends with nothing
held. The last two columns say whether to believe it: how late the client was (p99), and by how much the simulation fell
behind because this machine was too busy.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import uvloop
import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench import fleet
from gateway import keys
from gateway.replay import report as reports
from gateway.replay import run
from gateway.replay.plan import Options, plan
from gateway.replay.prompts import Prompts
from gateway.replay.shapes import Request
from gateway.replay.traces import read
from providers.simulated.text import CHAT_OVERHEAD_TOKENS

OVERLOAD = 1.5
REPLICAS = 2
TENANTS = tuple(f"tenant{number}" for number in range(1, 9))
KEYS = {name: keys.mint(name, name.encode().ljust(32, b"-")) for name in TENANTS}
MODEL = "chat-large"
QUEUE_TIMEOUT_S = 10.0  # the product's default
ADMISSIONS = ("weighbridge", "fifo", "fixed-32", "fixed-128", "unlimited")
HELD = (
    "weighbridge_inflight_requests",
    "weighbridge_queue_depth",
    "weighbridge_seats_held",
    "weighbridge_kv_tokens_held",
    "weighbridge_reservations_open",
)
_REST_S = 10.0  # within which nothing may be held any more


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace, its published file, and what is asked of it. Times in the engines' seconds."""

    name: str
    file: str
    speed: float
    ttft_s: float
    tpot_s: float


TRACES = (
    Trace("azure-code", "azure_llm_2023_code.csv", 1.0, 2.0, 0.1),
    Trace("azure-conv", "azure_llm_2023_conv.csv", 1.0, 2.0, 0.1),
    # prompts of up to 125,000 tokens, which take five seconds on an engine that does nothing else
    Trace("mooncake", "mooncake_conversation_head.jsonl", 4.0, 10.0, 0.1),
)


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent to every admission alike."""

    trace: Trace
    source: str  # file, or name of an invented trace
    requests: Sequence[Request]
    prompts: Prompts
    capacity_per_s: float
    queue_timeout_s: float


class Written(Prompts):
    """The prompts of a trace written beforehand: a burst of requests leaves no time to write."""

    def __init__(self, requests: Sequence[Request]) -> None:
        prompts = Prompts(overhead_tokens=CHAT_OVERHEAD_TOKENS)
        self._texts = [prompts.text(index, request) for index, request in enumerate(requests)]

    def text(self, index: int, request: Request) -> str:
        return self._texts[index]


@dataclass(frozen=True, slots=True)
class Stand:
    """A running fleet with its gateway."""

    engines: Sequence[str]
    base_url: str
    admin_url: str


@dataclass(frozen=True, slots=True)
class Case:
    """What one admission made of one load."""

    trace: str
    source: str
    admission: str
    capacity_per_s: float
    offered_per_s: float
    goodput_per_s: float
    preemptions: int
    recomputed_tokens: int
    engines_late_s: float  # schedule that the simulated engines gave up
    report: dict[str, Any]


def config(engines: Sequence[str], load: Load) -> dict[str, Any]:
    """The gateway's config: tenants alike, the defaults of the product, times in the engines' pace."""
    trace = load.trace
    ms = 1000 / trace.speed
    return {
        "listen": {"port": 0, "drain_s": 1},
        "admin": {"port": 0},
        "pools": {
            "local": {
                "kind": "simulated",
                "replicas": [{"name": f"r{number}", "url": url} for number, url in enumerate(engines)],
                "slo": {"ttft_ms": round(trace.ttft_s * ms), "tpot_ms": round(trace.tpot_s * ms)},
                "poll_ms": round(ms),
            }
        },
        "classes": {"interactive": {"weight": 100, "queue_timeout_ms": round(load.queue_timeout_s * ms)}},
        "models": {MODEL: {"context": 1_000_000, "tiers": [{"targets": [{"pool": "local", "model": "sim-large"}]}]}},
        "tenants": {name: {"keys": [{"id": name, "hash": keys.digest(key)}]} for name, key in KEYS.items()},
    }


@contextmanager
def stand(load: Load, admission: str) -> Iterator[Stand]:
    """The processes of one case."""
    with fleet.engines(REPLICAS, load.trace.speed) as engines, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay.yaml"
        path.write_text(yaml.safe_dump(config(engines, load)))
        with fleet.gateway(admission, path) as (base, admin):
            yield Stand(engines, base, admin)


async def replay(load: Load, admission: str, to: Stand) -> Case:
    """Send the load and see what came of it. AssertionError if anything is still held afterwards."""
    trace = load.trace
    span = load.requests[-1].at
    rate = OVERLOAD * load.capacity_per_s * trace.speed  # a second of ours
    sends = plan(load.requests, TENANTS, Options(speed=span * rate / len(load.requests)))
    target = run.Target(to.base_url + "/v1", MODEL, KEYS, wait_s=300.0 / trace.speed)
    outcome = await run.replay(sends, target, load.prompts)
    async with aiohttp.ClientSession() as session:
        await _at_rest(session, to.admin_url)
        states = [orjson.loads(await _page(session, url + "/sim/state?requests=0")) for url in to.engines]
    sent_in_s = sends[-1].at * trace.speed
    report = reports.summarise(
        [_in_engine_time(result, trace.speed) for result in outcome.results],
        duration_s=sent_in_s,
        planned=len(sends),
        targets=reports.Targets(trace.ttft_s, trace.tpot_s),
    )
    return Case(
        trace=trace.name,
        source=load.source,
        admission=admission,
        capacity_per_s=round(load.capacity_per_s, 3),
        offered_per_s=round(len(sends) / sent_in_s, 3),
        goodput_per_s=report.total.goodput_per_s,
        preemptions=sum(state["preemptions_total"] for state in states),
        recomputed_tokens=sum(state["recomputed_tokens_total"] for state in states),
        engines_late_s=round(max(state["late_s"] for state in states) * trace.speed, 3),
        report=report.plain(),
    )


def _in_engine_time(result: reports.Result, speed: float) -> reports.Result:
    times = {name: getattr(result, name) for name in ("late_s", "ttft_s", "tpot_s", "queue_s")}
    return replace(result, **{name: value * speed for name, value in times.items() if value is not None})


async def _at_rest(session: aiohttp.ClientSession, admin_url: str) -> None:
    until = time.monotonic() + _REST_S
    while True:
        page = (await _page(session, admin_url + "/metrics")).decode()
        samples = [line.rpartition(" ") for line in page.splitlines()]
        held = {f"{name} {value}" for name, _, value in samples if name.partition("{")[0] in HELD and float(value)}
        if not held:
            return
        assert time.monotonic() < until, f"still held: {', '.join(sorted(held))}"
        await asyncio.sleep(0.1)


async def _page(session: aiohttp.ClientSession, url: str) -> bytes:
    async with session.get(url) as answer:
        return await answer.read()


def table(cases: Sequence[Case]) -> Table:
    """The table of the README."""
    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for title in ("trace", "admission"):
        shown.add_column(title)
    titles = ("capacity\n/s", "offered\n/s", "goodput\n/s", "good\n", "refused\n", "TTFT s\np50", "\np90", "\np99",
              "TPOT ms\np50", "\np99", "pre-\nemptions", "late ms\nclient", "late s\nengines")  # fmt: skip
    for title in titles:
        shown.add_column(title, justify="right")
    for case, following in zip(cases, [*cases[1:], None], strict=True):
        total, late = case.report["total"], case.report["late_ms"]
        shown.add_row(
            case.trace,
            case.admission,
            f"{case.capacity_per_s:.1f}",
            f"{case.offered_per_s:.1f}",
            f"{case.goodput_per_s:.2f}",
            f"{total['attainment']:.0%}",
            f"{total['refused'] / total['sent']:.0%}",
            *_times(total["ttft_ms"], 1000, 2, "p50", "p90", "p99"),
            *_times(total["tpot_ms"], 1, 0, "p50", "p99"),
            str(case.preemptions),
            *_times(late, 1, 0, "p99"),
            f"{case.engines_late_s:.1f}",
            end_section=following is None or following.trace != case.trace,
        )
    return shown


def _times(found: Mapping[str, float] | None, unit: float, digits: int, *names: str) -> list[str]:
    return ["-" if found is None else f"{found[name] / unit:.{digits}f}" for name in names]


def beaten(cases: Sequence[Case]) -> list[str]:
    """Sentences on the baselines whose goodput the gateway does not exceed on the same load."""
    ours = {case.trace: case.goodput_per_s for case in cases if case.admission == "weighbridge"}
    return [
        f"{case.trace}: {case.admission} has a goodput of {case.goodput_per_s}/s, the gateway {ours[case.trace]}/s"
        for case in cases
        if case.admission != "weighbridge" and case.goodput_per_s >= ours.get(case.trace, 0.0)
    ]


def main() -> None:
    """Runs the cases, prints the table, writes the JSON; status 1 if a baseline was as good."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    published = "folder of the published files (or WEIGHBRIDGE_TRACES); else the same shapes, invented"
    parser.add_argument("--traces", type=Path, default=os.environ.get("WEIGHBRIDGE_TRACES"), help=published)
    parser.add_argument("--only", action="append", choices=[trace.name for trace in TRACES], help="only this trace")
    parser.add_argument("--admission", action="append", help=f"instead of {', '.join(ADMISSIONS)}; also fixed-N")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--queue-timeout", type=float, default=QUEUE_TIMEOUT_S, help="longest wait, engine seconds")
    parser.add_argument("--slower", type=float, default=1.0, help="divides the pace, for a machine that is busy")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    given = parser.parse_args()
    cases: list[Case] = []
    for trace in TRACES:
        if given.only and trace.name not in given.only:
            continue
        source = trace.name if given.traces is None else str(given.traces / trace.file)
        requests = read(source, given.requests)
        paced = replace(trace, speed=trace.speed / given.slower)
        capacity = fleet.capacity(requests, REPLICAS)
        load = Load(paced, Path(source).name, requests, Written(requests), capacity, given.queue_timeout)
        for admission in given.admission or ADMISSIONS:
            began = time.monotonic()
            with stand(load, admission) as to:
                cases.append(uvloop.run(replay(load, admission, to)))
            reasons = cases[-1].report["total"]["reasons"]
            print(
                f"{trace.name}, {admission}: {time.monotonic() - began:.0f} s; {reasons}", file=sys.stderr, flush=True
            )
            if given.json:
                given.json.write_bytes(orjson.dumps([asdict(case) for case in cases], option=orjson.OPT_INDENT_2))
    Console(width=150).print(table(cases))
    for sentence in beaten(cases):
        print(sentence)
    sys.exit(bool(beaten(cases)))


if __name__ == "__main__":
    main()
