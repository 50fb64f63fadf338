"""A replay against a stand-in gateway: what is sent, what is measured, and every way a request ends."""

import asyncio
from collections import Counter

import pytest
from aiohttp import web

from gateway.replay.plan import Send
from gateway.replay.prompts import Prompts
from gateway.replay.report import End, Result
from gateway.replay.run import Counts, Outcome, Target, replay
from gateway.replay.shapes import Request
from tests.replay.gateway import Answer, Seen, gateway

KEYS = {"a": "key-a", "b": "key-b"}


def send(
    index: int = 0, *, at: float = 0.0, tenant: str = "a", output: int = 5, cancel_after: int | None = None
) -> Send:
    return Send(index, at, tenant, Request(at, 50, output), 50, output, cancel_after)


async def run(sends: list[Send], answer: Answer, **options: object) -> tuple[Outcome, list[Seen]]:
    stop, wait_s = options.get("stop"), options.get("wait_s", 20.0)
    max_tokens = options.get("max_tokens")
    assert stop is None or isinstance(stop, asyncio.Event)
    assert isinstance(wait_s, float)
    assert max_tokens is None or isinstance(max_tokens, int)
    async with gateway(answer) as (url, seen):
        target = Target(url, "m", KEYS, max_tokens, wait_s)
        outcome = await replay(sends, target, Prompts(4.0, overhead_tokens=2), stop=stop)
    return outcome, seen


async def all_of_it(one: Seen) -> web.StreamResponse:
    return await one.stream(one.body["max_tokens"])


@pytest.mark.asyncio
async def test_a_request_is_sent_as_its_tenant_with_the_lengths_of_the_trace() -> None:
    outcome, (first, second) = await run([send(0), send(1, tenant="b", at=0.01, output=7)], all_of_it)
    assert (first.key, second.key) == ("key-a", "key-b")
    assert first.body["model"] == "m"
    assert len(first.body["messages"][0]["content"]) == 48 * 4
    assert (first.body["max_tokens"], second.body["max_tokens"]) == (5, 7)
    assert first.body["ignore_eos"] is True
    assert first.body["stream_options"] == {"include_usage": True}
    by_tenant = {result.tenant: result for result in outcome.results}
    result = by_tenant["a"]
    assert (result.end, result.prompt_tokens, result.output_tokens, result.reason) == (End.OK, 50, 5, None)
    assert by_tenant["b"].output_tokens == 7
    assert result.ttft_s is not None
    assert result.tpot_s is not None
    assert 0 < result.ttft_s < 10
    assert 0 <= result.tpot_s < 1


@pytest.mark.asyncio
async def test_a_fixed_cap_lets_the_engine_end() -> None:
    _, (only,) = await run([send(output=5)], all_of_it, max_tokens=900)
    assert only.body["max_tokens"] == 900
    assert "ignore_eos" not in only.body


@pytest.mark.asyncio
async def test_a_slow_answer_delays_neither_the_schedule_nor_the_clock() -> None:
    # the first answer comes only when all others have arrived: a closed loop would never get there
    arrived = asyncio.Event()
    count = 0

    async def slow_first(one: Seen) -> web.StreamResponse:
        nonlocal count
        count += 1
        if count == 1:
            await arrived.wait()
        elif count == 5:
            arrived.set()
        return await one.stream(2)

    outcome, _ = await run([send(index, at=0.01 * index) for index in range(5)], slow_first)
    assert Counter(result.end for result in outcome.results) == {End.OK: 5}
    slowest = max(result.ttft_s or 0.0 for result in outcome.results)
    assert slowest >= 0.03  # it was due at 0 and could not be answered before the fifth was due, at 40 ms


@pytest.mark.asyncio
async def test_the_wait_counts_from_when_a_request_was_due() -> None:
    # due a second before the replay began: the wait cannot be less
    outcome, _ = await run([send(at=-1.0)], all_of_it)
    (result,) = outcome.results
    assert result.ttft_s is not None
    assert result.ttft_s >= result.late_s >= 1.0


@pytest.mark.asyncio
async def test_a_client_leaves_after_as_many_tokens_as_planned() -> None:
    gone = asyncio.Event()

    async def endless(one: Seen) -> web.StreamResponse:
        try:
            return await one.stream(1_000_000)
        except (ConnectionError, asyncio.CancelledError):
            gone.set()
            raise

    outcome, (only,) = await run([send(output=100, cancel_after=3)], endless)
    (result,) = outcome.results
    assert (result.end, result.output_tokens) == (End.CANCELLED, 3)
    assert only.sent < 1_000_000  # the connection was dropped, not read to its end


def refusal(status: int, body: str) -> Answer:
    async def answer(_: Seen) -> web.StreamResponse:
        return web.Response(status=status, text=body)

    return answer


