"""What goes into an engine and what comes out: a request, its sequence while it lives, and the record of one step."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class Phase(IntEnum):
    """Where a sequence is. Only DECODE and PREFILL hold cache and a seat."""

    WAITING = 0
    PREFILL = 1
    DECODE = 2
    FINISHED = 3
    CANCELLED = 4


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to compute. Sizes are tokens.

    `output_tokens` is the true length of the answer, which a real engine learns only by generating it; 0 computes the
    prompt and ends (an embedding). `max_tokens` is what the client allowed, read when cache is reserved and when the
    context is checked; None is the same as `output_tokens`. `keys` name the whole blocks of the prompt from its start:
    equal keys at the front mean equal prompts up to there. `salt` keeps the prompts of two namespaces apart, `adapter`
    names a LoRA adapter, `priority` is lower-first and only read by priority scheduling. `grown` is asked when the
    sequence leaves, with a number of output tokens: it gives the keys of the whole blocks behind those of `keys` in
    prompt and output together, so that a conversation's next prompt finds the answer cached; None keeps prompts alone.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    max_tokens: int | None = None
    keys: tuple[Hashable, ...] = ()
    salt: str | None = None
    adapter: str | None = None
    priority: int = 0
    grown: Callable[[int], tuple[Hashable, ...]] | None = None


class Refused(ValueError):
    """The engine can never run this request. The message says why, with the figures."""


class ContextTooLong(Refused):
    """Prompt plus output is longer than the engine's context. All figures are tokens."""

    def __init__(self, prompt_tokens: int, output_tokens: int, context: int) -> None:
        super().__init__(
            f"the maximum context length is {context} tokens, but the request has {prompt_tokens} prompt tokens "
            f"and asks for {output_tokens} output tokens"
        )
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.context = context


@dataclass(slots=True, eq=False)
class Sequence:
    """A request inside one engine. Only the engine changes it; anyone may read it. Times are engine seconds."""

    request: Request
    arrival: int
    """Number of the request in order of arrival; breaks ties."""
    arrived_at: float
    owner: Any = None
    """Whatever the caller wants to find again when the sequence moves on."""
    phase: Phase = Phase.WAITING
    generated: int = 0
    """Output tokens so far. Survives preemption."""
    fresh: int = 0
    """Output tokens that the last step in which it took part added; more than one only with speculative decoding."""
    computed: int = 0
    """While in PREFILL: tokens whose cache is there. In DECODE it is prompt + generated - 1, see `held_tokens`."""
    goal: int = 0
    """While in PREFILL: tokens to compute before the next output token (prompt, and output before a preemption)."""
    refs: list[Hashable] = field(default_factory=list)
    """Keys of published blocks that this sequence holds."""
    private: int = 0
    """Blocks that it alone holds."""
    room: int = 0
    """In DECODE: tokens that still fit into its blocks."""
    published: int = 0
    """Leading blocks that are already published or were found published."""
    keys: tuple[Hashable, ...] = ()
    """Keys of the prompt's whole blocks, salt and adapter mixed in; after a preemption those of the output too."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when it was first admitted."""
    preemptions: int = 0
    admitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    ended_at: float | None = None

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def held_tokens(self) -> int:
        """Tokens whose cache is there. The newest output token is not yet among them: the next step computes it."""
        if self.phase is Phase.DECODE:
            return self.request.prompt_tokens + self.generated - 1
        return self.computed


@dataclass(slots=True)
class Step:
    """One forward pass: what it did and how long it took. Sizes are tokens.

    `produced` are the sequences that got output (`Sequence.fresh` tokens each), `first` those of them whose very first
    token this was, `finished` those that ended, with or without output. Lists are in order of admission.
    """

    started_at: float
    duration_s: float
    batch: int
    kv_tokens: int
    prefill_tokens: int
    draft_tokens: int = 0
    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    produced: list[Sequence] = field(default_factory=list)
    first: list[Sequence] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)

    @property
    def ends_at(self) -> float:
        """When its output is there, in engine seconds."""
        return self.started_at + self.duration_s


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """An engine at one moment. Counts since it was made end in `_total`."""

    running: int
    waiting: int
    kv_blocks_held: int
    kv_blocks_total: int
    kv_tokens_held: int
    """Sum over sequences: a shared token counts once for each that reads it."""
    prefill_tokens_left: int
    published_blocks: int
    steps_total: int
    prompt_tokens_total: int
    """Prompt tokens of sequences whose prompt was finished, cached ones included."""
    prefill_tokens_total: int
    """Tokens computed in prompts, after preemptions again."""
    recomputed_tokens_total: int
    generation_tokens_total: int
    preemptions_total: int
    prefix_queries_total: int
    prefix_hits_total: int
    draft_tokens_total: int
    accepted_tokens_total: int
    drafts_total: int
    busy_s_total: float

    @property
    def kv_usage(self) -> float:
        """Part of the cache that is held, 0 to 1."""
        return self.kv_blocks_held / self.kv_blocks_total
