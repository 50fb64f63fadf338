"""One SQL database: its connections, transactions, schema, and what differs between SQLite and PostgreSQL.

SQLite has one writer, and an in-memory database one connection: there, transactions of this process take turns here
instead of failing as "locked". Nothing of this is on a request's path.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Table, event, inspect, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool

from gateway.registry.tables import APPEND_ONLY, HEAD, metadata, registry_version

MEMORY: Final = "sqlite+aiosqlite:///:memory:"
_LOCK_NUMBER: Final = 0x77656967  # what instances that start together agree on, so that one of them migrates
_READ: Final = "weighbridge_read"
_CALL_S: Final = 10.0  # longest wait for a connection or a locked file, seconds

Unavailable = (SQLAlchemyError, OSError, TimeoutError)
"""What any call here may raise when the database is away."""


def blames_data(error: BaseException) -> bool:
    """Whether the database is there and does not take what it was given: another try would end the same."""
    if isinstance(error, DataError | IntegrityError):
        return True
    state = str(getattr(error.orig, "sqlstate", "")) if isinstance(error, DBAPIError) else ""
    return state[:2] in {"22", "23"}  # data exceptions and broken constraints


class NewerSchema(Exception):
    """The database was made by a later version of this program."""


class Database:
    """A database by URL. Nothing is opened until the first transaction."""

    def __init__(self, url: str = MEMORY) -> None:
        parsed = make_url(url)
        self.dialect = parsed.get_backend_name()
        self.sqlite = self.dialect == "sqlite"
        self.memory = self.sqlite and parsed.database in (None, "", ":memory:")
        self.path = Path(parsed.database) if self.sqlite and not self.memory and parsed.database else None
        options: dict[str, Any] = {}
        if self.memory:
            options = {"poolclass": StaticPool}
        elif self.sqlite:
            options = {"connect_args": {"timeout": _CALL_S}}
        else:
            options = {
                "pool_size": 4,
                "max_overflow": 4,
                "pool_timeout": _CALL_S,
                "pool_pre_ping": True,
                "connect_args": {"timeout": _CALL_S, "command_timeout": 60.0},
            }
        # Parameters of statements are never put into errors: hashes are among them.
        self.engine: AsyncEngine = create_async_engine(url, hide_parameters=True, **options)
        self._reader = self.engine.execution_options(**{_READ: True})
        self._plain: dict[str, tuple[str, list[str]]] = {}
        self._turn = asyncio.Lock() if self.sqlite else None
        if self.sqlite:
            event.listen(self.engine.sync_engine, "connect", _sqlite_connect)
            event.listen(self.engine.sync_engine, "begin", _sqlite_begin)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Committed at the end, rolled back on any exception. Raises `Unavailable` when the database is away."""
        if self._turn is None:
            async with self.engine.begin() as connection:
                yield connection
            return
        async with self._turn, self.engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """One consistent look, which holds up no writer. Raises `Unavailable` when the database is away."""
        if self.memory:
            async with self.transaction() as connection:
                yield connection
            return
        async with self._reader.begin() as connection:
            if not self.sqlite:
                await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            yield connection

    def insert(self, table: Table) -> Any:
        """An insert that knows `on_conflict_do_nothing` and `on_conflict_do_update`."""
        return sqlite.insert(table) if self.sqlite else postgresql.insert(table)

    def plain_insert(self, table: Table) -> tuple[str, list[str]]:
        """An insert of whole rows as text, and the columns in the order of its parameters. For values that the driver
        takes as they are: it saves what checking every one of them costs.
        """
        found = self._plain.get(table.name)
        if found is None:
            statement = table.insert().compile(dialect=self.engine.dialect)
            found = self._plain[table.name] = (str(statement), list(statement.positiontup or ()))
        return found

    async def prepare(self) -> None:
        """Brings the schema up to date; instances that start together take turns.

        Raises `NewerSchema`, or `Unavailable` when the database is away.
        """
        async with self.transaction() as connection:
            if not self.sqlite:
                await connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK_NUMBER})"))
            await connection.run_sync(_create if self.memory else _upgrade)

    async def close(self) -> None:
        """Closes every connection."""
        await self.engine.dispose()


def _sqlite_connect(connection: Any, _: Any) -> None:
    # Transactions are begun by us (below), not by the driver at a moment of its choosing.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    with contextlib.suppress(sqlite3.OperationalError):
        # Locked: another process is making the file at this very moment. It sets the mode, which the file keeps.
        cursor.execute("PRAGMA journal_mode = WAL")
    # With WAL a killed process loses nothing at NORMAL; the spool covers what a power cut could take.
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()


def _sqlite_begin(connection: Connection) -> None:
    # A writer takes its lock at once: a reader that turns into a writer half-way can only fail.
    reads = connection.get_execution_options().get(_READ, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _create(connection: Connection) -> None:
    """The schema without the history that led to it: a database in memory is always new."""
    metadata.create_all(connection)
    finish(connection)


def finish(connection: Connection) -> None:
    """What tables alone do not say: the first version, and the audit log's refusal to change."""
    for statement in APPEND_ONLY[connection.dialect.name]:
        connection.exec_driver_sql(statement)
    connection.execute(registry_version.insert().values(id=1, version=0))


def _upgrade(connection: Connection) -> None:
    if _revision(connection) == HEAD:
        return  # the ordinary start does not pay for importing Alembic
    from alembic import command
    from alembic.config import Config as AlembicConfig
    from alembic.script import ScriptDirectory

    settings = AlembicConfig()
    settings.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    settings.attributes["connection"] = connection
    known: Sequence[str] = [script.revision for script in ScriptDirectory.from_config(settings).walk_revisions()]
    found = _revision(connection)
    if found is not None and found not in known:
        raise NewerSchema(f"the database has schema {found}, this version knows {HEAD} and before")
    command.upgrade(settings, "head")


def _revision(connection: Connection) -> str | None:
    """The migration that the database is at; None for an empty one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return found
