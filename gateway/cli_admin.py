"""The operator's verbs over the admin API: tenants, limits, reservations, usage, pools; as tables or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
import typer

from gateway.admin_client import DEMO, AdminClient, Failed, name_in_path

_Url = Annotated[str | None, typer.Option("--url", envvar="WEIGHBRIDGE_ADMIN_URL", help="Where the admin listener is.")]
_Key = Annotated[
    str | None, typer.Option("--admin-key", envvar="WEIGHBRIDGE_ADMIN_KEY", help="Bearer key of the admin API.")
]
_From = Annotated[
    Path, typer.Option("--from-file", metavar="FILE", help="JSON with admin_url and admin_key, for what is not given.")
]
Json = Annotated[bool, typer.Option("--json", help="Print what the API answers.")]
Tenant = Annotated[str, typer.Argument(metavar="TENANT")]


def group(name: str, words: str) -> typer.Typer:
    """A verb with sub-commands, which knows where the admin API is."""
    made = typer.Typer(name=name, help=words, no_args_is_help=True)

    @made.callback()
    def connect(ctx: typer.Context, url: _Url = None, admin_key: _Key = None, from_file: _From = DEMO) -> None:
        ctx.obj = (url, admin_key, from_file)

    connect.__doc__ = words
    return made


@contextmanager
def admin(ctx: typer.Context) -> Iterator[AdminClient]:
    """The admin API; what fails there ends the command with one sentence and status 1."""
    try:
        yield AdminClient.of(*ctx.obj)
    except Failed as error:
        typer.echo(f"weighbridge: {error}", err=True)
        raise typer.Exit(1) from None


def show(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], as_json: bool) -> None:
    """Rows as a table with these headings by member, or as JSON."""
    if as_json:
        typer.echo(orjson.dumps(list(rows), option=orjson.OPT_INDENT_2).decode())
        return
    cells = [list(columns.values()), *([text(row.get(name)) for name in columns] for row in rows)]
    numbers = [all(isinstance(row.get(name), int | float) for row in rows) and bool(rows) for name in columns]
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
    for line in cells:  # never folded: a line is a thing, for people and for grep
        parts = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numbers, strict=True)
        )
        typer.echo("  ".join(parts).rstrip())


def text(value: Any) -> str:
    """A value of the API as a cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={text(one)}" for name, one in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(map(text, value)) or "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def detail(found: Mapping[str, Any], as_json: bool) -> None:
    """One thing, a member a line."""
    if as_json:
        typer.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
        return
    width = max(map(len, found))
    for name, value in found.items():
        typer.echo(f"{name:<{width}}  {text(value)}")


def at(tenant: str, *rest: str) -> str:
    """A path below a tenant."""
    return "/".join(["/tenants", *map(name_in_path, (tenant, *rest))])


_TENANTS: Final = {
    "name": "tenant", "source": "from", "organisation": "organisation", "weight": "weight", "class": "class",
    "models": "models", "limits": "limits", "keys": "keys",
}  # fmt: skip
tenants = group("tenants", "Tenants: list, create, change, delete.")


@tenants.command("list")
def _list(ctx: typer.Context, as_json: Json = False) -> None:
    """Tenants by name."""
    with admin(ctx) as api:
        show(api.all("/tenants"), _TENANTS, as_json)


@tenants.command("show")
def _show(ctx: typer.Context, tenant: Tenant, as_json: Json = False) -> None:
    """One tenant."""
    with admin(ctx) as api:
        detail(api.get(at(tenant)), as_json)


_Weight = Annotated[float | None, typer.Option(help="Share of a contended pool relative to other tenants.")]
_Class = Annotated[str | None, typer.Option("--class", help="interactive or batch.")]
_Models = Annotated[list[str] | None, typer.Option("--model", help="A model, a prefix with *, or *; may be repeated.")]
_Organisation = Annotated[str | None, typer.Option(help="The organisation it belongs to.")]
_Isolation = Annotated[str | None, typer.Option(help="shared, salted or dedicated.")]


def _given(**settings: Any) -> dict[str, Any]:
    return {name.rstrip("_"): value for name, value in settings.items() if value not in (None, [])}


@tenants.command("create")
def _create(
    ctx: typer.Context,
    tenant: Tenant,
    weight: _Weight = None,
    request_class: _Class = None,
    model: _Models = None,
    organisation: _Organisation = None,
    isolation: _Isolation = None,
    as_json: Json = False,
) -> None:
    """Create a tenant."""
    settings = _given(weight=weight, class_=request_class, models=model, organisation=organisation, isolation=isolation)
    with admin(ctx) as api:
        detail(api.call("POST", "/tenants", {"name": tenant, **settings})[0], as_json)


@tenants.command("set")
def _set(
    ctx: typer.Context,
    tenant: Tenant,
    weight: _Weight = None,
    request_class: _Class = None,
    model: _Models = None,
    organisation: _Organisation = None,
    isolation: _Isolation = None,
    as_json: Json = False,
) -> None:
    """Change settings of a tenant."""
    settings = _given(weight=weight, class_=request_class, models=model, organisation=organisation, isolation=isolation)
    with admin(ctx) as api:
        detail(api.change("PATCH", at(tenant), settings), as_json)


