"""An upstream that no gateway can outrun: fixed answers, written as soon as a request has come in full.

`python -m bench.mock [port]` prints where it listens. A body that says `"stream": true` is answered by 64 events, their
usage and the terminator, one write each, all as fast as they leave; a prompt that holds `paced10` puts 10 ms between
events. Any other POST is answered by one completion of about 600 bytes, any GET by an empty page, so that health checks
pass.
"""

from __future__ import annotations

import asyncio
import re
import sys
from typing import cast

import orjson
import uvloop

EVENTS = 64
PACE = b"paced10"
PACE_S = 0.010

_SAID = "The quick brown fox jumps over the lazy dog while the gateway relays this answer. " * 3
_HEAD = {"id": "chatcmpl-0000000000000000000001", "created": 1_700_000_000, "model": "mock-model"}
_USAGE = {"prompt_tokens": 100, "completion_tokens": EVENTS, "total_tokens": 100 + EVENTS}


def _whole(body: bytes, kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(choices: list[object], **more: object) -> bytes:
    head = {**_HEAD, "object": "chat.completion.chunk", "system_fingerprint": "fp_mock"}
    return _chunk(b"data: %b\n\n" % orjson.dumps({**head, "choices": choices, **more}))


COMPLETION = _whole(
    orjson.dumps(
        {
            **_HEAD,
            "object": "chat.completion",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": _SAID},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": _USAGE,
            "system_fingerprint": "fp_mock",
        }
    )
)
_PAGE = _whole(b"", b"text/plain")
_BEGIN = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_TOKEN = _event([{"index": 0, "delta": {"content": " token"}, "logprobs": None, "finish_reason": None}])
_FIRST = _TOKEN.replace(b'{"content"', b'{"role":"assistant","content"')
_FIRST = _chunk(_FIRST[_FIRST.index(b"data:") : -2])  # its length is another
_LAST = _event([{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}])
_COUNTED = _event([], usage=_USAGE)
_END = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"

_STREAMED = re.compile(rb'"stream":\s*true')
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)


class Mock(asyncio.Protocol):
    """One connection. Requests come with a length and one at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._held = b""
        self._needed = 0  # bytes of head and body of the request under way; 0 while its head is not complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._held:
            data = self._held + data
        if not self._needed:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._held = data
                return
            length = _LENGTH.search(data, 0, end)
            self._needed = end + 4 + (int(length[1]) if length else 0)
        if len(data) < self._needed:
            self._held = data
            return
        self._held, self._needed = b"", 0
        if data.startswith(b"GET "):
            self._transport.write(_PAGE)
        elif _STREAMED.search(data):
            self._transport.write(_BEGIN + _FIRST)
            if PACE in data:
                self._loop.call_later(PACE_S, self._paced, EVENTS - 1, self._loop.time() + PACE_S)
            else:
                self._loop.call_soon(self._next, EVENTS - 1)
        else:
            self._transport.write(COMPLETION)

    def _next(self, left: int) -> None:
        """One event each turn of the loop."""
        if self._transport.is_closing():
            return
        if left:
            self._transport.write(_TOKEN)
            self._loop.call_soon(self._next, left - 1)
        else:
            self._transport.write(_LAST + _COUNTED + _END)

    def _paced(self, left: int, due: float) -> None:
        """One event every 10 ms, whatever the clock lost in between."""
        if self._transport.is_closing():
            return
        if left:
            self._transport.write(_TOKEN)
            self._loop.call_at(due + PACE_S, self._paced, left - 1, due + PACE_S)
        else:
            self._transport.write(_LAST + _COUNTED + _END)


async def serve(port: int) -> None:
    """Listens until it is killed."""
    server = await asyncio.get_running_loop().create_server(Mock, "127.0.0.1", port, backlog=4096)
    print(f"ready http://127.0.0.1:{server.sockets[0].getsockname()[1]}", file=sys.stderr, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
