"""Invented traces with the lengths, arrivals and shared prefixes of three well-known ones.

No row of a published trace is kept here: each row is drawn afresh from a table of quantiles (summary figures of the
public files) by linear interpolation between them, on a logarithmic scale, from a seed, so that the same name, rows and
seed give the same requests everywhere.

- `azure-code`, `azure-conv`: Azure LLM inference trace 2023 (Microsoft, CC-BY 4.0; P. Patel et al., "Splitwise:
Efficient
  Generative LLM Inference Using Phase Splitting", ISCA 2024). Code completion: long prompts, short answers, strong
  bursts. Conversation: both medium, nearly Poisson.
- `mooncake`: Mooncake conversation trace (Moonshot AI, Apache-2.0; R. Qin et al., "Mooncake: Trading More Storage for
Less
  Computation", FAST 2025). Very long prompts made of blocks of 512 tokens that turns of one conversation share. All
  prompts begin with the same block; about 35 % of the blocks were sent before as part of the same prefix.

Prompt and answer lengths are drawn independently: in all three their correlation is about zero.
"""

import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

BLOCK_TOKENS = 512  # prefix block of the Mooncake trace

# Quantiles at these shares. Lengths in tokens, gaps between arrivals in seconds.
_SHARES = (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1)
_CODE_PROMPT = (3, 17, 75, 147, 385, 770, 1075, 1469, 1909, 2433, 3193, 5194, 7315, 7436, 7437, 7437)
_CODE_OUTPUT = (6, 6, 6, 7, 8, 9, 11, 13, 16, 20, 29, 55, 90, 252, 831, 1899)
_CODE_GAP = (1e-5, 3e-5, 1e-4, 2e-4, 1.2e-3, 3.3e-3, 0.0151, 0.0638, 0.095, 0.1, 0.16, 0.273, 0.4, 2.2, 82.7, 217.0)
_CONV_PROMPT = (2, 29, 181, 207, 387, 403, 703, 1020, 1071, 1130, 1315, 2735, 4083, 4142, 6212, 14050)
_CONV_OUTPUT = (7, 16, 41, 54, 77, 91, 103, 129, 177, 384, 400, 424, 451, 601, 954, 1000)
_CONV_GAP = (1e-5, 5e-4, 6.3e-3, 0.016, 0.036, 0.061, 0.087, 0.118, 0.159, 0.214, 0.289, 0.42, 0.565, 0.89, 1.43, 4.3)
_MOON_PROMPT = (891, 894, 901, 969, 1700, 3460, 5204, 7192, 9856, 13485, 18215, 27834, 40110, 88262, 121301, 124847)
_MOON_OUTPUT = (1, 3, 10, 24, 98, 216, 298, 355, 401, 450, 509, 604, 709, 1166, 2000, 2000)

_MOON_TICK_S = 3.0  # its arrivals are stamped every three seconds
_MOON_PER_TICK = 9.9
_MOON_TURN = 0.76  # share of requests that go on with an earlier conversation
_MOON_OPEN = 200  # conversations that may still be gone on with


@dataclass(frozen=True, slots=True)
class Request:
    """One row of a trace."""

    at: float  # seconds from the start of the trace
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()  # ids of its 512-token prefix blocks, the last partly filled; empty = shares nothing


NAMES = ("azure-code", "azure-conv", "mooncake")


def invent(name: str, rows: int, seed: int = 1) -> list[Request]:
    """Draw `rows` requests of the named shape, in order of arrival. KeyError for a name not in NAMES."""
    rng = random.Random(f"{name}/{seed}")
    if name == "azure-code":
        return list(_independent(rng, rows, _CODE_PROMPT, _CODE_OUTPUT, _CODE_GAP))
    if name == "azure-conv":
        return list(_independent(rng, rows, _CONV_PROMPT, _CONV_OUTPUT, _CONV_GAP))
    if name == "mooncake":
        return list(_conversations(rng, rows))
    raise KeyError(name)


def draw(rng: random.Random, quantiles: tuple[float, ...]) -> float:
    """A value with the given quantiles at _SHARES."""
    share = rng.random()
    upper = next(index for index, at in enumerate(_SHARES) if at >= share) or 1
    low, high = _SHARES[upper - 1], _SHARES[upper]
    part = (share - low) / (high - low)
    return math.exp(math.log(quantiles[upper - 1]) * (1 - part) + math.log(quantiles[upper]) * part)


def _independent(
    rng: random.Random,
    rows: int,
    prompt: tuple[float, ...],
    output: tuple[float, ...],
    gap: tuple[float, ...],
) -> Iterator[Request]:
    at = 0.0
    for _ in range(rows):
        yield Request(at, round(draw(rng, prompt)), round(draw(rng, output)))
        at += draw(rng, gap)


def _conversations(rng: random.Random, rows: int) -> Iterator[Request]:
    """A quarter of the requests open a conversation; the others add to one of the last 200 that is not longer than they
    are."""
    fresh = 1  # next block id; block 0 begins every prompt
    open_ones: deque[tuple[int, ...]] = deque(maxlen=_MOON_OPEN)  # full blocks of each conversation's last prompt
    waiting = 0
    tick = -1
    for _ in range(rows):
        while not waiting:
            tick += 1
            waiting = _poisson(rng, _MOON_PER_TICK)
        waiting -= 1
        prompt = round(draw(rng, _MOON_PROMPT))
        full = prompt // BLOCK_TOKENS
        prefix: tuple[int, ...] = (0,)
        if rng.random() < _MOON_TURN:
            earlier = [blocks for blocks in open_ones if len(blocks) <= full]
            if earlier:
                prefix = rng.choice(earlier)
                open_ones.remove(prefix)
        count = -(-prompt // BLOCK_TOKENS)
        blocks = prefix + tuple(range(fresh, fresh + count - len(prefix)))
        fresh += count - len(prefix)
        if full:
            open_ones.append(blocks[:full])
        yield Request(tick * _MOON_TICK_S, prompt, round(draw(rng, _MOON_OUTPUT)), blocks)


def _poisson(rng: random.Random, mean: float) -> int:
    count, left = 0, rng.expovariate(1.0)
    while left < mean:
        count += 1
        left += rng.expovariate(1.0)
    return count
