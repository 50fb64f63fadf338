"""Usage from outside: what the API says of requests that were served, refused, cut off, and killed with the gateway."""

from __future__ import annotations

import asyncio
import csv
import io
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from gateway import config
from gateway.app import App
from tests.admin.api import Api
from tests.gateway.stack import ALICE, Stack, running, settings_text, until

pytestmark = pytest.mark.asyncio


async def told(api: Api, number: int, path: str = "/usage/requests?limit=500") -> list[dict[str, Any]]:
    """The requests of the ledger, once there are `number` of them."""
    for _ in range(500):
        found: list[dict[str, Any]] = (await api.get(path)).body["data"]
        if len(found) >= number:
            assert len(found) == number
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"{len(found)} of {number} rows")


async def test_served_refused_and_abandoned_requests() -> None:
    prices = "prices: {input_usd_per_mtok: 1, output_usd_per_mtok: 1000000}"
    changes = {"model": prices, "key_limits": "{requests_per_minute: 60, burst_s: 3}"}
    async with running(config_changes=changes) as stack:
        api = Api.of(stack)
        served = [await stack.post(stack.chat(max_tokens=5)) for _ in range(2)]
        _, writer = await stack.raw(stack.chat(stream=True, max_tokens=4000))
        await until(lambda: stack.engines[0].engine.running == 1)
        writer.close()
        refused = [await stack.post(stack.chat()) for _ in range(3)]
        assert [status for status, _, _ in (*served, *refused)] == [200, 200, 429, 429, 429]
        rows = await told(api, 3)
        by_id = {row["request_id"]: row for row in rows}
        for _, headers, _ in served:
            row = by_id.pop(headers["x-request-id"])
            assert (row["tenant"], row["key"], row["outcome"], row["pool"]) == ("alice", "alice1", "finished", "local")
            assert (row["output_tokens"], row["estimated"], row["attempts"]) == (5, False, 1)
            assert row["micro_usd"] == 5_000_000 + row["prompt_tokens"]
            assert 0 < row["ttft_ms"] <= row["total_ms"]
        [cut] = by_id.values()
        assert cut["outcome"] in {"gone_prefill", "gone_decode"}
        assert cut["estimated"] == (cut["output_tokens"] > 0)
        usage = (await api.get("/usage?by=tenant,key,model,day")).body
        [total] = usage["data"]
        assert (total["tenant"], total["requests"], total["failed"]) == ("alice", 3, 1)
        assert total["micro_usd"] == sum(row["micro_usd"] for row in rows)
        assert (await api.get("/usage?by=")).body["data"][0]["output_tokens"] == total["output_tokens"]
        [refusal] = (await api.get("/usage/refusals")).body["data"]
        assert (refusal["key"], refusal["reason"], refusal["requests"]) == ("alice1", "rate_limited", 3)
        export = await api.get("/usage/export")
        assert export.headers["content-type"] == "text/csv; charset=utf-8"
        lines = list(csv.DictReader(io.StringIO(export.raw.decode())))
        assert [line["request_id"] for line in lines] == [row["request_id"] for row in rows]
        keys = (await api.get("/tenants/alice/keys/alice1")).body
        assert keys["last_used_at"] is not None
        for query in ("from=x", "from=2024-01-02&to=2024-01-01", "by=size", "from=2020-01-01&to=2026-01-01"):
            assert (await api.get(f"/usage?{query}")).code == "invalid_query"


async def test_a_tenant_admin_sees_its_own_usage_only() -> None:
    async with running() as stack:
        operator = Api.of(stack)
        await operator.post("/tenants", {"name": "other"})
        key = (await operator.post("/tenants/other/keys")).body["key"]
        await stack.post(stack.chat())
        await stack.post(stack.chat(), key=key)
        await told(operator, 2)
        made = await operator.post("/admin-keys", {"role": "tenant_admin", "tenant": "alice"})
        admin = operator.as_(made.body["key"])
        assert [row["tenant"] for row in (await admin.get("/usage")).body["data"]] == ["alice"]
        assert [row["tenant"] for row in (await admin.get("/usage/requests")).body["data"]] == ["alice"]
        assert b"other" not in (await admin.get("/usage/export")).raw
        for path in ("/usage", "/usage/requests", "/usage/refusals", "/usage/export"):
            assert (await admin.get(path + "?tenant=other")).code == "unknown_tenant"


