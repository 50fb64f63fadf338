"""The server on the event loop that the command uses: answers, resets, leaving clients and pace as on the other one."""

from __future__ import annotations

import asyncio

import aiohttp
import orjson
import pytest
import uvloop

from providers.simulated.settings import preset
from tests.simulated.served import at_rest, body, events, post, served, until


async def _everything() -> None:
    async with served(preset("small", d_s=0.0)) as (server, session):
        _, _, raw = await post(session, body(stream=True))
        assert events(raw)[-1] == "[DONE]"
        server.clear_faults()
        await post(session, {"kind": "reset", "count": 1}, "/sim/faults")
        with pytest.raises(aiohttp.ClientOSError, match="reset by peer"):
            await post(session, body())
        leaving = asyncio.create_task(post(session, body(max_tokens=900)))
        await until(lambda: server.engine.running == 1)
        leaving.cancel()
        await until(lambda: at_rest(server))
        began = asyncio.get_running_loop().time()
        _, _, raw = await post(session, body(max_tokens=60))
        assert orjson.loads(raw)["usage"]["completion_tokens"] == 60
        # 60 steps of 5 ms; timers of this loop are whole milliseconds, and their error does not add up.
        assert asyncio.get_running_loop().time() - began > 0.297


def test_under_uvloop() -> None:
    uvloop.run(_everything())
