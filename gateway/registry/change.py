"""One change of the registry: a transaction that takes the next version, writes rows, and says so in the audit log.

Whoever changes anything adds 1 to the one version row first and holds its lock to the end: changes happen one after
another over all instances, what a change read is still true when it writes, and versions are committed in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.registry import rows, tables
from gateway.registry.rows import AdminKeyRow, KeyRow, OrganisationRow, TenantRow

ORGANISATION: Final = "organisation"
TENANT: Final = "tenant"
KEY: Final = "key"
ADMIN_KEY: Final = "admin_key"

_KEPT_CHANGES: Final = 10_000  # versions that a reader may be behind without loading everything


@dataclass(frozen=True, slots=True)
class Actor:
    """Who changes something, for the audit log: never a secret."""

    name: str
    role: str
    address: str = ""
    request_id: str = ""


class Change:
    """Handed out by `Registry.change`; what it wrote counts when that block ends without an exception."""

    def __init__(self, connection: AsyncConnection, version: int, now: int, actor: Actor) -> None:
        self.connection = connection
        self.version = version
        self.now = now  # Unix microseconds
        self._actor = actor
        self._touched: set[tuple[str, str]] = set()
        self._audit: list[dict[str, Any]] = []

    # -- reading, as of now and nothing else -----------------------------------------------------------------

    async def organisation(self, name: str) -> OrganisationRow | None:
        """An organisation of the database."""
        table = tables.organisations
        found = (await self.connection.execute(select(table).where(table.c.name == name))).mappings().first()
        return None if found is None else rows.organisation(found)

    async def members(self, organisation: str) -> list[str]:
        """Tenants of the database that belong to an organisation."""
        table = tables.tenants
        query = select(table.c.name).where(table.c.organisation == organisation, table.c.declared.is_(False))
        return list((await self.connection.execute(query)).scalars())

    async def tenant(self, name: str) -> TenantRow | None:
        """A tenant of the database, an anchor too."""
        table, terms = tables.tenants, tables.reservations
        found = (await self.connection.execute(select(table).where(table.c.name == name))).mappings().first()
        if found is None:
            return None
        query = select(terms.c.pool, terms.c.terms).where(terms.c.tenant == name)
        return rows.tenant(found, {row.pool: row.terms for row in await self.connection.execute(query)})

    async def key(self, key_id: str) -> KeyRow | None:
        """A key of the database, whoever's it is."""
        table = tables.tenant_keys
        found = (await self.connection.execute(select(table).where(table.c.id == key_id))).mappings().first()
        return None if found is None else rows.key(found)

    async def admin_key(self, key_id: str) -> AdminKeyRow | None:
        """A key of the admin API."""
        table = tables.admin_keys
        found = (await self.connection.execute(select(table).where(table.c.id == key_id))).mappings().first()
        return None if found is None else AdminKeyRow(**found)

    # -- writing -----------------------------------------------------------------------------------------

    async def add_organisation(self, row: OrganisationRow) -> None:
        """A new organisation."""
        await self.connection.execute(insert(tables.organisations).values(rows.organisation_values(row)))
        self._touched.add((ORGANISATION, row.name))

    async def set_organisation(self, row: OrganisationRow) -> None:
        """Replaces an organisation."""
        table = tables.organisations
        values = rows.organisation_values(row)
        await self.connection.execute(update(table).where(table.c.name == row.name).values(values))
        self._touched.add((ORGANISATION, row.name))

    async def drop_organisation(self, name: str) -> None:
        """Deletes an organisation."""
        table = tables.organisations
        await self.connection.execute(delete(table).where(table.c.name == name))
        self._touched.add((ORGANISATION, name))

    async def add_tenant(self, row: TenantRow) -> None:
        """A new tenant with its reservations."""
        await self.connection.execute(insert(tables.tenants).values(rows.tenant_values(row)))
        await self._reserve(row)

    async def set_tenant(self, row: TenantRow) -> None:
        """Replaces a tenant and its reservations."""
        table, terms = tables.tenants, tables.reservations
        await self.connection.execute(update(table).where(table.c.name == row.name).values(rows.tenant_values(row)))
        await self.connection.execute(delete(terms).where(terms.c.tenant == row.name))
        await self._reserve(row)

    async def _reserve(self, row: TenantRow) -> None:
        reserved = rows.reservation_values(row.name, row.settings.reservations)
        if reserved:
            await self.connection.execute(insert(tables.reservations), reserved)
        self._touched.add((TENANT, row.name))

    async def drop_tenant(self, name: str) -> None:
        """Deletes a tenant with all its keys, admin keys and reservations, in this same transaction."""
        await self.connection.execute(delete(tables.tenants).where(tables.tenants.c.name == name))
        self._touched |= {(TENANT, name), (ADMIN_KEY, "")}

    async def add_key(self, row: KeyRow) -> None:
        """A new key."""
        await self.connection.execute(insert(tables.tenant_keys).values(rows.key_values(row)))
        self._touched.add((TENANT, row.tenant))

    async def set_key(self, row: KeyRow) -> None:
        """Replaces a key; its last use is the ledger's to write."""
        table = tables.tenant_keys
        values = {name: value for name, value in rows.key_values(row).items() if name != "last_used_at"}
        await self.connection.execute(update(table).where(table.c.id == row.id).values(values))
        self._touched.add((TENANT, row.tenant))

    async def add_admin_key(self, row: AdminKeyRow) -> None:
        """A new key of the admin API."""
        values = {name: getattr(row, name) for name in AdminKeyRow.__slots__}
        await self.connection.execute(insert(tables.admin_keys).values(values))
        self._touched.add((ADMIN_KEY, row.id))

    async def revoke_admin_key(self, key_id: str) -> None:
        """Ends a key of the admin API."""
        table = tables.admin_keys
        await self.connection.execute(update(table).where(table.c.id == key_id).values(revoked_at=self.now))
        self._touched.add((ADMIN_KEY, key_id))

    def say(
        self,
        action: str,
        kind: str,
        name: str,
        *,
        tenant: str | None = None,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> None:
        """One row of the audit log. `before` and `after` are what the API shows: there is no secret in them."""
        self._audit.append(
            {
                "at": self.now,
                "actor": self._actor.name,
                "role": self._actor.role,
                "address": self._actor.address[:64],
                "request_id": self._actor.request_id[:64],
                "action": action,
                "kind": kind,
                "name": name,
                "tenant": tenant,
                "before": before,
                "after": after,
            }
        )

    async def finish(self) -> None:
        """Writes what the change touched and said. Called once, by the registry."""
        touched = [
            {"version": self.version, "kind": kind, "name": name, "at": self.now} for kind, name in self._touched
        ]
        if not touched:
            touched = [{"version": self.version, "kind": "", "name": "", "at": self.now}]
        await self.connection.execute(insert(tables.changes), touched)
        if self._audit:
            await self.connection.execute(insert(tables.audit), self._audit)
        if self.version % 256 == 0:
            table = tables.changes
            await self.connection.execute(delete(table).where(table.c.version <= self.version - _KEPT_CHANGES))
