"""The database goes away: requests flow on with what is known, everything says so, and no usage is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.admin.api import Api
from tests.gateway.stack import Stack, running, until
from tests.registry.databases import fresh_url, refused

pytestmark = pytest.mark.asyncio


async def readiness(stack: Stack) -> tuple[int, dict[str, Any]]:
    async with stack.session.get(f"http://127.0.0.1:{stack.app.admin_port}/readyz") as answer:
        return answer.status, await answer.json()


async def test_requests_flow_while_the_database_is_away(tmp_path: Path) -> None:
    url = await fresh_url("postgresql", tmp_path)
    extra = f'store: "{url}"\nledger: {{spool: "{tmp_path}/spool"}}'
    async with running(config_changes={"extra": extra}) as stack:
        api = Api.of(stack)
        await api.post("/tenants", {"name": "acme"})
        key = (await api.post("/tenants/acme/keys")).body["key"]
        with refused(url):
            answers = await asyncio.gather(*(stack.post(stack.chat(max_tokens=3), key=key) for _ in range(40)))
            assert {status for status, _, _ in answers} == {200}
            await until(lambda: stack.app.registry.away is not None and stack.app.ledger.away is not None)
            status, body = await readiness(stack)
            assert (status, body["reasons"]) == (200, [])
            assert [line.split(" (")[0] for line in body["degraded"]] == ["registry away", "ledger away"]
            assert (await stack.post(stack.chat(max_tokens=3), key=key))[0] == 200
            # What is known is shown; what needs the database says that it is away.
            assert (await api.get("/tenants/acme")).status == 200
            refusal = await api.post("/tenants", {"name": "late"})
            assert (refusal.status, refusal.code, refusal.headers["retry-after"]) == (503, "registry_away", "1")
        await until(lambda: stack.app.registry.away is None and stack.app.ledger.away is None)
        await stack.app.ledger.flush()
        [total] = (await api.get("/usage?by=")).body["data"]
        assert (total["requests"], total["output_tokens"], total["estimated"]) == (41, 123, 0)
        assert (await readiness(stack))[1]["degraded"] == []
        assert (await api.get("/tenants/late")).status == 404


async def test_started_without_its_database_an_instance_is_not_ready_until_it_has_read_it(tmp_path: Path) -> None:
    url = await fresh_url("postgresql", tmp_path)
    extra = f'store: "{url}"\nledger: {{spool: "{tmp_path}/spool"}}'
    with refused(url):
        stack_of = running(config_changes={"extra": extra})
        stack = await stack_of.__aenter__()
        status, body = await readiness(stack)
        assert (status, body["reasons"]) == (503, ["the registry has not been read yet"])
    try:
        await until(lambda: stack.app.registry.read)
        assert (await readiness(stack))[0] == 200
    finally:
        await stack_of.__aexit__(None, None, None)
