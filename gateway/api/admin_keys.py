"""Keys of tenants over the admin API: made once and shown once, blocked, rotated with an overlap, revoked for good."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from gateway import keys
from gateway.api.admin_call import KEEPERS, PAGE_PARAMETERS, PREFIX, READERS, Answer, Call, Route, merged
from gateway.api.admin_models import CreatedKeyView, KeySettings, KeyView, NewKey, PageView, Rotation
from gateway.api.admin_tenants import check, etag, owned_by_file, shaped, tenant_of, when
from gateway.api.problems import Problem
from gateway.registry.book import anchor
from gateway.registry.change import Change
from gateway.registry.rows import MICRO, KeyRow, plain

_ID_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
_HINT: Final = 4  # last characters of a key that are kept for people to tell keys apart


def micros(at: datetime | None) -> int | None:
    """A time as Unix microseconds."""
    return None if at is None else round(at.timestamp() * MICRO)


def random_id() -> str:
    """The id of a key to be made."""
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(10))


def view(row: KeyRow, now: int, used: Mapping[str, int] | None = None) -> dict[str, Any]:
    """A key as it is shown at `now` (Unix microseconds); `used` are later last uses by id."""
    last = max(row.last_used_at or 0, (used or {}).get(row.id, 0)) or None
    return {
        "id": row.id,
        "tenant": row.tenant,
        "source": "file" if row.declared else "registry",
        "state": row.state(now),
        "label": row.label,
        "hint": row.hint,
        "limits": plain(row.limits),
        "expires": when(row.expires_at),
        "created_at": when(row.created_at),
        "created_by": row.created_by,
        "revoked_at": when(row.revoked_at),
        "replaced_by": row.replaced_by,
        "last_used_at": when(last),
    }


def key_of(call: Call) -> KeyRow:
    """The key of the path. Raises Problem 404."""
    tenant_of(call)
    row = call.registry.book.keys(call.names["tenant"]).get(call.names["key"])
    if row is None:
        raise _unknown(call)
    return row


def _unknown(call: Call) -> Problem:
    return Problem(404, "unknown_key", f"Tenant {call.names['tenant']!r} has no key {call.names['key']!r}.")


async def listed(call: Call) -> Answer:
    """The keys of a tenant, oldest first; revoked ones too."""
    tenant_of(call)
    after, size = call.after(), call.size()
    rows = sorted(call.registry.book.keys(call.names["tenant"]).values(), key=_place)
    if after is not None:
        rows = [row for row in rows if list(_place(row)) > after]
    now, used = call.parts.fleet.unix_us(), call.parts.fleet.last_used()
    return call.page(rows, size, lambda row: list(_place(row)), lambda row: view(row, now, used))


def _place(row: KeyRow) -> tuple[int, str]:
    return row.created_at, row.id


async def read(call: Call) -> Answer:
    """One key."""
    row = key_of(call)
    shown = view(row, call.parts.fleet.unix_us(), call.parts.fleet.last_used())
    return Answer(shown, etag=etag(row, call.registry.book))


async def create(call: Call) -> Answer:
    """A new key. The answer is the only place where it is ever shown."""
    body: NewKey = call.body
    tenant = tenant_of(call)
    async with call.change() as change:
        if await change.tenant(tenant.name) is None:
            if not tenant.declared:
                raise Problem(404, "unknown_tenant", f"There is no tenant {tenant.name!r}.")
            await change.add_tenant(anchor(tenant.name, change.now))
        row = KeyRow("", tenant.name, "", limits=body.limits, label=body.label, expires_at=micros(body.expires))
        row, secret = await _add(call, change, row)
        call.answer = _made(call, row, secret, change.now)
    return call.answer


async def _add(call: Call, change: Change, wanted: KeyRow) -> tuple[KeyRow, str]:
    """Mints a key for a row. Only its hash and its last characters go into the row."""
    peppers = call.registry.book.base.peppers()
    key_id = random_id()
    secret = keys.mint(key_id, secrets.token_bytes(keys.RANDOM_BYTES))
    row = replace(
        wanted,
        id=key_id,
        hash=keys.digest(secret, peppers[0] if peppers else b""),
        hint=secret[-_HINT:],
        created_at=change.now,
        created_by=call.who.name,
    )
    settings = call.registry.book.settings(row.tenant)
    if settings is not None:
        check(call.registry.book, row.tenant, settings.model_copy(update={"keys": (row.settings(),)}))
    await change.add_key(row)
    change.say("created", "key", row.id, tenant=row.tenant, after=view(row, change.now))
    return row, secret


def _made(call: Call, row: KeyRow, secret: str, now: int) -> Answer:
    location = f"{PREFIX}/tenants/{row.tenant}/keys/{row.id}"
    return Answer(view(row, now), 201, etag(row, call.registry.book), location, once={"key": secret})


async def update(call: Call) -> Answer:
    """Changes label, limits, expiry or block of a key."""
    async with call.change() as change:
        row = await _changeable(call, change)
        call.must_match(etag(row, call.registry.book))
        shown = view(row, change.now)
        body = shaped(KeySettings, merged({name: shown[name] for name in ("label", "limits", "expires")}
                                          | {"blocked": row.blocked}, call.body))  # fmt: skip
        new = replace(
            row,
            label=body.label,
            limits=body.limits,
            expires_at=micros(body.expires),
            blocked=body.blocked,
            revision=row.revision + 1,
        )
        settings = call.registry.book.settings(row.tenant)
        if settings is not None:
            check(call.registry.book, row.tenant, settings.model_copy(update={"keys": (new.settings(),)}))
        await change.set_key(new)
        after = view(new, change.now)
        change.say("updated", "key", row.id, tenant=row.tenant, before=shown, after=after)
        call.answer = Answer(after, etag=etag(new, call.registry.book))
    return call.answer


async def rotate(call: Call) -> Answer:
    """A new key in place of one, which goes on working for the overlap. Limits and label are taken over."""
    body: Rotation = call.body
    async with call.change() as change:
        row = await _changeable(call, change)
        if row.replaced_by is not None:
            raise Problem(409, "already_rotated", f"Key {row.id!r} was replaced by {row.replaced_by!r} already.")
        new, secret = await _add(call, change, KeyRow("", row.tenant, "", label=row.label, limits=row.limits))
        end = change.now + body.overlap_s * MICRO
        old = replace(
            row,
            expires_at=end if row.expires_at is None else min(end, row.expires_at),
            replaced_by=new.id,
            revision=row.revision + 1,
        )
        await change.set_key(old)
        change.say(
            "rotated", "key", row.id, tenant=row.tenant, before=view(row, change.now), after=view(old, change.now)
        )
        call.answer = _made(call, new, secret, change.now)
    return call.answer


async def revoke(call: Call) -> Answer:
    """Ends a key for good; its record stays, so that its usage can be told. A second time changes nothing."""
    if key_of(call).declared:
        raise owned_by_file(f"Key {call.names['key']!r}")
    async with call.change() as change:
        row = await change.key(call.names["key"])
        if row is None or row.tenant != call.names["tenant"]:
            raise _unknown(call)
        if row.revoked_at is None:
            new = replace(row, revoked_at=change.now, revision=row.revision + 1)
            await change.set_key(new)
            change.say(
                "revoked", "key", row.id, tenant=row.tenant, before=view(row, change.now), after=view(new, change.now)
            )
    return Answer(None, 204)


async def _changeable(call: Call, change: Change) -> KeyRow:
    if key_of(call).declared:
        raise owned_by_file(f"Key {call.names['key']!r}")
    row = await change.key(call.names["key"])
    if row is None or row.tenant != call.names["tenant"]:
        raise _unknown(call)
    if row.revoked_at is not None:
        raise Problem(409, "revoked", f"Key {row.id!r} is revoked; that is for good.")
    return row


ROUTES: Final = (
    Route(
        "GET", "/tenants/{tenant}/keys", "listKeys", "Keys of a tenant, oldest first.", READERS, listed,
        answer=PageView[KeyView], paged=True, query=PAGE_PARAMETERS,
    ),
    Route(
        "POST", "/tenants/{tenant}/keys", "createKey", "Makes a key; it is shown in this answer and never again.",
        KEEPERS, create, body=NewKey, answer=CreatedKeyView, status=201,
    ),
    Route("GET", "/tenants/{tenant}/keys/{key}", "readKey", "One key.", READERS, read, answer=KeyView),
    Route(
        "PATCH", "/tenants/{tenant}/keys/{key}", "updateKey", "Changes label, limits, expiry or block of a key.",
        KEEPERS, update, body=KeySettings, answer=KeyView, if_match=True,
    ),
    Route(
        "POST", "/tenants/{tenant}/keys/{key}/rotate", "rotateKey", "Replaces a key; the old one works on for a while.",
        KEEPERS, rotate, body=Rotation, answer=CreatedKeyView, status=201,
    ),
    Route(
        "DELETE", "/tenants/{tenant}/keys/{key}", "revokeKey", "Ends a key for good, on every instance at once.",
        KEEPERS, revoke, status=204,
    ),
)  # fmt: skip
