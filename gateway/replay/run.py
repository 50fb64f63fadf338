"""Sends a plan to a gateway, on time, whatever the gateway does (open loop), and collects what came back.

Each request is a task of its own that starts when it is due; a slow answer never delays the next request. After the
last one the replay waits a bounded time for answers. A `stop` event ends it early: nothing more is sent, open requests
are given up and counted as unfinished, and the results so far are returned.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import aiohttp
import orjson

from gateway.replay.plan import Send
from gateway.replay.prompts import Prompts
from gateway.replay.report import End, Result
from providers.sse import EventTooLarge, Framer, data_of

_REFUSALS = (429, 503)


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to send to, and how."""

    base_url: str  # ends in /v1
    model: str
    keys: dict[str, str]  # by tenant
    max_tokens: int | None = None  # sent with every request; None = each asks for exactly the length of its answer
    wait_s: float = 120.0  # for answers after the last request was sent


@dataclass(slots=True)
class Counts:
    """Where a running replay stands; each request is in exactly one of these."""

    open: int = 0
    ok: int = 0
    refused: int = 0
    failed: int = 0
    cancelled: int = 0
    unfinished: int = 0

    def closed(self, end: End) -> None:
        """One open request has ended so."""
        self.open -= 1
        setattr(self, end.value, getattr(self, end.value) + 1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of the requests that were sent, and the time from the first one due to the last one ended."""

    results: list[Result]
    duration_s: float
    interrupted: bool


async def replay(
    sends: list[Send],
    target: Target,
    prompts: Prompts,
    *,
    stop: asyncio.Event | None = None,
    on_change: Callable[[Counts], None] | None = None,
) -> Outcome:
    """Send everything in the plan. Never raises for what a gateway does; what could not be sent at all has failed."""
    stop = stop or asyncio.Event()
    counts = Counts()
    results: list[Result] = []
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30.0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
        began = time.perf_counter()
        client = _Client(session, target, began)
        tasks: set[asyncio.Task[None]] = set()

        async def one(send: Send, body: bytes) -> None:
            result = await client.send(send, body)
            results.append(result)
            counts.closed(result.end)
            if on_change is not None:
                on_change(counts)

        for send in sends:
            # made before the wait, so that a long prompt does not make its request late
            body = _body(send, target, prompts.text(send.index, send.request))
            if await _stopped(stop, began + send.at - time.perf_counter()):
                break
            counts.open += 1
            task = asyncio.create_task(one(send, body))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await _drain(tasks, stop, target.wait_s)
        return Outcome(results, time.perf_counter() - began, stop.is_set())


async def _stopped(stop: asyncio.Event, seconds: float) -> bool:
    """Wait so long; True as soon as the replay is to stop."""
    if seconds <= 0:
        await asyncio.sleep(0)
        return stop.is_set()
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True


async def _drain(tasks: set[asyncio.Task[None]], stop: asyncio.Event, wait_s: float) -> None:
    """Wait for the open requests, so long at most, or until told to stop; then end those still open."""
    ending = asyncio.create_task(stop.wait())
    deadline = time.perf_counter() + wait_s
    while tasks and not ending.done() and (left := deadline - time.perf_counter()) > 0:
        await asyncio.wait({*tasks, ending}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    open_ones = list(tasks)
    for task in open_ones:
        task.cancel()
    await asyncio.gather(*open_ones, ending, return_exceptions=True)


def _body(send: Send, target: Target, text: str) -> bytes:
    exact = target.max_tokens is None
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": send.output_tokens if exact else target.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if exact:
        body["ignore_eos"] = True
    return orjson.dumps(body)


class _Client:
    """Sends single requests and measures them."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, began: float) -> None:
        self._session = session
        self._url = target.base_url + "/chat/completions"
        self._keys = target.keys
        self._began = began  # perf_counter at the start of the replay, seconds

    async def send(self, send: Send, body: bytes) -> Result:
        """Send one request and read its answer to the end, or to where its client leaves."""
        due = self._began + send.at
        reading = _Reading(send, due, time.perf_counter() - due)
        headers = {"authorization": f"Bearer {self._keys[send.tenant]}", "content-type": "application/json"}
        try:
            async with self._session.post(self._url, data=body, headers=headers) as response:
                if response.status != 200:
                    return reading.refused(response.status, await response.read())
                reading.timing(response.headers.getall("server-timing", ()))
                async for data in response.content.iter_any():
                    if reading.feed(data, time.perf_counter()):
                        if reading.left:
                            response.close()  # drops the connection, which is how a client that leaves is seen
                        break
                return reading.finished()
        except asyncio.CancelledError:
            return reading.ended(End.UNFINISHED)
        except (aiohttp.ClientError, OSError, EventTooLarge) as problem:
            return reading.ended(End.FAILED, type(problem).__name__)


class _Reading:
    """One answer as it arrives."""

    def __init__(self, send: Send, due: float, late_s: float) -> None:
        self._send = send
        self._due = due
        self._late_s = late_s
        self._framer = Framer()
        self._first: float | None = None  # perf_counter at the first and at the last token
        self._last = 0.0
        self._seen = 0  # events that carried text
        self._prompt_tokens: int | None = None  # as reported
        self._output_tokens: int | None = None
        self._queue_s: float | None = None
        self._error: str | None = None
        self._done = False  # the terminator came
        self.left = False  # the client went away as planned

    def timing(self, headers: Iterable[str]) -> None:
        """Read the queue's part out of Server-Timing headers."""
        for header in headers:
            for metric in header.split(","):
                name, *parameters = (part.strip() for part in metric.split(";"))
                for parameter in parameters:
                    key, _, value = parameter.partition("=")
                    if name == "queue" and key == "dur":
                        try:
                            self._queue_s = float(value) / 1000.0
                        except ValueError:
                            continue

    def feed(self, data: bytes, now: float) -> bool:
        """Take what arrived at `now`; True when nothing more is to be read."""
        for frame in self._framer.feed(data):
            payload = data_of(frame)
            if payload is None:
                continue
            if payload == b"[DONE]":
                self._done = True
                return True
            self._event(payload, now)
            if self._error is not None:
                return True
            if self._send.cancel_after is not None and self._seen >= self._send.cancel_after:
                self.left = True
                return True
        return False

    def _event(self, payload: bytes, now: float) -> None:
        try:
            event = orjson.loads(payload)
        except ValueError:
            self._error = "malformed_event"
            return
        error = event.get("error")
        if error:
            self._error = str(error.get("code") or error.get("type")) if type(error) is dict else "error"
            return
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            if delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"):
                if self._first is None:
                    self._first = now
                self._last = now
                self._seen += 1
        usage = event.get("usage")
        if usage:
            self._prompt_tokens = usage.get("prompt_tokens")
            self._output_tokens = usage.get("completion_tokens")

    def refused(self, status: int, body: bytes) -> Result:
        """An answer that is not 200."""
        try:
            error = orjson.loads(body)["error"]
            code = error.get("code") or error.get("type") or status
        except (ValueError, KeyError, TypeError, AttributeError):
            code = status
        return self.ended(End.REFUSED if status in _REFUSALS else End.FAILED, str(code))

    def finished(self) -> Result:
        """The stream is over, one way or another."""
        if self.left:
            return self.ended(End.CANCELLED)
        if self._error is not None:
            return self.ended(End.FAILED, self._error)
        if not self._done:
            return self.ended(End.FAILED, "truncated")
        return self.ended(End.OK)

    def ended(self, end: End, reason: str | None = None) -> Result:
        """The result, with whatever was seen until now."""
        tokens = self._output_tokens if self._output_tokens is not None else self._seen
        first = self._first
        return Result(
            tenant=self._send.tenant,
            end=end,
            reason=reason,
            late_s=self._late_s,
            ttft_s=None if first is None else first - self._due,
            tpot_s=None if first is None or tokens < 2 else (self._last - first) / (tokens - 1),
            queue_s=self._queue_s,
            prompt_tokens=self._prompt_tokens,
            output_tokens=tokens,
        )
