"""Tenants over the admin API: list, create, read, change, delete with everything that is theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from gateway import config_rules
from gateway.api.admin_call import (
    OPERATORS,
    PAGE_PARAMETERS,
    PREFIX,
    READERS,
    Answer,
    Call,
    Route,
    merged,
)
from gateway.api.admin_models import NewTenant, PageView, TenantSettings, TenantView
from gateway.api.problems import Problem, from_validation, pointer
from gateway.registry.book import Book
from gateway.registry.rows import MICRO, TenantRow, plain
from gateway.settings_tenants import Tenant

_FILE: Final = "file"


def when(micros: int | None) -> str | None:
    """Unix microseconds as RFC 3339; None for what has no time."""
    return None if not micros else datetime.fromtimestamp(micros / MICRO, UTC).isoformat()


def unknown(name: str) -> Problem:
    """A tenant that does not exist, or that the caller may not know of."""
    return Problem(404, "unknown_tenant", f"There is no tenant {name!r}.")


def tenant_of(call: Call) -> TenantRow:
    """The tenant of the path. Raises Problem 404."""
    row = call.registry.book.tenant(call.names["tenant"])
    if row is None:
        raise unknown(call.names["tenant"])
    return row


def etag(row: Any, book: Book) -> str:
    """The state of a row: it differs between one that was deleted and one made again, and for every change."""
    if row.declared:
        return f'"file-{book.base.digest()}"'
    return f'"{row.created_at:x}-{row.revision}"'


def owned_by_file(what: str) -> Problem:
    """Declared objects are the config file's."""
    return Problem(409, "declared_in_file", f"{what} is declared in the config file; change it there and reload.")


def settings_view(settings: Tenant) -> dict[str, Any]:
    """What the API lets be changed of a tenant, as JSON."""
    whole = settings.model_dump(mode="json", by_alias=True)
    found = {name: whole[name] for name in ("organisation", "weight", "class", "models", "isolation")}
    found["limits"] = plain(settings.limits)
    found["model_limits"] = {model: plain(limits) for model, limits in settings.model_limits.items()}
    found["policy"] = plain(settings.policy)
    return found


def view(row: TenantRow, call: Call) -> dict[str, Any]:
    """A tenant as it is shown."""
    now = call.parts.fleet.unix_us()
    keys = call.registry.book.keys(row.name).values()
    return {
        "name": row.name,
        "source": _FILE if row.declared else "registry",
        **settings_view(row.settings),
        "reservations": {pool: plain(terms) for pool, terms in row.settings.reservations.items()},
        "keys": sum(key.state(now) == "active" for key in keys),
        "created_at": when(row.created_at),
        "updated_at": when(row.updated_at),
    }


def shaped(shape: type[BaseModel], given: Any) -> Any:
    """`given` in a shape. Raises Problem 422."""
    try:
        return shape.model_validate(given)
    except ValidationError as error:
        raise from_validation(error) from None


def check(book: Book, name: str, settings: Tenant) -> None:
    """The config file's rules, for one tenant. Raises Problem 422 with what they find.

    They see this tenant and those that could matter to it: owners of dedicated pools, holders of reservations.
    """
    known = book.base
    owners = {pool.dedicated_to for pool in known.pools.values()}
    others = {
        other: row.settings
        for other, row in book.tenants().items()
        if other in owners or not row.settings.reservations.keys().isdisjoint(settings.reservations)
    }
    organisations = {one: row.settings for one, row in book.organisations().items()}
    config = known.model_copy(
        update={
            "tenants": MappingProxyType({**others, name: settings}),
            "organisations": MappingProxyType(organisations),
        }
    )
    errors = []
    for rule in config_rules.RULES:
        if "tenants" in rule.reads:
            errors += [
                {"pointer": pointer(finding.path[2:]), "detail": finding.message}
                for finding in rule.check(config)
                if not finding.warning and finding.path[:2] == ("tenants", name)
            ]
    if errors:
        raise Problem(422, "rule_broken", "; ".join(error["detail"] for error in errors), errors=errors)


