"""The command line over the admin API: tables and JSON, and errors that say what to do."""

from __future__ import annotations

import asyncio
import csv
import io
import sys
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.keys import parse
from tests.admin.api import OPERATOR
from tests.gateway.stack import Stack, running

pytestmark = pytest.mark.asyncio


class Shell:
    """Somebody at a terminal, with the address and the key of an instance in the environment."""

    def __init__(self, stack: Stack, key: str = OPERATOR) -> None:
        self.environ = {
            "WEIGHBRIDGE_ADMIN_URL": f"http://127.0.0.1:{stack.app.admin_port}",
            "WEIGHBRIDGE_ADMIN_KEY": key,
            "COLUMNS": "200",
        }

    async def __call__(self, line: str, status: int = 0) -> Result:
        result = await asyncio.to_thread(CliRunner().invoke, app, line.split(), env=self.environ)
        assert result.exit_code == status, (line, result.output)
        return result


async def test_a_tenant_created_limited_used_and_billed_in_six_commands() -> None:
    prices = "prices: {input_usd_per_mtok: 1, output_usd_per_mtok: 2}"
    async with running(config_changes={"model": prices}) as stack:
        run = Shell(stack)
        await run("tenants create acme --weight 2")
        await run("limits set acme requests_per_minute=600 usd_per_month=50")
        key = (await run("keys create acme --label production")).stdout.strip()
        assert parse(key) is not None
        assert (await stack.post(stack.chat(max_tokens=5), key=key))[0] == 200
        await stack.app.ledger.flush()
        lines = (await run("usage show --by tenant,model")).stdout.splitlines()
        assert lines[0].split() == [
            "tenant",
            "model",
            "requests",
            "failed",
            "estimated",
            "prompt",
            "cached",
            "output",
            "USD",
        ]
        assert lines[1].split()[:2] == ["acme", "chat-large"]
        assert float(lines[1].split()[-1]) > 0
        [row] = list(csv.DictReader(io.StringIO((await run("usage export --tenant acme")).stdout)))
        assert (row["tenant"], row["outcome"], row["output_tokens"]) == ("acme", "finished", "5")


async def test_tables_and_json_of_everything() -> None:
    async with running() as stack:
        run = Shell(stack)
        table = (await run("tenants list")).stdout
        assert table.splitlines()[0].split() == [
            "tenant", "from", "organisation", "weight", "class", "models", "limits", "keys"
        ]  # fmt: skip
        found = orjson.loads((await run("tenants list --json")).stdout)
        assert [one["name"] for one in found] == ["alice", "bob"]
        await run("tenants create acme --class batch --model chat-large")
        assert orjson.loads((await run("tenants show acme --json")).stdout)["class"] == "batch"
        await run("tenants set acme --weight 4")
        assert orjson.loads((await run("tenants show acme --json")).stdout)["weight"] == 4
        assert "requests_per_minute" in (await run("limits set acme requests_per_minute=60 concurrency=4")).stdout
        await run("limits set acme concurrency=none")
        assert orjson.loads((await run("limits show acme --json")).stdout) == {"requests_per_minute": 60}
        made = orjson.loads((await run("keys create acme --json")).stdout)
        assert (await run(f"keys block acme {made['id']}")).stdout == f"{made['id']} is blocked\n"
        await run(f"keys unblock acme {made['id']}")
        new = (await run(f"keys rotate acme {made['id']} --overlap-s 0")).stdout.strip()
        assert (await stack.post(stack.chat(), key=new))[0] == 200
        await run(f"keys revoke acme {made['id']}")
        states = [one["state"] for one in orjson.loads((await run("keys list acme --json")).stdout)]
        assert states == ["revoked", "active"]
        await run("reservations set acme local --room-share 0.2")
        assert (await run("reservations list acme")).stdout.splitlines()[1].split()[0] == "local"
        await run("reservations release acme local")
        assert (await run("tenants boundaries acme")).stdout.splitlines()[1].split()[:4] == [
            "local", "simulated", "yes", "shared"
        ]  # fmt: skip
        assert (await run("pools list")).stdout.splitlines()[1].split()[:2] == ["local", "simulated"]
        assert (await run("pools show local")).stdout.splitlines()[1].split()[0] == "r0"
        for line in ("usage requests --json", "usage refusals --json", "keys list acme", "usage requests"):
            await run(line)
        await run("tenants delete acme --yes")
        assert "acme" not in (await run("tenants list")).stdout


async def test_errors_say_what_to_do(tmp_path: Path) -> None:
    async with running() as stack:
        run = Shell(stack)
        assert "There is no tenant 'nobody'" in (await run("tenants show nobody", 1)).stderr
        assert "declared in the config file" in (await run("tenants set alice --weight 2", 1)).stderr
        said = (await run("tenants create a@b", 1)).stderr
        assert "name: is not a name" in said
        assert "is not NAME=VALUE" in (await run("limits set alice nonsense", 2)).stderr
        assert "WEIGHBRIDGE_ADMIN_KEY" in (await Shell(stack, "wrong")("tenants list", 1)).stderr
        run.environ["WEIGHBRIDGE_ADMIN_URL"] = "http://127.0.0.1:1"
        assert "is the gateway running there?" in (await run("tenants list", 1)).stderr
        del run.environ["WEIGHBRIDGE_ADMIN_URL"]
        said = (await run(f"tenants --from-file {tmp_path}/none.json list", 1)).stderr
        assert "give --url (or WEIGHBRIDGE_ADMIN_URL" in said
        facts = {"admin_url": f"http://127.0.0.1:{stack.app.admin_port}", "admin_key": OPERATOR}
        (tmp_path / "demo.json").write_bytes(orjson.dumps(facts))
        del run.environ["WEIGHBRIDGE_ADMIN_KEY"]
        assert "alice" in (await run(f"tenants --from-file {tmp_path}/demo.json list")).stdout


async def test_check_does_not_pay_for_the_registry(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom gateway.cli import app\n"
        "CliRunner().invoke(app, ['check', 'missing.yaml'])\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'sqlalchemy', 'alembic', 'aiohttp', 'uvloop'}))\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert out == b"[]\n"
