"""Anthropic answers for Anthropic clients: passed on as they came, or put together from a stream.

Between two of one dialect nothing is translated. What a client may not see before it is known to be no error is held
back (the first event of a stream, until the second), names that an upstream left off its events are added, usage is
read on the way, and an answer without its last event is a failure.
"""

from __future__ import annotations

from typing import Any

import orjson

from providers.exchange import NO_USAGE, Call, Endpoint, Failure, Reader, Relayed, Usage
from providers.failures import broken, classify_error, read_error
from providers.messages_usage import usage_of
from providers.sse import EventTooLarge, Framer, parse
from providers.whole import Whole

_DELTA = b"event: content_block_delta\n"
_EARLY = frozenset({"message_start", "ping"})


class _Stream:
    """One stream of events, read: what every reader of one has to know of it."""

    __slots__ = ("_counts", "_framer", "_kind", "_over", "tokens", "usage")

    def __init__(self, kind: str) -> None:
        self.usage: Usage = NO_USAGE
        self.tokens = 0
        self._kind = kind
        self._framer = Framer()
        self._counts: dict[str, Any] = {}
        """Counts so far: a later event overwrites what it names and leaves the rest."""
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
        frames, rest = self._framer.end()
        relayed = self._frames(frames)
        if not relayed.done and relayed.failure is None:
            relayed.failure = self._unfinished(rest)
        self._over = True
        return relayed

    def _unfinished(self, rest: bytes) -> Failure:
        try:
            error = read_error(orjson.loads(rest)) if rest else None
        except orjson.JSONDecodeError:
            error = None
        if error is not None:  # an error in place of a stream
            return classify_error(self._kind, error)
        if not self._counts and not self.tokens:
            return broken("The upstream answered with an empty stream.", "upstream_empty")
        return broken("The upstream stopped before the end of its answer.", "upstream_truncated")

    def _frames(self, frames: list[bytes]) -> Relayed:
        relayed = Relayed()
        out: list[bytes] = []
        for frame in frames:
            if frame.startswith(_DELTA) and self._plain(frame):
                relayed.tokens += 1
                relayed.content = True
                self._take(frame, None, out)
                continue
            self._read(frame, relayed, out)
            if relayed.failure is not None or relayed.done:
                break
        self.tokens += relayed.tokens
        relayed.out = b"".join(out)
        return relayed

    def _plain(self, frame: bytes) -> bool:
        """Whether a delta needs no reading."""
        return True

    def _read(self, frame: bytes, relayed: Relayed, out: list[bytes]) -> None:
        event = parse(frame)
        text = (event.data or b"").strip()
        if not text or text == b"[DONE]":
            if event.is_comment:
                self._alive(out)
            return
        try:
            told = orjson.loads(text)
        except orjson.JSONDecodeError:
            relayed.failure = broken("The upstream sent an event that is not JSON.", "upstream_malformed")
            return
        error = read_error(told)
        if error is not None:
            relayed.failure = classify_error(self._kind, error)
            return
        kind = told.get("type") if isinstance(told, dict) else None
        if not isinstance(kind, str):
            relayed.failure = broken("The upstream sent an event without a type.", "upstream_malformed")
            return
        if kind == "content_block_delta":
            relayed.tokens += 1
            relayed.content = True
        elif kind == "message_start":
            message = told.get("message")
            self._count(message.get("usage") if isinstance(message, dict) else None)
        elif kind == "message_delta":
            self._count(told.get("usage"))
        if event.name != kind:
            frame = b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(told))
        self._take(frame, told, out)
        relayed.done = kind == "message_stop"

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._counts.update({name: value for name, value in usage.items() if value is not None})
            self.usage = usage_of(self._counts)

    def _alive(self, out: list[bytes]) -> None:
        """A comment that only keeps the connection open."""

    def _take(self, frame: bytes, told: dict[str, Any] | None, out: list[bytes]) -> None:
        """One frame that is no error; `told` is what it holds, None for a delta that was not read."""
        raise NotImplementedError


