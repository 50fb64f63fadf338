"""Answers that come as one JSON object: kept until their end, then judged as a whole.

What is the same for all of them stands here: a bound on their size, no answer at all, no JSON, an error under a status
of 200. What a good answer looks like is each dialect's own (`_accept`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import orjson

from providers.exchange import NO_USAGE, Gathered, Relayed, Usage
from providers.failures import broken, classify_error, read_error

WHOLE_MAX = 256 << 20
"""Bytes of one answer: embeddings of a long list and some pictures in base64 stay below."""


class Whole(ABC):
    """The reader of one such answer of an upstream of `kind`."""

    __slots__ = ("_body", "_kind", "_over", "tokens", "usage")

    def __init__(self, kind: str) -> None:
        self.usage: Usage = NO_USAGE
        self.tokens = 0
        self._kind = kind
        self._body = Gathered(WHOLE_MAX)
        self._over = False

    def feed(self, data: bytes) -> Relayed:
        """Keep the bytes; nothing leaves before the end."""
        if self._over or self._body.add(data):
            return Relayed()
        self._over = True
        return Relayed(failure=broken("The upstream's answer is too large.", "upstream_too_large"))

    def end(self) -> Relayed:
        """The whole answer, or what is wrong with it."""
        if self._over:
            return Relayed()
        self._over = True
        body = self._body.joined()
        if not body.strip():
            return Relayed(failure=broken("The upstream answered with nothing.", "upstream_empty"))
        unparsed = self._unparsed(body)
        if unparsed is not None:
            return unparsed
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            return Relayed(failure=broken("The upstream's answer is not JSON.", "upstream_malformed"))
        error = read_error(answer)
        if error is not None:
            return Relayed(failure=classify_error(self._kind, error))
        return self._accept(answer, body)

    def _unparsed(self, body: bytes) -> Relayed | None:
        """An answer too large to be worth parsing, taken by its looks; None parses it."""
        return None

    @abstractmethod
    def _accept(self, answer: Any, body: bytes) -> Relayed:
        """What a parsed answer without an error gives; sets `usage` and `tokens`."""
