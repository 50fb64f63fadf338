"""Organisations and credentials of the admin API, over the admin API. Both are the operator's alone to change."""

from __future__ import annotations

import secrets
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from gateway import config_rules, keys
from gateway.api.admin_call import (
    FLEET_READERS,
    OPERATORS,
    PAGE_PARAMETERS,
    PREFIX,
    Answer,
    Call,
    Route,
    merged,
)
from gateway.api.admin_keys import micros, random_id
from gateway.api.admin_models import (
    AdminKeyView,
    CreatedAdminKeyView,
    NewAdminKey,
    NewOrganisation,
    OrganisationSettings,
    OrganisationView,
    PageView,
)
from gateway.api.admin_tenants import etag, owned_by_file, shaped, unknown, when
from gateway.api.problems import Problem, pointer
from gateway.registry.book import anchor
from gateway.registry.rows import AdminKeyRow, OrganisationRow, plain
from gateway.settings_tenants import Organisation


def _members(call: Call, name: str) -> list[str]:
    return sorted(one for one, row in call.registry.book.tenants().items() if row.settings.organisation == name)


def view(row: OrganisationRow, call: Call) -> dict[str, Any]:
    """An organisation as it is shown."""
    return {
        "name": row.name,
        "source": "file" if row.declared else "registry",
        "limits": plain(row.settings.limits),
        "tenants": _members(call, row.name),
        "created_at": when(row.created_at),
        "updated_at": when(row.updated_at),
    }


def _of(call: Call) -> OrganisationRow:
    name = call.names["organisation"]
    row = call.registry.book.organisation(name)
    if row is None:
        raise _unknown(name)
    return row


def _unknown(name: str) -> Problem:
    return Problem(404, "unknown_organisation", f"There is no organisation {name!r}.")


def _check(call: Call, name: str, settings: Organisation) -> None:
    book = call.registry.book
    tenants = {one: book.tenants()[one].settings for one in _members(call, name)}
    config = book.base.model_copy(
        update={
            "organisations": MappingProxyType({name: settings}),
            "tenants": MappingProxyType(tenants),
        }
    )
    errors = [
        {"pointer": pointer(finding.path[2:]), "detail": finding.message}
        for rule in config_rules.RULES
        if "organisations" in rule.reads
        for finding in rule.check(config)
        if not finding.warning and finding.path[:2] == ("organisations", name)
    ]
    if errors:
        raise Problem(422, "rule_broken", "; ".join(error["detail"] for error in errors), errors=errors)


async def listed(call: Call) -> Answer:
    """Every organisation by name."""
    after, size = call.after(), call.size()
    rows = sorted(call.registry.book.organisations().values(), key=lambda row: row.name)
    if after is not None:
        rows = [row for row in rows if row.name > str(after[0])]
    return call.page(rows, size, lambda row: [row.name], lambda row: view(row, call))


async def create(call: Call) -> Answer:
    """A new organisation; 409 for a name that is taken."""
    body: NewOrganisation = call.body
    settings = Organisation(limits=body.limits)
    async with call.change() as change:
        _check(call, body.name, settings)
        taken = call.registry.book.organisation(body.name) is not None
        if taken or await change.organisation(body.name) is not None:
            raise Problem(409, "name_taken", f"There is an organisation {body.name!r} already.")
        row = OrganisationRow(body.name, settings, created_at=change.now, updated_at=change.now)
        await change.add_organisation(row)
        shown = view(row, call)
        change.say("created", "organisation", row.name, after=shown)
        call.answer = Answer(shown, 201, etag(row, call.registry.book), f"{PREFIX}/organisations/{row.name}")
    return call.answer


async def read(call: Call) -> Answer:
    """One organisation."""
    row = _of(call)
    return Answer(view(row, call), etag=etag(row, call.registry.book))


async def update(call: Call) -> Answer:
    """Changes the limits that the patch names."""
    name = call.names["organisation"]
    if _of(call).declared:
        raise owned_by_file(f"Organisation {name!r}")
    async with call.change() as change:
        row = await change.organisation(name)
        if row is None:
            raise _unknown(name)
        call.must_match(etag(row, call.registry.book))
        body = shaped(OrganisationSettings, merged({"limits": plain(row.settings.limits)}, call.body))
        settings = Organisation(limits=body.limits)
        _check(call, name, settings)
        new = replace(row, settings=settings, revision=row.revision + 1, updated_at=change.now)
        await change.set_organisation(new)
        shown = view(new, call)
        change.say("updated", "organisation", name, before=view(row, call), after=shown)
        call.answer = Answer(shown, etag=etag(new, call.registry.book))
    return call.answer


async def delete(call: Call) -> Answer:
    """Deletes an organisation to which no tenant belongs."""
    name = call.names["organisation"]
    if _of(call).declared:
        raise owned_by_file(f"Organisation {name!r}")
    async with call.change() as change:
        row = await change.organisation(name)
        if row is None:
            raise _unknown(name)
        call.must_match(etag(row, call.registry.book))
        members = sorted({*await change.members(name), *_members(call, name)})
        if members:
            raise Problem(409, "has_tenants", f"These tenants belong to it: {', '.join(members[:10])}.")
        await change.drop_organisation(name)
        change.say("deleted", "organisation", name, before=view(row, call))
    return Answer(None, 204)