class StreamReader(_Stream):
    """Passes a stream on."""

    __slots__ = ("_held",)

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self._held: list[bytes] | None = []
        """Frames that wait for proof that the answer has really begun; None from then on."""

    def _take(self, frame: bytes, told: dict[str, Any] | None, out: list[bytes]) -> None:
        if self._held is None:
            out.append(frame)
            return
        self._held.append(frame)
        if told is None or told.get("type") not in _EARLY:
            out.extend(self._held)
            self._held = None

    def _alive(self, out: list[bytes]) -> None:
        if self._held is None:
            out.append(b'event: ping\ndata: {"type":"ping"}\n\n')


class GatherReader(_Stream):
    """Puts a stream together and gives the whole message with its last event."""

    __slots__ = ("_arguments", "_blocks", "_message")

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self._message: dict[str, Any] | None = None
        self._blocks: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, list[str]] = {}

    def _plain(self, frame: bytes) -> bool:
        return False

    def _take(self, frame: bytes, told: dict[str, Any] | None, out: list[bytes]) -> None:
        event = told or {}
        kind, index = event.get("type"), event.get("index")
        if kind == "message_start" and isinstance(event.get("message"), dict):
            self._message = event["message"]
        elif kind == "content_block_start" and isinstance(index, int) and isinstance(event.get("content_block"), dict):
            self._blocks[index] = event["content_block"]
        elif kind == "content_block_delta" and isinstance(index, int) and isinstance(event.get("delta"), dict):
            self._grow(index, event["delta"])
        elif kind == "message_delta" and self._message is not None:
            delta = event.get("delta")
            self._message.update(delta if isinstance(delta, dict) else {})
            rest = {name: value for name, value in event.items() if name not in ("type", "delta", "usage")}
            self._message.update(rest)
        elif kind == "message_stop":
            out.append(orjson.dumps(self._whole()))

    def _grow(self, index: int, delta: dict[str, Any]) -> None:
        """Text grows by what comes, lists by one, all else is the last value: so unknown deltas come out right too."""
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        for name, value in delta.items():
            if name == "type":
                continue
            if name == "partial_json" and isinstance(value, str):
                self._arguments.setdefault(index, []).append(value)
            elif name == "citation":
                block["citations"] = [*(block.get("citations") or ()), value]
            elif isinstance(value, str) and isinstance(block.get(name), str):
                block[name] += value
            else:
                block[name] = value

    def _whole(self) -> dict[str, Any]:
        message = self._message if self._message is not None else {"type": "message", "role": "assistant"}
        for index, pieces in self._arguments.items():
            text = "".join(pieces)
            if text and index in self._blocks:
                try:
                    self._blocks[index]["input"] = orjson.loads(text)
                except orjson.JSONDecodeError:
                    self._blocks[index]["input"] = {}  # cut at the output cap: the client sees the stop reason
        content = [self._blocks[index] for index in sorted(self._blocks)]
        return {**message, "content": content, "usage": self._counts}


class WholeReader(Whole):
    """An answer that comes whole and leaves as it came: a message, or a count of tokens."""

    __slots__ = ("_call",)

    def __init__(self, call: Call, kind: str) -> None:
        super().__init__(kind)
        self._call = call

    def _accept(self, answer: Any, body: bytes) -> Relayed:
        if self._call.endpoint is Endpoint.COUNT_TOKENS:
            if isinstance(answer, dict) and isinstance(answer.get("input_tokens"), int):
                return Relayed(body, done=True)
            return Relayed(failure=broken("The upstream's answer holds no count.", "upstream_malformed"))
        if not isinstance(answer, dict) or not isinstance(answer.get("content"), list):
            return Relayed(failure=broken("The upstream's answer is no message.", "upstream_malformed"))
        usage = answer.get("usage")
        if isinstance(usage, dict):
            self.usage = usage_of(usage)
        self.tokens = self.usage.output_tokens or 0
        return Relayed(body, self.tokens, content=True, done=True)


def native_reader(call: Call, kind: str, *, streams: bool) -> Reader:
    """The reader of an answer in Anthropic's dialect to a call of it."""
    if not streams:
        return WholeReader(call, kind)
    return StreamReader(kind) if call.stream else GatherReader(kind)
