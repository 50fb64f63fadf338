"""Tenants, keys and limits in SQL: changes with a version, and the book that follows them within a second.

A change is seen in this process before its caller hears that it is done. Other instances are told by Redis where there
is one, and look at the version every half second in any case. While the database is away the book stays as it is and
requests flow; `away` says so, and since when.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from pydantic import ValidationError
from sqlalchemy import RowMapping, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.registry import rows, tables
from gateway.registry.book import Book, Contents
from gateway.registry.change import ADMIN_KEY, ORGANISATION, TENANT, Actor, Change
from gateway.registry.database import Database, Unavailable
from gateway.registry.rows import AdminKeyRow, KeyRow, OrganisationRow, TenantRow
from gateway.settings import Config

log = logging.getLogger("weighbridge.registry")

POLL_S: Final = 0.5
"""How often the version is looked at. Two looks and a short load are well inside the promised second."""

T = TypeVar("T")
Changed = Callable[[Book, frozenset[str] | None], None]
"""Told, with the book as it is now, which tenants' data plane must follow; None is all of them."""


class Registry:
    """One instance a process. Make it inside a running loop; `changed` is called in this loop, never concurrently."""

    def __init__(self, database: Database, config: Config, *, now_us: Callable[[], int], changed: Changed) -> None:
        self.database = database
        self.book = Book(config)
        self.away: str | None = None  # why the database cannot be read; None while it can
        self.announce: Callable[[int], Awaitable[None]] | None = None  # tells other instances of a version
        self._now_us = now_us
        self._changed = changed
        self._prepared = False
        self._lock = asyncio.Lock()  # held while the book is brought up to date: an older reading never comes last
        self._woken = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None

    # -- life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reads everything, and follows changes from then on. A database that is away is tried again and again.

        Raises `NewerSchema` when the database is of a later version.
        """
        await self._look()
        if not self.database.memory:  # nobody else can change what is in this process' memory
            self._follower = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """Stops following; the database is the owner's to close."""
        if self._follower is not None:
            self._follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._follower
            self._follower = None

    @property
    def read(self) -> bool:
        """Whether the database has been read at least once."""
        return self.book.version >= 0

    def wake(self) -> None:
        """Somebody says that there is something new."""
        self._woken.set()

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._woken.wait()
            self._woken.clear()
            await self._look()

    async def _look(self) -> None:
        try:
            if not self._prepared:
                await self.database.prepare()
                self._prepared = True
            await self.refresh()
        except Unavailable as error:
            if self.away is None:
                log.warning("registry away (%s): tenants and keys stay as last read", type(error).__name__)
            self.away = type(error).__name__
            return
        if self.away is not None:
            log.warning("registry is back, at version %d", self.book.version)
            self.away = None

    # -- reading -----------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Brings the book up to the database's version. Raises `Unavailable`."""
        async with self._lock:
            known = self.book.version
            async with self.database.reading() as connection:
                version = (await connection.execute(select(tables.registry_version.c.version))).scalar_one()
                if version <= known:
                    return
                contents = await _load(connection, known, version)
            touched = self.book.take(contents)
            if touched is None or touched:
                self._changed(self.book, touched)

    # -- changing ----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def change(self, actor: Actor) -> AsyncIterator[Change]:
        """A change, seen in this process when the block has ended. Raises `Unavailable`; then nothing is changed.

        (A connection that breaks during the commit leaves open whether it was done; the next look shows.)
        """
        table = tables.registry_version
        async with self.database.transaction() as connection:
            bump = update(table).where(table.c.id == 1).values(version=table.c.version + 1).returning(table.c.version)
            version = (await connection.execute(bump)).scalar_one()
            change = Change(connection, version, self._now_us(), actor)
            yield change
            await change.finish()
        await self.refresh()
        if self.announce is not None:
            await self.announce(version)


async def _load(connection: AsyncConnection, known: int, version: int) -> Contents:
    """What a book at version `known` lacks of `version`."""
    table = tables.changes
    query = select(table.c.version, table.c.kind, table.c.name).where(table.c.version > known)
    found = (await connection.execute(query)).all()
    admin_keys = await _admin_keys(connection)
    if known < 0 or len({row.version for row in found if row.version <= version}) < version - known:
        return Contents(
            version=version,
            whole=True,
            organisations=await _organisations(connection, None),
            tenants=await _tenants(connection, None),
            keys=await _keys(connection, None),
            admin_keys=admin_keys,
        )
    organisations = frozenset(row.name for row in found if row.kind == ORGANISATION)
    tenants = frozenset(row.name for row in found if row.kind == TENANT)
    return Contents(
        version=version,
        whole=False,
        organisations=await _organisations(connection, organisations),
        tenants=await _tenants(connection, tenants),
        keys=await _keys(connection, tenants),
        admin_keys=admin_keys,
        touched_organisations=organisations,
        touched_tenants=tenants,
    )


def _readable(read: Callable[[RowMapping], T], found: Iterable[RowMapping]) -> tuple[T, ...]:
    """Every row that makes sense to this version; one that does not must not keep the others from being followed."""
    made = []
    for row in found:
        try:
            made.append(read(row))
        except ValidationError as error:
            places = ", ".join(".".join(map(str, item["loc"])) for item in error.errors(include_input=False))
            log.error(
                "registry: %r is left out, this version cannot read its %s", row.get("name", row.get("id")), places
            )
    return tuple(made)


async def _organisations(connection: AsyncConnection, names: frozenset[str] | None) -> tuple[OrganisationRow, ...]:
    table = tables.organisations
    query = select(table) if names is None else select(table).where(table.c.name.in_(names))
    return _readable(rows.organisation, (await connection.execute(query)).mappings())


async def _tenants(connection: AsyncConnection, names: frozenset[str] | None) -> tuple[TenantRow, ...]:
    table, terms = tables.tenants, tables.reservations
    query, of = select(table), select(terms)
    if names is not None:
        query, of = query.where(table.c.name.in_(names)), of.where(terms.c.tenant.in_(names))
    reserved: dict[str, dict[str, object]] = {}
    for row in await connection.execute(of):
        reserved.setdefault(row.tenant, {})[row.pool] = row.terms
    found = (await connection.execute(query)).mappings()
    return _readable(lambda row: rows.tenant(row, reserved.get(row["name"], {})), found)


async def _keys(connection: AsyncConnection, owners: frozenset[str] | None) -> tuple[KeyRow, ...]:
    table = tables.tenant_keys
    query = select(table) if owners is None else select(table).where(table.c.tenant.in_(owners))
    return _readable(rows.key, (await connection.execute(query)).mappings())


async def _admin_keys(connection: AsyncConnection) -> tuple[AdminKeyRow, ...]:
    return tuple(AdminKeyRow(**row) for row in (await connection.execute(select(tables.admin_keys))).mappings())


__all__ = ["ADMIN_KEY", "POLL_S", "Actor", "Change", "Changed", "Registry"]
