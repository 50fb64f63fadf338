"""One row a request, exactly once, whatever dies in between; sums that agree with the rows; old rows that go."""

from __future__ import annotations

import asyncio
import csv
import io
import os
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from gateway.outcomes import Outcome
from gateway.principals import Principal
from gateway.record import Attempt, Phases, Record
from gateway.registry import tables, usage
from gateway.registry.database import Database
from gateway.registry.ledger import Ledger
from gateway.registry.ledger_sql import DAY_US, forget, write
from gateway.registry.spool import FileSpool, Spool
from gateway.registry.usage import Window
from providers.exchange import Usage
from ratelimit.limit import Amounts
from tests.registry.databases import KINDS, fresh_url, refused

pytestmark = pytest.mark.asyncio
NOON = 20_000 * 86_400 + 43_200.0  # Unix seconds; day 20,000 is 2024-10-04
DAY = Window(date(2024, 10, 4), date(2024, 10, 5))


def principal(tenant: str = "acme", key: str = "k1") -> Principal:
    return Principal(
        None, tenant, key, 1.0, "interactive", frozenset(), ("",), (), {}, "shared", None, None, True, None
    )  # fmt: skip


def record(number: int, *, tenant: str = "acme", key: str = "k1", at: float = NOON, sent: bool = True) -> Record:
    found = Record(f"req_{number:04d}", at, Phases(0.0), principal=principal(tenant, key), model="m", cls="batch")
    found.reserved = Amounts(requests=1, input_tokens=10, output_tokens=20, micro_usd=7)
    if sent:
        found.target = ("pool", "upstream")
        found.attempts = [Attempt("pool", "a", 0.0)]
    return found


CHARGED = Amounts(requests=1, input_tokens=11, output_tokens=5, total_tokens=16, micro_usd=3)


def finish(ledger: Ledger, one: Record) -> None:
    one.usage = Usage(11, 5, 4, None, 2)
    ledger.settled(one, Outcome.FINISHED.ending, CHARGED, estimated=False)


