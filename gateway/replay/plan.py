"""Decides before anything is sent: which tenant sends which request when, and which ones its client abandons.

Tenants are drawn by Zipf's law: the k-th one sends in proportion to 1 / k^s. The turns of one conversation (requests
that share more than the block common to all) stay with one tenant, as they would in life; otherwise a gateway that
keeps tenants' caches apart would find none of the trace's shared prefixes.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.replay.shapes import Request


@dataclass(frozen=True, slots=True)
class Options:
    """How a trace is replayed."""

    speed: float = 1.0  # times faster than the trace
    zipf: float = 1.1  # exponent of the tenants' shares; 0 = equal shares
    cancel: float = 0.0  # share of requests that their client abandons
    scale: float = 1.0  # of all lengths
    max_prompt: int | None = None  # tokens; longer prompts are cut, after scaling
    max_output: int | None = None  # tokens; the same for answers
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Send:
    """One request to be sent."""

    index: int  # its place in the trace, which its own text depends on
    at: float  # seconds from the start of the replay
    tenant: str
    request: Request  # as in the trace, prompt cut to the longest allowed; its lengths are not scaled
    prompt_tokens: int  # scaled
    output_tokens: int  # scaled
    cancel_after: int | None  # output tokens after which the client goes away; None = it stays


def plan(requests: Sequence[Request], tenants: Sequence[str], options: Options) -> list[Send]:
    """The requests to send, by time. ValueError for options that make no sense."""
    if not tenants:
        raise ValueError("there is no tenant to send as")
    if options.speed <= 0 or options.scale <= 0:
        raise ValueError("speed and scale must be above zero")
    if not 0 <= options.cancel <= 1:
        raise ValueError("the share of cancelled requests must be from 0 to 1")
    rng = random.Random(f"plan/{options.seed}")
    shares = [1.0 / (rank**options.zipf) for rank in range(1, len(tenants) + 1)]
    owners: dict[int, str] = {}  # the tenant of each block of a conversation seen so far
    sends = []
    for index, request in enumerate(requests):
        drawn = rng.choices(tenants, shares)[0]
        tenant = _owner(owners, request, drawn)
        prompt = _length(request.prompt_tokens, options.scale, options.max_prompt)
        output = _length(request.output_tokens, options.scale, options.max_output)
        abandoned, share = rng.random() < options.cancel, rng.random()
        sends.append(
            Send(
                index=index,
                at=request.at / options.speed,
                tenant=tenant,
                request=_cut(request, options),
                prompt_tokens=prompt,
                output_tokens=output,
                cancel_after=max(1, round(share * output)) if abandoned else None,
            )
        )
    return sends


def _owner(owners: dict[int, str], request: Request, drawn: str) -> str:
    """The tenant of the conversation that a request goes on with, else the one drawn; remembers it for later turns."""
    own = request.blocks[1:]  # the first block is common to everyone
    known = [block for block in own if block in owners]
    tenant = owners[known[-1]] if known else drawn
    for block in own:
        owners.setdefault(block, tenant)
    return tenant


def _length(tokens: int, scale: float, most: int | None) -> int:
    scaled = max(1, round(tokens * scale))
    return scaled if most is None else min(scaled, most)


def _cut(request: Request, options: Options) -> Request:
    if options.max_prompt is None or request.prompt_tokens * options.scale <= options.max_prompt:
        return request
    return Request(request.at, round(options.max_prompt / options.scale), request.output_tokens, request.blocks)
