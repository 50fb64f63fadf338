"""The simulated engine as clients see it: shapes, streams, usage, errors, models, adapters."""

from __future__ import annotations

import asyncio
import base64
import struct
from types import SimpleNamespace
from typing import Any

import openai
import orjson
import pytest

from providers.simulated.server import SimulatedServer
from providers.simulated.settings import EngineSettings, Scheduling, preset
from providers.simulated.text import chat_of, text_of
from tests.simulated.served import FAST, MODEL, at_rest, body, events, post, served, until

pytestmark = pytest.mark.asyncio

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def sdk(server: SimulatedServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)


async def test_a_whole_answer_has_the_shape_and_the_usage() -> None:
    async with served() as (server, session):
        status, headers, raw = await post(session, body(messages=chat_of(40)), x_request_id="req-1")
        answer = orjson.loads(raw)
        assert (status, headers["content-type"], headers["x-request-id"]) == (200, "application/json", "req-1")
        message = answer["choices"][0]["message"]
        assert answer["id"] == "chatcmpl-req-1"
        assert (answer["object"], answer["model"], answer["created"] > 1.7e9) == ("chat.completion", MODEL, True)
        assert (message["role"], len(message["content"])) == ("assistant", 20)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["choices"][0]["logprobs"] is None
        assert answer["usage"] == {
            "prompt_tokens": 40,
            "completion_tokens": 5,
            "total_tokens": 45,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        seen = server.state("req-1")["requests"]
        assert [(r["prompt_tokens"], r["output_tokens"], r["outcome"], r["status"]) for r in seen] == [
            (40, 5, "finished", 200)
        ]


async def test_a_stream_is_role_tokens_finish_usage_and_terminator() -> None:
    async with served() as (_, session):
        asked = body(stream=True, stream_options={"include_usage": True}, temperature=0)
        status, headers, raw = await post(session, asked)
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")
        *chunks, done = events(raw)
        assert done == "[DONE]"
        assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
        deltas = [c["choices"][0]["delta"] for c in chunks[:-1]]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert [sorted(d) for d in deltas[1:-1]] == [["content"]] * 5
        assert deltas[-1] == {}
        assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * 6 + ["length"]
        assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 5)
        assert all("usage" not in c for c in chunks[:-1])
        _, _, whole = await post(session, body(temperature=0))
        text = "".join(d["content"] for d in deltas[:-1])
        assert text == orjson.loads(whole)["choices"][0]["message"]["content"]


async def test_without_include_usage_no_event_has_usage() -> None:
    async with served() as (_, session):
        _, _, raw = await post(session, body(stream=True))
        assert all(c == "[DONE]" or (c["choices"] and "usage" not in c) for c in events(raw))


async def test_running_usage_is_in_every_event() -> None:
    async with served() as (_, session):
        options = {"include_usage": True, "continuous_usage_stats": True}
        _, _, raw = await post(session, body(stream=True, stream_options=options))
        counts = [c["usage"]["completion_tokens"] for c in events(raw)[:-1]]
        assert counts == [1, 1, 2, 3, 4, 5, 5, 5]


async def test_completions_stream_text_for_each_prompt_and_copy() -> None:
    async with served() as (server, session):
        asked = {"model": MODEL, "prompt": ["abcd", "efghi"], "n": 2, "max_tokens": 3}
        _, _, raw = await post(session, {**asked, "seed": 1}, "/v1/completions")
        whole = orjson.loads(raw)
        assert whole["object"] == "text_completion"
        assert [c["index"] for c in whole["choices"]] == [0, 1, 2, 3]
        # Each prompt counts once, each answer counts.
        assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (3, 12)
        _, _, raw = await post(session, {**asked, "seed": 1, "stream": True}, "/v1/completions")
        texts = [""] * 4
        for chunk in events(raw)[:-1]:
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["text"]
        assert texts == [c["text"] for c in whole["choices"]]
        assert at_rest(server)


