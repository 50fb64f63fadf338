"""Processes to measure: a simulated engine and a gateway, each alone in a process of its own, on loopback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from gateway import keys

KEYS = {name: keys.mint(f"{name}1", name.encode().ljust(32, b"-")) for name in ("quiet", "noisy")}
MODEL = "chat-large"


def pin(cpus: str) -> list[str]:
    """A command prefix that keeps a process on the CPUs named; empty on a machine with one."""
    return ["taskset", "-c", cpus] if (os.cpu_count() or 1) > 1 and os.path.exists("/usr/bin/taskset") else []


@contextmanager
def process(command: list[str], ready: str, cpus: str) -> Iterator[tuple[subprocess.Popen[str], re.Match[str]]]:
    """Runs a command until the block ends; yields it and the line of its output that matches `ready`."""
    started = subprocess.Popen(
        [*pin(cpus), sys.executable, *command], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    rest = Thread(target=deque, args=(started.stderr, 0), daemon=True)
    try:
        assert started.stderr is not None
        for line in started.stderr:
            match = re.search(ready, line)
            if match:
                # whatever else it says is read and dropped: a full pipe would hold it up
                rest.start()
                yield started, match
                break
        else:
            raise RuntimeError(f"{command} ended with status {started.wait()}")
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(10)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        if rest.ident is not None:
            rest.join()
        if started.stderr is not None:
            started.stderr.close()


@contextmanager
def engine(preset: str, cpus: str = "1") -> Iterator[str]:
    """A simulated engine; yields its base URL."""
    command = ["-m", "bench.engine", preset]
    with process(command, r"ready (http://\S+)", cpus) as (_, match):
        yield match[1]


@contextmanager
def gateway(engine_url: str, capacity: str, cpus: str = "0") -> Iterator[tuple[str, int]]:
    """A gateway with two tenants of equal weight and class in front of one engine; yields its base URL and pid."""
    tenants = "".join(
        f'  {name}: {{keys: [{{id: {name}1, hash: "{keys.digest(key)}"}}]}}\n' for name, key in KEYS.items()
    )
    text = f"""
listen: {{port: 0, drain_s: 1}}
admin: {{port: 0}}
pools:
  local:
    kind: simulated
    replicas: [{{name: a, url: "{engine_url}"}}]
    capacity: {capacity}
    slo: {{ttft_ms: 1000, tpot_ms: 60}}
models:
  {MODEL}: {{context: 32768, tiers: [{{targets: [{{pool: local, model: sim-large}}]}}]}}
tenants:
{tenants}"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.yaml"
        path.write_text(text)
        with process(["-m", "gateway", "serve", "--config", str(path)], r"data on port (\d+)", cpus) as (run, match):
            yield f"http://127.0.0.1:{match[1]}", run.pid
