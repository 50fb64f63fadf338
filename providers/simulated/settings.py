"""What one simulated engine is: its speed, its cache, its seats, and named presets.

The time of one step is linear in what the step does:

    step = a + b*batch + c*kv_tokens + d*(prefill_tokens + draft_tokens)      seconds

`a` is the fixed cost of a forward pass, `b` the cost of one more running sequence, `c` the cost of reading one cached
token, `d` the cost of computing one uncached prompt token (or of verifying one drafted token, which is the same work).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class AdmissionMode(StrEnum):
    """How a waiting sequence gets cache.

    PAGED: blocks as tokens arrive, newest sequence preempted when none are left (what real engines do).
    RESERVED: prompt and maximum output are set aside at admission, so nobody is ever preempted.
    """

    PAGED = "paged"
    RESERVED = "reserved"


class Scheduling(StrEnum):
    """The order of the waiting line: by arrival, or by priority (lower first) and then arrival."""

    FCFS = "fcfs"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The constants of one engine. Times are seconds, sizes are tokens.

    Raises ValueError naming the field when a value makes no sense.
    """

    a_s: float = 0.005
    b_s: float = 0.0
    c_s: float = 0.0
    d_s: float = 1e-4
    chunk_tokens: int = 512
    """Token budget of one step: decodes first, what is left goes to prompts."""
    decode_in_budget: bool = True
    """Whether a decoded token takes one of the budget, or the budget is for prompts alone."""
    max_seqs: int = 32
    kv_tokens: int = 8_000
    block_tokens: int = 16
    max_model_len: int | None = None
    """Longest prompt plus output; None is the whole cache. Never more than the cache: such a request could not end."""
    admission: AdmissionMode = AdmissionMode.PAGED
    whole_prompt: bool = False
    """PAGED only: admit when the whole prompt fits, not merely its first chunk."""
    scheduling: Scheduling = Scheduling.FCFS
    prefix_cache: bool = True
    lora_slots: int = 0
    adapter_load_s: float = 0.0
    """Added to the step that brings an adapter into a slot."""
    draft_tokens: int = 0
    """Speculative decoding: tokens drafted for each sequence in each step; 0 is off."""
    acceptance: float = 0.0
    """Chance that a drafted token is right, given that those before it were."""
    jitter: float = 0.0
    """Step times vary evenly by this part up and down (0.05 is 5 %)."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("a_s", "b_s", "c_s", "d_s", "adapter_load_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is a time and cannot be negative")
        if self.a_s <= 0:
            raise ValueError("a_s must be above zero: a step that takes no time would never end")
        for name in ("chunk_tokens", "max_seqs", "block_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.kv_tokens < self.block_tokens:
            raise ValueError("kv_tokens must hold at least one block")
        if self.max_model_len is not None and not 2 <= self.max_model_len <= self.blocks * self.block_tokens:
            raise ValueError("max_model_len must be between 2 and the tokens that the cache holds")
        if self.lora_slots < 0 or self.draft_tokens < 0:
            raise ValueError("lora_slots and draft_tokens cannot be negative")
        if not 0 <= self.acceptance <= 1:
            raise ValueError("acceptance is a chance between 0 and 1")
        if not 0 <= self.jitter < 1:
            raise ValueError("jitter is a part between 0 and 1")

    @property
    def blocks(self) -> int:
        """Whole blocks in the cache."""
        return self.kv_tokens // self.block_tokens

    @property
    def context(self) -> int:
        """The longest prompt plus output that a request may have, in tokens."""
        return self.blocks * self.block_tokens if self.max_model_len is None else self.max_model_len

    def step_s(self, batch: int, kv_tokens: int, prefill_tokens: int, draft_tokens: int = 0) -> float:
        """Seconds of one step without jitter or faults."""
        return self.a_s + self.b_s * batch + self.c_s * kv_tokens + self.d_s * prefill_tokens + self.d_s * draft_tokens


SMALL = EngineSettings()
"""For unit tests: 8,000 tokens of cache, 5 ms a step, 10,000 prompt tokens a second."""

NOISY = EngineSettings(
    a_s=0.010,
    b_s=0.0002,
    c_s=1e-7,
    d_s=1e-4,
    chunk_tokens=256,
    decode_in_budget=False,
    max_seqs=32,
    kv_tokens=60_000,
    admission=AdmissionMode.RESERVED,
    prefix_cache=False,
)
"""The engine of the noisy-neighbour comparison: no preemption, first come first served, no prefix cache."""

REFERENCE_70B = EngineSettings(
    a_s=0.012,
    b_s=0.00003,
    c_s=2.1e-8,
    d_s=4e-5,
    chunk_tokens=2_048,
    max_seqs=256,
    kv_tokens=1_257_324,
)
"""About one replica of 8 GPUs with a model of 70 billion weights; a rough guess from memory bandwidth and compute."""

PRESETS: dict[str, EngineSettings] = {"small": SMALL, "noisy": NOISY, "reference70b": REFERENCE_70B}


def preset(name: str, **changes: object) -> EngineSettings:
    """The named preset with some fields changed. Raises ValueError for an unknown name or a bad value."""
    if name not in PRESETS:
        raise ValueError(f"no engine preset is called {name!r}; there are {', '.join(PRESETS)}")
    return replace(PRESETS[name], **changes)  # type: ignore[arg-type]
