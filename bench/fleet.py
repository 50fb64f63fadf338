"""A fleet to replay traces against, in processes of its own: simulated engines in scaled time, and a gateway.

    python -m bench.fleet engines COUNT SPEED         prints their URLs
    python -m bench.fleet gateway ADMISSION CONFIG    a gateway that admits in the way named

Also the capacity of such a fleet for a trace, found in virtual time.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import uvloop

from bench.admissions import admission
from bench.stack import process
from gateway import config
from gateway.app import App
from gateway.replay.shapes import BLOCK_TOKENS, Request
from gateway.telemetry import logs
from providers.simulated import sequence
from providers.simulated.engine import Engine
from providers.simulated.server import SimulatedServer
from providers.simulated.service import ServiceSettings
from providers.simulated.settings import REFERENCE_70B, EngineSettings

ENGINE = REFERENCE_70B
_ANYWHERE = f"0-{(os.cpu_count() or 1) - 1}"  # which CPU is left to the system: the client needs one too
_SEATS = (32, 64, 128, 256)  # tried, for the most that an engine gets through


@contextmanager
def engines(count: int, speed: float) -> Iterator[list[str]]:
    """So many engines in one process, their time running `speed` times as fast as ours; yields their base URLs."""
    command = ["-m", "bench.fleet", "engines", str(count), str(speed)]
    with process(command, r"ready (.+)", _ANYWHERE) as (_, match):
        yield match[1].split()


@contextmanager
def gateway(how: str, path: Path) -> Iterator[tuple[str, str]]:
    """A gateway with this config that admits in the way named; yields its base URL and that of its admin listener."""
    command = ["-m", "bench.fleet", "gateway", how, str(path)]
    with process(command, r"data on port (\d+), admin on port (\d+)", _ANYWHERE) as (_, match):
        yield f"http://127.0.0.1:{match[1]}", f"http://127.0.0.1:{match[2]}"


def capacity(requests: Sequence[Request], replicas: int, settings: EngineSettings = ENGINE) -> float:
    """Requests a second (of engine time) that the fleet gets through when all of them wait from the start.

    Nobody's objective is looked at: it is the highest rate that any fixed number of sequences a replica gives, each
    replica taking every n-th request, until the last request is sent in.
    """
    return max(
        sum(_throughput(requests[first::replicas], settings, seats) for first in range(replicas)) for seats in _SEATS
    )


def _throughput(requests: Sequence[Request], settings: EngineSettings, seats: int) -> float:
    """Requests a second of one engine that always has `seats` of them; 0 if there are too few to tell."""
    # the cache in blocks of the trace, which is the same work with fewer names
    engine = Engine(replace(settings, block_tokens=BLOCK_TOKENS) if requests[0].blocks else settings)
    now = 0.0
    ended = sent = 0
    began: tuple[float, int] | None = None  # counted from when as many have ended as run side by side
    while sent < len(requests):
        while sent < len(requests) and len(engine.live) < seats:
            one = requests[sent]
            keys = one.blocks[: one.prompt_tokens // BLOCK_TOKENS]
            engine.submit(sequence.Request(str(sent), one.prompt_tokens, max(1, one.output_tokens), keys=keys), now)
            sent += 1
        step = engine.begin(now)
        assert step is not None
        now = step.ends_at
        ended += len(engine.finish().finished)
        if began is None and ended >= seats:
            began = now, ended
    return 0.0 if began is None else (ended - began[1]) / (now - began[0])


async def _serve_engines(count: int, speed: float) -> None:
    servers = [SimulatedServer(ServiceSettings(ENGINE, speed=speed)) for _ in range(count)]
    for server in servers:
        await server.start()
    print("ready", *(server.url for server in servers), file=sys.stderr, flush=True)
    await asyncio.Event().wait()


async def _serve_gateway(how: str, path: Path) -> None:
    app = await App(config.read(path).config, admission=admission(how)).start()
    app.handle_signals()
    try:
        await app.wait()
    finally:
        await app.close()


if __name__ == "__main__":
    if sys.argv[1] == "engines":
        uvloop.run(_serve_engines(int(sys.argv[2]), float(sys.argv[3])))
    else:
        logs.set_up("info")
        uvloop.run(_serve_gateway(sys.argv[2], Path(sys.argv[3])))
