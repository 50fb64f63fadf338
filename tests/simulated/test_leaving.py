"""Clients that leave: the engine forgets them at once, whatever they were waiting for, and tells nobody else."""

from __future__ import annotations

import asyncio
import socket

import orjson
import pytest

from providers.simulated.httpd import Connection
from providers.simulated.server import SimulatedServer
from providers.simulated.settings import EngineSettings, preset
from providers.simulated.text import chat_of
from tests.simulated.served import at_rest, body, served, until

pytestmark = pytest.mark.asyncio

SLOW = EngineSettings(a_s=0.02, d_s=1e-3, max_seqs=2, chunk_tokens=64)


async def connect(server: SimulatedServer, **more: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A chat request on a socket of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 20)
    data = orjson.dumps(body(max_tokens=400, **more))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data))
    return reader, writer


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("phase", ["waiting", "prefill", "decode"])
async def test_a_client_that_leaves_is_cancelled_at_once(phase: str, stream: bool) -> None:
    async with served(SLOW) as (server, _):
        engine = server.engine
        ahead = [await connect(server) for _ in range(2)] if phase == "waiting" else []
        await until(lambda: engine.running == len(ahead))
        _, writer = await connect(server, stream=stream, messages=chat_of(600))
        await until(lambda: len(engine.live) == len(ahead) + 1)
        if phase == "decode":
            await until(lambda: engine.snapshot().generation_tokens_total >= 2)
        else:
            await until(lambda: engine.waiting == 1 if ahead else engine.running == 1)
        steps = engine.snapshot().steps_total
        writer.transport.abort()
        await until(lambda: len(engine.live) == len(ahead))
        # Not at the end of an answer, but within the step that was under way.
        assert engine.snapshot().steps_total <= steps + 1
        record = server.state()["requests"][-1]
        assert (record["outcome"], record["prompt_tokens"]) == ("cancelled", 600)
        assert (record["output_tokens"] > 0) == (phase == "decode")
        for _, other in ahead:
            other.transport.abort()
        await until(lambda: at_rest(server))
        assert server.metrics.finished["abort"] == len(ahead) + 1


async def test_leaving_cancels_every_choice() -> None:
    async with served(preset("small")) as (server, _):
        _, writer = await connect(server, n=4)
        await until(lambda: server.engine.running == 4)
        writer.close()
        await until(lambda: at_rest(server))


async def test_leaving_during_a_delay_never_reaches_the_engine() -> None:
    async with served(preset("small")) as (server, session):
        async with session.post("/sim/faults", json={"kind": "delay", "seconds": 3600}) as answer:
            assert answer.status == 200
        _, writer = await connect(server)
        await until(lambda: len(server.state()["requests"]) == 1)
        writer.close()
        await until(lambda: server.state()["requests"][0]["outcome"] == "cancelled")
        assert server.engine.snapshot().steps_total == 0


async def test_the_engine_sleeps_when_all_have_left() -> None:
    async with served(preset("small")) as (server, _):
        writers = [(await connect(server))[1] for _ in range(5)]
        await until(lambda: server.engine.running == 5)
        for writer in writers:
            writer.transport.abort()
        await until(lambda: at_rest(server) and server.realtime.idle)
        assert not server.engine.stepping


async def test_others_go_on_when_one_leaves() -> None:
    async with served(preset("small")) as (server, _):
        reader, _ = staying = await connect(server, stream=True)
        _, leaving = await connect(server, stream=True)
        await until(lambda: server.engine.running == 2)
        leaving.transport.abort()
        await until(lambda: server.engine.running == 1)
        server.clear_faults()
        got = await reader.readuntil(b"data: [DONE]\n\n")
        assert got.count(b'"content":" ') == 400
        staying[1].close()


async def test_closing_the_server_ends_what_it_serves() -> None:
    async with served(preset("small")) as (server, _):
        reader, writer = await connect(server, stream=True)
        await until(lambda: server.engine.running == 1)
        await server.close()
        assert at_rest(server)
        assert b"[DONE]" not in await reader.read()
        writer.close()


async def test_a_client_that_does_not_read_holds_up_nobody() -> None:
    """Tokens for a stalled client pile up in the server; others are served, and closing does not wait for it."""
    async with served(EngineSettings(a_s=0.0001, d_s=0.0, kv_tokens=100_000)) as (server, _):
        stalled, loop = socket.socket(), asyncio.get_running_loop()
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        stalled.setblocking(False)
        await loop.sock_connect(stalled, ("127.0.0.1", server.port))
        data = orjson.dumps(body(max_tokens=2_000, n=16, stream=True))
        await loop.sock_sendall(
            stalled,
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data),
        )
        await until(lambda: len(server._http._open) == 1)
        (waiting,) = server._http._open
        await until(lambda: _buffered(waiting) > 100_000, 20)
        reader, other = await connect(server, stream=True)
        assert (await reader.readuntil(b"data: [DONE]\n\n")).count(b'"content":" ') == 400
        assert _buffered(waiting) > 0
        await asyncio.wait_for(server.close(), 2)
        stalled.close()
        other.close()


def _buffered(connection: Connection) -> int:
    return 0 if connection._transport is None else connection._transport.get_write_buffer_size()
