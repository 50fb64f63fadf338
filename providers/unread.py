"""Answers the gateway does not look into: rankings, moderations, pictures, tokens.

They come whole and leave as they came; only an error is told from an answer, and usage is read where there is any.
"""

from __future__ import annotations

from typing import Any

from providers.exchange import Relayed, Usage
from providers.messages_usage import count
from providers.whole import Whole


def _usage(told: dict[str, Any]) -> Usage:
    """Usage by whichever names it has."""
    prompt = count(told.get("prompt_tokens", told.get("input_tokens")))
    return Usage(
        prompt_tokens=count(told.get("total_tokens")) if prompt is None else prompt,
        output_tokens=count(told.get("completion_tokens", told.get("output_tokens", 0))),
    )


class UnreadReader(Whole):
    """One answer, passed on."""

    __slots__ = ()

    def _accept(self, answer: Any, body: bytes) -> Relayed:
        usage = answer.get("usage") if isinstance(answer, dict) else None
        if isinstance(usage, dict):
            self.usage = _usage(usage)
        self.tokens = self.usage.output_tokens or 0
        return Relayed(body, self.tokens, done=True)
