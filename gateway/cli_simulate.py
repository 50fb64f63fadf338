"""The command `weighbridge simulate`: simulated engines to try a config or a failure on, with nothing to install."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from typing import Annotated

import typer
import uvloop

from providers.simulated.server import SimulatedServer
from providers.simulated.service import Flavour, Lengths, ServiceSettings
from providers.simulated.settings import PRESETS, preset


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("simulate")(simulate)


def simulate(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="First port; 0 takes free ones.")] = 9001,
    count: Annotated[int, typer.Option(min=1, max=64, help="Engines, on ports that follow one another.")] = 1,
    name: Annotated[str, typer.Option("--preset", help=f"How fast it is: {', '.join(PRESETS)}.")] = "small",
    models: Annotated[list[str] | None, typer.Option("--model", help="Name of its model; may be repeated.")] = None,
    speed: Annotated[float, typer.Option(help="2 runs twice as fast.")] = 1.0,
    seats: Annotated[int | None, typer.Option(min=1, help="Sequences it runs at once; the preset's if none.")] = None,
    kv_tokens: Annotated[int | None, typer.Option(min=16, help="Tokens its KV cache holds.")] = None,
    account: Annotated[bool, typer.Option("--account", help="Pose as a provider account: a key is required.")] = False,
    key: Annotated[list[str] | None, typer.Option(help="Key that is accepted; may be repeated.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Rate limit of the account.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="Token limit of the account.")] = None,
    drawn: Annotated[
        bool, typer.Option("--drawn", help="Draw answer lengths, as models do, within max_tokens.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of lengths and faults.")] = 0,
) -> None:
    """Serve simulated engines in the foreground; `GET /sim/state` and `POST /sim/faults` look inside and break them."""
    changes: dict[str, object] = {}
    if seats is not None:
        changes["max_seqs"] = seats
    if kv_tokens is not None:
        changes["kv_tokens"] = kv_tokens
    try:
        settings = ServiceSettings(
            engine=preset(name, **changes),
            models=tuple(models or ("sim-large",)),
            speed=speed,
            seed=seed,
            flavour=Flavour.ACCOUNT if account else Flavour.ENGINE,
            api_keys=frozenset(key or ()),
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            lengths=Lengths.DRAWN if drawn else Lengths.MAXIMUM,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    try:
        uvloop.run(_serve(settings, host, port, count))
    except OSError as error:
        typer.echo(f"simulate: {host} port {port}: {error.strerror or error}", err=True)
        raise typer.Exit(1) from None


async def _serve(settings: ServiceSettings, host: str, port: int, count: int) -> None:
    """Until SIGTERM or SIGINT. Raises OSError when an address is taken."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    engines: list[SimulatedServer] = []
    try:
        for index in range(count):
            engine = SimulatedServer(replace(settings, seed=settings.seed + index))
            await engine.start(host, port + index if port else 0)
            engines.append(engine)
            typer.echo(engine.url)
        await stop.wait()
    finally:
        for engine in engines:
            await engine.close()
