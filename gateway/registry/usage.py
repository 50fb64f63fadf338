"""Questions about usage: sums by tenant, key, model and day, single requests, refusals, and all of it as CSV.

Sums come from the daily sums and never from the rows, so that they are answered at once whatever the ledger holds.
"""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, func, or_, select

from gateway.registry import tables
from gateway.registry.database import Database
from gateway.registry.ledger_sql import DAY_US

GROUPS: Final = ("tenant", "key", "model", "day")
SUMS: Final = ("requests", "failed", "estimated", "prompt_tokens", "cached_tokens", "output_tokens", "micro_usd")
_EPOCH: Final = date(1970, 1, 1)
_CHUNK: Final = 1000  # rows of one read of an export


@dataclass(frozen=True, slots=True)
class Window:
    """Days from `first` up to and without `end` (UTC), and what they are narrowed to."""

    first: date
    end: date
    tenant: str | None = None
    key: str | None = None
    model: str | None = None

    def days(self) -> tuple[int, int]:
        """From and to, in days since 1970."""
        return (self.first - _EPOCH).days, (self.end - _EPOCH).days


def _narrowed(query: Select[Any], table: Any, window: Window) -> Select[Any]:
    for name in ("tenant", "key", "model"):
        value = getattr(window, name)
        if value is not None:
            query = query.where(table.c[name] == value)
    return query


async def sums(database: Database, window: Window, by: Sequence[str]) -> list[dict[str, Any]]:
    """Sums over a window by some of `GROUPS`, in their order; with none of them one row of totals."""
    table = tables.usage_days
    columns = [table.c[name] for name in by]
    totals = [func.coalesce(func.sum(table.c[name]), 0).label(name) for name in SUMS]
    first, end = window.days()
    query = _narrowed(select(*columns, *totals).where(table.c.day >= first, table.c.day < end), table, window)
    if columns:
        query = query.group_by(*columns).order_by(*columns)
    async with database.reading() as connection:
        found = (await connection.execute(query)).mappings().all()
    return [
        {
            **{name: (_EPOCH + timedelta(days=row["day"])).isoformat() if name == "day" else row[name] for name in by},
            **{name: int(row[name]) for name in SUMS},
        }
        for row in found
    ]


async def requests(
    database: Database, window: Window, *, before: tuple[int, str] | None, most: int
) -> list[dict[str, Any]]:
    """Single requests of a window, the newest first, those before (time, id) only."""
    table = tables.ledger
    first, end = window.days()
    query = _narrowed(select(table).where(table.c.at >= first * DAY_US, table.c.at < end * DAY_US), table, window)
    if before is not None:
        query = query.where(_before(table, before))
    query = query.order_by(table.c.at.desc(), table.c.request_id.desc()).limit(most)
    async with database.reading() as connection:
        return [dict(row) for row in (await connection.execute(query)).mappings()]


def _before(table: Any, mark: tuple[int, str]) -> ColumnElement[bool]:
    at, request_id = mark
    return or_(table.c.at < at, and_(table.c.at == at, table.c.request_id < request_id))


async def refusals(
    database: Database, window: Window, *, before: tuple[int, str, str, str] | None, most: int
) -> list[dict[str, Any]]:
    """Counts of refusals by minute, tenant, key and reason, the newest minute first."""
    table = tables.refusals
    first, end = window.days()
    query = select(table).where(table.c.minute >= first * 1440, table.c.minute < end * 1440)
    for name in ("tenant", "key"):
        value = getattr(window, name)
        if value is not None:
            query = query.where(table.c[name] == value)
    order = (table.c.minute, table.c.tenant, table.c.key, table.c.reason)
    if before is not None:
        minute, *rest = before
        alike: ColumnElement[bool] = table.c.minute == minute
        steps = [table.c.minute < minute]
        for column, value in zip(order[1:], rest, strict=True):
            steps.append(and_(alike, column > value))
            alike = and_(alike, column == value)
        query = query.where(or_(*steps))
    query = query.order_by(order[0].desc(), *order[1:]).limit(most)
    async with database.reading() as connection:
        return [dict(row) for row in (await connection.execute(query)).mappings()]


async def export(database: Database, window: Window) -> AsyncIterator[bytes]:
    """The rows of a window as CSV, the newest first, read a part at a time: no reader holds up a writer."""
    names = [column.name for column in tables.ledger.columns]
    yield _csv([names])
    before: tuple[int, str] | None = None
    while True:
        found = await requests(database, window, before=before, most=_CHUNK)
        if not found:
            return
        before = (found[-1]["at"], found[-1]["request_id"])
        for row in found:
            row["at"] = datetime.fromtimestamp(row["at"] / 1e6, UTC).isoformat()
        yield _csv([_safe(row[name]) for name in names] for row in found)


def _safe(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula is quoted."""
    return f"'{value}" if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t"} else value


def _csv(lines: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(lines)
    return text.getvalue().encode()
