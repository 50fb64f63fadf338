"""Everything of one frame of a stream but the text the model said in it: frames alike are taken without being parsed.

A frame that begins and ends with the same bytes as one that was parsed, with one JSON string between, says the same
about everything else. So it adds its text and nothing more. Nothing is guessed: whether what stands between is one
string is asked of the JSON parser, and a frame that differs in anything else is not of the mould.
"""

from __future__ import annotations

from typing import Any

import orjson

from providers.chunks import index_of
from providers.sse import data_of

_SPOKEN = ("content", "reasoning_content", "reasoning", "text")
_OTHER = "\u2260"  # stands for any other text when a mould is tried


class Mould:
    """The bytes around the text of one frame, up to and from its quotes."""

    __slots__ = ("_least", "_prefix", "_suffix", "in_delta", "index", "name")

    def __init__(self, index: int, name: str, in_delta: bool, prefix: bytes, suffix: bytes) -> None:
        self.index = index
        """The choice that speaks."""
        self.name = name
        """The field whose text is left open."""
        self.in_delta = in_delta
        """Whether it is a field of the delta and not of the choice."""
        self._prefix = prefix
        self._suffix = suffix
        self._least = len(prefix) + len(suffix) + 2
        """Bytes of a frame whose text is empty."""

    def text(self, frame: bytes) -> str | None:
        """What was said in a frame of this mould; None when it is another or says nothing."""
        if len(frame) <= self._least or not (frame.startswith(self._prefix) and frame.endswith(self._suffix)):
            return None
        try:
            text = orjson.loads(frame[len(self._prefix) : -len(self._suffix)])
        except orjson.JSONDecodeError:
            return None
        return text if type(text) is str else None


def mould_of(frame: bytes) -> Mould | None:
    """The mould of a frame: one choice that says one text, beside it nothing that adds up from frame to frame."""
    chunk = _parsed(frame)
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    choice = choices[0]
    delta = choice.get("delta")
    holder = delta if isinstance(delta, dict) else choice
    said = [name for name in _SPOKEN if isinstance(holder.get(name), str) and holder[name]]
    beside = [value for part in (choice, holder) for value in part.values() if value is not delta]
    if len(said) != 1 or any(isinstance(value, dict | list) for value in beside):
        return None
    (name,) = said
    prefix, found, suffix = frame.partition(orjson.dumps(holder[name]))
    if not found or not suffix:
        return None
    holder[name] = _OTHER
    if _parsed(prefix + orjson.dumps(_OTHER) + suffix) != chunk:
        return None
    return Mould(index_of(choice, 0), name, holder is delta, prefix, suffix)


def _parsed(frame: bytes) -> Any:
    try:
        return orjson.loads(data_of(frame) or b"")
    except orjson.JSONDecodeError:
        return None