async def test_pages_of_requests_hold_while_requests_come_in() -> None:
    async with running() as stack:
        api = Api.of(stack)
        for _ in range(7):
            await stack.post(stack.chat(max_tokens=1))
        first = [row["request_id"] for row in await told(api, 7)]
        found, path = [], "/usage/requests?limit=3"
        for _ in range(3):
            page = (await api.get(path)).body
            found += [row["request_id"] for row in page["data"]]
            await stack.post(stack.chat(max_tokens=1))
            path = f"/usage/requests?limit=3&after={page['next']}"
        assert found == first


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_killed_under_load_every_request_that_the_provider_saw_is_in_the_ledger_once(tmp_path: Path) -> None:
    async with running() as stack:  # its engine serves the gateway that is killed
        path = tmp_path / "weighbridge.yaml"
        text = settings_text(stack.engines, None, extra=f"store: sqlite+aiosqlite:///{tmp_path}/r.db")
        port = _free_port()
        path.write_text(text.replace("port: 0", f"port: {port}", 1))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "serve", "--config", str(path),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        finished: dict[str, int] = {}

        async def load() -> None:
            while True:
                body = orjson.dumps(stack.chat(max_tokens=40))
                headers = {"authorization": f"Bearer {ALICE}"}
                url = f"http://127.0.0.1:{port}/v1/chat/completions"
                try:
                    async with stack.session.post(url, data=body, headers=headers) as answer:
                        found = orjson.loads(await answer.read())
                        finished[answer.headers["x-request-id"]] = found["usage"]["completion_tokens"]
                except aiohttp.ClientError:
                    if process.returncode is not None:
                        return
                    await asyncio.sleep(0.05)

        try:
            async with asyncio.timeout(30), asyncio.TaskGroup() as group:
                for _ in range(8):
                    group.create_task(load())
                await until(lambda: len(finished) >= 60, 20.0)
                process.send_signal(signal.SIGKILL)
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        seen = {one["id"] for one in stack.engines[0].state()["requests"]}
        assert len(seen) >= len(finished) >= 60
        app = await App(config.parse(text, "again.yaml", {}).config, request_log=io.BytesIO()).start()
        try:
            again = Stack(app, stack.engines, None, io.BytesIO(), stack.session)
            rows = {row["request_id"]: row for row in await told(Api.of(again), len(seen))}
            assert rows.keys() == seen
            for request_id, tokens in finished.items():
                assert (rows[request_id]["outcome"], rows[request_id]["output_tokens"]) == ("finished", tokens)
                assert rows[request_id]["estimated"] is False
            cut = [row for row in rows.values() if row["outcome"] != "finished"]
            assert {(row["outcome"], row["estimated"]) for row in cut} == {("lost", True)}
            [total] = (await Api.of(again).get("/usage?by=")).body["data"]
            assert (total["requests"], total["estimated"]) == (len(rows), len(cut))
            assert total["output_tokens"] == sum(row["output_tokens"] for row in rows.values())
            left = [name for name in os.listdir(f"{tmp_path}/r.db-spool") if name.endswith(".lock")]
            assert len(left) == 1  # the living one's
        finally:
            await app.close()
        assert os.listdir(f"{tmp_path}/r.db-spool") == []


async def test_closing_in_the_middle_of_a_write_loses_nothing_and_complains_of_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(5):
        async with running() as stack:
            for _ in range(5):
                await stack.post(stack.chat(max_tokens=1))
            writing = asyncio.ensure_future(stack.app.ledger.flush())
            await asyncio.sleep(0)
        assert await writing
    assert "away" not in caplog.text
