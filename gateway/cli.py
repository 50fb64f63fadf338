"""The command `weighbridge`: serve, check, and the operator's verbs.

What a verb needs is imported inside it, so that `check` starts fast and needs nothing that serves.
"""

from __future__ import annotations

import secrets
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from gateway import config, keys
from gateway.summary import LISTED, count, summary

app = typer.Typer(
    help="A multi-tenant gateway and admission-control proxy for LLM backends.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
keys_app = typer.Typer(help="API keys.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")

_File = Annotated[Path, typer.Argument(metavar="FILE", help="The config file.")]
_ConfigOption = Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The config file.")]


def main() -> None:
    """Run the command line. Exit status: 0 all is well, 1 it is not, 2 wrong usage."""
    app()


@app.command()
def check(
    file: _File,
    all_limits: Annotated[bool, typer.Option("--all", help="List every limit, however many there are.")] = False,
) -> None:
    """Check a config file without starting anything."""
    found = _read(file).config
    typer.echo(f"{file}: OK, version {found.digest()}")
    for line in summary(found, None if all_limits else LISTED):
        typer.echo(line)


@app.command()
def serve(file: _ConfigOption) -> None:
    """Serve in the foreground until a signal to stop."""
    import_module("gateway.app").serve(_read(file).config, file)


@app.command()
def demo() -> None:
    """Serve a demo: two simulated replicas, a simulated provider behind them, three tenants."""
    import_module("gateway.demo").run()


@keys_app.command("mint")
def mint(
    key_id: Annotated[str | None, typer.Option("--id", help="1 to 16 of a-z and 0-9; a random one if none.")] = None,
    pepper: Annotated[
        str | None, typer.Option("--pepper-env", metavar="NAME", help="Environment variable that holds the pepper.")
    ] = None,
) -> None:
    """Make a new key: the key itself for its holder, and its hash for the config file."""
    secret = b""
    if pepper is not None:
        value = config.environment(pepper)
        if not value:
            raise typer.BadParameter(f"the environment variable {pepper} is not set", param_hint="--pepper-env")
        secret = value.encode()
    chosen = key_id if key_id is not None else _random_id()
    try:
        key = keys.mint(chosen, secrets.token_bytes(keys.RANDOM_BYTES))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--id") from error
    typer.echo("# for the holder; it cannot be shown again", err=True)
    typer.echo(key)
    typer.echo("# for the config file, under the tenant's keys", err=True)
    typer.echo(f'- {{id: {chosen}, hash: "{keys.digest(key, secret)}"}}')


def _read(file: Path) -> config.Loaded:
    """The config, its warnings printed; a bad one is printed like a compiler does, and ends the command."""
    try:
        loaded = config.read(file)
    except config.ConfigErrors as errors:
        for problem in errors.problems:
            typer.echo(str(problem), err=True)
        wrong = sum(not problem.warning for problem in errors.problems)
        typer.echo(f"{file}: {count(wrong, 'error')}", err=True)
        raise typer.Exit(1) from None
    for problem in loaded.warnings:
        typer.echo(str(problem), err=True)
    return loaded


def _random_id() -> str:
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
    return "".join(secrets.choice(alphabet) for _ in range(10))
