"""Classes seen from outside: batch gives way until its first byte is out, and loses nothing by it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson
import pytest

from tests.gateway.stack import FAST, running, until

pytestmark = pytest.mark.asyncio
ONE = {"pool": "capacity: {seats: 1}"}


async def test_batch_gives_its_seat_to_an_interactive_request_and_is_served_after_it() -> None:
    async with running(engine=replace(FAST, max_seqs=1), config_changes=ONE) as stack:
        batch = asyncio.create_task(stack.post(stack.chat(max_tokens=400, service_tier="flex", temperature=0)))
        await until(lambda: stack.engines[0].engine.running == 1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        status, _, _ = await stack.post(stack.chat(max_tokens=5))
        assert status == 200
        assert loop.time() - began < 0.5  # 400 tokens would have taken 0.8 s
        assert not batch.done()
        status, _, body = await batch
        assert status == 200
        assert orjson.loads(body)["usage"]["completion_tokens"] == 400
        line = stack.lines()[-1]
        assert (line["class"], line["outcome"]) == ("batch", "finished")
        assert next(attempt["result"] for attempt in line["tried"]) == "preempted"
        assert line["output_tokens"] == 400  # what was thrown away is not charged
        await stack.at_rest()


async def test_a_batch_stream_whose_first_byte_is_out_is_left_alone() -> None:
    async with running(engine=replace(FAST, max_seqs=1), config_changes=ONE) as stack:
        body = stack.chat(max_tokens=100, stream=True, service_tier="flex")
        batch = asyncio.create_task(stack.post(body))
        await until(lambda: stack.engines[0].engine.snapshot().generation_tokens_total > 5)
        interactive = asyncio.create_task(stack.post(stack.chat(max_tokens=5)))
        _status, _, answer = await batch
        assert answer.endswith(b"data: [DONE]\n\n")
        assert (await interactive)[0] == 200
        assert "tried" not in stack.lines()[0]
        await stack.at_rest()


async def test_a_batch_client_that_leaves_while_it_is_taken_back_leaves_nothing() -> None:
    async with running(engine=replace(FAST, max_seqs=1), config_changes=ONE) as stack:
        _, writer = await stack.raw(stack.chat(max_tokens=1000, service_tier="flex"))
        await until(lambda: stack.engines[0].engine.running == 1)
        interactive = asyncio.create_task(stack.post(stack.chat(max_tokens=200)))
        await until(lambda: stack.app.pools["local"].gate.waiting == 1)
        writer.close()
        assert (await interactive)[0] == 200
        await stack.at_rest()
        assert {line["outcome"] for line in stack.lines()} == {"finished", "gone_queued"}
