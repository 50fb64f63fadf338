"""Helpers for the tests of the simulated engine: virtual time, and the truths that must hold between any two calls."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from providers.simulated.engine import Engine
from providers.simulated.sequence import Phase, Request, Sequence, Step


def run(engine: Engine, now: float = 0.0, *, until: float = 1e9, see: Callable[[Step], None] | None = None) -> float:
    """Step until the engine is empty or `until` is passed; the time at the end."""
    while now < until:
        step = engine.step(now)
        if step is None:
            break
        now = step.ends_at
        assert_sound(engine)
        if see is not None:
            see(step)
    return now


def ask(name: str, prompt: int, output: int, **more: object) -> Request:
    """A request."""
    return Request(name, prompt, output, **more)  # type: ignore[arg-type]


def assert_sound(engine: Engine) -> None:
    """Blocks, tokens and seats are exactly those of the live sequences."""
    running = [s for s in engine.live.values() if s.phase in (Phase.PREFILL, Phase.DECODE)]
    waiting = [s for s in engine.live.values() if s.phase is Phase.WAITING]
    counts = engine.snapshot()
    size = engine.settings.block_tokens
    assert (engine.running, engine.waiting) == (len(running), len(waiting))
    assert engine.running <= engine.settings.max_seqs
    assert counts.kv_blocks_held == len({key for s in running for key in s.refs}) + sum(s.private for s in running)
    assert 0 <= counts.kv_blocks_held <= counts.kv_blocks_total
    assert counts.kv_tokens_held == sum(s.held_tokens for s in running)
    for sequence in running:
        assert sequence.held_tokens <= (len(sequence.refs) + sequence.private) * size
    for sequence in waiting:
        assert (sequence.refs, sequence.private, sequence.held_tokens) == ([], 0, 0)


def digest_of(steps: list[Step]) -> str:
    """One number for everything that happened, to the last bit of every time."""
    out = sha256()
    for step in steps:
        named = [[s.id for s in part] for part in (step.admitted, step.preempted, step.produced, step.finished)]
        out.update(repr((step.started_at, step.duration_s, step.prefill_tokens, named)).encode())
    return out.hexdigest()


def ids(sequences: list[Sequence]) -> list[str]:
    """Their ids."""
    return [sequence.id for sequence in sequences]
