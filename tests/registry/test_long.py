"""Ten million requests in the ledger: the pages that people look at still come at once."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from gateway.registry import usage
from gateway.registry.database import Database
from gateway.registry.usage import Window
from tests.registry.databases import fresh_url

pytestmark = [pytest.mark.asyncio, pytest.mark.long, pytest.mark.timeout(3600)]
ROWS = 10_000_000
DAYS, TENANTS, MODELS = 90, 200, 5
MONTH = Window(date(2024, 10, 4), date(2024, 11, 3))

_NUMBERS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {end})",
    "postgresql": "WITH n(i) AS (SELECT generate_series({first}, {end} - 1))",
}
_FILL = """
INSERT INTO ledger (request_id, at, tenant, key, model, class, pool, replica, outcome, status, stream, attempts,
    prompt_tokens, cached_tokens, output_tokens, reasoning_tokens, micro_usd, estimated, queue_ms, ttft_ms, total_ms)
{numbers}
SELECT 'req_' || i, (20000 + i % {days}) * 86400000000 + i, 't' || (i % {tenants}), 'k' || (i % {tenants}),
    'm' || (i % {models}), 'interactive', 'local', 'a', 'finished', 200, {yes}, 1, 100, 0, 50, 0, 7, {no},
    1.0, 20.0, 300.0
FROM n
"""
_SUM = """
INSERT INTO usage_days
SELECT at / 86400000000, tenant, key, model, count(*), 0, 0, sum(prompt_tokens), 0, sum(output_tokens), sum(micro_usd)
FROM ledger GROUP BY 1, 2, 3, 4
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_ten_million_rows_answer_in_under_a_second(kind: str, tmp_path: Path) -> None:
    database = Database(await fresh_url(kind, tmp_path))
    await database.prepare()
    flags = {"yes": "1", "no": "0"} if kind == "sqlite" else {"yes": "true", "no": "false"}
    for first in range(0, ROWS, 250_000):
        numbers = _NUMBERS[kind].format(first=first, end=first + 250_000)
        fill = _FILL.format(numbers=numbers, days=DAYS, tenants=TENANTS, models=MODELS, **flags)
        async with database.transaction() as connection:
            await connection.execute(text(fill.strip()))
    async with database.transaction() as connection:
        await connection.execute(text(_SUM.strip()))

    async def timed(ask: Callable[[], Awaitable[list[dict[str, Any]]]]) -> list[dict[str, Any]]:
        began = time.monotonic()
        found = await ask()
        assert time.monotonic() - began < 1.0
        return found

    by_tenant = await timed(lambda: usage.sums(database, MONTH, ["tenant"]))
    assert len(by_tenant) == TENANTS
    assert abs(sum(row["requests"] for row in by_tenant) - ROWS * 30 / DAYS) < DAYS
    assert len(await timed(lambda: usage.sums(database, MONTH, ["day"]))) == 30
    await timed(lambda: usage.sums(database, MONTH, ["tenant", "key", "model", "day"]))
    for window in (MONTH, Window(MONTH.first, MONTH.end, tenant="t7")):
        page = await timed(lambda window=window: usage.requests(database, window, before=None, most=101))
        mark = (page[-1]["at"], page[-1]["request_id"])
        assert len(page) == 101
        assert await timed(lambda window=window, mark=mark: usage.requests(database, window, before=mark, most=101))
    await database.close()
