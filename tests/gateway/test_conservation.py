"""After any mixture of endings every ticket, seat, KV token and reserved token is back."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from providers.simulated.faults import Fault, FaultKind
from tests.gateway.stack import FAST, Stack, running

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

FAULTS = [
    Fault(FaultKind.STATUS, status=500, probability=0.03),
    Fault(FaultKind.STATUS, status=422, probability=0.02),
    Fault(FaultKind.RESET, probability=0.02),
    Fault(FaultKind.CUT, tokens=4, probability=0.03),
    Fault(FaultKind.ERROR_IN_STREAM, tokens=3, status=500, probability=0.02),
    Fault(FaultKind.GARBAGE, tokens=2, probability=0.02),
    Fault(FaultKind.SILENT_AFTER_TOKENS, tokens=2, probability=0.01),
    Fault(FaultKind.SILENT_BEFORE_HEADERS, probability=0.01),
]


async def _one(stack: Stack, rng: random.Random) -> None:
    """One request of a random kind, which a fifth of the clients leave at a random moment."""
    body = stack.chat(max_tokens=rng.randint(1, 30), stream=rng.random() < 0.6)
    draw = rng.random()
    if draw < 0.03:
        body["messages"] = "not a list"
    elif draw < 0.06:
        body["model"] = "nope"
    elif draw < 0.1:
        body["n"] = 2
    elif draw < 0.2:
        body["service_tier"] = "flex"
    reader, writer = await stack.raw(body)
    try:
        leaves = rng.random()
        if leaves < 0.1:
            await asyncio.sleep(rng.random() * 0.05)
            return
        if leaves < 0.2:  # in the middle of what it gets
            await reader.read(rng.randint(200, 1500))
            return
        head = await reader.readuntil(b"\r\n\r\n")
        if b"content-length:" in head.lower():
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
        else:
            while (await reader.readline()) not in (b"0\r\n", b""):
                pass
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def test_two_thousand_mixed_requests_leave_nothing_behind() -> None:
    changes = {
        "pool": "timeouts: {connect_ms: 1400, first_token_ms: 1500, stall_ms: 500, total_ms: 20000}\n"
        "    capacity: {seats: 32, chunk_tokens: 512, prefill_tokens_per_s: 100000}",
        "ttft_ms": 1000,
        "limits": "{requests_per_minute: 90000, total_tokens_per_minute: 3000000, concurrency: 79}",
        "key_limits": "{output_tokens_per_minute: 600000, usd_per_day: 50}",
        "model": "prices: {input_usd_per_mtok: 1, output_usd_per_mtok: 10}",
    }
    async with running(2, engine=FAST, vendor=True, config_changes=changes) as stack:
        for engine in stack.engines:
            engine.add_faults([Fault(**{f: getattr(fault, f) for f in fault.__slots__}) for fault in FAULTS])
        rng = random.Random(1)
        gate = asyncio.Semaphore(80)

        async def bounded() -> None:
            async with gate:
                await _one(stack, rng)

        await asyncio.gather(*(bounded() for _ in range(2000)))
        await stack.at_rest()
        assert stack.vendor is not None
        assert stack.vendor.engine.running == 0
        for name in ("inflight_requests", "queue_depth", "seats_held", "kv_tokens_held", "prefill_tokens_held"):
            assert await stack.metric(f"weighbridge_{name}") == 0
        assert await stack.metric("weighbridge_reservations_open") == 0
        lines = stack.lines()
        ids = [line["request_id"] for line in lines]
        assert len(ids) == len(set(ids)) == 2000  # each request is settled once
        outcomes = Counter(line["outcome"] for line in lines)
        assert outcomes["finished"] > 500
        assert outcomes["internal"] == outcomes["stream_internal"] == 0
        for kind in ("gone_decode", "gone_prefill", "bad_request", "unknown_model", "stream_cut"):
            assert outcomes[kind] > 0, outcomes
        # The phases of a request are its whole time.
        for line in lines:
            assert abs(sum(line["phases_ms"].values()) - line["total_ms"]) < 1.0
        # What the day's budget holds is what the log says was charged.
        standing = stack.app.limiter.snapshot()
        assert standing.open == 0
