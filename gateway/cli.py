"""The command `weighbridge`: serve, check, and the operator's verbs.

What a verb needs is imported when it is run, so that `check` starts fast and needs nothing that serves. Verbs in files
of their own are named in `_LATER`; such a file has `register(app)`, which adds them to an application.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from gateway import config
from gateway.summary import LISTED, count, summary

_LATER: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("tenants", "keys", "limits", "reservations", "usage", "pools"), "gateway.cli_admin"),
        "replay": "gateway.cli_replay",
        "simulate": "gateway.cli_simulate",
    }
)


class _Verbs(TyperGroup):
    """A group that loads a verb's file when the verb is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *(name for name in _LATER if name not in self.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _LATER and cmd_name not in self.commands:
            part = typer.Typer(add_completion=False)
            import_module(_LATER[cmd_name]).register(part)
            found = typer.main.get_command(part)
            if isinstance(found, TyperGroup):  # a file may register several
                found = found.commands[cmd_name]
            self.add_command(found, cmd_name)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    cls=_Verbs,
    help="A multi-tenant gateway and admission-control proxy for LLM backends.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_File = Annotated[Path, typer.Argument(metavar="FILE", help="The config file.")]
_ConfigOption = Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The config file.")]
_Port = Annotated[int, typer.Option(envvar="PORT", min=0, max=65_535, help="Port of the data listener.")]
_AdminPort = Annotated[int, typer.Option(envvar="ADMIN_PORT", min=0, max=65_535, help="Port of the admin listener.")]


def main() -> None:
    """Run the command line. Exit status: 0 all is well, 1 it is not, 2 wrong usage."""
    app()


@app.command()
def check(
    file: _File,
    all_limits: Annotated[bool, typer.Option("--all", help="List every limit, however many there are.")] = False,
) -> None:
    """Check a config file without starting anything."""
    found = _read(file)
    typer.echo(f"{file}: OK, version {found.digest()}")
    for line in summary(found, None if all_limits else LISTED):
        typer.echo(line)


@app.command()
def serve(file: _ConfigOption) -> None:
    """Serve in the foreground until a signal to stop; SIGHUP reads the file again."""
    found = _read(file)
    typer.echo(f"{file}: version {found.digest()}", err=True)
    for line in summary(found):  # what is enforced is said at start, where it is read when a limit is missed
        typer.echo(line, err=True)
    from gateway import app as gateway_app

    with _address_in_use():
        gateway_app.serve(found, file)


@app.command()
def demo(port: _Port = 8080, admin_port: _AdminPort = 8081) -> None:
    """Serve a demo: two simulated replicas, a simulated provider behind them, three tenants."""
    from gateway import demo as gateway_demo

    with _address_in_use():
        gateway_demo.run(port, admin_port, typer.echo)


def _read(file: Path) -> config.Config:
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
    return loaded.config


@contextmanager
def _address_in_use() -> Iterator[None]:
    """An address that cannot be had ends the command in one line."""
    try:
        yield
    except OSError as error:
        typer.echo(f"weighbridge: {error.strerror or error}", err=True)
        raise typer.Exit(1) from None
