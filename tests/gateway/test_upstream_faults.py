"""Upstreams that fail: before the first byte another one serves, after it the caller is told; never a clean success."""

from __future__ import annotations

import openai
import pytest

from providers.simulated.faults import Fault, FaultKind, Match
from tests.gateway.stack import MODEL, running

pytestmark = pytest.mark.asyncio
MESSAGES = [{"role": "user", "content": "weigh this"}]
SHORT = {"pool": "timeouts: {connect_ms: 200, first_token_ms: 300, stall_ms: 250, total_ms: 20000}", "ttft_ms": 200}

BEFORE = [
    Fault(FaultKind.STATUS, status=500),
    Fault(FaultKind.STATUS, status=503),
    Fault(FaultKind.STATUS, status=429, retry_after_s=2),
    Fault(FaultKind.STATUS, status=401),
    Fault(FaultKind.STATUS, status=404),
    Fault(FaultKind.RESET),
    Fault(FaultKind.CLOSE),
    Fault(FaultKind.SILENT_BEFORE_HEADERS),
    Fault(FaultKind.SILENT_AFTER_HEADERS),
    Fault(FaultKind.CUT, tokens=0),
    Fault(FaultKind.ERROR_IN_STREAM, tokens=0, status=503),
    Fault(FaultKind.GARBAGE, tokens=0),
    Fault(FaultKind.GARBAGE_HTTP),
    Fault(FaultKind.EMPTY_200),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", BEFORE, ids=lambda f: f"{f.kind}{f.status if f.kind == 'status' else ''}")
async def test_before_the_first_byte_the_second_tier_serves(fault: Fault, stream: bool) -> None:
    async with running(vendor=True, config_changes=SHORT) as stack:
        stack.engines[0].add_faults([fault])
        answer = await stack.client().chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=6, stream=stream
        )
        if stream:
            chunks = [chunk async for chunk in answer]
            assert sum(1 for c in chunks if c.choices[0].delta.content) == 6
        else:
            assert answer.usage.completion_tokens == 6
        line = stack.lines()[-1]
        assert (line["outcome"], line["pool"]) == ("finished", "vendor")
        # 401 and 404 are our configuration's fault: no second try at the same place.
        assert [t["pool"] for t in line["tried"]][-1] == "vendor"
        assert line["output_tokens"] == 6
        assert "failed" in line["phases_ms"]
        await stack.at_rest()


@pytest.mark.parametrize("fault", BEFORE[:3] + BEFORE[5:7], ids=lambda f: f.kind)
async def test_another_replica_is_tried_before_the_next_tier(fault: Fault) -> None:
    async with running(2, vendor=True) as stack:
        stack.engines[0].add_faults([fault])
        stack.engines[1].add_faults([])
        for _ in range(6):
            answer = await stack.client().chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2)
            assert answer.usage.completion_tokens == 2
        assert {line["pool"] for line in stack.lines()} == {"local"}
        assert {line["replica"] for line in stack.lines()} == {"r1"}


AFTER = [
    (Fault(FaultKind.CUT, tokens=5), "stream_cut"),
    (Fault(FaultKind.CUT, tokens=5, reset=True), "stream_cut"),
    (Fault(FaultKind.UNFINISHED, tokens=5), "stream_cut"),
    (Fault(FaultKind.SILENT_AFTER_TOKENS, tokens=5), "stream_silent"),
    (Fault(FaultKind.GARBAGE, tokens=5), "stream_broken"),
    (Fault(FaultKind.ERROR_IN_STREAM, tokens=5, status=500), "stream_broken"),
]


@pytest.mark.parametrize(("fault", "outcome"), AFTER, ids=lambda v: v if isinstance(v, str) else v.kind)
async def test_after_the_first_byte_an_error_event_ends_the_stream(fault: Fault, outcome: str) -> None:
    async with running(2, vendor=True, config_changes=SHORT) as stack:
        for engine in stack.engines:
            engine.add_faults([fault])
        status, _, body = await stack.post(stack.chat(stream=True, max_tokens=20))
        assert status == 200
        assert b"[DONE]" not in body
        last = body.strip().rpartition(b"\n\n")[2]
        assert last.startswith(b'data: {"error":')
        client = stack.client()
        with pytest.raises(openai.APIError) as raised:
            async for _ in await client.chat.completions.create(
                model=MODEL, messages=MESSAGES, max_tokens=20, stream=True
            ):
                pass
        assert raised.value.type in {"server_error", "timeout_error"}
        line = stack.lines()[-1]
        assert line["outcome"] == outcome
        assert line["attempts"] == 1  # nothing is ever replayed once the caller has seen a byte
        assert 1 <= line["output_tokens"] <= 6
        await stack.at_rest()


