"""A client that leaves, in each phase: the engine stops at once and nothing stays held."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.gateway.stack import FAST, Stack, running, until

pytestmark = pytest.mark.asyncio

SLOW_PREFILL = replace(FAST, d_s=0.002)  # a prompt of 500 tokens takes a second
ONE_SEAT = replace(FAST, max_seqs=1)


async def _leave(stack: Stack, writer: asyncio.StreamWriter) -> float:
    """Closes the client's side; seconds until the engine runs nothing for it and the gateway has settled."""
    writer.close()
    took = await until(lambda: all(e.engine.running + e.engine.waiting == 0 for e in stack.engines), 1.0)
    await stack.at_rest()
    return took


async def test_while_it_waits_in_the_queue() -> None:
    async with running(engine=ONE_SEAT, config_changes={"pool": "capacity: {seats: 1}"}) as stack:
        _, first = await stack.raw(stack.chat(max_tokens=2000, stream=True))
        await until(lambda: stack.engines[0].engine.running == 1)
        _, second = await stack.raw(stack.chat(max_tokens=10, stream=True))
        gate = stack.app.pools["local"].gate
        await until(lambda: gate.waiting == 1)
        second.close()
        await until(lambda: gate.waiting == 0, 1.0)
        assert stack.engines[0].engine.running == 1  # the other one goes on
        await _leave(stack, first)
        assert [line["outcome"] for line in stack.lines()] == ["gone_queued", "gone_decode"]


async def test_during_prefill() -> None:
    async with running(engine=SLOW_PREFILL) as stack:
        _, writer = await stack.raw(
            stack.chat(messages=[{"role": "user", "content": "weigh " * 2000}], stream=True, max_tokens=50)
        )
        await until(lambda: stack.engines[0].engine.running == 1)
        assert await _leave(stack, writer) < 0.5
        line = stack.lines()[-1]
        assert (line["outcome"], line["output_tokens"]) == ("gone_prefill", 0)


async def test_during_decode() -> None:
    async with running() as stack:
        reader, writer = await stack.raw(stack.chat(stream=True, max_tokens=2000))
        seen = b""
        while seen.count(b"data:") < 10:
            seen += await reader.read(4096)
        assert await _leave(stack, writer) < 0.5
        line = stack.lines()[-1]
        assert line["outcome"] == "gone_decode"
        assert 5 <= line["output_tokens"] < 500


async def test_in_a_call_that_is_not_streamed() -> None:
    async with running() as stack:
        _, writer = await stack.raw(stack.chat(max_tokens=2000))
        await until(lambda: stack.engines[0].engine.running == 1)
        assert await _leave(stack, writer) < 0.5


async def test_in_a_call_that_cannot_be_gathered() -> None:
    """With n > 1 the upstream call is not streamed either; closing its connection is all there is to stop it."""
    async with running() as stack:
        _, writer = await stack.raw(stack.chat(max_tokens=2000, n=2))
        await until(lambda: stack.engines[0].engine.running == 2)
        assert await _leave(stack, writer) < 0.5


async def test_before_its_body_is_complete() -> None:
    async with running() as stack:
        _, writer = await asyncio.open_connection("127.0.0.1", stack.app.port)
        from tests.gateway.stack import ALICE

        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n"
            b"content-length: 1000\r\n\r\n{" % ALICE.encode()
        )
        await until(lambda: stack.app.lifecycle.in_flight == 1)
        writer.close()
        await until(lambda: stack.app.lifecycle.in_flight == 0, 1.0)
        assert stack.lines()[-1]["outcome"] == "gone_unread"
        assert stack.engines[0].state()["requests_total"] == 0


async def test_the_upstream_is_closed_within_100_ms_of_knowing() -> None:
    async with running(engine=SLOW_PREFILL) as stack:
        _, writer = await stack.raw(stack.chat(messages=[{"role": "user", "content": "weigh " * 4000}], stream=True))
        await until(lambda: stack.engines[0].engine.running == 1)
        origin = next(iter(stack.app.transport.stats()))
        writer.close()
        await until(lambda: stack.app.transport.stats()[origin].in_use == 0, 0.1)
        await stack.at_rest()
