"""The command `weighbridge replay`: a request trace against a running gateway, and what each tenant got."""

import asyncio
import contextlib
import resource
import signal
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.replay import report as reports
from gateway.replay import run
from gateway.replay.plan import Options, plan
from gateway.replay.prompts import Prompts
from gateway.replay.shapes import NAMES
from gateway.replay.traces import BadTrace, read
from providers.simulated.text import CHAT_OVERHEAD_TOKENS, TOKEN_BYTES

_DEMO = Path(".weighbridge/demo.json")
_ONLY_TENANT = "default"  # the name in the report of the tenant of a single --key


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("replay")(_replay)


def _replay(
    trace: Annotated[
        str, typer.Argument(help=f"{', '.join(NAMES)}, or an Azure CSV or Mooncake JSONL file.")
    ] = "azure-conv",
    url: Annotated[str | None, typer.Option(help="Where the gateway is, with or without /v1.")] = None,
    key: Annotated[str | None, typer.Option(help="API key, for one tenant.")] = None,
    keys: Annotated[Path | None, typer.Option(help="JSON file with keys by tenant, as `demo` writes it.")] = None,
    demo: Annotated[bool, typer.Option(help=f"Take address, keys and model from {_DEMO}.")] = False,
    model: Annotated[str | None, typer.Option(help="Model to ask for.")] = None,
    speed: Annotated[float, typer.Option(help="Times faster than the trace.")] = 1.0,
    tenants: Annotated[int | None, typer.Option(help="Use only the first so many keys.")] = None,
    zipf: Annotated[float, typer.Option(help="Exponent of the tenants' shares; 0 is equal shares.")] = 1.1,
    cancel: Annotated[float, typer.Option(help="Share of requests whose client leaves during the answer.")] = 0.0,
    slo_ttft_ms: Annotated[float | None, typer.Option(help="Target: first token after it was due.")] = 2000.0,
    slo_tpot_ms: Annotated[float | None, typer.Option(help="Target: time per output token after the first.")] = 100.0,
    limit: Annotated[int | None, typer.Option(help="Requests to send (an invented trace has 500).")] = None,
    scale: Annotated[float, typer.Option(help="Multiplies all lengths.")] = 1.0,
    max_prompt: Annotated[int | None, typer.Option(help="Longest prompt, tokens.")] = None,
    max_output: Annotated[int | None, typer.Option(help="Longest answer, tokens.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Send this max_tokens and let the engine end; else each length is exact.")
    ] = None,
    bytes_per_token: Annotated[float, typer.Option(help="Bytes of prompt text made for each token.")] = TOKEN_BYTES,
    wait: Annotated[float, typer.Option(help="Seconds to wait for answers after the last request.")] = 120.0,
    seed: Annotated[int, typer.Option(help="Of tenants, cancellations and invented traces.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Write the report as JSON to this file.")] = None,
) -> None:
    """Replay a request trace against a running gateway and report what each tenant got."""
    console = Console(stderr=True)
    try:
        target = _target(url, key, keys, demo, model, tenants, max_tokens, wait)
        options = Options(speed, zipf, cancel, scale, max_prompt, max_output, seed)
        sends = plan(read(trace, limit, seed=seed), list(target.keys), options)
    except (BadTrace, ValueError, OSError) as problem:
        console.print(f"replay: {problem}", style="red", markup=False)
        raise typer.Exit(2) from None
    prompts = Prompts(bytes_per_token, scale=scale, overhead_tokens=CHAT_OVERHEAD_TOKENS, seed=seed)
    targets = reports.Targets(_seconds(slo_ttft_ms), _seconds(slo_tpot_ms))
    outcome = asyncio.run(_run(sends, target, prompts, console))
    report = reports.summarise(
        outcome.results,
        duration_s=outcome.duration_s,
        planned=len(sends),
        targets=targets,
        interrupted=outcome.interrupted,
    )
    Console().print(reports.table(report))
    for remark in reports.remarks(report):
        Console().print(remark, markup=False)
    if out is not None:
        out.write_bytes(orjson.dumps(report.plain(), option=orjson.OPT_INDENT_2))
    if outcome.interrupted:
        raise typer.Exit(130)


async def _run(sends: list[Any], target: run.Target, prompts: Prompts, console: Console) -> run.Outcome:
    """Run with a progress bar; the first Ctrl-C ends the replay in order, a second one ends the process."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, interrupted)
    _allow_many_sockets()
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(sends))

        def show(counts: run.Counts) -> None:
            ended = counts.ok + counts.refused + counts.failed + counts.cancelled + counts.unfinished
            text = f"open {counts.open}  ok {counts.ok}  refused {counts.refused}  failed {counts.failed}"
            progress.update(bar, completed=ended, description=text)

        try:
            return await run.replay(sends, target, prompts, stop=stop, on_change=show)
        finally:
            loop.remove_signal_handler(signal.SIGINT)


def _target(
    url: str | None,
    key: str | None,
    keys_file: Path | None,
    demo: bool,
    model: str | None,
    tenants: int | None,
    max_tokens: int | None,
    wait_s: float,
) -> run.Target:
    """Whom to send to. ValueError says which option is missing or wrong."""
    facts: dict[str, Any] = {}
    path = _DEMO if demo else keys_file
    if path is not None:
        if demo and not path.is_file():
            raise ValueError(f"{path} is not there: start `weighbridge demo` in this folder first")
        try:
            facts = orjson.loads(path.read_bytes())
        except ValueError as problem:
            raise ValueError(f"{path}: {problem}") from None
        if type(facts) is not dict:
            raise ValueError(f"{path}: not a JSON object")
    known = facts.get("keys", facts) if keys_file or demo else {}
    if key is not None:
        known = {_ONLY_TENANT: key}
    if type(known) is not dict or not known or not all(type(one) is str for one in known.values()):
        raise ValueError("no API keys: give --key, --keys FILE or --demo")
    if tenants is not None:
        if not 1 <= tenants <= len(known):
            raise ValueError(f"--tenants {tenants}: there are {len(known)} keys")
        known = dict(list(known.items())[:tenants])
    base = url or facts.get("base_url")
    if not base:
        raise ValueError("no address: give --url or --demo")
    asked = model or facts.get("model")
    if not asked:
        raise ValueError("no model: give --model or --demo")
    base = str(base).rstrip("/")
    return run.Target(base if base.endswith("/v1") else base + "/v1", str(asked), known, max_tokens, wait_s)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000.0


def _allow_many_sockets() -> None:
    """An open loop may have thousands of requests open; take what the system allows this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