@tenants.command("delete")
def _delete(
    ctx: typer.Context, tenant: Tenant, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False
) -> None:
    """Delete a tenant with its keys and reservations."""
    if not yes:
        typer.confirm(f"Delete tenant {tenant} with all its keys?", abort=True)
    with admin(ctx) as api:
        api.change("DELETE", at(tenant))
        typer.echo(f"{tenant} is deleted")


@tenants.command("boundaries")
def _boundaries(ctx: typer.Context, tenant: Tenant, as_json: Json = False) -> None:
    """What stands between a tenant and the others, by pool."""
    names = ("pool", "kind", "used", "process", "device", "batch", "prefix_cache", "adapter")
    with admin(ctx) as api:
        show(api.get(at(tenant, "boundaries"))["pools"], {name: name.replace("_", " ") for name in names}, as_json)


limits = group("limits", "Limits of a tenant over all its keys.")


@limits.command("show")
def _limits(ctx: typer.Context, tenant: Tenant, as_json: Json = False) -> None:
    """The limits of a tenant."""
    with admin(ctx) as api:
        found = api.get(at(tenant, "limits"))
        detail(found or {"limits": "none"}, as_json)


@limits.command("set")
def _set_limits(
    ctx: typer.Context,
    tenant: Tenant,
    changes: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE...", help="Like requests_per_minute=600 or concurrency=none.")
    ],
    as_json: Json = False,
) -> None:
    """Change limits of a tenant; `none` takes one away."""
    with admin(ctx) as api:
        found = api.change("PATCH", at(tenant, "limits"), dict(map(_assignment, changes)))
        detail(found or {"limits": "none"}, as_json)


def _assignment(given: str) -> tuple[str, Any]:
    name, separator, value = given.partition("=")
    if not separator:
        raise typer.BadParameter(f"{given!r} is not NAME=VALUE")
    if value == "none":
        return name, None
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value


reservations = group("reservations", "Guaranteed parts of pools.")


@reservations.command("list")
def _reservations(ctx: typer.Context, tenant: Tenant, as_json: Json = False) -> None:
    """The reservations of a tenant by pool."""
    with admin(ctx) as api:
        found = api.get(at(tenant, "reservations"))["reservations"]
        columns = {"pool": "pool", "rate_share": "rate", "room_share": "room", "hold": "hold", "schedule": "schedule"}
        show([{"pool": pool, **terms} for pool, terms in found.items()], columns, as_json)


@reservations.command("set")
def _reserve(
    ctx: typer.Context,
    tenant: Tenant,
    pool: Annotated[str, typer.Argument(metavar="POOL")],
    rate_share: Annotated[float | None, typer.Option(help="Part of the pool's rate of work, 0 to 1.")] = None,
    room_share: Annotated[float | None, typer.Option(help="Part of its seats and KV tokens, 0 to 1.")] = None,
    hold: Annotated[float | None, typer.Option(help="Part of the unused room kept free, 0 to 1.")] = None,
    as_json: Json = False,
) -> None:
    """Sell a tenant a part of a pool; refused with figures when it cannot be kept."""
    terms = _given(rate_share=rate_share, room_share=room_share, hold=hold)
    with admin(ctx) as api:
        found = api.change("PUT", at(tenant, "reservations", pool), terms, of=at(tenant))
        detail(found["reservations"], as_json)


@reservations.command("release")
def _release(ctx: typer.Context, tenant: Tenant, pool: Annotated[str, typer.Argument(metavar="POOL")]) -> None:
    """Take a reservation back."""
    with admin(ctx) as api:
        api.change("DELETE", at(tenant, "reservations", pool), of=at(tenant))
        typer.echo(f"{tenant} has nothing reserved in {pool} any more")


_POOLS: Final = {
    "name": "pool", "kind": "kind", "isolation": "isolation", "usable": "usable", "inflight": "running",
    "waiting": "waiting", "seats_held": "seats", "kv_tokens_held": "KV tokens", "prefill_tokens": "prefill",
    "oversold": "oversold",
}  # fmt: skip
pools = group("pools", "Pools as the gateway sees them.")


@pools.command("list")
def _pools(ctx: typer.Context, as_json: Json = False) -> None:
    """Pools by name."""
    with admin(ctx) as api:
        found = api.all("/pools")
        for pool in [] if as_json else found:
            pool["usable"] = f"{sum(one['usable'] for one in pool['replicas'])}/{len(pool['replicas'])}"
        show(found, _POOLS, as_json)


@pools.command("show")
def _pool(ctx: typer.Context, pool: Annotated[str, typer.Argument(metavar="POOL")], as_json: Json = False) -> None:
    """The replicas of a pool."""
    with admin(ctx) as api:
        found = api.get(f"/pools/{name_in_path(pool)}")
    if as_json:
        detail(found, as_json)
        return
    columns = {
        "name": "replica", "usable": "usable", "inflight": "running", "seats_held": "seats", "seats": "of",
        "kv_tokens_held": "KV tokens", "kv_tokens": "of", "prefill_tokens": "prefill",
    }  # fmt: skip
    show([_figures(one) for one in found["replicas"]], columns, as_json)


def _figures(replica: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one["value"] if isinstance(one, Mapping) and "value" in one else one for name, one in replica.items()}


def register(app: typer.Typer) -> None:
    """Add the verbs to an application."""
    from gateway import cli_keys, cli_usage

    for made in (tenants, limits, reservations, pools, cli_keys.keys_group, cli_usage.usage):
        app.add_typer(made)
