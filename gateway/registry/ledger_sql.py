"""The ledger's statements: rows with their daily sums, counts of refusals, and forgetting in small bites.

Whatever is added to is added to in the order of its keys, so that instances which write at the same time wait for each
other and never in a circle.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Table, bindparam, delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.registry import tables
from gateway.registry.database import Database
from gateway.registry.entries import Row

DAY_US: Final = 86_400_000_000
_MINUTE_US: Final = 60_000_000
_SUMS: Final = (
    "requests", "failed", "estimated", "prompt_tokens", "cached_tokens", "output_tokens", "micro_usd",
)  # fmt: skip
_BITE: Final = 2000  # rows forgotten in one transaction
_PAUSE_S: Final = 0.02  # between bites, for others to get in
_MEMORY_ROWS: Final = 50_000  # of a ledger that is kept in memory

Refusals = Counter[tuple[int, str, str, str]]
"""Requests by minute, tenant, key and reason."""


async def write(
    database: Database,
    rows: Sequence[Row],
    refusals: Refusals,
    *,
    check: bool,
    used: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Adds rows, sums and counts in one transaction, and notes when keys were last `used` (Unix microseconds by id).

    `check`: some rows may be there already and are left out.
    """
    async with database.transaction() as connection:
        new = await _new(connection, rows) if check else rows
        if new:
            statement, names = database.plain_insert(tables.ledger)
            values = itemgetter(*names)
            await connection.exec_driver_sql(statement, [values(row) for row in new])
            await _add(database, connection, tables.usage_days, _days(new))
        if used:
            await _used(connection, used)
        counts = [
            {"minute": minute, "tenant": tenant, "key": key, "reason": reason, "requests": number}
            for (minute, tenant, key, reason), number in sorted(refusals.items())
        ]
        await _add(database, connection, tables.refusals, counts)


async def _new(connection: AsyncConnection, rows: Sequence[Row]) -> list[Row]:
    table = tables.ledger
    ids = [row["request_id"] for row in rows]
    known = set((await connection.execute(select(table.c.request_id).where(table.c.request_id.in_(ids)))).scalars())
    return [row for row in rows if row["request_id"] not in known]


def _days(rows: Sequence[Row]) -> list[Row]:
    sums: dict[tuple[int, str, str, str], Row] = {}
    for row in rows:
        key = (row["at"] // DAY_US, row["tenant"], row["key"], row["model"])
        found = sums.get(key)
        if found is None:
            names = dict(zip(("day", "tenant", "key", "model"), key, strict=True))
            found = sums[key] = {**names, **dict.fromkeys(_SUMS, 0)}
        found["requests"] += 1
        found["failed"] += row["outcome"] != "finished"
        found["estimated"] += row["estimated"]
        for name in _SUMS[3:]:
            found[name] += row[name]
    return [sums[key] for key in sorted(sums)]


async def _add(database: Database, connection: AsyncConnection, table: Table, rows: list[Row]) -> None:
    """Inserts rows, or adds their sums to those that are there."""
    if not rows:
        return
    keys = [column.name for column in table.primary_key.columns]
    statement = database.insert(table)
    added: dict[str, Any] = {
        column.name: column + statement.excluded[column.name] for column in table.columns if column.name not in keys
    }
    # One statement for many rows, compiled once; all rows in one statement would be compiled anew each time.
    await connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=added), rows)


async def _used(connection: AsyncConnection, used: Mapping[str, int]) -> None:
    """Notes when keys were last used; those of the config file have no row to note it in."""
    table = tables.tenant_keys
    later = or_(table.c.last_used_at.is_(None), table.c.last_used_at < bindparam("at"))
    statement = update(table).where(table.c.id == bindparam("key"), later).values(last_used_at=bindparam("at"))
    await connection.execute(statement, [{"key": key, "at": at} for key, at in sorted(used.items())])


async def forget(database: Database, *, before: int, refusals_before: int) -> int:
    """Deletes rows older than `before` and counts older than `refusals_before` (Unix microseconds), a bite at a time,
    so that nobody waits long. The daily sums stay. Returns how many rows went.
    """
    table, gone = tables.ledger, 0
    if database.memory:
        before = max(before, await _oldest_kept(database))
    while True:
        old = select(table.c.request_id).where(table.c.at < before).order_by(table.c.at).limit(_BITE)
        async with database.transaction() as connection:
            found = await connection.execute(delete(table).where(table.c.request_id.in_(old)))
        gone += found.rowcount
        if found.rowcount < _BITE:
            break
        await asyncio.sleep(_PAUSE_S)
    counts, until = tables.refusals, refusals_before // _MINUTE_US
    async with database.transaction() as connection:
        await connection.execute(delete(counts).where(counts.c.minute < until))
    return gone


async def _oldest_kept(database: Database) -> int:
    table = tables.ledger
    query = select(table.c.at).order_by(table.c.at.desc()).offset(_MEMORY_ROWS).limit(1)
    async with database.reading() as connection:
        found: int | None = (await connection.execute(query)).scalar()
    return 0 if found is None else found + 1