def admin_view(row: AdminKeyRow, now: int) -> dict[str, Any]:
    """A credential as it is shown at `now` (Unix microseconds)."""
    state = "revoked" if row.revoked_at is not None else ("active" if row.valid(now) else "expired")
    return {
        "id": row.id,
        "role": row.role,
        "tenant": row.tenant,
        "label": row.label,
        "hint": row.hint,
        "state": state,
        "expires": when(row.expires_at),
        "created_at": when(row.created_at),
        "created_by": row.created_by,
    }


async def admin_keys(call: Call) -> Answer:
    """Every credential of the registry; the operator's key of the config file is not among them."""
    after, size = call.after(), call.size()
    rows = sorted(call.registry.book.admin_keys.values(), key=lambda row: (row.created_at, row.id))
    if after is not None:
        rows = [row for row in rows if [row.created_at, row.id] > after]
    now = call.parts.fleet.unix_us()
    return call.page(rows, size, lambda row: [row.created_at, row.id], lambda row: admin_view(row, now))


async def create_admin_key(call: Call) -> Answer:
    """A new credential. The answer is the only place where it is ever shown."""
    body: NewAdminKey = call.body
    if (body.role == "tenant_admin") != (body.tenant is not None):
        detail = "A tenant admin needs the tenant it is confined to, and nobody else has one."
        raise Problem(422, "invalid_body", detail, errors=[{"pointer": "#/tenant", "detail": detail}])
    book = call.registry.book
    async with call.change() as change:
        if body.tenant is not None and await change.tenant(body.tenant) is None:
            tenant = book.tenant(body.tenant)
            if tenant is None or not tenant.declared:
                raise unknown(body.tenant)
            await change.add_tenant(anchor(body.tenant, change.now))
        key_id = random_id()
        secret = keys.mint(key_id, secrets.token_bytes(keys.RANDOM_BYTES), keys.ADMIN_PREFIX)
        peppers = book.base.peppers()
        row = AdminKeyRow(
            id=key_id,
            role=body.role,
            tenant=body.tenant,
            hash=keys.digest(secret, peppers[0] if peppers else b""),
            hint=secret[-4:],
            label=body.label,
            created_at=change.now,
            created_by=call.who.name,
            expires_at=micros(body.expires),
        )
        await change.add_admin_key(row)
        shown = admin_view(row, change.now)
        change.say("created", "admin_key", key_id, tenant=body.tenant, after=shown)
        call.answer = Answer(shown, 201, location=f"{PREFIX}/admin-keys/{key_id}", once={"key": secret})
    return call.answer


async def revoke_admin_key(call: Call) -> Answer:
    """Ends a credential; a second time changes nothing."""
    key_id = call.names["key"]
    async with call.change() as change:
        row = await change.admin_key(key_id)
        if row is None:
            raise Problem(404, "unknown_key", f"There is no admin key {key_id!r}.")
        if row.revoked_at is None:
            await change.revoke_admin_key(key_id)
            change.say("revoked", "admin_key", key_id, tenant=row.tenant, before=admin_view(row, change.now))
    return Answer(None, 204)


ROUTES: Final = (
    Route(
        "GET", "/organisations", "listOrganisations", "Organisations by name.", FLEET_READERS, listed,
        answer=PageView[OrganisationView], paged=True, query=PAGE_PARAMETERS,
    ),
    Route(
        "POST", "/organisations", "createOrganisation", "Creates an organisation.", OPERATORS, create,
        body=NewOrganisation, answer=OrganisationView, status=201,
    ),
    Route(
        "GET", "/organisations/{organisation}", "readOrganisation", "One organisation.", FLEET_READERS, read,
        answer=OrganisationView,
    ),
    Route(
        "PATCH", "/organisations/{organisation}", "updateOrganisation", "Changes limits of an organisation.",
        OPERATORS, update, body=OrganisationSettings, answer=OrganisationView, if_match=True,
    ),
    Route(
        "DELETE", "/organisations/{organisation}", "deleteOrganisation", "Deletes an organisation without tenants.",
        OPERATORS, delete, status=204, if_match=True,
    ),
    Route(
        "GET", "/admin-keys", "listAdminKeys", "Credentials of the admin API.", FLEET_READERS, admin_keys,
        answer=PageView[AdminKeyView], paged=True, query=PAGE_PARAMETERS,
    ),
    Route(
        "POST", "/admin-keys", "createAdminKey", "Makes a credential; it is shown in this answer and never again.",
        OPERATORS, create_admin_key, body=NewAdminKey, answer=CreatedAdminKeyView, status=201,
    ),
    Route(
        "DELETE", "/admin-keys/{key}", "revokeAdminKey", "Ends a credential for good.", OPERATORS, revoke_admin_key,
        status=204,
    ),
)  # fmt: skip
