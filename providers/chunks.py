"""What one object of an OpenAI-style answer holds: its usage, whether the model said something, how it ended."""

from __future__ import annotations

from typing import Any

from providers.exchange import Usage

_ABORTED = frozenset({"abort", "aborted", "error"})

_SAID = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call", "audio", "text")


def _count(value: Any) -> int | None:
    """A token count, or None for whatever is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        return None
    return int(value)


def _first(*values: Any) -> int | None:
    """The first that is a count: zero counts, None does not."""
    for value in values:
        count = _count(value)
        if count is not None:
            return count
    return None


def read_usage(usage: dict[str, Any]) -> Usage:
    """The usage object of chat, completions and embeddings, with the names vendors gave to cached and reasoning
    tokens.
    """
    prompt = usage.get("prompt_tokens_details")
    prompt = prompt if isinstance(prompt, dict) else {}
    output = usage.get("completion_tokens_details")
    output = output if isinstance(output, dict) else {}
    return Usage(
        prompt_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
        cached_tokens=_first(prompt.get("cached_tokens"), usage.get("prompt_cache_hit_tokens")),
        cache_write_tokens=_first(
            prompt.get("cache_write_tokens"), prompt.get("created_cache_tokens"), usage.get("created_cache_tokens")
        ),
        reasoning_tokens=_first(output.get("reasoning_tokens"), usage.get("reasoning_tokens")),
    )


def says(delta: dict[str, Any]) -> bool:
    """Whether a delta, message or completion choice holds anything the model generated."""
    return any(delta.get(name) for name in _SAID)


def gave_up(reason: Any) -> bool:
    """Whether a `finish_reason` is one by which engines tell that they gave up; no client knows those."""
    return isinstance(reason, str) and reason in _ABORTED


def index_of(part: dict[str, Any], place: int) -> int:
    """The index of a choice or a tool call, or its place when it names none."""
    index = part.get("index")
    return index if isinstance(index, int) and not isinstance(index, bool) and index >= 0 else place
