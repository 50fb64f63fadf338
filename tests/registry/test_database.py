"""The schema is what the tables say, however it was made, and nothing rewrites the audit log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, func, insert, select, text
from sqlalchemy.exc import DBAPIError

from gateway.registry import tables
from gateway.registry.database import Database, NewerSchema
from tests.registry.databases import KINDS, fresh_url

pytestmark = pytest.mark.asyncio


def _differences(connection: Connection) -> list[object]:
    return list(compare_metadata(MigrationContext.configure(connection), tables.metadata))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_the_migrations_make_exactly_these_tables(kind: str, tmp_path: Path) -> None:
    database = Database(await fresh_url(kind, tmp_path))
    await database.prepare()
    async with database.reading() as connection:
        assert await connection.run_sync(_differences) == []
        assert (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar() == tables.HEAD
        assert (await connection.execute(select(tables.registry_version.c.version))).scalars().all() == [0]
    await database.prepare()  # a second start finds it done
    await database.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_instances_that_start_together_migrate_once(kind: str, tmp_path: Path) -> None:
    url = await fresh_url(kind, tmp_path)
    instances = [Database(url) for _ in range(3)]
    await asyncio.gather(*(one.prepare() for one in instances))
    async with instances[0].reading() as connection:
        assert (await connection.execute(select(func.count()).select_from(tables.registry_version))).scalar() == 1
    for one in instances:
        await one.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_the_audit_log_only_grows(kind: str, tmp_path: Path) -> None:
    database = Database(await fresh_url(kind, tmp_path))
    await database.prepare()
    row = {
        "at": 1, "actor": "a", "role": "operator", "address": "", "request_id": "", "action": "created",
        "kind": "tenant", "name": "acme", "tenant": "acme", "before": None, "after": {"weight": 2},
    }  # fmt: skip
    async with database.transaction() as connection:
        await connection.execute(insert(tables.audit), [row])
    for statement in ("UPDATE audit SET actor = 'nobody'", "DELETE FROM audit"):
        with pytest.raises(DBAPIError, match="append only"):
            async with database.transaction() as connection:
                await connection.execute(text(statement))
    async with database.reading() as connection:
        assert (await connection.execute(select(tables.audit.c.actor, tables.audit.c.after))).all() == [
            ("a", {"weight": 2})
        ]
    await database.close()


async def test_a_database_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    database = Database(await fresh_url("sqlite", tmp_path))
    await database.prepare()
    async with database.transaction() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(NewerSchema, match="9999"):
        await database.prepare()
    await database.close()
