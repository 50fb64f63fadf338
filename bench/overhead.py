"""What the gateway adds to a call, beside a direct call and nginx, in one run: `python -m bench.overhead`.

A gateway with every feature on (keys, limits of organisation, tenant, key and tenant on a model, money, admission,
settlement, metrics, a log line to /dev/null) in front of the mock of `bench.mock`, loaded by `bench.load`. A plain call
is measured twice: passed on whole (`gather: false`) and streamed upstream and put together, as pools do by default
(`gather: true`): there 64 events and their usage have to be read for one answer.

Where there are two cores the process under test is alone on the first; mock and load share the second, or have one each
from three on. Cases are repeated in turns; every figure is a median over repeats and every ratio the median of ratios
within a repeat. Rates depend on who else uses the machine: ratios and CPU time are what to go by. CPU time is user and
system time of the process (nginx: master and worker) divided by all requests or events it had in that time.

    --quick          fewer and shorter repeats
    --json FILE      all figures, with the environment
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench import stack
from bench.peers import CORES, KEY, LOAD_CPU, cpu_seconds, gateway, mock, nginx


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of load."""

    name: str
    connections: int
    prompt_bytes: int = 220
    stream: bool = False
    paced: bool = False

    def options(self) -> list[str]:
        """As `bench.load` takes them."""
        flags = [flag for flag, on in (("--stream", self.stream), ("--paced", self.paced)) if on]
        return [f"--connections={self.connections}", f"--prompt-bytes={self.prompt_bytes}", *flags]


CASES = (
    Case("c=1", 1),
    Case("c=32", 32),
    Case("c=128", 128),
    Case("c=32, 16 KiB", 32, prompt_bytes=16_384),
    Case("stream c=1", 1, stream=True),
    Case("stream c=32", 32, stream=True),
    Case("stream c=128, 10 ms", 128, stream=True, paced=True),
)


@dataclass(frozen=True, slots=True)
class Server:
    """Something that answers: the mock itself or a process in front of it."""

    name: str
    url: str
    pid: int | None  # of the process under test; None: nothing is between


@dataclass(slots=True)
class Measured:
    """One run of one case against one server."""

    requests_per_s: float
    events_per_s: float
    p50_ms: float
    p99_ms: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    cpu_us_per_request: float | None
    cpu_us_per_event: float | None


@dataclass(slots=True)
class Results:
    """All runs, by case and server, in order of repeats."""

    runs: dict[tuple[str, str], list[Measured]] = field(default_factory=dict)

    def of(self, case: str, server: str, figure: str) -> float | None:
        """The median of a figure; None where it was never measured."""
        values = [value for run in self.runs.get((case, server), ()) if (value := getattr(run, figure)) is not None]
        return median(values) if values else None

    def added(self, case: str, server: str, figure: str) -> float | None:
        """The median over repeats of how much more `server` takes than a direct call."""
        pairs = zip(self.runs.get((case, server), ()), self.runs.get((case, "direct"), ()), strict=False)
        found = [
            a - b for run, direct in pairs if (a := getattr(run, figure)) is not None and (b := getattr(direct, figure))
        ]
        return median(found) if found else None

    def ratio(self, case: str, server: str, other: str, figure: str) -> float | None:
        """The median over repeats of one server's figure divided by another's in the same repeat."""
        pairs = zip(self.runs.get((case, server), ()), self.runs.get((case, other), ()), strict=False)
        found = [a / b for one, two in pairs if (a := getattr(one, figure)) and (b := getattr(two, figure))]
        return median(found) if found else None


def measure(server: Server, case: Case, seconds: float) -> Measured:
    """Loads one server. Raises RuntimeError when it did not answer every request well."""
    before = cpu_seconds(server.pid) if server.pid is not None else 0.0
    command = [*stack.pin(LOAD_CPU), sys.executable, "-m", "bench.load", server.url, f"--seconds={seconds}"]
    command += [f"--key={KEY}", *case.options()]
    said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    used = (cpu_seconds(server.pid) - before) * 1e6 if server.pid is not None else None
    if said["errors"] or not said["requests"]:
        raise RuntimeError(f"{server.name}, {case.name}: {said['errors']} errors; {said['refused']}")
    return Measured(
        **{name: said[name] for name in ("requests_per_s", "events_per_s", "p50_ms", "p99_ms")},
        ttft_p50_ms=said["ttft_p50_ms"],
        ttft_p99_ms=said["ttft_p99_ms"],
        cpu_us_per_request=used / said["requests"] if used is not None else None,
        cpu_us_per_event=used / said["events"] if used is not None and said["events"] else None,
    )


# -- what is said ------------------------------------------------------------------------------------------------------


