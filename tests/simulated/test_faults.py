"""Faults switched on over HTTP: each does what it says, to whom it says, as often as it says."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson
import pytest

from providers.simulated.errors import ApiError
from providers.simulated.faults import FaultBook, FaultKind, read_faults
from providers.simulated.server import SimulatedServer
from providers.simulated.service import Flavour
from providers.simulated.settings import preset
from tests.simulated.served import at_rest, body, events, post, served, until

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def switch_on(session: aiohttp.ClientSession, *faults: dict[str, Any]) -> None:
    status, _, raw = await post(session, list(faults), "/sim/faults")
    assert (status, len(orjson.loads(raw)["faults"])) == (200, len(faults))


def outcome(server: SimulatedServer) -> str:
    return str(server.state()["requests"][-1]["outcome"])


def contents(raw: bytes) -> list[str]:
    """Text of the events that carry any, terminators and broken events left out."""
    out = []
    for line in raw.split(b"\n\n")[:-1]:
        if line.startswith(b'data: {"id"') and b"\xff" not in line:
            out += [c["delta"]["content"] for c in orjson.loads(line[6:])["choices"] if c["delta"].get("content")]
    return out


@pytest.mark.asyncio
@BOTH
async def test_a_status_with_its_wait(stream: bool) -> None:
    async with served() as (server, session):
        await switch_on(session, {"kind": "status", "status": 429, "retry_after_s": 2.5, "message": "busy", "count": 1})
        status, headers, raw = await post(session, body(stream=stream))
        assert (status, headers["retry-after"], orjson.loads(raw)["error"]["message"]) == (429, "2.5", "busy")
        assert outcome(server) == "fault:status"
        assert (await post(session, body(stream=stream)))[0] == 200


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("reset", aiohttp.ClientOSError),
        ("close", aiohttp.ServerDisconnectedError),
        ("garbage_http", aiohttp.ClientResponseError),
    ],
)
@BOTH
async def test_no_answer_at_all(kind: str, error: type[Exception], stream: bool) -> None:
    async with served() as (server, session):
        await switch_on(session, {"kind": kind})
        with pytest.raises(error):
            await post(session, body(stream=stream))
        assert outcome(server) == f"fault:{kind}"
        assert at_rest(server)


@pytest.mark.asyncio
@BOTH
async def test_silence_before_headers(stream: bool) -> None:
    async with served() as (server, session):
        await switch_on(session, {"kind": "silent_before_headers"})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(post(session, body(stream=stream)), 0.05)
        assert at_rest(server)


@pytest.mark.asyncio
@BOTH
async def test_silence_after_headers(stream: bool) -> None:
    async with served() as (_, session):
        await switch_on(session, {"kind": "silent_after_headers"})
        async with session.post("/v1/chat/completions", json=body(stream=stream)) as answer:
            assert answer.status == 200
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(answer.content.readany(), 0.05)


@pytest.mark.asyncio
async def test_silence_after_some_tokens_keeps_the_connection_and_frees_the_engine() -> None:
    async with served() as (server, session):
        await switch_on(session, {"kind": "silent_after_tokens", "tokens": 3})
        async with session.post("/v1/chat/completions", json=body(stream=True)) as answer:
            await until(lambda: outcome(server) == "fault:silent_after_tokens")
            got = b""
            while len(contents(got)) < 3:
                got += await answer.content.readany()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(answer.content.readany(), 0.05)
            assert len(contents(got)) == 3
            assert at_rest(server)


@pytest.mark.asyncio
@pytest.mark.parametrize("tokens", [0, 1, 3, 5])
@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
async def test_a_stream_cut_after_some_tokens(tokens: int, reset: bool) -> None:
    async with served() as (server, session):
        await switch_on(session, {"kind": "cut", "tokens": tokens, "reset": reset})
        got = bytearray()

        async def read_all(answer: aiohttp.ClientResponse) -> None:
            while chunk := await answer.content.readany():
                got.extend(chunk)

        async with session.post("/v1/chat/completions", json=body(stream=True)) as answer:
            assert answer.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await read_all(answer)
        if not reset:  # a reset may overtake what was sent
            assert len(contents(bytes(got))) == tokens
        assert b'finish_reason":"' not in got
        assert at_rest(server)


@pytest.mark.asyncio
async def test_a_whole_answer_cut_in_its_body() -> None:
    async with served() as (server, session):
        await switch_on(session, {"kind": "cut"})
        with pytest.raises(aiohttp.ClientPayloadError):
            await post(session, body())
        assert at_rest(server)


@pytest.mark.asyncio
async def test_endings_that_are_not_proper() -> None:
    async with served() as (server, session):

        async def streamed(**fault: Any) -> bytes:
            await switch_on(session, {**fault, "count": 1})
            _, _, raw = await post(session, body(stream=True, stream_options={"include_usage": True}))
            async with session.delete("/sim/faults"):
                return raw

        raw = await streamed(kind="unfinished", tokens=2)
        assert len(contents(raw)) == 2
        assert b"[DONE]" not in raw
        assert all(c["choices"][0]["finish_reason"] is None for c in events(raw))
        raw = await streamed(kind="unfinished", tokens=99)  # longer than the answer: all of it, unfinished
        assert (len(contents(raw)), b"[DONE]" in raw, b'"usage":' in raw) == (5, False, False)
        raw = await streamed(kind="no_done")
        assert (len(contents(raw)), b"[DONE]" in raw) == (5, False)
        assert events(raw)[-1]["usage"]["completion_tokens"] == 5
        raw = await streamed(kind="error_in_stream", tokens=2, status=503, message="gone", type="Overloaded")
        *chunks, error, done = events(raw)
        assert (len(chunks), done) == (3, "[DONE]")
        assert error == {"error": {"message": "gone", "type": "Overloaded", "param": None, "code": 503}}
        raw = await streamed(kind="garbage", tokens=1)
        assert (len(contents(raw)), b"[DONE]" in raw) == (1, False)
        with pytest.raises(orjson.JSONDecodeError):
            events(raw)
        raw = await streamed(kind="empty_200")
        assert raw == b""
        assert at_rest(server)


@pytest.mark.asyncio
async def test_whole_answers_that_are_none() -> None:
    async with served() as (server, session):

        async def whole(kind: str) -> tuple[int, bytes]:
            await switch_on(session, {"kind": kind, "count": 1})
            status, _, raw = await post(session, body())
            async with session.delete("/sim/faults"):
                return status, raw

        for kind in ("unfinished", "garbage", "empty_200"):
            status, raw = await whole(kind)
            assert status == 200
            with pytest.raises(orjson.JSONDecodeError):
                orjson.loads(raw)
        status, raw = await whole("error_in_stream")
        assert (status, list(orjson.loads(raw))) == (200, ["error"])
        status, raw = await whole("no_done")
        assert (status, orjson.loads(raw)["usage"]["completion_tokens"]) == (200, 5)
        assert at_rest(server)


@pytest.mark.asyncio
async def test_a_delay_and_a_slow_factor_take_engine_time() -> None:
    async with served(preset("small", d_s=0.0), speed=100.0) as (server, session):
        await switch_on(session, {"kind": "delay", "seconds": 2.0, "count": 1}, {"kind": "slow", "factor": 50.0})
        await post(session, body(max_tokens=3))
        record = server.state()["requests"][0]
        assert record["first_token_at"] - record["arrived_at"] >= 2.0 + 0.25
        assert record["ended_at"] - record["first_token_at"] == pytest.approx(2 * 50 * 0.005)
        async with session.delete("/sim/faults?kind=slow") as answer:
            assert [f["kind"] for f in (await answer.json())["faults"]] == ["delay"]
        await post(session, body(max_tokens=3))
        record = server.state()["requests"][1]
        assert record["ended_at"] - record["first_token_at"] == pytest.approx(2 * 0.005)


@pytest.mark.asyncio
async def test_a_machine_that_is_gone_resets_everything_until_it_is_back() -> None:
    async with served(preset("small")) as (server, session):
        streaming = asyncio.create_task(post(session, body(stream=True, max_tokens=900)))
        await until(lambda: server.engine.running == 1)
        await switch_on(session, {"kind": "down"})
        with pytest.raises(aiohttp.ClientPayloadError):
            await streaming
        for path in ("/health", "/metrics", "/v1/models"):
            with pytest.raises(aiohttp.ClientOSError):
                await session.get(path)
        with pytest.raises(aiohttp.ClientOSError):
            await post(session, body())
        await until(lambda: at_rest(server))
        async with session.delete("/sim/faults") as answer:
            assert answer.status == 200
        assert (await post(session, body()))[0] == 200


@pytest.mark.asyncio
async def test_health_can_fail_too() -> None:
    async with served() as (_, session):
        await switch_on(session, {"kind": "status", "status": 503, "match": {"path": "/health"}})
        async with session.get("/health") as answer:
            assert answer.status == 503
        assert (await post(session, body()))[0] == 200


@pytest.mark.asyncio
async def test_faults_of_an_account_speak_its_dialect() -> None:
    async with served(flavour=Flavour.ACCOUNT) as (_, session):
        await switch_on(session, {"kind": "status", "status": 429, "type": "insufficient_quota", "code": "no_credit"})
        _, _, raw = await post(session, body(), authorization="Bearer any")
        assert orjson.loads(raw)["error"] == {
            "message": "simulated fault: status 429",
            "type": "insufficient_quota",
            "param": None,
            "code": "no_credit",
        }


def struck(book: FaultBook, path: str = "/v1/chat/completions", **fields: Any) -> bool:
    headers = {"x-tenant": fields.pop("tenant", "")}
    return book.strike(path, headers, orjson.dumps(fields), fields) is not None


def book_of(fault: dict[str, Any]) -> FaultBook:
    book = FaultBook(seed=1)
    book.add(read_faults({"kind": "reset", **fault}))
    return book


def test_a_fault_strikes_whom_it_matches() -> None:
    assert struck(book_of({}))
    assert struck(book_of({}), "/v1/models")
    assert not struck(book_of({}), "/health")
    for match, hit, miss in (
        ({"model": "a"}, {"model": "a"}, {"model": "b"}),
        ({"stream": True}, {"stream": True}, {}),
        ({"header": {"X-Tenant": "acme"}}, {"tenant": "acme"}, {"tenant": "globex"}),
        ({"contains": "poison"}, {"messages": ["poison"]}, {"messages": ["milk"]}),
    ):
        assert struck(book_of({"match": match}), **hit)
        assert not struck(book_of({"match": match}), **miss)


def test_a_fault_strikes_as_often_as_it_says() -> None:
    book = book_of({"skip": 2, "count": 3})
    assert [struck(book) for _ in range(8)] == [False, False, True, True, True, False, False, False]
    assert book.faults[0].struck == 3
    half = book_of({"probability": 0.5})
    assert sum(struck(half) for _ in range(1_000)) == pytest.approx(500, abs=50)
    again = book_of({"probability": 0.5})
    assert sum(struck(again) for _ in range(1_000)) == half.faults[0].struck
    assert not any(struck(book_of({"probability": 0})) for _ in range(50))


def test_the_first_fault_that_wants_a_request_gets_it() -> None:
    book = FaultBook(seed=1)
    book.add(read_faults({"faults": [{"kind": "close", "count": 1}, {"kind": "reset"}]}))
    kinds = [book.strike("/v1/x", {}, b"", {}) for _ in range(3)]
    assert [f.kind for f in kinds if f] == [FaultKind.CLOSE, FaultKind.RESET, FaultKind.RESET]


@pytest.mark.parametrize(
    ("fault", "param"),
    [
        ({"kind": "nonsense"}, "kind"),
        ({"kind": "reset", "colour": 1}, "colour"),
        ({"kind": "reset", "count": 1.5}, "count"),
        ({"kind": "reset", "probability": 2}, "probability"),
        ({"kind": "slow"}, "factor"),
        ({"kind": "status", "status": 99}, "status"),
        ({"kind": "status", "tokens": -1}, "tokens"),
        ({"kind": "reset", "match": {"colour": 1}}, "match"),
        ({"kind": "reset", "match": []}, "match"),
        ("reset", None),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_by_name(fault: Any, param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        read_faults(fault)
    assert (caught.value.status, caught.value.param) == (400, param)
