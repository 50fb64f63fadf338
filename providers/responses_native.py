"""Responses for clients of the Responses API: passed on as they came, or taken whole out of a stream's last event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from providers.exchange import NO_USAGE, Call, Failure, Reader, Relayed, Usage
from providers.failures import broken, classify_error, read_error
from providers.messages_usage import count
from providers.sse import EventTooLarge, Framer, encode_comment, parse
from providers.whole import Whole

_DELTA = b".delta\n"
_EARLY = frozenset({"response.created", "response.in_progress", "response.queued"})
_LAST = frozenset({"response.completed", "response.incomplete"})
_KEEP_ALIVE = encode_comment()


def usage_of(told: Mapping[str, Any]) -> Usage:
    """The usage of a response; the cached tokens are part of the input there too."""
    before, after = told.get("input_tokens_details"), told.get("output_tokens_details")
    before = before if isinstance(before, dict) else {}
    return Usage(
        prompt_tokens=count(told.get("input_tokens")),
        output_tokens=count(told.get("output_tokens")),
        cached_tokens=count(before.get("cached_tokens")),
        cache_write_tokens=count(before.get("cache_write_tokens")),
        reasoning_tokens=count(after.get("reasoning_tokens")) if isinstance(after, dict) else None,
    )


class StreamReader:
    """Passes a stream on, or with `gather` gives the response its last event holds."""

    __slots__ = ("_framer", "_gather", "_held", "_kind", "_over", "tokens", "usage")

    def __init__(self, kind: str, *, gather: bool) -> None:
        self.usage: Usage = NO_USAGE
        self.tokens = 0
        self._kind = kind
        self._gather = gather
        self._framer = Framer()
        self._held: list[bytes] | None = []
        """Frames that wait for proof that the answer has really begun; None from then on."""
        self._over = False

    def feed(self, data: bytes) -> Relayed:
        """Take the next bytes as they came."""
        if self._over:
            return Relayed()
        try:
            relayed = self._frames(self._framer.feed(data))
        except EventTooLarge as error:
            relayed = self._frames(error.frames)
            if relayed.failure is None and not relayed.done:
                relayed.failure = broken("The upstream sent an event that is too large.", "upstream_too_large")
        self._over = relayed.done or relayed.failure is not None
        return relayed

    def end(self) -> Relayed:
        """The upstream closed: without its last event the answer was cut."""
        if self._over:
            return Relayed()
        self._over = True
        frames, rest = self._framer.end()
        relayed = self._frames(frames)
        if not relayed.done and relayed.failure is None:
            relayed.failure = self._unfinished(rest)
        return relayed

    def _unfinished(self, rest: bytes) -> Failure:
        try:
            error = read_error(orjson.loads(rest)) if rest else None
        except orjson.JSONDecodeError:
            error = None
        if error is not None:  # an error in place of a stream
            return classify_error(self._kind, error)
        if not self.tokens and self._held == []:
            return broken("The upstream answered with an empty stream.", "upstream_empty")
        return broken("The upstream stopped before the end of its answer.", "upstream_truncated")

    def _frames(self, frames: list[bytes]) -> Relayed:
        relayed = Relayed()
        out: list[bytes] = []
        for frame in frames:
            if frame.startswith(b"event: response.") and frame.find(_DELTA, 0, 80) > 0:
                relayed.tokens += 1
                relayed.content = True
                self._take(frame, "", out)
                continue
            self._read(frame, relayed, out)
            if relayed.failure is not None or relayed.done:
                break
        self.tokens += relayed.tokens
        relayed.out = b"".join(out)
        return relayed

    def _read(self, frame: bytes, relayed: Relayed, out: list[bytes]) -> None:
        event = parse(frame)
        text = (event.data or b"").strip()
        if not text or text == b"[DONE]":
            if event.is_comment and self._held is None and not self._gather:
                out.append(_KEEP_ALIVE)
            return
        try:
            told = orjson.loads(text)
        except orjson.JSONDecodeError:
            relayed.failure = broken("The upstream sent an event that is not JSON.", "upstream_malformed")
            return
        kind = told.get("type") if isinstance(told, dict) else None
        response = told.get("response") if isinstance(told, dict) else None
        error = read_error(response if kind == "response.failed" else told)
        if error is not None:
            relayed.failure = classify_error(self._kind, error)
        elif kind == "response.failed" or not isinstance(kind, str):
            relayed.failure = broken("The upstream failed without saying why.", "upstream_malformed")
        if relayed.failure is not None or not isinstance(kind, str):
            return
        if kind.endswith(".delta"):
            relayed.tokens += 1
            relayed.content = True
        if kind in _LAST and isinstance(response, dict):
            usage = response.get("usage")
            if isinstance(usage, dict):
                self.usage = usage_of(usage)
            relayed.done = True
            if self._gather:
                relayed.content = True
                out.append(orjson.dumps(response))
        self._take(frame, kind, out)

    def _take(self, frame: bytes, kind: str, out: list[bytes]) -> None:
        if self._gather:
            return
        if self._held is None:
            out.append(frame)
            return
        self._held.append(frame)
        if kind not in _EARLY:
            out.extend(self._held)
            self._held = None


class WholeReader(Whole):
    """A response that comes whole and leaves as it came."""

    __slots__ = ()

    def _accept(self, answer: Any, body: bytes) -> Relayed:
        if not isinstance(answer, dict) or not isinstance(answer.get("output"), list):
            return Relayed(failure=broken("The upstream's answer is no response.", "upstream_malformed"))
        usage = answer.get("usage")
        if isinstance(usage, dict):
            self.usage = usage_of(usage)
        self.tokens = self.usage.output_tokens or 0
        return Relayed(body, self.tokens, content=True, done=True)


def response_reader(call: Call, kind: str, *, streams: bool) -> Reader:
    """The reader of a native answer to a call of the Responses API."""
    return StreamReader(kind, gather=not call.stream) if streams else WholeReader(kind)
