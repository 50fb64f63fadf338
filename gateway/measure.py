"""What can be read off a request at no cost: text bytes, pictures, the answer's cap, how many answers.

Text is not walked: the size of the raw body stands for it, tools and JSON schemas included, and the estimator learns
tokens per byte from it. Only the list of messages and, where a message is a list of parts, its parts are looked at,
because a base64 picture is many bytes and few tokens. Unknown or malformed fields are passed over here; who answers
for them is the endpoint or the upstream.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ATTACHMENT_BYTES = 65536  # base64 bytes of a sound or a document that count as one picture

_CAPS = ("max_completion_tokens", "max_tokens", "max_output_tokens")  # the first that is present holds
_PICTURES = frozenset({"image_url", "input_image", "image"})
_PAYLOADS = frozenset({"image_url", "input_image", "image", "input_audio", "audio", "file", "input_file", "document"})
_INNER = ("image_url", "source", "input_audio", "audio", "file")  # where a part keeps its payload
_DATA = ("data", "url", "file_data")  # and under which name


@dataclass(frozen=True, slots=True)
class Measured:
    """One request as the estimator sees it."""

    text_bytes: int  # bytes of the body that are not base64 payload
    images: int = 0  # pictures; any other attachment counts as one for each started 64 KiB of base64
    output_cap: int | None = None  # most tokens one answer may have, as the caller asked; 0 = no output at all
    n: int = 1  # answers asked for
    known_tokens: int | None = None  # prompt tokens where the prompt came as token ids, else None


def measure(body: Mapping[str, Any], raw_length: int, *, generates: bool = True) -> Measured:
    """Measure a parsed body of `raw_length` bytes; `generates=False` is an endpoint without output tokens
    (embeddings)."""
    images = payload = 0
    for field in ("messages", "input"):
        turns = body.get(field)
        if type(turns) is list:
            for turn in turns:
                if type(turn) is dict:
                    content = turn.get("content")
                    if type(content) is list:
                        more, size = _parts(content)
                        images += more
                        payload += size
                    elif type(turn.get("output")) is list:  # Responses: what a tool gave back
                        more, size = _parts(turn["output"])
                        images += more
                        payload += size
    return Measured(
        text_bytes=max(0, raw_length - payload),
        images=images,
        output_cap=_cap(body) if generates else 0,
        n=_answers(body) if generates else 1,
        known_tokens=_token_ids(body.get("prompt", body.get("input"))),
    )


def _parts(parts: list[Any]) -> tuple[int, int]:
    """Pictures and base64 bytes in a message's parts, tool results inside them included."""
    images = payload = 0
    for part in parts:
        if type(part) is not dict:
            continue
        kind = part.get("type")
        if type(kind) is not str:
            continue
        if kind in _PAYLOADS:
            size = _payload(part)
            payload += size
            images += 1 if kind in _PICTURES else -(-size // _ATTACHMENT_BYTES)
        elif kind == "tool_result" and type(part.get("content")) is list:
            for inner in part["content"]:  # one level: a tool result holds no tool results
                if type(inner) is dict and type(inner.get("type")) is str and inner["type"] in _PAYLOADS:
                    size = _payload(inner)
                    payload += size
                    images += 1 if inner["type"] in _PICTURES else -(-size // _ATTACHMENT_BYTES)
    return images, payload


def _payload(part: Mapping[str, Any]) -> int:
    """Length of the base64 in one part; 0 for a link or a document given as plain text."""
    holder: Any = part
    for name in _INNER:
        inner = part.get(name)
        if type(inner) is dict:
            holder = inner
            break
        if type(inner) is str and inner.startswith("data:"):  # Responses: image_url is the address itself
            return len(inner)
    if holder.get("type") == "text":
        return 0
    for name in _DATA:
        value = holder.get(name)
        if type(value) is str:
            return len(value) if name != "url" or value.startswith("data:") else 0
    return 0


def _cap(body: Mapping[str, Any]) -> int | None:
    for name in _CAPS:
        value = body.get(name)
        if type(value) is int and value >= 0:
            return value
    return None


def _answers(body: Mapping[str, Any]) -> int:
    answers = 1
    for name in ("n", "best_of"):
        value = body.get(name)
        if type(value) is int and value > answers:
            answers = value
    return answers


def _token_ids(prompt: Any) -> int | None:
    """Prompt tokens of a prompt given as token ids (or several such), else None."""
    if type(prompt) is not list or not prompt:
        return None
    if type(prompt[0]) is int:
        return len(prompt)
    if type(prompt[0]) is list:
        return sum(len(one) for one in prompt if type(one) is list)
    return None
