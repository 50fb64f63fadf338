"""`weighbridge replay` as a person runs it."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
import typer
from aiohttp import web
from typer.testing import CliRunner, Result

from gateway import cli_replay
from tests.replay.gateway import Seen, gateway


@pytest.fixture
def served() -> Iterator[tuple[str, list[Seen]]]:
    """A stand-in gateway in a thread of its own, since the command takes the main thread's event loop and signals."""
    started: list[tuple[str, list[Seen]]] = []
    ready = threading.Event()
    done: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def answer(one: Seen) -> web.StreamResponse:
        if one.key == "wb_bad":
            return web.json_response({"error": {"code": "invalid_api_key"}}, status=401)
        if one.key == "wb_interrupt":
            os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does
            await asyncio.Event().wait()
        return await one.stream(one.body["max_tokens"])

    async def serve() -> None:
        stop = asyncio.Event()
        async with gateway(answer) as running:
            done.append((asyncio.get_running_loop(), stop))
            started.append(running)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    yield started[0]
    loop, stop = done[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()


def replay(*arguments: str) -> Result:
    app = typer.Typer()
    cli_replay.register(app)
    app.command("other")(lambda: None)  # one command alone would take no name
    return CliRunner().invoke(app, ["replay", *arguments], env={"COLUMNS": "180"})


FAST = ("--speed", "1000", "--limit", "8", "--scale", "0.01")


def test_one_key(served: tuple[str, list[Seen]]) -> None:
    url, seen = served
    done = replay("azure-conv", "--url", url, "--key", "wb_one", "--model", "m", *FAST)
    assert done.exit_code == 0, done.output
    assert "8 of 8 requests" in done.output
    assert len(seen) == 8
    assert {one.body["model"] for one in seen} == {"m"}


def test_the_demo_file_and_the_report(
    served: tuple[str, list[Seen]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, seen = served
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".weighbridge").mkdir()
    facts = {"base_url": url.removesuffix("/v1"), "model": "chat-large", "keys": {"acme": "wb_a", "globex": "wb_g"}}
    (tmp_path / ".weighbridge/demo.json").write_bytes(orjson.dumps(facts))
    done = replay("mooncake", "--demo", "--zipf", "0", "--out", "report.json", *FAST)
    assert done.exit_code == 0, done.output
    report = orjson.loads((tmp_path / "report.json").read_bytes())
    assert set(report["tenants"]) == {"acme", "globex"}
    assert report["total"]["ok"] == report["total"]["good"] == 8
    assert {one.key for one in seen} == {"wb_a", "wb_g"}
    one_tenant = replay("mooncake", "--demo", "--tenants", "1", "--out", "report.json", *FAST)
    assert one_tenant.exit_code == 0
    assert list(orjson.loads((tmp_path / "report.json").read_bytes())["tenants"]) == ["acme"]


def test_a_plain_keys_file_and_refused_keys(served: tuple[str, list[Seen]], tmp_path: Path) -> None:
    url, _ = served
    (tmp_path / "keys.json").write_text('{"good": "wb_good", "bad": "wb_bad"}')
    done = replay("--url", url, "--keys", str(tmp_path / "keys.json"), "--model", "m", "--zipf", "0", *FAST)
    assert done.exit_code == 0, done.output
    assert "invalid_api_key" in done.output


def test_ctrl_c_prints_what_was_seen(served: tuple[str, list[Seen]]) -> None:
    url, _ = served
    done = replay("azure-conv", "--url", url, "--key", "wb_interrupt", "--model", "m", "--speed", "0.001")
    assert done.exit_code == 130
    assert "1 of 500 requests" in done.output
    assert "Interrupted" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "u", "--model", "m"], "no API keys: give --key, --keys FILE or --demo"),
        (["--key", "k", "--model", "m"], "no address: give --url or --demo"),
        (["--key", "k", "--url", "u"], "no model: give --model or --demo"),
        (["--demo"], "demo.json is not there: start `weighbridge demo` in this folder first"),
        (["--key", "k", "--url", "u", "--model", "m", "--tenants", "2"], "--tenants 2: there are 1 keys"),
        (["nothing.csv", "--key", "k", "--url", "u", "--model", "m"], "nothing.csv: no such file, and not one of"),
        (["--key", "k", "--url", "u", "--model", "m", "--speed", "0"], "speed and scale must be above zero"),
    ],
)
def test_what_is_missing_is_said(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = replay(*arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


@pytest.mark.parametrize("text", ["{", "[]", '{"keys": {}}', '{"keys": {"a": 3}}'])
def test_a_bad_keys_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text(text)
    done = replay("--keys", str(tmp_path / "keys.json"), "--url", "u", "--model", "m")
    assert done.exit_code == 2
