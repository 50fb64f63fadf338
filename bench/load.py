"""A closed loop of chat requests on kept connections, and what they took: `python -m bench.load URL [options]`.

Every connection sends its next request as soon as the last answer has ended. Rates and latencies are of the time after
half a second of warming up, counts are from the start (whoever divides CPU time by requests wants them all). One JSON
object is printed. An answer that is not a 200, or a stream that ends without its terminator, counts as an error.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from array import array
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import orjson
import uvloop

from bench.mock import PACE

_DONE = b"data: [DONE]"
_WARM_S = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """What to send, to whom, how often at once."""

    url: str
    connections: int
    seconds: float
    key: str = "none"
    model: str = "chat-large"
    prompt_bytes: int = 220
    stream: bool = False
    paced: bool = False

    def request(self) -> bytes:
        """The bytes of one request."""
        prompt = "Weigh this request before it may drive on to the engine. "
        text = (prompt * (self.prompt_bytes // len(prompt) + 1))[: self.prompt_bytes]
        if self.paced:
            text = PACE.decode() + text[len(PACE) :]
        half = len(text) // 2
        body = orjson.dumps(
            {
                "model": self.model,
                "messages": [
                    {"role": "system", "content": text[:half]},
                    {"role": "user", "content": text[half:]},
                ],
                "max_tokens": 64,
                "temperature": 0.7,
                **({"stream": True} if self.stream else {}),
            }
        )
        to = urlsplit(self.url)
        return (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {to.netloc}\r\naccept: */*\r\nuser-agent: bench\r\n"
            f"content-type: application/json\r\nauthorization: Bearer {self.key}\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode() + body


@dataclass(slots=True)
class Tally:
    """What all connections have seen. Times in seconds."""

    warm_at: float
    requests: int = 0
    events: int = 0
    errors: int = 0
    refused: str = ""  # the first head that was not a 200
    took: array[float] = field(default_factory=lambda: array("d"))  # request sent to end of its answer
    first: array[float] = field(default_factory=lambda: array("d"))  # request sent to first bytes of the body


class Client(asyncio.Protocol):
    """One connection of the closed loop. Answers are cut by their length, or by the last chunk."""

    def __init__(self, request: bytes, tally: Tally) -> None:
        self._request = request
        self._tally = tally
        self._head = b""  # of an answer whose head is not complete
        self._left = -1  # bytes of the body to come; -1: not known yet, -2: chunked
        self._tail = b""
        self._begun = False
        self._sent_at = 0.0
        self.stopped = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.stopped:
            self._tally.errors += 1

    def _send(self) -> None:
        self._left = -1
        self._tail = b""
        self._begun = False
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._left == -1:
            data = self._head + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._head = data
                return
            self._head = b""
            head = data[: end + 4].lower()
            if not head.startswith(b"http/1.1 200"):
                self._tally.errors += 1
                self._tally.refused = self._tally.refused or data[:600].decode(errors="replace")
            at = head.find(b"\r\ncontent-length:")
            self._left = -2 if at < 0 else int(head[at + 17 : head.find(b"\r\n", at + 17)])
            data = data[end + 4 :]
        if self._left >= 0:
            self._left -= len(data)
            if self._left <= 0:
                self._ended()
            return
        if data:
            self._chunked(data)

    def _chunked(self, data: bytes) -> None:
        if not self._begun and self._sent_at >= self._tally.warm_at:
            self._tally.first.append(time.perf_counter() - self._sent_at)
        seen = self._tail + data
        self._begun = True
        events = data.count(b"data:")  # one cut inside the word is rare enough not to matter
        if seen.endswith(b"0\r\n\r\n"):
            if _DONE not in seen:
                self._tally.errors += 1
            self._tally.events += events - 1  # the terminator is none
            self._ended()
        else:
            self._tally.events += events
            self._tail = seen[-64:]

    def _ended(self) -> None:
        tally, now = self._tally, time.perf_counter()
        tally.requests += 1
        if self._sent_at >= tally.warm_at:
            tally.took.append(now - self._sent_at)
        if not self.stopped:
            self._send()

    def stop(self) -> None:
        """No further request; whatever is under way is dropped."""
        self.stopped = True
        self._transport.abort()


def _quantile(sorted_values: list[float], q: float) -> float | None:
    """In milliseconds."""
    return round(1000 * sorted_values[int((len(sorted_values) - 1) * q)], 4) if sorted_values else None


async def run(load: Load) -> dict[str, object]:
    """Figures of one run: rates per second of the time after warming up, quantiles in ms."""
    loop = asyncio.get_running_loop()
    to = urlsplit(load.url)
    request = load.request()
    tally = Tally(time.perf_counter() + _WARM_S)
    clients = [Client(request, tally) for _ in range(load.connections)]
    unconnected = iter(clients)
    for _ in clients:
        await loop.create_connection(lambda: next(unconnected), to.hostname or "127.0.0.1", to.port or 80)
    await asyncio.sleep(_WARM_S)
    requests, events, began = tally.requests, tally.events, time.perf_counter()
    await asyncio.sleep(load.seconds)
    elapsed = time.perf_counter() - began
    counted, counted_events = tally.requests - requests, tally.events - events
    for client in clients:
        client.stop()
    took, first = sorted(tally.took), sorted(tally.first)
    return {
        "requests_per_s": counted / elapsed,
        "events_per_s": counted_events / elapsed,
        "p50_ms": _quantile(took, 0.5),
        "p99_ms": _quantile(took, 0.99),
        "ttft_p50_ms": _quantile(first, 0.5),
        "ttft_p99_ms": _quantile(first, 0.99),
        "requests": tally.requests,
        "events": tally.events,
        "errors": tally.errors,
        "refused": tally.refused,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=2.0, help="after half a second of warming up")
    parser.add_argument("--key", default="none")
    parser.add_argument("--model", default="chat-large")
    parser.add_argument("--prompt-bytes", type=int, default=220)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--paced", action="store_true", help="10 ms between events")
    given = parser.parse_args()
    load = Load(
        given.url,
        given.connections,
        given.seconds,
        key=given.key,
        model=given.model,
        prompt_bytes=given.prompt_bytes,
        stream=given.stream,
        paced=given.paced,
    )
    print(orjson.dumps(uvloop.run(run(load))).decode())


if __name__ == "__main__":
    main()
