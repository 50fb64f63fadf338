"""Usage as Anthropic counts it: what was read from and written to the cache is not part of its `input_tokens`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.exchange import Usage


def count(value: Any) -> int | None:
    """A token count, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def usage_of(told: Mapping[str, Any]) -> Usage:
    """OpenAI's way of counting from Anthropic's: the cached and the written tokens are added to the input."""
    fresh = count(told.get("input_tokens"))
    read, written = count(told.get("cache_read_input_tokens")), count(told.get("cache_creation_input_tokens"))
    details = told.get("output_tokens_details")
    return Usage(
        prompt_tokens=None if fresh is None else fresh + (read or 0) + (written or 0),
        output_tokens=count(told.get("output_tokens")),
        cached_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=count(details.get("thinking_tokens")) if isinstance(details, dict) else None,
    )


def usage_object(usage: Usage, output_tokens: int) -> dict[str, Any]:
    """Anthropic's usage object. `output_tokens` stands in where the upstream reported none; parts that are unknown are
    left out, since a client would take 0 for a figure.
    """
    read, written = usage.cached_tokens, usage.cache_write_tokens
    told: dict[str, Any] = {}
    if usage.prompt_tokens is not None:
        told["input_tokens"] = max(0, usage.prompt_tokens - (read or 0) - (written or 0))
    if read is not None:
        told["cache_read_input_tokens"] = read
    if written is not None:
        told["cache_creation_input_tokens"] = written
    told["output_tokens"] = output_tokens if usage.output_tokens is None else usage.output_tokens
    if usage.reasoning_tokens is not None:
        told["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return told
