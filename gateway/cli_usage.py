"""The verb `weighbridge usage`: sums, single requests, refusals, and the CSV for whoever writes the bill."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from gateway.cli_admin import Json, admin, group, show

_From = Annotated[str | None, typer.Option("--from", metavar="DAY", help="First day (UTC), like 2027-01-01.")]
_To = Annotated[str | None, typer.Option("--to", metavar="DAY", help="Day after the last one.")]
_Tenant = Annotated[str | None, typer.Option("--tenant", help="Only of this tenant.")]
_Key = Annotated[str | None, typer.Option("--key", help="Only of this key, by id.")]
_Model = Annotated[str | None, typer.Option("--model", help="Only of this model.")]
_Most = Annotated[int, typer.Option("--limit", min=1, help="At most this many.")]
_SUMS: Final = {
    "requests": "requests", "failed": "failed", "estimated": "estimated", "prompt_tokens": "prompt",
    "cached_tokens": "cached", "output_tokens": "output", "usd": "USD",
}  # fmt: skip

usage = group("usage", "What was used, by whom, at what price.")


def _priced(rows: list[dict[str, Any]], as_json: bool) -> list[dict[str, Any]]:
    return rows if as_json else [{**row, "usd": f"{row['micro_usd'] / 1e6:,.6f}"} for row in rows]


@usage.command("show")
def _show(
    ctx: typer.Context,
    by: Annotated[str, typer.Option(help="Some of tenant, key, model, day, with commas between.")] = "tenant",
    first: _From = None,
    to: _To = None,
    tenant: _Tenant = None,
    key: _Key = None,
    model: _Model = None,
    as_json: Json = False,
) -> None:
    """Sums, this month so far unless said otherwise."""
    with admin(ctx) as api:
        found = api.get("/usage", by=by, from_=first, to=to, tenant=tenant, key=key, model=model)
        columns = {name: name for name in found["by"]} | _SUMS
        show(_priced(found["data"], as_json), columns, as_json)


@usage.command("requests")
def _requests(
    ctx: typer.Context,
    first: _From = None,
    to: _To = None,
    tenant: _Tenant = None,
    key: _Key = None,
    model: _Model = None,
    limit: _Most = 20,
    as_json: Json = False,
) -> None:
    """Single requests, the newest first."""
    columns = {
        "at": "at", "request_id": "request", "tenant": "tenant", "key": "key", "model": "model", "outcome": "outcome",
        "prompt_tokens": "prompt", "output_tokens": "output", "usd": "USD", "ttft_ms": "TTFT ms", "total_ms": "ms",
    }  # fmt: skip
    with admin(ctx) as api:
        found = api.all("/usage/requests", limit, from_=first, to=to, tenant=tenant, key=key, model=model)
        show(_priced(found, as_json), columns, as_json)


@usage.command("refusals")
def _refusals(
    ctx: typer.Context,
    first: _From = None,
    to: _To = None,
    tenant: _Tenant = None,
    key: _Key = None,
    limit: _Most = 20,
    as_json: Json = False,
) -> None:
    """Requests that ended before they were sent, by minute, the newest first."""
    columns = {"minute": "minute", "tenant": "tenant", "key": "key", "reason": "reason", "requests": "requests"}
    with admin(ctx) as api:
        show(api.all("/usage/refusals", limit, from_=first, to=to, tenant=tenant, key=key), columns, as_json)


@usage.command("export")
def _export(
    ctx: typer.Context,
    first: _From = None,
    to: _To = None,
    tenant: _Tenant = None,
    key: _Key = None,
    model: _Model = None,
) -> None:
    """Single requests as CSV on standard output."""
    with admin(ctx) as api:
        found = api.get("/usage/export", from_=first, to=to, tenant=tenant, key=key, model=model)
        typer.echo(found, nl=False)