async def listed(call: Call) -> Answer:
    """The tenants that the caller sees, by name."""
    after, size = call.after(), call.size()
    found = sorted(name for name in call.registry.book.tenants() if call.who.sees(name))
    if after is not None:
        found = [name for name in found if name > str(after[0])]
    chosen = [row for name in found[: size + 1] if (row := call.registry.book.tenant(name)) is not None]
    return call.page(chosen, size, lambda row: [row.name], lambda row: view(row, call))


async def create(call: Call) -> Answer:
    """A new tenant; 409 for a name that is taken."""
    body: NewTenant = call.body
    settings = _settings(body, {})
    async with call.change() as change:
        check(call.registry.book, body.name, settings)
        if call.registry.book.tenant(body.name) is not None or await change.tenant(body.name) is not None:
            raise Problem(409, "name_taken", f"There is a tenant {body.name!r} already.")
        row = TenantRow(body.name, settings, created_at=change.now, updated_at=change.now)
        await change.add_tenant(row)
        shown = view(row, call)
        change.say("created", "tenant", row.name, tenant=row.name, after=shown)
        call.answer = Answer(shown, 201, etag(row, call.registry.book), f"{PREFIX}/tenants/{row.name}")
    return call.answer


async def read(call: Call) -> Answer:
    """One tenant."""
    row = tenant_of(call)
    return Answer(view(row, call), etag=etag(row, call.registry.book))


async def update(call: Call) -> Answer:
    """Changes what the patch names."""
    return await changed(call, call.body)


async def changed(call: Call, patch: Mapping[str, Any]) -> Answer:
    """A tenant with a merge patch of its settings applied, in the state that the caller has seen."""
    name = call.names["tenant"]
    seen = tenant_of(call)
    if seen.declared:
        raise owned_by_file(f"Tenant {name!r}")
    async with call.change() as change:
        row = await change.tenant(name)
        if row is None:
            raise unknown(name)
        call.must_match(etag(row, call.registry.book))
        body = shaped(TenantSettings, merged(settings_view(row.settings), patch))
        settings = _settings(body, row.settings.reservations)
        check(call.registry.book, name, settings)
        new = replace(row, settings=settings, revision=row.revision + 1, updated_at=change.now)
        await change.set_tenant(new)
        shown = view(new, call)
        change.say("updated", "tenant", name, tenant=name, before=view(row, call), after=shown)
        call.answer = Answer(shown, etag=etag(new, call.registry.book))
    return call.answer


def _settings(body: TenantSettings, reservations: Mapping[str, Any]) -> Tenant:
    given = {name: getattr(body, name) for name in TenantSettings.model_fields}
    return Tenant().model_copy(update={**given, "reservations": MappingProxyType(dict(reservations))})


async def delete(call: Call) -> Answer:
    """Deletes a tenant with its keys, its admin keys and its reservations, all in one."""
    name = call.names["tenant"]
    if tenant_of(call).declared:
        raise owned_by_file(f"Tenant {name!r}")
    async with call.change() as change:
        row = await change.tenant(name)
        if row is None:
            raise unknown(name)
        call.must_match(etag(row, call.registry.book))
        change.say("deleted", "tenant", name, tenant=name, before=view(row, call))
        await change.drop_tenant(name)
    return Answer(None, 204)


ROUTES: Final = (
    Route(
        "GET", "/tenants", "listTenants", "The tenants that the caller sees, by name.", READERS, listed,
        answer=PageView[TenantView], paged=True, query=PAGE_PARAMETERS,
    ),
    Route(
        "POST", "/tenants", "createTenant", "Creates a tenant.", OPERATORS, create,
        body=NewTenant, answer=TenantView, status=201,
    ),
    Route("GET", "/tenants/{tenant}", "readTenant", "One tenant.", READERS, read, answer=TenantView),
    Route(
        "PATCH", "/tenants/{tenant}", "updateTenant", "Changes settings of a tenant.", OPERATORS, update,
        body=TenantSettings, answer=TenantView, if_match=True,
    ),
    Route(
        "DELETE", "/tenants/{tenant}", "deleteTenant", "Deletes a tenant with its keys and reservations.", OPERATORS,
        delete, status=204, if_match=True,
    ),
)  # fmt: skip
