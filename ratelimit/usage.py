"""Tokens as a provider reports them, weighed into what token limits charge.

Providers do not count alike: one leaves cache reads out of its input limit, another counts output five times. So
each model has weights for the kinds of token, in thousandths, and what is charged is

    input  = uncached prompt + cached * w_cached + cache writes * w_cache_write
    output = plain output + reasoning * w_reasoning
    total  = input + output

each rounded up to a whole token. Weights of 1000 charge every token once.
"""

from __future__ import annotations

from typing import NamedTuple

from ratelimit.limit import Amounts


class TokenUse(NamedTuple):
    """Tokens of one request. `prompt` includes `cached` and `cache_write`; `output` includes `reasoning`."""

    prompt: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0


class Weights(NamedTuple):
    """Thousandths of a token charged per token of a kind. Plain input and output are the unit."""

    cached: int = 1_000
    cache_write: int = 1_000
    reasoning: int = 1_000


PLAIN = Weights()


def weigh(use: TokenUse, weights: Weights = PLAIN, *, micro_usd: int = 0, worst_micro_usd: int = 0) -> Amounts:
    """What one request with this use is charged. Contradicting figures never make one negative."""
    if weights == PLAIN:
        input_tokens, output_tokens = use.prompt, use.output
    else:
        plain_input = max(0, use.prompt - use.cached - use.cache_write)
        weighed = plain_input * 1_000 + use.cached * weights.cached + use.cache_write * weights.cache_write
        input_tokens = -(-weighed // 1_000)
        plain_output = max(0, use.output - use.reasoning)
        output_tokens = -(-(plain_output * 1_000 + use.reasoning * weights.reasoning) // 1_000)
    return Amounts(1, input_tokens, output_tokens, input_tokens + output_tokens, micro_usd, worst_micro_usd)
