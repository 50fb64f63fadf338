"""An answer of another dialect, turned into the client's while it comes.

A `Decoder` turns the upstream's bytes into events, a `Writer` turns events into the client's bytes. This file joins the
two and keeps the promises every reader keeps: nothing is out before the first event has proved to be no error, an
answer that ends without its own end is a failure, and usage and tokens are counted on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import orjson

from providers.conversation import (
    Argued,
    Began,
    Broke,
    Called,
    Complete,
    Counted,
    Ended,
    Event,
    Mused,
    Refused,
    Said,
    Sealed,
    Waiting,
)
from providers.exchange import NO_USAGE, Call, Gathered, Relayed, Upstream, Usage
from providers.failures import broken, classify_error, read_error
from providers.ingress import writer_for
from providers.messages_answer import Unreadable
from providers.openai_answer import Writer
from providers.sse import EventTooLarge, Framer, data_of

WHOLE_MAX = 64 << 20
"""Bytes of one whole answer."""

_CONTENT = (Said, Mused, Sealed, Refused, Called, Argued)


class Decoder(Protocol):
    """Reads one upstream's answer. After a `Broke` or `Complete` event nothing follows."""

    def feed(self, data: bytes) -> list[Event]:
        """The events these bytes complete."""

    def end(self) -> list[Event]:
        """The upstream closed: what that completes."""


EventsOf = Callable[[dict[str, Any]], list[Event]]
"""Reads one object, already known to be one and no error."""


class WholeDecoder:
    """An answer that comes as one JSON object."""

    __slots__ = ("_body", "_events", "_kind")

    def __init__(self, kind: str, events: EventsOf) -> None:
        self._kind = kind
        self._events = events
        self._body = Gathered(WHOLE_MAX)

    def feed(self, data: bytes) -> list[Event]:
        """Keep the bytes."""
        if self._body.add(data):
            return []
        return [Broke(broken("The upstream's answer is too large.", "upstream_too_large"))]

    def end(self) -> list[Event]:
        """All events of the answer, or what is wrong with it."""
        body = self._body.joined()
        if not body.strip():
            return [Broke(broken("The upstream answered with nothing.", "upstream_empty"))]
        answer = parsed(self._kind, body)
        return [answer] if isinstance(answer, Broke) else self._events(answer)


class SseDecoder:
    """A stream of JSON objects in server-sent events, or one whole answer where a stream was asked for.

    `read` takes each object, `whole` the whole answer, `last` is asked what the proper end of the stream completes and
    `done` what its terminator does, where the dialect has one.
    """

    __slots__ = ("_begun", "_done", "_framer", "_kind", "_last", "_read", "_whole", "_whole_events")

    def __init__(
        self,
        kind: str,
        read: EventsOf,
        whole: EventsOf,
        last: Callable[[], list[Event]],
        done: Callable[[], list[Event]] = list,
    ) -> None:
        self._kind = kind
        self._read = read
        self._whole_events = whole
        self._last = last
        self._done = done
        self._framer = Framer()
        self._begun = False
        self._whole: WholeDecoder | None = None

    def feed(self, data: bytes) -> list[Event]:
        """The events of the frames these bytes complete."""
        if not self._begun:
            data = data.lstrip(b" \t\r\n")
            if not data:
                return []
            self._begun = True
            if data[:1] in (b"{", b"["):
                self._whole = WholeDecoder(self._kind, self._whole_events)
        if self._whole is not None:
            return self._whole.feed(data)
        try:
            return self._events(self._framer.feed(data))
        except EventTooLarge as error:
            return [
                *self._events(error.frames),
                Broke(broken("The upstream sent an event that is too large.", "upstream_too_large")),
            ]

    def end(self) -> list[Event]:
        """What the end completes."""
        if self._whole is not None:
            return self._whole.end()
        frames, rest = self._framer.end()
        if (data_of(rest) or b"").strip() == b"[DONE]":
            frames = [*frames, rest]
        return [*self._events(frames), *self._last()]

    def _events(self, frames: list[bytes]) -> list[Event]:
        events: list[Event] = []
        for frame in frames:
            text = (data_of(frame) or b"").strip()
            if text == b"[DONE]":
                events += self._done()
                continue
            if not text:
                if frame.startswith(b":"):
                    events.append(Waiting())
                continue
            value = parsed(self._kind, text)
            events.extend([value] if isinstance(value, Broke) else self._read(value))
        return events


def parsed(kind: str, text: bytes) -> dict[str, Any] | Broke:
    """One JSON object that is no error, or what it is instead."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return Broke(broken("The upstream sent something that is not JSON.", "upstream_malformed"))
    error = read_error(value)
    if error is not None:
        return Broke(classify_error(kind, error))
    if not isinstance(value, dict):
        return Broke(broken("The upstream sent something that is no object.", "upstream_malformed"))
    return value


class TranslatingReader:
    """One answer on its way from a decoder to a writer."""

    __slots__ = ("_decoder", "_ended", "_over", "_said", "_whole", "_writer", "tokens", "usage")

    def __init__(self, decoder: Decoder, writer: Writer, *, whole: bool) -> None:
        self.usage: Usage = NO_USAGE
        self.tokens = 0
        self._decoder = decoder
        self._writer = writer
        self._whole = whole
        """The upstream's answer came in one piece, so its deltas say nothing about the number of tokens."""
        self._said = False
        self._ended = False
        self._over = False

    def feed(self, data: bytes) -> Relayed:
        """Take the next bytes as they came."""
        return Relayed() if self._over else self._relay(self._decoder.feed(data))

    def end(self) -> Relayed:
        """The upstream closed. An answer that is not complete by now was cut."""
        if self._over:
            return Relayed()
        relayed = self._relay(self._decoder.end())
        if not self._over:
            self._over = True
            if self._said:
                relayed.failure = broken("The upstream stopped before the end of its answer.", "upstream_truncated")
            else:
                relayed.failure = broken("The upstream answered with nothing.", "upstream_empty")
        return relayed

    def _relay(self, events: list[Event]) -> Relayed:
        relayed = Relayed()
        out: list[bytes] = []
        for event in events:
            if isinstance(event, Broke):
                relayed.failure = event.failure
                self._over = True
                break
            if isinstance(event, Counted):
                self.usage = event.usage
            elif isinstance(event, _CONTENT):
                relayed.tokens += 1
                relayed.content = True
            elif isinstance(event, Ended):
                self._ended = True
            elif isinstance(event, Complete):
                self._over = True
                if not self._ended:
                    relayed.failure = broken("The upstream ended its answer without saying why.", "upstream_incomplete")
                    break
                relayed.done = True
            if isinstance(event, Began | Ended) or relayed.content:
                self._said = True
            try:
                out.append(self._writer.write(event))
            except Unreadable:
                relayed.done = False
                relayed.failure = broken("The model's tool arguments are not JSON.", "upstream_malformed")
                self._over = True
            if self._over:
                break
        if self._whole and relayed.done:
            relayed.tokens = self.usage.output_tokens or 0
        self.tokens += relayed.tokens
        relayed.out = b"".join(out)
        return relayed


def reader(decoder: Decoder, call: Call, upstream: Upstream, *, whole: bool) -> TranslatingReader:
    """The reader that answers `call` in its own dialect from what `decoder` reads."""
    return TranslatingReader(decoder, writer_for(call, upstream), whole=whole)
