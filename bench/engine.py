"""A simulated engine of a named preset in a process of its own: `python -m bench.engine PRESET`."""

from __future__ import annotations

import asyncio
import sys

import uvloop

from providers.simulated.server import SimulatedServer
from providers.simulated.service import ServiceSettings
from providers.simulated.settings import preset


async def main(name: str) -> None:
    """Serves until the process is ended."""
    server = SimulatedServer(ServiceSettings(preset(name)))
    await server.start()
    print(f"ready {server.url}", file=sys.stderr, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