async def test_the_sdk_reads_answers_streams_tools_and_models() -> None:
    async with served(adapters=("ad",)) as (server, _), sdk(server) as client:
        answer = await client.chat.completions.create(**body())
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 5
        async with client.chat.completions.stream(
            **body(tools=[TOOL], tool_choice="required", max_tokens=50)
        ) as stream:
            final = await stream.get_final_completion()
        call = final.choices[0].message.tool_calls[0]  # type: ignore[index]
        assert (call.function.name, orjson.loads(call.function.arguments)) == ("weather", {"city": ""})
        assert final.choices[0].finish_reason == "tool_calls"
        assert [m.id async for m in await client.models.list()] == [MODEL, "ad"]
        assert (await client.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other/model:tag")


async def test_a_whole_tool_call() -> None:
    async with served() as (_, session):
        _, _, raw = await post(session, body(tools=[TOOL], tool_choice="required", max_tokens=50))
        choice = orjson.loads(raw)["choices"][0]
        assert choice["message"]["content"] is None
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city":""}'}


async def test_embeddings_are_unit_vectors_in_either_form() -> None:
    async with served(embedding_dimensions=32) as (server, session), sdk(server) as client:
        by_sdk = await client.embeddings.create(model=MODEL, input=["one", "other"])
        asked = {"model": MODEL, "input": ["one", "other"], "encoding_format": "float"}
        _, _, raw = await post(session, asked, "/v1/embeddings")
        floats = [entry["embedding"] for entry in orjson.loads(raw)["data"]]
        _, _, raw = await post(session, {**asked, "encoding_format": "base64"}, "/v1/embeddings")
        packed = [base64.b64decode(entry["embedding"]) for entry in orjson.loads(raw)["data"]]
        assert [list(struct.unpack("<32f", p)) for p in packed] == floats
        assert [entry.embedding for entry in by_sdk.data] == floats
        assert [sum(x * x for x in v) for v in floats] == pytest.approx([1.0, 1.0], abs=1e-5)
        assert floats[0] != floats[1]
        assert orjson.loads(raw)["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
        _, _, raw = await post(session, {**asked, "dimensions": 5}, "/v1/embeddings")
        assert len(orjson.loads(raw)["data"][0]["embedding"]) == 5


@pytest.mark.parametrize(
    ("fields", "status", "kind", "says"),
    [
        (b"{nonsense", 400, "BadRequestError", "not valid JSON"),
        (b"[1]", 400, "BadRequestError", "JSON object"),
        (body(model="other"), 404, "NotFoundError", "`other` does not exist"),
        (body(max_tokens=8_000), 400, "BadRequestError", "maximum context length is 8000 tokens"),
        (body(messages=chat_of(8_000)), 400, "BadRequestError", "maximum context length is 8000 tokens"),
        (body(priority=3), 400, "BadRequestError", "priority scheduling is not enabled"),
    ],
)
async def test_errors_are_an_engines(fields: Any, status: int, kind: str, says: str) -> None:
    async with served() as (server, session):
        got, headers, raw = await post(session, fields)
        error = orjson.loads(raw)["error"]
        assert (got, error["type"], error["code"]) == (status, kind, status)
        assert says in error["message"]
        assert headers["content-type"] == "application/json"
        assert [r["outcome"] for r in server.state()["requests"]] == ["refused"]


async def test_unknown_paths_and_methods_are_not_found() -> None:
    async with served() as (_, session):
        for method, path in (("GET", "/v1/chat/completions"), ("POST", "/v1/nothing"), ("GET", "/")):
            async with session.request(method, path) as answer:
                assert answer.status == 404


async def test_too_large_a_body_is_refused() -> None:
    async with served(max_body_bytes=1_000) as (server, session):
        status, _, _ = await post(session, body(messages=chat_of(400)))
        assert status == 413
        status, _, _ = await post(session, body())
        assert status == 200
        assert at_rest(server)


async def test_a_repeated_prompt_is_cached_and_salts_keep_tenants_apart() -> None:
    async with served() as (_, session):

        async def cached(**more: Any) -> int:
            _, _, raw = await post(session, body(messages=chat_of(100), **more))
            return int(orjson.loads(raw)["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert [await cached(cache_salt=salt) for salt in ("a", "b", "a", "b")] == [0, 0, 96, 96]
        assert [await cached(), await cached()] == [0, 96]
        async with session.post("/reset_prefix_cache") as answer:
            assert answer.status == 200
        assert await cached() == 0


async def test_the_next_turn_of_a_conversation_finds_the_answer_too() -> None:
    async with served() as (_, session):
        messages: list[dict[str, str]] = chat_of(50)
        _, _, raw = await post(session, body(messages=messages, max_tokens=80))
        messages.append(orjson.loads(raw)["choices"][0]["message"])
        messages.append({"role": "user", "content": text_of(30, 9)})
        _, _, raw = await post(session, body(messages=messages))
        used = orjson.loads(raw)["usage"]
        assert used["prompt_tokens"] == 50 + 80 + 1 + 30 + 1
        # 50 + 79 computed tokens are eight whole blocks.
        assert used["prompt_tokens_details"]["cached_tokens"] == 128


async def test_a_partial_answer_is_continued_as_it_would_have_been() -> None:
    async with served() as (first, session), served(seed=9) as (_, other):
        _, _, raw = await post(session, body(temperature=0, max_tokens=40))
        whole = orjson.loads(raw)["choices"][0]["message"]["content"]
        partial = {"role": "assistant", "content": whole[: 4 * 13]}
        asked = body(
            messages=[*body()["messages"], partial],
            continue_final_message=True,
            add_generation_prompt=False,
            temperature=0,
            max_tokens=27,
        )
        _, _, raw = await post(other, asked)
        assert partial["content"] + orjson.loads(raw)["choices"][0]["message"]["content"] == whole
        assert at_rest(first)


async def test_adapters_are_loaded_listed_used_and_unloaded() -> None:
    async with served() as (server, session):
        assert (await post(session, body(model="ad")))[0] == 404
        load = {"lora_name": "ad", "lora_path": "/somewhere"}
        status, _, raw = await post(session, load, "/v1/load_lora_adapter")
        assert (status, b"ad" in raw) == (200, True)
        assert (await post(session, load, "/v1/load_lora_adapter"))[0] == 400
        async with session.get("/v1/models/ad") as answer:
            entry = await answer.json()
        assert (entry["parent"], entry["root"]) == (MODEL, "/somewhere")
        _, _, raw = await post(session, body(model="ad", temperature=0))
        _, _, base = await post(session, body(temperature=0))
        assert orjson.loads(raw)["choices"][0]["message"] != orjson.loads(base)["choices"][0]["message"]
        assert [r["adapter"] for r in server.state()["requests"]][-2:] == ["ad", None]
        assert (await post(session, {"lora_name": "ad"}, "/v1/unload_lora_adapter"))[0] == 200
        assert (await post(session, {"lora_name": "ad"}, "/v1/unload_lora_adapter"))[0] == 404


async def test_tokenize_counts_as_the_engine_does() -> None:
    async with served() as (_, session):
        _, _, raw = await post(session, {"messages": chat_of(77)}, "/tokenize")
        answer = orjson.loads(raw)
        assert (answer["count"], len(answer["tokens"]), answer["max_model_len"]) == (77, 77, 8_000)
        _, _, raw = await post(session, {"prompt": "abcde"}, "/tokenize")
        assert orjson.loads(raw)["count"] == 2


async def test_priority_comes_from_the_header_first() -> None:
    settings = EngineSettings(a_s=0.002, d_s=0.0, max_seqs=1, scheduling=Scheduling.PRIORITY)
    async with served(settings) as (server, session):

        async def one(name: str, **headers: str) -> None:
            await post(session, body(priority=5), x_request_id=name, **headers)

        first = asyncio.create_task(one("first"))
        await until(lambda: server.engine.running == 1)
        await asyncio.gather(first, one("low"), one("high", x_vllm_priority="1"))
        ended = {r["id"]: r["ended_at"] for r in server.state()["requests"]}
        assert sorted(ended, key=lambda name: ended[name]) == ["first", "high", "low"]


async def test_a_starting_engine_says_so() -> None:
    async with served(cold_start_s=3600.0) as (server, session):
        async with session.get("/health") as answer:
            assert answer.status == 503
        assert (await post(session, body()))[0] == 503
        assert not server.warm
    async with served() as (_, session):
        for path in ("/health", "/ping"):
            async with session.get(path) as answer:
                assert (answer.status, await answer.read()) == (200, b"")
        async with session.get("/version") as answer:
            assert "version" in await answer.json()


async def test_a_full_line_is_refused() -> None:
    settings = EngineSettings(a_s=0.01, max_seqs=1)
    async with served(settings, max_waiting=1) as (server, session):
        tasks = [asyncio.create_task(post(session, body())) for _ in range(5)]
        statuses = sorted([(await task)[0] for task in tasks])
        assert statuses == [200, 503, 503, 503, 503] or statuses == [200, 200, 503, 503, 503]
        assert server.metrics.rejected == statuses.count(503)


async def test_keys_are_asked_for_when_there_are_any() -> None:
    async with served(api_keys=frozenset({"k1"})) as (_, session):
        status, _, raw = await post(session, body())
        assert (status, raw) == (401, b'{"error":"Unauthorized"}')
        assert (await post(session, body(), authorization="Bearer k1"))[0] == 200
        async with session.get("/metrics") as answer:
            assert answer.status == 200


async def test_requests_on_one_connection_are_answered_in_order() -> None:
    async with served() as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for number in (3, 1, 2):
            data = orjson.dumps(body(max_tokens=number))
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data)
            )
        counts = []
        for _ in range(3):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            counts.append(orjson.loads(await reader.readexactly(length))["usage"]["completion_tokens"])
        assert counts == [3, 1, 2]
        writer.close()


async def test_an_old_client_gets_a_stream_without_chunks() -> None:
    async with served() as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        data = orjson.dumps(body(stream=True))
        writer.write(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data))
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert events(rest)[-1] == "[DONE]"
        writer.close()


async def test_what_is_not_http_is_refused() -> None:
    async with served() as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"\x16\x03\x01\x02\x00\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_pace_is_the_engines_and_lateness_does_not_add_up() -> None:
    """100 steps of 5 ms take half a second, at ten times the speed a tenth of that; never less."""
    loop = asyncio.get_running_loop()
    for speed in (1.0, 10.0):
        async with served(preset("small", d_s=0.0), speed=speed) as (server, session):
            began = loop.time()
            await post(session, body(max_tokens=100))
            took = loop.time() - began
            record = server.state()["requests"][0]
            assert record["ended_at"] - record["first_token_at"] == pytest.approx(99 * 0.005)
            assert took > 0.5 / speed - 0.002
            assert server.realtime.late_s == 0.0


async def test_several_servers_share_a_process_and_close_for_good() -> None:
    async with served() as (one, session), served(FAST, models=("m2",)) as (other, second):
        assert one.port != other.port
        assert (await post(session, body()))[0] == 200
        assert (await post(second, body(model="m2")))[0] == 200
        await one.close()
        await one.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", one.port)


async def test_a_fault_of_the_server_is_answered_and_stops_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails while one answer is written, the engine goes on for the others."""
    loop = asyncio.get_running_loop()
    reported: list[Any] = []
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    async with served(preset("small")) as (server, session):
        broken = asyncio.create_task(post(session, body(max_tokens=900)))
        await until(lambda: server.engine.running == 1)
        (sequence,) = server.engine.live.values()

        def fail(*_: object) -> None:
            raise RuntimeError("on purpose")

        sequence.owner = SimpleNamespace(produced=fail, finished=fail)
        assert (await post(session, body()))[0] == 200
        assert {str(error) for error in reported} == {"on purpose"}
        broken.cancel()
        monkeypatch.setattr(SimulatedServer, "_infer", fail)
        assert (await post(session, body()))[0] == 500
    loop.set_exception_handler(None)
