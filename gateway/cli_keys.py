"""The verb `weighbridge keys`: keys for the config file, and keys of tenants over the admin API."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Final

import typer

from gateway import config, keys
from gateway.cli_admin import Json, Tenant, admin, at, detail, group, show

keys_group = group("keys", "API keys: make, list, rotate, revoke.")
_KeyId = Annotated[str, typer.Argument(metavar="KEY", help="The key's id, the part between the underscores.")]
_COLUMNS: Final = {
    "id": "key", "source": "from", "state": "state", "label": "label", "hint": "ends in", "limits": "limits",
    "expires": "expires", "last_used_at": "last used",
}  # fmt: skip


@keys_group.command("mint")
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
    chosen = _random_id() if key_id is None else key_id
    try:
        key = keys.mint(chosen, secrets.token_bytes(keys.RANDOM_BYTES))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--id") from error
    typer.echo("# for the holder; it cannot be shown again", err=True)
    typer.echo(key)
    typer.echo("# for the config file, under the tenant's keys", err=True)
    typer.echo(f'- {{id: {chosen}, hash: "{keys.digest(key, secret)}"}}')


@keys_group.command("list")
def _list(ctx: typer.Context, tenant: Tenant, as_json: Json = False) -> None:
    """The keys of a tenant, oldest first."""
    with admin(ctx) as api:
        show(api.all(at(tenant, "keys")), _COLUMNS, as_json)


@keys_group.command("create")
def _create(
    ctx: typer.Context,
    tenant: Tenant,
    label: Annotated[str, typer.Option(help="What it is for.")] = "",
    expires: Annotated[str | None, typer.Option(help="When it stops working, like 2027-01-31T00:00:00Z.")] = None,
    as_json: Json = False,
) -> None:
    """Make a key for a tenant; it is shown this once."""
    with admin(ctx) as api:
        _made(api.call("POST", at(tenant, "keys"), {"label": label, "expires": expires})[0], as_json)


@keys_group.command("rotate")
def _rotate(
    ctx: typer.Context,
    tenant: Tenant,
    key: _KeyId,
    overlap_s: Annotated[int, typer.Option(min=0, help="How long the old key goes on working, seconds.")] = 86_400,
    as_json: Json = False,
) -> None:
    """Replace a key; the old one goes on working for a while."""
    with admin(ctx) as api:
        _made(api.call("POST", at(tenant, "keys", key, "rotate"), {"overlap_s": overlap_s})[0], as_json)


def _made(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        detail(found, as_json)
        return
    typer.echo(f"# key {found['id']} of {found['tenant']}; it cannot be shown again", err=True)
    typer.echo(found["key"])


@keys_group.command("block")
def _block(ctx: typer.Context, tenant: Tenant, key: _KeyId) -> None:
    """Refuse a key until it is unblocked."""
    with admin(ctx) as api:
        typer.echo(f"{key} is {api.change('PATCH', at(tenant, 'keys', key), {'blocked': True})['state']}")


@keys_group.command("unblock")
def _unblock(ctx: typer.Context, tenant: Tenant, key: _KeyId) -> None:
    """Let a blocked key work again."""
    with admin(ctx) as api:
        typer.echo(f"{key} is {api.change('PATCH', at(tenant, 'keys', key), {'blocked': False})['state']}")


@keys_group.command("revoke")
def _revoke(ctx: typer.Context, tenant: Tenant, key: _KeyId) -> None:
    """End a key for good, on every instance at once."""
    with admin(ctx) as api:
        api.call("DELETE", at(tenant, "keys", key))
        typer.echo(f"{key} is revoked")


def _random_id() -> str:
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
    return "".join(secrets.choice(alphabet) for _ in range(10))
