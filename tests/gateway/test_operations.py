"""What an operator leans on: health, metrics, reload under load, drain, the log."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import aiohttp
import orjson
import pytest

from gateway import config
from tests.gateway.stack import ALICE, BOB, MODEL, running, settings_text, until

pytestmark = pytest.mark.asyncio
MESSAGES = [{"role": "user", "content": "a secret prompt"}]


async def test_health_on_both_listeners_with_reasons_on_one() -> None:
    async with running() as stack:
        data, admin = f"http://127.0.0.1:{stack.app.port}", f"http://127.0.0.1:{stack.app.admin_port}"
        for base in (data, admin):
            async with stack.session.get(base + "/healthz") as answer:
                assert (answer.status, await answer.json()) == (200, {"status": "alive"})
            async with stack.session.get(base + "/readyz") as answer:
                assert answer.status == 200
        await stack.engines[0].close(reset=True)
        pool = stack.app.pools["local"]
        await until(lambda: not pool.members.any_usable(stack.app.clock.monotonic()), 5.0)
        async with stack.session.get(admin + "/readyz") as answer:
            assert (await answer.json())["degraded"] == ["pool local has no usable replica"]
        async with stack.session.get(data + "/readyz") as answer:
            assert await answer.json() == {"status": "ready"}  # strangers get codes only


async def test_the_metrics_page_has_the_phase_split_by_model_pool_class_and_tenant() -> None:
    async with running() as stack:
        await stack.post(stack.chat(max_tokens=5))
        await stack.post(stack.chat(max_tokens=5, service_tier="flex"))
        async with stack.session.get(f"http://127.0.0.1:{stack.app.admin_port}/metrics") as answer:
            assert answer.content_type == "text/plain"
            page = await answer.text()
        for cls in ("interactive", "batch"):
            labels = f'class="{cls}",model="{MODEL}"'
            for phase in ("limit", "queue", "prefill", "decode", "finish"):
                pattern = (
                    rf'weighbridge_phase_seconds_count{{{labels},phase="{phase}",pool="local",tenant="alice"}} 1\.0'
                )
                assert re.search(pattern, page), (cls, phase)
        assert await stack.metric("weighbridge_time_to_first_token_seconds_count") == 2
        assert await stack.metric("weighbridge_tokens_total") == 2 * (5 + 5)


async def test_the_log_has_one_line_a_request_and_neither_prompt_nor_key() -> None:
    async with running() as stack:
        await stack.post(stack.chat(messages=MESSAGES, max_tokens=3))
        await stack.post(stack.chat(messages=MESSAGES), key="wb_guess_secret")
        text = (stack.lines(), stack.log.getvalue())[1]
        assert len(text.splitlines()) == 2
        for hidden in (b"a secret prompt", ALICE.encode(), b"wb_guess_secret"):
            assert hidden not in text
        line = orjson.loads(text.splitlines()[0])
        assert (line["tenant"], line["key"], line["outcome"], line["output_tokens"]) == (
            "alice", "alice1", "finished", 3,
        )  # fmt: skip
        assert 0 < line["ttft_ms"] <= line["total_ms"]


async def test_a_reload_under_load_touches_no_running_request() -> None:
    async with running(2) as stack:
        before = stack.app.config.digest()
        streams = [asyncio.create_task(stack.post(stack.chat(stream=True, max_tokens=200))) for _ in range(8)]
        await until(lambda: sum(e.engine.running for e in stack.engines) == 8)
        # The second replica leaves, bob may use everything, alice is limited.
        text = settings_text(stack.engines[:1], None, key_limits="{requests_per_minute: 60, burst_s: 1}")
        stack.app.reload(config.parse(text.replace("models: []", 'models: ["*"]'), "new.yaml", {}).config)
        assert stack.app.config.digest() != before
        assert (await stack.post(stack.chat(max_tokens=1), key=BOB))[0] == 200
        assert [(await stack.post(stack.chat(max_tokens=1)))[0] for _ in range(2)] == [200, 429]
        seen = stack.engines[1].state()["requests_total"]
        for _ in range(4):
            await stack.post(stack.chat(max_tokens=1), key=BOB)
        assert stack.engines[1].state()["requests_total"] == seen
        for status, _, body in await asyncio.gather(*streams):
            assert status == 200
            assert body.endswith(b"data: [DONE]\n\n")
        await stack.at_rest()


async def test_a_reload_changes_how_a_living_pool_admits_and_who_waits_keeps_the_place() -> None:
    async with running(config_changes={"pool": "capacity: {seats: 1}"}) as stack:
        stream = asyncio.create_task(stack.post(stack.chat(stream=True, max_tokens=1000)))
        await until(lambda: stack.engines[0].engine.running == 1)
        gate = stack.app.pools["local"].gate
        waiting = [asyncio.create_task(stack.post(stack.chat(max_tokens=2))) for _ in range(3)]
        await until(lambda: gate.waiting == 3)
        text = settings_text(stack.engines, None, pool="capacity: {seats: 1}\n    queue: {requests: 2}")
        stack.app.reload(config.parse(text, "new.yaml", {}).config)
        # The bound holds for who waits already: the newest leaves, told why, and the others stay.
        assert gate.waiting == 2
        ended, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        ((status, headers, body),) = [task.result() for task in ended]
        assert (status, headers["retry-after"]) == (503, "1")
        message = "3 requests of cost 90 wait; tenant alice has the longest queue for its weight: 3 of cost 90"
        assert orjson.loads(body)["error"]["message"] == message
        # Two seats now, and other objectives: one of those who wait goes at once.
        wider = text.replace("{seats: 1}", "{seats: 2}").replace("tpot_ms: 100", "tpot_ms: 50")
        stack.app.reload(config.parse(wider, "new.yaml", {}).config)
        await asyncio.gather(*waiting)
        assert not stream.done()
        assert sorted(task.result()[0] for task in waiting) == [200, 200, status]
        # A shorter timeout catches the next one that waits.
        long = asyncio.create_task(stack.post(stack.chat(stream=True, max_tokens=600)))
        await until(lambda: stack.engines[0].engine.running == 2)
        late = asyncio.create_task(stack.post(stack.chat(max_tokens=2)))
        await until(lambda: gate.waiting == 1)
        short = wider + "classes: {interactive: {weight: 100, queue_timeout_ms: 50}}\n"
        stack.app.reload(config.parse(short, "new.yaml", {}).config)
        assert (await late)[0] == 503
        for task in (stream, long):
            status, _, body = await task
            assert (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)
        await stack.at_rest()


async def test_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    async with running() as stack:
        path = tmp_path / "weighbridge.yaml"
        path.write_text(settings_text(stack.engines, None).replace("kind: simulated", "kind: simulatd"))
        stack.app.path = path
        world = stack.app.lifecycle.world
        stack.app.reload_file()
        assert stack.app.lifecycle.world is world
        assert await stack.metric('weighbridge_config_reloads_total{result="refused"}') == 1
        assert (await stack.post(stack.chat(max_tokens=1)))[0] == 200


async def test_drain_refuses_new_requests_and_lets_running_ones_finish() -> None:
    async with running() as stack:
        stream = asyncio.create_task(stack.post(stack.chat(stream=True, max_tokens=150)))
        await until(lambda: stack.engines[0].engine.running == 1)
        closing = asyncio.create_task(stack.app.close())
        await until(lambda: stack.app.lifecycle.draining)
        status, headers, body = await stack.post(stack.chat())
        assert (status, orjson.loads(body)["error"]["code"]) == (503, "shutting_down")
        assert headers["retry-after"] == "1"
        async with stack.session.get(f"http://127.0.0.1:{stack.app.port}/readyz") as answer:
            assert answer.status == 503
        status, _, body = await stream
        assert body.endswith(b"data: [DONE]\n\n")
        await closing


async def test_what_does_not_finish_in_the_drain_time_ends_with_an_error_event() -> None:
    async with running() as stack:
        stream = asyncio.create_task(stack.post(stack.chat(stream=True, max_tokens=8000)))
        await until(lambda: stack.engines[0].engine.running == 1)
        assert await stack.app.lifecycle.drain(0.2) == 1
        status, _, body = await stream
        assert (status, b"[DONE]" in body, b'"shutting_down"' in body) == (200, False, True)
        await until(lambda: stack.engines[0].engine.running == 0, 1.0)


async def test_sigterm_ends_a_served_process_with_status_0_after_its_streams(tmp_path: Path) -> None:
    async with running() as stack:  # its engine serves a second gateway, in a process of its own
        path = tmp_path / "weighbridge.yaml"
        path.write_text(settings_text(stack.engines, None).replace("port: 0", "port: ${PORT}", 1))
        port = _free_port()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "serve", "--config", str(path),
            env={**os.environ, "PORT": str(port)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            await _ready(stack.session, url)
            body = orjson.dumps(stack.chat(stream=True, max_tokens=300))
            headers = {"authorization": f"Bearer {ALICE}"}
            async with stack.session.post(url + "/v1/chat/completions", data=body, headers=headers) as answer:
                await answer.content.readline()
                process.send_signal(signal.SIGHUP)
                process.send_signal(signal.SIGTERM)
                rest = await answer.read()
            assert rest.endswith(b"data: [DONE]\n\n")
            out, err = await asyncio.wait_for(process.communicate(), 10)
            assert process.returncode == 0
            assert b"config reloaded" in err
            assert [orjson.loads(line)["outcome"] for line in out.splitlines()] == ["finished"]
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _ready(session: aiohttp.ClientSession, url: str) -> None:
    for _ in range(600):
        try:
            async with session.get(url + "/readyz") as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.05)
    raise AssertionError("the gateway did not become ready")


async def test_a_reservation_is_a_share_of_what_is_measured() -> None:
    async with running(2) as stack:
        text = settings_text(stack.engines, None, pool="capacity: {seats: 20}").replace(
            "  alice:\n", "  alice:\n    reservations: {local: {room_share: 0.25, hold: 1}}\n"
        )
        stack.app.reload(config.parse(text, "new.yaml", {}).config)
        snapshot = stack.app.pools["local"].gate.core.snapshot(stack.app.clock.monotonic())
        # A quarter of two replicas of 20 seats and 32,000 KV tokens, all of it held free.
        assert snapshot.tenants["alice"].reserved_seats == 10
        assert snapshot.tenants["alice"].reserved_kv_tokens == 16_000
        assert await stack.metric('weighbridge_reserved_room_held{dimension="seats",pool="local"}') == 10
        assert await stack.metric("weighbridge_pool_oversold") == 0