def environment(nginx_binary: str | None) -> dict[str, Any]:
    """Where the figures come from."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _read("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    said = None
    if nginx_binary is not None:
        said = subprocess.run([nginx_binary, "-v"], check=False, capture_output=True, text=True).stderr
    return {
        "cpu": cpu,
        "cores": CORES,
        "pinned": bool(stack.pin("0")),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        "nginx": said.strip().rpartition("/")[2] if said else None,
        **{name: version(name) for name in ("uvloop", "httptools", "aiohttp", "orjson")},
    }


def _read(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


Cell = Callable[[Results, str], float | None]


def _median(case: str, figure: str) -> Cell:
    return lambda results, server: results.of(case, server, figure)


def _added(case: str, figure: str) -> Cell:
    return lambda results, server: results.added(case, server, figure)


PLAIN: Mapping[str, tuple[str, Cell]] = {
    "req/s c=1": (",.0f", _median("c=1", "requests_per_s")),
    "c=32": (",.0f", _median("c=32", "requests_per_s")),
    "c=128": (",.0f", _median("c=128", "requests_per_s")),
    "c=32, 16 KiB": (",.0f", _median("c=32, 16 KiB", "requests_per_s")),
    "CPU us/req c=1": (".1f", _median("c=1", "cpu_us_per_request")),
    "c=32 ": (".1f", _median("c=32", "cpu_us_per_request")),
    "c=32, 16 KiB ": (".1f", _median("c=32, 16 KiB", "cpu_us_per_request")),
    "added p50 ms": (".3f", _added("c=1", "p50_ms")),
    "added p99 ms": (".3f", _added("c=1", "p99_ms")),
}
STREAMS: Mapping[str, tuple[str, Cell]] = {
    "streams/s c=32": (",.0f", _median("stream c=32", "requests_per_s")),
    "events/s": (",.0f", _median("stream c=32", "events_per_s")),
    "CPU us/event": (".2f", _median("stream c=32", "cpu_us_per_event")),
    "CPU us/event, 128 at 10 ms": (".2f", _median("stream c=128, 10 ms", "cpu_us_per_event")),
    "events/s there": (",.0f", _median("stream c=128, 10 ms", "events_per_s")),
    "TTFT p50 ms": (".2f", _median("stream c=128, 10 ms", "ttft_p50_ms")),
    "TTFT p99 ms": (".2f", _median("stream c=128, 10 ms", "ttft_p99_ms")),
    "added TTFT p50 ms c=1": (".3f", _added("stream c=1", "ttft_p50_ms")),
}
RATIOS: Mapping[str, tuple[str, str]] = {
    "req/s c=32": ("c=32", "requests_per_s"),
    "req/s c=128": ("c=128", "requests_per_s"),
    "req/s 16 KiB": ("c=32, 16 KiB", "requests_per_s"),
    "CPU us/req c=32": ("c=32", "cpu_us_per_request"),
    "latency p50 c=1": ("c=1", "p50_ms"),
    "CPU us/event": ("stream c=32", "cpu_us_per_event"),
    "CPU us/event, 128 at 10 ms": ("stream c=128, 10 ms", "cpu_us_per_event"),
}


def _table(title: str, columns: Mapping[str, tuple[str, Cell]], results: Results, servers: Sequence[Server]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("")
    for name in columns:
        table.add_column(name.strip(), justify="right")
    for server in servers:
        values = [(form, cell(results, server.name)) for form, cell in columns.values()]
        if any(value is not None for _, value in values):
            table.add_row(server.name, *("-" if value is None else format(value, form) for form, value in values))
    return table


def _ratios(results: Results, servers: Sequence[Server]) -> Table:
    table = Table(title="Divided by nginx", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("")
    for name in RATIOS:
        table.add_column(name, justify="right")
    for server in servers:
        found = [results.ratio(case, server.name, "nginx", figure) for case, figure in RATIOS.values()]
        if server.name not in {"direct", "nginx"} and any(found):
            table.add_row(server.name, *("-" if ratio is None else f"{ratio:.2f}" for ratio in found))
    return table


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:78}\r", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two short repeats")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run, after warming up")
    parser.add_argument("--only", help="cases whose names hold this text")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    given = parser.parse_args()
    repeats, seconds = (2, 1.0) if given.quick else (given.repeats, given.seconds)
    cases = [case for case in CASES if given.only is None or given.only in case.name]
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    console = Console(width=None if sys.stdout.isatty() else 160)
    where = environment(binary)
    console.print(", ".join(f"{name} {value}" for name, value in where.items() if value is not None), highlight=False)
    if binary is None:
        console.print("nginx was not found on PATH: its row and the ratios are left out")
    results = Results()
    with ExitStack() as running:
        upstream = running.enter_context(mock())
        servers = [Server("direct", upstream, None)]
        if binary is not None:
            servers.append(Server("nginx", *running.enter_context(nginx(binary, upstream))))
        servers.append(Server("weighbridge", *running.enter_context(gateway(upstream, gather=False))))
        gathered = Server("weighbridge, gather: true", *running.enter_context(gateway(upstream, gather=True)))
        for repeat in range(repeats):
            for case in cases:
                for server in [*servers, *([] if case.stream else [gathered])]:
                    run = measure(server, case, seconds)
                    results.runs.setdefault((case.name, server.name), []).append(run)
                    _progress(f"{repeat + 1}/{repeats} {case.name}: {server.name}")
        _progress("")
    shown = [*servers, gathered]
    tables = [_table("Plain calls", PLAIN, results, shown), _table("Streams of 64 events", STREAMS, results, shown)]
    for table in [*tables, *([_ratios(results, shown)] if binary is not None else [])]:
        if table.row_count:
            console.print(table)
    where["load at the end"] = os.getloadavg()[0]
    if given.json is not None:
        runs = [
            {"case": case, "server": server, "runs": [asdict(run) for run in runs]}
            for (case, server), runs in results.runs.items()
        ]
        given.json.write_text(json.dumps({"environment": where, "seconds": seconds, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
