"""Helpers: feed a reader bytes cut as one likes, and read what a client would make of the result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from providers.exchange import Call, Dialect, Endpoint, Failure, Reader, Usage

MESSAGES = [{"role": "user", "content": "hi"}]


def call(endpoint: Endpoint = Endpoint.CHAT, **fields: Any) -> Call:
    """A client's request; `stream`, `wants_usage` and the rest as the body says."""
    body: dict[str, Any] = {"model": "public-model"}
    if endpoint is Endpoint.CHAT:
        body["messages"] = MESSAGES
    body.update(fields)
    options = body.get("stream_options") or {}
    raw = orjson.dumps(body)
    stream = bool(body.get("stream"))
    return Call(endpoint, Dialect.OPENAI, raw, body, body["model"], stream, bool(options.get("include_usage")))


class Read:
    """All that came out of a reader."""

    def __init__(self, reader: Reader, pieces: Iterable[bytes]) -> None:
        self.out = b""
        self.counted = 0
        self.content = False
        self.failure: Failure | None = None
        self.done = False
        for piece in pieces:
            self._take(reader.feed(piece))
        if not self.done and self.failure is None:
            self._take(reader.end())
        self.tokens: int = reader.tokens
        self.usage: Usage = reader.usage

    def _take(self, relayed: Any) -> None:
        assert not (self.done or self.failure) or not (relayed.out or relayed.failure or relayed.done)
        self.out += relayed.out
        self.counted += relayed.tokens
        self.content |= relayed.content
        self.failure = self.failure or relayed.failure
        self.done |= relayed.done

    @property
    def seen(self) -> tuple[bytes, int, bool, Failure | None, bool, Usage]:
        """Everything that must not depend on how the bytes were cut."""
        return self.out, self.tokens, self.content, self.failure, self.done, self.usage


def cuts(body: bytes) -> Iterable[list[bytes]]:
    """The body in two pieces, cut at every byte, and byte by byte."""
    for at in range(len(body) + 1):
        yield [body[:at], body[at:]]
    yield [body[at : at + 1] for at in range(len(body))]


def chunks(out: bytes) -> list[Any]:
    """The objects of a stream as a client reads it; the terminator is the text "[DONE]"."""
    assert not out or out.endswith(b"\n\n")
    found: list[Any] = []
    for frame in out.split(b"\n\n")[:-1]:
        if frame.startswith(b":"):
            continue
        assert frame.startswith(b"data:"), frame
        assert b"\n" not in frame
        data = frame[5:].removeprefix(b" ")
        found.append("[DONE]" if data == b"[DONE]" else orjson.loads(data))
    return found


def said(out: bytes, name: str = "content") -> str:
    """The text of one field over all deltas of choice 0."""
    return "".join(
        choice["delta"].get(name) or ""
        for chunk in chunks(out)
        if chunk != "[DONE]"
        for choice in chunk["choices"]
        if choice["index"] == 0
    )