class Kept:
    """A ledger on a database of its own."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.folder = folder
        self.ledger = self.another("one")

    def another(self, name: str, spool: Spool | None = None) -> Ledger:
        return Ledger(
            self.database,
            spool or FileSpool(self.folder, name),
            unix_us=lambda: int(NOON * 1e6),
            keep_days=400,
            keep_refusals_days=31,
            folder=self.folder,
        )

    async def rows(self) -> dict[str, Any]:
        async with self.database.reading() as connection:
            found = (await connection.execute(select(tables.ledger))).mappings().all()
        return {row["request_id"]: row for row in found}


async def kept(kind: str, folder: Path) -> Kept:
    database = Database(await fresh_url(kind, folder))
    await database.prepare()
    return Kept(database, folder / "spool")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_is_one_row_and_part_of_its_day_s_sums(kind: str, tmp_path: Path) -> None:
    it = await kept(kind, tmp_path)
    for number in range(600):
        one = record(number, tenant="acme" if number % 2 else "globex")
        it.ledger.sending(one)
        it.ledger.sending(one)  # a second attempt
        finish(it.ledger, one)
    await it.ledger.flush()
    rows = await it.rows()
    assert len(rows) == 600
    row = rows["req_0001"]
    assert (row["tenant"], row["outcome"], row["prompt_tokens"], row["cached_tokens"]) == ("acme", "finished", 11, 4)
    assert (row["output_tokens"], row["reasoning_tokens"], row["micro_usd"], row["estimated"]) == (5, 2, 3, False)
    found = await usage.sums(it.database, DAY, ["tenant", "day"])
    sums = {"requests": 300, "failed": 0, "estimated": 0, "prompt_tokens": 3300, "cached_tokens": 1200}
    sums |= {"output_tokens": 1500, "micro_usd": 900}
    assert found == [{"tenant": name, "day": "2024-10-04", **sums} for name in ("acme", "globex")]
    assert (await usage.sums(it.database, DAY, []))[0]["requests"] == 600
    await it.ledger.close()
    assert list(it.folder.iterdir()) == []  # nothing is left to tell
    await it.database.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_refusals_are_counted_by_minute_key_and_reason(kind: str, tmp_path: Path) -> None:
    it = await kept(kind, tmp_path)
    for number in range(7):
        one = record(number, at=NOON + 60 * (number % 2), sent=False)
        it.ledger.settled(one, Outcome.RATE_LIMITED.ending, Amounts(), estimated=False)
        if number == 3:
            await it.ledger.flush()
    it.ledger.settled(record(9, sent=False), Outcome.FINISHED.ending, Amounts(), estimated=False)  # GET /v1/models
    await it.ledger.flush()
    found = await usage.refusals(it.database, DAY, before=None, most=10)
    minute = int(NOON) // 60
    expected = {"tenant": "acme", "key": "k1", "reason": "rate_limited"}
    assert found == [{"minute": minute + 1, **expected, "requests": 3}, {"minute": minute, **expected, "requests": 4}]
    mark = (minute + 1, "acme", "k1", "rate_limited")
    assert await usage.refusals(it.database, DAY, before=mark, most=10) == found[1:]
    assert await it.rows() == {}
    await it.ledger.close()
    await it.database.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_what_a_dead_process_left_is_recovered_once(kind: str, tmp_path: Path) -> None:
    it = await kept(kind, tmp_path)
    dead = it.another("dead", spool := FileSpool(it.folder, "dead", segment_bytes=2048))
    for number in range(20):
        dead.sending(record(number))
    for number in range(10):
        finish(dead, record(number))
    await dead.flush()
    for number in range(10, 15):  # settled, not written
        finish(dead, record(number))
    # The process dies: its lock goes, its files stay.
    assert spool._lock is not None
    os.close(spool._lock)
    recovered = await asyncio.gather(it.ledger.recover(), it.another("three").recover())
    assert sum(recovered) > 0
    assert min(recovered) == 0  # only one of them took it
    rows = await it.rows()
    assert len(rows) == 20
    assert {name for name, row in rows.items() if row["outcome"] == "lost"} == {f"req_{n:04d}" for n in range(15, 20)}
    lost = rows["req_0015"]
    assert (lost["estimated"], lost["prompt_tokens"], lost["output_tokens"], lost["micro_usd"]) == (True, 10, 20, 7)
    [total] = await usage.sums(it.database, DAY, [])
    assert (total["requests"], total["failed"], total["estimated"]) == (20, 5, 5)
    assert total["prompt_tokens"] == 15 * 11 + 5 * 10
    assert [path.name for path in it.folder.iterdir() if path.name.startswith("dead")] == []
    await it.ledger.close()
    await it.database.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_batch_whose_fate_is_unknown_is_not_counted_twice(kind: str, tmp_path: Path) -> None:
    it = await kept(kind, tmp_path)
    row = {**_row(1), "request_id": "req_0001"}
    await write(it.database, [row], Counter(), check=False)
    it.ledger._unsure = True  # as after a commit whose answer was lost
    for number in (1, 2):
        it.ledger.sending(record(number))
        finish(it.ledger, record(number))
    await it.ledger.flush()
    assert len(await it.rows()) == 2
    assert (await usage.sums(it.database, DAY, []))[0]["requests"] == 2
    await it.ledger.close()
    await it.database.close()


async def test_while_the_database_is_away_rows_wait_and_none_is_lost(tmp_path: Path) -> None:
    url = await fresh_url("postgresql", tmp_path)
    database = Database(url)
    await database.prepare()
    it = Kept(database, tmp_path / "spool")
    with refused(url):
        for number in range(300):
            it.ledger.sending(record(number))
            finish(it.ledger, record(number))
        it.ledger.settled(record(999, sent=False), Outcome.QUEUE_FULL.ending, Amounts(), estimated=False)
        assert not await it.ledger.flush()
        assert not await it.ledger.flush()
        assert it.ledger.degraded() != []
    assert await it.ledger.flush()
    assert it.ledger.degraded() == []
    assert len(await it.rows()) == 300
    assert (await usage.sums(it.database, DAY, []))[0]["requests"] == 300
    assert [one["requests"] for one in await usage.refusals(it.database, DAY, before=None, most=9)] == [1]
    await it.ledger.close()
    await it.database.close()


async def test_a_row_that_the_database_does_not_take_holds_up_no_other(tmp_path: Path) -> None:
    it = await kept("postgresql", tmp_path)
    for number in range(5):
        one = record(number)
        one.model = "x" * 500 if number == 2 else "m"
        it.ledger.sending(one)
        finish(it.ledger, one)
    await it.ledger.flush()
    assert sorted(await it.rows()) == ["req_0000", "req_0001", "req_0003", "req_0004"]
    assert it.ledger.unspooled == 1
    await it.ledger.close()
    await it.database.close()


def _row(number: int, at: int = int(NOON * 1e6)) -> dict[str, Any]:
    return {
        "request_id": f"r{number:06d}", "at": at, "tenant": "acme", "key": "k1", "model": "m", "class": "batch",
        "stream": False, "pool": "p", "replica": "a", "outcome": "finished", "status": 200, "attempts": 1,
        "prompt_tokens": 1, "cached_tokens": 0, "output_tokens": 1, "reasoning_tokens": 0, "micro_usd": 1,
        "estimated": False, "queue_ms": 0.0, "ttft_ms": None, "total_ms": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_old_rows_go_in_bites_and_their_sums_stay(kind: str, tmp_path: Path) -> None:
    it = await kept(kind, tmp_path)
    noon = int(NOON * 1e6)
    rows = [_row(number, noon - (DAY_US if number < 4500 else 0)) for number in range(5000)]
    for start in range(0, 5000, 500):
        await write(it.database, rows[start : start + 500], Counter({(1, "acme", "k1", "x"): 1}), check=False)
    assert await forget(it.database, before=noon - 1000, refusals_before=noon) == 4500
    async with it.database.reading() as connection:
        assert (await connection.execute(select(func.count()).select_from(tables.ledger))).scalar() == 500
        assert (await connection.execute(select(func.count()).select_from(tables.refusals))).scalar() == 0
    assert (await usage.sums(it.database, Window(date(2024, 10, 3), date(2024, 10, 5)), []))[0]["requests"] == 5000
    await it.ledger.close()
    await it.database.close()


async def test_the_export_has_every_row_once_and_no_formula(tmp_path: Path) -> None:
    it = await kept("sqlite", tmp_path)
    rows = [{**_row(number), "model": "=m" if number == 7 else "m"} for number in range(2500)]
    for start in range(0, 2500, 500):
        await write(it.database, rows[start : start + 500], Counter(), check=False)
    text = b"".join([chunk async for chunk in usage.export(it.database, DAY)]).decode()
    found = list(csv.DictReader(io.StringIO(text)))
    assert {one["request_id"] for one in found} == {row["request_id"] for row in rows}
    assert len(found) == 2500
    assert {one["model"] for one in found} == {"m", "'=m"}
    assert found[0]["at"] == "2024-10-04T12:00:00+00:00"
    await it.ledger.close()
    await it.database.close()