@pytest.mark.parametrize(("fault", "outcome"), AFTER, ids=lambda v: v if isinstance(v, str) else v.kind)
async def test_a_whole_answer_is_tried_again_since_nothing_was_sent(fault: Fault, outcome: str) -> None:
    async with running(2, config_changes=SHORT) as stack:
        for engine in stack.engines:
            engine.add_faults([Fault(fault.kind, tokens=fault.tokens, reset=fault.reset, status=500, count=1)])
        answer = await stack.client().chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=20)
        assert answer.usage.completion_tokens == 20
        await stack.at_rest()


async def test_when_everything_fails_the_status_is_truthful() -> None:
    async with running(2, vendor=True) as stack:
        for server in [*stack.engines, stack.vendor]:
            server.add_faults([Fault(FaultKind.STATUS, status=500)])
        status, headers, body = await stack.post(stack.chat())
        assert status == 502
        assert b'"upstream_error"' in body
        assert headers["x-should-retry"] == "false"  # we have tried; the SDK need not multiply it
        assert stack.lines()[-1]["attempts"] == 3
        assert (await stack.metric("weighbridge_upstream_attempts_total")) == 3
        await stack.at_rest()


async def test_an_overloaded_engine_is_told_as_overload_with_its_wait() -> None:
    async with running() as stack:
        stack.engines[0].add_faults([Fault(FaultKind.STATUS, status=429, retry_after_s=7)])
        status, headers, body = await stack.post(stack.chat())
        assert (status, headers["retry-after"]) == (503, "7")
        assert b'"server_is_overloaded"' in body
        assert stack.lines()[-1]["total_ms"] < 1000  # the wait is the caller's to sit out, not ours


async def test_a_rate_limit_of_the_last_provider_is_told_with_its_wait() -> None:
    async with running(vendor=True) as stack:
        stack.engines[0].add_faults([Fault(FaultKind.STATUS, status=500)])
        stack.vendor.add_faults([Fault(FaultKind.STATUS, status=429, retry_after_s=7)])
        status, headers, body = await stack.post(stack.chat())
        assert (status, headers["retry-after"]) == (429, "7")
        assert b'"upstream_rate_limited"' in body


async def test_the_caller_s_own_fault_is_passed_on_and_not_tried_elsewhere() -> None:
    async with running(2, vendor=True) as stack:
        for engine in stack.engines:
            engine.add_faults([Fault(FaultKind.STATUS, status=422, message="temperature must not be 9")])
        status, _, body = await stack.post(stack.chat())
        assert status == 422
        assert b"temperature must not be 9" in body
        assert stack.lines()[-1]["attempts"] == 1
        assert stack.vendor.state()["requests_total"] == 0


async def test_our_own_bad_credential_is_never_shown_as_the_caller_s() -> None:
    async with running() as stack:
        stack.engines[0].add_faults([Fault(FaultKind.STATUS, status=401, message="bad key sk-secret")])
        status, _, body = await stack.post(stack.chat())
        assert status == 502
        assert b"sk-secret" not in body


async def test_a_dead_replica_is_found_by_its_polls_and_left_alone() -> None:
    async with running(2) as stack:
        await stack.engines[0].close(reset=True)
        for _ in range(8):
            answer = await stack.client().chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2)
            assert answer.usage.completion_tokens == 2
        assert {line["replica"] for line in stack.lines()} == {"r1"}


async def test_a_fault_for_one_request_does_not_touch_the_next() -> None:
    async with running() as stack:
        stack.engines[0].add_faults([Fault(FaultKind.CUT, tokens=3, count=1, match=Match(stream=True))])
        await stack.post(stack.chat(stream=True, max_tokens=10))
        answer = await stack.client().chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=10)
        assert answer.usage.completion_tokens == 10
