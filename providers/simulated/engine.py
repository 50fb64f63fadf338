"""A continuous-batching engine as pure steps: give it requests and the time, get back tokens and how long they took.

One step is one forward pass. Its plan is made when it begins and takes effect when it ends:

1. Every decoding sequence computes one token (or one and those of its drafted tokens that are accepted). A sequence
   whose last block is full takes one more; when no block is left, the newest sequence is preempted: its cache is thrown
   away and computed again later, its output so far included.
2. What the decodes leave of the token budget goes to prompts in order of admission, so a long prompt takes several
   steps (chunked prefill). The step that computes the last chunk also yields the next output token.
3. Waiting sequences are admitted in order while there are seats, budget and blocks for the first chunk. None is
   admitted in a step that preempted. Whole prompt blocks found in the prefix cache are not computed again, except that
   at least one token always is.

Between `begin` and `finish` a caller may submit and cancel: a cancelled sequence frees its seat and blocks at once, the
step still takes as long as it was planned to. Work in one step is a few operations for each running sequence.

All that changes a sequence or the counts is in this file; blocks and adapter slots count for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from providers.simulated.adapters import AdapterSlots
from providers.simulated.blocks import BlockPool
from providers.simulated.chance import uniform
from providers.simulated.sequence import ContextTooLong, EngineSnapshot, Phase, Refused, Request, Sequence, Step
from providers.simulated.settings import AdmissionMode, EngineSettings, Scheduling
from providers.simulated.waiting import WaitingLine

# So many sequences may be passed over in one step because their adapter has no slot; behind them nobody is looked at.
_MOST_PASSED = 256


class Engine:
    """One simulated engine in somebody else's time. Not thread-safe; deterministic for the same calls."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.slow = 1.0
        """Steps take this many times as long (a fault that can be switched on and off)."""
        self.blocks = BlockPool(settings.blocks)
        self.adapters = AdapterSlots(settings.lora_slots)
        self.live: dict[str, Sequence] = {}
        """Every sequence that is waiting or running, by request id."""
        self._waiting = WaitingLine(by_priority=settings.scheduling is Scheduling.PRIORITY)
        # Running sequences, each list in order of admission. Together they hold all seats and all held blocks.
        self._prefilling: list[Sequence] = []
        self._decoding: list[Sequence] = []
        # Decoding sequences whose blocks are full: each needs a block before the next step.
        self._full: list[Sequence] = []
        # Sum of `held_tokens` over the running sequences.
        self._kv_tokens = 0
        self._step: Step | None = None
        self._adapter_loads = 0
        self._arrivals = 0
        self._draws = 0
        # acceptance**k for k = 1..draft_tokens: a draw below the k-th means at least k drafted tokens are right.
        self._accept = tuple(settings.acceptance ** (k + 1) for k in range(settings.draft_tokens))
        self._steps = self._prompt_tokens = self._prefill_tokens = self._recomputed = self._generated = 0
        self._preemptions = self._queries = self._hits = self._drafted = self._accepted = self._drafts = 0
        self._busy_s = 0.0

    # -- requests ----------------------------------------------------------------------------------------------------

    def submit(self, request: Request, now: float, owner: Any = None) -> Sequence:
        """Put a request in line. The caller gets the sequence to watch; it leaves by finishing or by `cancel`.

        Raises ContextTooLong or Refused when it could never run, ValueError when its id is already here.
        """
        settings = self.settings
        output = request.output_tokens if request.max_tokens is None else request.max_tokens
        if request.prompt_tokens < 1 or request.output_tokens < 0 or output < request.output_tokens:
            raise ValueError(f"request {request.id}: sizes must be prompt >= 1, output >= 0, maximum >= output")
        if request.prompt_tokens + max(output, 1) > settings.context:
            raise ContextTooLong(request.prompt_tokens, output, settings.context)
        if request.adapter is not None and settings.lora_slots == 0:
            raise Refused(f"adapter {request.adapter} cannot be used: the engine has no LoRA slots")
        if request.id in self.live:
            raise ValueError(f"request {request.id} is already in the engine")
        self._arrivals += 1
        sequence = Sequence(
            request,
            self._arrivals,
            now,
            owner,
            goal=request.prompt_tokens,
            keys=_mixed(request, request.keys) if settings.prefix_cache else (),
        )
        self.live[request.id] = sequence
        self._waiting.push(sequence)
        return sequence

    def cancel(self, request_id: str, now: float) -> bool:
        """Take a request out, waiting or running; its seat and blocks are free at once. False: it is not here."""
        sequence = self.live.get(request_id)
        if sequence is None:
            return False
        if sequence.phase is Phase.WAITING:
            self._waiting.drop(sequence)
        else:
            self._leave(sequence)
        self._end(sequence, Phase.CANCELLED, now)
        return True

    # -- time --------------------------------------------------------------------------------------------------------

    def begin(self, now: float) -> Step | None:
        """Plan the next step; its output is there at `Step.ends_at`, when `finish` must be called. None: nothing to do.

        Raises RuntimeError when a step is already under way.
        """
        if self._step is not None:
            raise RuntimeError("the last step was not finished")
        if not self.live:
            return None
        settings = self.settings
        step = Step(now, 0.0, 0, 0, 0)
        self._adapter_loads = 0
        self._grow(step)
        reserved = settings.admission is AdmissionMode.RESERVED
        if reserved:
            self._admit(step, 0, now)
        drafted = settings.draft_tokens * len(self._decoding)
        budget = settings.chunk_tokens
        if settings.decode_in_budget:
            budget -= len(self._decoding) + drafted
        budget = self._chunk(step, budget)
        if not reserved and not step.preempted:
            budget = self._admit(step, budget, now)
        if step.preempted:
            step.chunks = [chunk for chunk in step.chunks if chunk[0].phase is Phase.PREFILL]
            drafted = settings.draft_tokens * len(self._decoding)
        step.batch = len(self._decoding) + len(self._prefilling)
        step.kv_tokens = self._kv_tokens
        step.prefill_tokens = sum(count for _, count in step.chunks)
        step.draft_tokens = drafted
        duration = settings.step_s(step.batch, step.kv_tokens, step.prefill_tokens, drafted)
        if settings.jitter:
            duration *= 1.0 + settings.jitter * (2.0 * uniform(settings.seed, self._steps) - 1.0)
        step.duration_s = (duration + self._adapter_loads * settings.adapter_load_s) * self.slow
        self._step = step
        return step

    def finish(self) -> Step:
        """Let the step under way take effect at its `ends_at`. Raises RuntimeError when there is none."""
        step = self._step
        if step is None:
            raise RuntimeError("no step is under way")
        self._step = None
        now = step.ends_at
        self._steps += 1
        self._busy_s += step.duration_s
        ended = self._decode_drafted(step, now) if self._accept else self._decode(step, now)
        for sequence, count in step.chunks:
            if sequence.phase is Phase.PREFILL and self._prefill(step, sequence, count, now):
                ended.append(sequence)
        for sequence in ended:
            self._leave(sequence)
            self._end(sequence, Phase.FINISHED, now)
        step.finished = ended
        return step

    def step(self, now: float) -> Step | None:
        """`begin` and `finish` in one: for virtual time, where nothing happens in the middle of a step."""
        return self.finish() if self.begin(now) is not None else None

    # -- looking -----------------------------------------------------------------------------------------------------

    @property
    def stepping(self) -> bool:
        """Whether a step is under way."""
        return self._step is not None

    @property
    def running(self) -> int:
        """Sequences with a seat."""
        return len(self._decoding) + len(self._prefilling)

    @property
    def waiting(self) -> int:
        """Sequences in line."""
        return len(self._waiting)

    def adapters_waiting(self) -> tuple[str, ...]:
        """Adapters of waiting sequences, sorted."""
        live = self.live.values()
        return tuple(sorted({s.request.adapter for s in live if s.phase is Phase.WAITING and s.request.adapter}))

    def snapshot(self) -> EngineSnapshot:
        """All counts at this moment."""
        return EngineSnapshot(
            running=self.running,
            waiting=self.waiting,
            kv_blocks_held=self.blocks.held,
            kv_blocks_total=self.blocks.total,
            kv_tokens_held=self._kv_tokens,
            prefill_tokens_left=sum(s.goal - s.computed for s in self._prefilling),
            published_blocks=self.blocks.published,
            steps_total=self._steps,
            prompt_tokens_total=self._prompt_tokens,
            prefill_tokens_total=self._prefill_tokens,
            recomputed_tokens_total=self._recomputed,
            generation_tokens_total=self._generated,
            preemptions_total=self._preemptions,
            prefix_queries_total=self._queries,
            prefix_hits_total=self._hits,
            draft_tokens_total=self._drafted,
            accepted_tokens_total=self._accepted,
            drafts_total=self._drafts,
            busy_s_total=self._busy_s,
        )

    # -- planning ----------------------------------------------------------------------------------------------------

    def _grow(self, step: Step) -> None:
        """A block for every decoding sequence that would not fit its next tokens, oldest first."""
        if self._accept:
            need = len(self._accept) + 1
            self._full = [s for s in self._decoding if s.room < min(need, s.request.output_tokens - s.generated)]
        size = self.settings.block_tokens
        for sequence in self._full:
            wanted = min(len(self._accept) + 1, sequence.request.output_tokens - sequence.generated)
            while sequence.phase is Phase.DECODE and sequence.room < wanted:
                if self.blocks.take(1):
                    sequence.private += 1
                    sequence.room += size
                else:
                    self._preempt(step)
        self._full = []

    def _chunk(self, step: Step, budget: int) -> int:
        """Give the budget to prompts that have a seat already; returns what is left of it."""
        paged = self.settings.admission is AdmissionMode.PAGED
        for sequence in list(self._prefilling):
            if budget <= 0:
                break
            count = min(budget, sequence.goal - sequence.computed)
            while paged and sequence.phase is Phase.PREFILL:
                need = self._blocks_for(sequence.computed + count) - len(sequence.refs) - sequence.private
                if need <= 0:
                    break
                if self.blocks.take(need):
                    sequence.private += need
                    break
                self._preempt(step)
            if sequence.phase is not Phase.PREFILL:
                continue
            step.chunks.append((sequence, count))
            budget -= count
        return budget

    def _admit(self, step: Step, budget: int, now: float) -> int:
        """Seat waiting sequences in order; one whose adapter has no slot is passed over. Returns the budget left."""
        settings = self.settings
        reserved = settings.admission is AdmissionMode.RESERVED
        passed: list[Sequence] = []
        while (reserved or budget > 0) and self.running < settings.max_seqs:
            sequence = self._waiting.pop()
            if sequence is None:
                break
            adapter = sequence.request.adapter
            if adapter is not None and not self.adapters.admits(adapter):
                passed.append(sequence)
                if len(passed) == _MOST_PASSED:
                    break
                continue
            keys = sequence.keys[: (sequence.goal - 1) // settings.block_tokens]
            hits, idle = self.blocks.match(keys)
            cached = hits * settings.block_tokens
            count = min(max(budget, 0), sequence.goal - cached)
            need = self._blocks_for(self._room_at_start(sequence, cached + count)) - hits
            if need + idle > self.blocks.available:
                passed.append(sequence)
                break
            hit_keys = keys[:hits]
            self.blocks.acquire(hit_keys)
            self.blocks.take(need)
            sequence.refs = list(hit_keys)
            sequence.private = need
            sequence.published = hits
            sequence.computed = cached
            sequence.phase = Phase.PREFILL
            self._kv_tokens += cached
            if sequence.admitted_at is None:
                sequence.admitted_at = now
                sequence.cached_tokens = cached
                self._queries += sequence.goal
                self._hits += cached
            if adapter is not None and self.adapters.enter(adapter):
                self._adapter_loads += 1
            self._prefilling.append(sequence)
            step.admitted.append(sequence)
            if not reserved:
                step.chunks.append((sequence, count))
                budget -= count
        for sequence in passed:
            self._waiting.push(sequence)
        return budget

    def _room_at_start(self, sequence: Sequence, first_chunk_end: int) -> int:
        """Tokens that must have room before a waiting sequence gets a seat."""
        settings = self.settings
        if settings.admission is AdmissionMode.RESERVED:
            request = sequence.request
            maximum = request.output_tokens if request.max_tokens is None else request.max_tokens
            return request.prompt_tokens + maximum
        return sequence.goal if settings.whole_prompt else first_chunk_end

    def _preempt(self, step: Step) -> None:
        """Throw out the newest running sequence; by priority, the one that priority and arrival put last."""
        if self.settings.scheduling is Scheduling.PRIORITY:
            victim = max(self._decoding + self._prefilling, key=lambda s: (s.request.priority, s.arrival))
        else:
            victim = self._prefilling[-1] if self._prefilling else self._decoding[-1]
        self._leave(victim)
        victim.phase = Phase.WAITING
        victim.preemptions += 1
        victim.computed = 0
        victim.goal = victim.request.prompt_tokens + victim.generated
        self._preemptions += 1
        self._waiting.push(victim)
        step.preempted.append(victim)

    # -- taking effect -----------------------------------------------------------------------------------------------

    def _decode(self, step: Step, now: float) -> list[Sequence]:
        """One token for each decoding sequence; returns those that are complete."""
        ended: list[Sequence] = []
        full: list[Sequence] = []
        decoding = self._decoding
        for sequence in decoding:
            sequence.generated = generated = sequence.generated + 1
            sequence.fresh = 1
            sequence.last_token_at = now
            sequence.room = room = sequence.room - 1
            if generated == sequence.request.output_tokens:
                ended.append(sequence)
            elif room == 0:
                full.append(sequence)
        step.produced = list(decoding)
        self._full = full
        self._kv_tokens += len(decoding)
        self._generated += len(decoding)
        return ended

    def _decode_drafted(self, step: Step, now: float) -> list[Sequence]:
        """One token and the accepted part of the draft for each decoding sequence; returns those that are complete."""
        ended: list[Sequence] = []
        accept = self._accept
        for sequence in self._decoding:
            self._draws += 1
            draw = uniform(self.settings.seed ^ 0x5EC, self._draws)
            accepted = 0
            for threshold in accept:
                if draw >= threshold:
                    break
                accepted += 1
            left = sequence.request.output_tokens - sequence.generated
            fresh = min(1 + accepted, left)
            sequence.generated += fresh
            sequence.fresh = fresh
            sequence.last_token_at = now
            sequence.room -= fresh
            self._kv_tokens += fresh
            self._generated += fresh
            self._accepted += fresh - 1
            if fresh == left:
                ended.append(sequence)
        self._drafts += len(self._decoding)
        self._drafted += len(accept) * len(self._decoding)
        step.produced = list(self._decoding)
        return ended

    def _prefill(self, step: Step, sequence: Sequence, count: int, now: float) -> bool:
        """A chunk of a prompt is computed; with the last one comes an output token. True: the sequence is complete."""
        request = sequence.request
        sequence.computed = computed = sequence.computed + count
        self._kv_tokens += count
        self._prefill_tokens += count
        if sequence.preemptions:
            self._recomputed += count
        self._publish(sequence, computed)
        if computed < sequence.goal:
            return False
        if sequence.first_token_at is None:
            self._prompt_tokens += request.prompt_tokens
        if request.output_tokens == 0:
            return True
        if sequence.first_token_at is None:
            sequence.first_token_at = now
            step.first.append(sequence)
        sequence.generated += 1
        sequence.fresh = 1
        sequence.last_token_at = now
        self._generated += 1
        step.produced.append(sequence)
        if sequence.generated == request.output_tokens:
            return True
        self._prefilling.remove(sequence)
        self._decoding.append(sequence)
        sequence.phase = Phase.DECODE
        sequence.room = (len(sequence.refs) + sequence.private) * self.settings.block_tokens - computed
        if sequence.room == 0:
            self._full.append(sequence)
        return False

    def _leave(self, sequence: Sequence) -> None:
        """A running sequence gives back its seat, its blocks and its adapter."""
        self._kv_tokens -= sequence.held_tokens
        if sequence.phase is Phase.DECODE:
            self._decoding.remove(sequence)
            if sequence.request.grown is not None and self.settings.prefix_cache:
                self._publish_output(sequence, sequence.request.grown)
        else:
            self._prefilling.remove(sequence)
        self.blocks.release(sequence.refs, sequence.private)
        sequence.refs = []
        sequence.private = sequence.room = sequence.published = 0
        if sequence.request.adapter is not None:
            self.adapters.leave(sequence.request.adapter)

    def _publish_output(self, sequence: Sequence, grown: Callable[[int], tuple[Hashable, ...]]) -> None:
        """Let others find what was generated, as far as its cache was computed."""
        request = sequence.request
        sequence.keys = _mixed(request, request.keys + grown(sequence.generated - 1))
        self._publish(sequence, sequence.held_tokens)

    def _publish(self, sequence: Sequence, tokens: int) -> None:
        """Publish the whole blocks of its first tokens, as far as they have keys and are not published yet."""
        for index in range(sequence.published, min(tokens // self.settings.block_tokens, len(sequence.keys))):
            sequence.published = index + 1
            if self.blocks.publish(sequence.keys[index]):
                sequence.private -= 1
                sequence.refs.append(sequence.keys[index])

    def _end(self, sequence: Sequence, phase: Phase, now: float) -> None:
        sequence.phase = phase
        sequence.ended_at = now
        del self.live[sequence.request.id]

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.settings.block_tokens)


def _mixed(request: Request, keys: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    """Block keys with salt and adapter in them: neither another tenant nor another adapter may find the block."""
    if request.salt is None and request.adapter is None:
        return keys
    return tuple((request.salt, request.adapter, key) for key in keys)