@pytest.mark.parametrize(
    ("status", "body", "end", "reason"),
    [
        (429, '{"error": {"code": "rate_limit_exceeded", "type": "requests"}}', End.REFUSED, "rate_limit_exceeded"),
        (503, '{"error": {"code": null, "type": "overloaded"}}', End.REFUSED, "overloaded"),
        (503, "<html>", End.REFUSED, "503"),
        (401, '{"error": {"code": "invalid_api_key"}}', End.FAILED, "invalid_api_key"),
        (500, '{"error": "broken"}', End.FAILED, "500"),
        (502, "[]", End.FAILED, "502"),
    ],
)
@pytest.mark.asyncio
async def test_a_refusal_is_told_from_a_failure(status: int, body: str, end: End, reason: str) -> None:
    outcome, _ = await run([send()], refusal(status, body))
    (result,) = outcome.results
    assert (result.end, result.reason, result.ttft_s) == (end, reason, None)


@pytest.mark.asyncio
async def test_a_stream_without_its_terminator_has_failed() -> None:
    async def truncated(one: Seen) -> web.StreamResponse:
        return await one.stream(3, end=False)

    outcome, _ = await run([send()], truncated)
    (result,) = outcome.results
    assert (result.end, result.reason, result.output_tokens) == (End.FAILED, "truncated", 3)


@pytest.mark.asyncio
async def test_a_connection_that_breaks_has_failed() -> None:
    async def broken(one: Seen) -> web.StreamResponse:
        response = await one.stream(3, end=False)
        assert one.request.transport is not None
        one.request.transport.abort()
        return response

    outcome, _ = await run([send()], broken)
    (result,) = outcome.results
    assert result.end is End.FAILED


@pytest.mark.asyncio
async def test_an_error_in_the_stream_has_failed_by_its_code() -> None:
    async def error(one: Seen) -> web.StreamResponse:
        response = await one.stream(2, end=False)
        await one.event(response, {"error": {"code": "upstream_died", "message": "…"}})
        return response

    outcome, _ = await run([send()], error)
    (result,) = outcome.results
    assert (result.end, result.reason, result.output_tokens) == (End.FAILED, "upstream_died", 2)


@pytest.mark.asyncio
async def test_nobody_listening_is_a_failure_not_a_crash() -> None:
    outcome = await replay([send()], Target("http://127.0.0.1:9/v1", "m", KEYS), Prompts())
    (result,) = outcome.results
    assert (result.end, result.reason) == (End.FAILED, "ClientConnectorError")


@pytest.mark.asyncio
async def test_the_queue_time_is_read_from_server_timing() -> None:
    async def timed(one: Seen) -> web.StreamResponse:
        return await one.stream(2, headers={"server-timing": 'limit;dur=1, queue;desc="x";dur=250.5, prefill;dur=3'})

    outcome, _ = await run([send()], timed)
    assert outcome.results[0].queue_s == pytest.approx(0.2505)


@pytest.mark.asyncio
async def test_what_does_not_answer_in_time_is_unfinished() -> None:
    async def never(_: Seen) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    outcome, _ = await run([send(0), send(1)], never, wait_s=0.05)
    assert [result.end for result in outcome.results] == [End.UNFINISHED, End.UNFINISHED]
    assert not outcome.interrupted


@pytest.mark.asyncio
async def test_a_stop_keeps_what_was_seen_and_sends_nothing_more() -> None:
    stop = asyncio.Event()
    hang = asyncio.Event()

    async def second_hangs(one: Seen) -> web.StreamResponse:
        if one.key == "key-b":
            stop.set()
            await hang.wait()
        return await one.stream(2)

    sends = [send(0), send(1, at=0.05, tenant="b"), send(2, at=3600.0)]
    outcome, seen = await run(sends, second_hangs, stop=stop)
    ends = {result.tenant: result.end for result in outcome.results}
    assert ends == {"a": End.OK, "b": End.UNFINISHED}
    assert len(seen) == 2
    assert outcome.interrupted


@pytest.mark.asyncio
async def test_counts_follow_every_request_to_its_end() -> None:
    shots: list[tuple[int, int, int]] = []

    async def b_is_refused(one: Seen) -> web.StreamResponse:
        return await one.stream(2) if one.key == "key-a" else web.Response(status=429)

    def note(counts: Counts) -> None:
        shots.append((counts.open, counts.ok, counts.refused))

    async with gateway(b_is_refused) as (url, _):
        sends = [send(0), send(1, tenant="b"), send(2)]
        await replay(sends, Target(url, "m", KEYS), Prompts(), on_change=note)
    assert len(shots) == 3
    assert shots[-1] == (0, 2, 1)


@pytest.mark.asyncio
async def test_text_cut_anywhere_is_read_the_same() -> None:
    async def in_pieces(one: Seen) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(one.request)
        raw = (
            b': hello\n\ndata: {"choices":[{"delta":{"content":"a"}}]}\r\n\r\n'
            b'data: {"choices":[{"delta":{"content":"b"}}]}\n\n'
            b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
        )
        for position in range(0, len(raw), 7):
            await response.write(raw[position : position + 7])
            await asyncio.sleep(0)
        return response

    outcome, _ = await run([send()], in_pieces)
    result: Result = outcome.results[0]
    assert (result.end, result.prompt_tokens, result.output_tokens) == (End.OK, 9, 2)
