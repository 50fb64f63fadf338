"""The tokeniser that is none: four bytes of UTF-8 are one token, and text made to be exactly so many tokens long.

A chat prompt is, for each message, one header token and the tokens of its content, then one header token for the answer
to come. Each piece starts on a token of its own. So a chat of one user message of n tokens has n + 2 prompt tokens, and
an earlier answer in a later prompt is made of the very tokens that were generated, which is what prefix caches feed on.
"""

from __future__ import annotations

from collections.abc import Hashable

from providers.simulated.chance import mix

TOKEN_BYTES = 4
CHAT_OVERHEAD_TOKENS = 2
"""Prompt tokens of a chat with one message beyond those of its text."""

# 1,024 words of a space and three letters. Odd and even positions use different halves, so no two neighbours are equal:
# some clients take a stream that repeats itself for a broken one.
WORDS: tuple[str, ...] = tuple(
    f" {first}{vowel}{last}" for first in "bcdfghklmnprstvz" for vowel in "aeio" for last in "bdfgklmnprstvxyz"
)


def tokens_of(text: str) -> int:
    """Tokens of a text standing alone."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // TOKEN_BYTES)


def word(seed: int, position: int) -> str:
    """The output token at this position: four ASCII bytes that need no escape in JSON."""
    return WORDS[mix(seed, position) % 512 * 2 + (position & 1)]


def text_of(tokens: int, seed: int = 0) -> str:
    """A text of exactly this many tokens; the same seed gives texts that begin alike."""
    return "".join(word(seed, position) for position in range(tokens))


def chat_of(tokens: int, seed: int = 0) -> list[dict[str, str]]:
    """Messages of a chat whose prompt is exactly this many tokens (at least 3). Raises ValueError for fewer."""
    if tokens <= CHAT_OVERHEAD_TOKENS:
        raise ValueError(f"a chat prompt has at least {CHAT_OVERHEAD_TOKENS + 1} tokens")
    return [{"role": "user", "content": text_of(tokens - CHAT_OVERHEAD_TOKENS, seed)}]


def padded(raw: bytes) -> bytes:
    """Filled up to whole tokens."""
    over = len(raw) % TOKEN_BYTES
    return raw + b"\0" * (TOKEN_BYTES - over) if over else raw


def block_keys(prompt: bytes, block_tokens: int, after: Hashable = 0) -> tuple[Hashable, ...]:
    """Keys of the whole blocks of a padded text: each stands for its own bytes and everything before them.

    They are equal for equal beginnings within one process, which is as far as one engine's cache reaches. With `after`
    the text goes on behind the block of that key.
    """
    size = block_tokens * TOKEN_BYTES
    keys: list[Hashable] = []
    before = after
    for start in range(0, len(prompt) - size + 1, size):
        before = hash((before, prompt[start : start + size]))
        keys.append(before)
    return tuple(keys)
