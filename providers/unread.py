"""Answers the gateway does not look into: rankings, moderations, pictures, tokens.

They come whole and leave as they came; only an error is told from an answer, and usage is read where there is any.
"""

from __future__ import annotations

from typing import Any

import orjson

from providers.exchange import NO_USAGE, Gathered, Relayed, Usage
from providers.failures import broken, classify_error, read_error
from providers.messages_usage import count

WHOLE_MAX = 256 << 20
"""Bytes of one answer: some pictures in base64 stay below."""


def _usage(told: dict[str, Any]) -> Usage:
    """Usage by whichever names it has."""
    prompt = count(told.get("prompt_tokens", told.get("input_tokens")))
    return Usage(
        prompt_tokens=count(told.get("total_tokens")) if prompt is None else prompt,
        output_tokens=count(told.get("completion_tokens", told.get("output_tokens", 0))),
    )


class UnreadReader:
    """One answer, passed on."""

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
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            return Relayed(failure=broken("The upstream's answer is not JSON.", "upstream_malformed"))
        error = read_error(answer)
        if error is not None:
            return Relayed(failure=classify_error(self._kind, error))
        usage = answer.get("usage") if isinstance(answer, dict) else None
        if isinstance(usage, dict):
            self.usage = _usage(usage)
        self.tokens = self.usage.output_tokens or 0
        return Relayed(body, self.tokens, done=True)
