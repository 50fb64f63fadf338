"""One attempt as it passes by: told to the record, admission, breakers and limits while it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from fairqueue.admission import Ticket
from gateway.accept import Accepted
from gateway.api.seam import Exchange
from gateway.clock import Clock
from gateway.continuation import Continuation, Transcript
from gateway.interrupt import Interrupt
from gateway.outcomes import Refused
from gateway.record import Phase, Record
from gateway.routing import Routing, Way
from gateway.settle import Settler
from gateway.world import PoolEntry
from providers.exchange import Failure, Reader, Usage
from providers.retry import AttemptBudget
from providers.route import Leg
from providers.transport import Answer

_PROGRESS_EVERY = 8  # output tokens between reports to admission, which learns the engine's speed from them
_MOST_ERROR_BYTES = 64 * 1024


@dataclass(slots=True)
class Run:
    """One request on its way through attempts; what its steps share."""

    http: Exchange
    accepted: Accepted
    record: Record
    interrupt: Interrupt
    budget: AttemptBudget
    legs: list[Leg]  # of the plan, not yet tried
    tier: int = 0  # of the one that is
    failed_replicas: dict[str, frozenset[str]] = field(default_factory=dict)  # by pool
    failed_credentials: dict[str, frozenset[str]] = field(default_factory=dict)  # by pool
    last: Refused | None = None  # what the caller is told when nothing else works
    transcript: Transcript | None = None  # what of a stream that may be continued has been relayed
    onward: Continuation | None = None  # set from the moment a stream is to go on from another replica
    cut: Refused | None = None  # set with it: how the stream ends if it cannot
    moved: bool = False  # the attempt that is over has brought some of the answer


class Progress:
    """What passes by during an attempt."""

    __slots__ = (
        "_clock",
        "_inner",
        "_pool",
        "_reader",
        "_reported",
        "_routing",
        "_run",
        "_settler",
        "_ticket",
        "answer",
        "sending",
        "sent",
        "total",
        "way",
    )

    def __init__(
        self, clock: Clock, routing: Routing, settler: Settler, run: Run, pool: PoolEntry, ticket: Ticket
    ) -> None:
        self._clock = clock
        self._routing = routing
        self._settler = settler
        self._run = run
        self._pool = pool
        self._ticket = ticket
        self._reported = 0
        self._inner: Reader | None = None  # of the upstream's own answer
        self._reader: Reader | None = None  # the same, or what makes it the rest of an earlier one
        self.total = 0
        self.way: Way | None = None
        self.answer: Answer | None = None
        self.sending: asyncio.Future[Answer] | None = None  # only where it outlives this request's client
        self.sent = False  # only there: the request may have reached the upstream

    def went(self) -> None:
        """The request is about to go."""
        self.sent = True

    def reader(self, answer: Answer) -> Reader:
        """The one reader of this attempt's answer."""
        if self._reader is None:
            assert self.way is not None, "there is no answer without a way to it"
            run, onward = self._run, self._run.onward
            call = run.accepted.call if onward is None else onward.call
            self._inner = self._pool.kind.reader(call, self.way.upstream, answer.status, answer.headers)
            self._reader = self._inner if onward is None else onward.reader(self._inner)
        return self._reader

    async def head(self) -> Answer | None:
        """The answer, once its head has come; None for one that says no and so bills nothing."""
        answer = self.answer
        if answer is None and self.sending is not None:
            answer = self.answer = await self.sending
        if answer is None or 200 <= answer.status < 300:
            return answer
        self._run.record.billed_on = False
        return None

    def close(self) -> None:
        """Ends what is still open; called on every way out."""
        if self.answer is not None:
            self.answer.close()
        elif self.sending is not None:
            self.sending.cancel()
            if self.sending.done() and not self.sending.cancelled() and self.sending.exception() is None:
                self.sending.result().close()

    @property
    def usage(self) -> Usage | None:
        """What the upstream reported of the whole answer; None before its answer began."""
        return None if self._reader is None else self._reader.usage

    @property
    def own_usage(self) -> Usage | None:
        """What it reported of this attempt alone."""
        return None if self._inner is None else self._inner.usage

    @property
    def keep(self) -> Callable[[bytes], None] | None:
        """Where what is relayed has to be kept, in case it must go on from elsewhere."""
        return None if self._run.transcript is None else self._run.transcript.add

    def first_token(self) -> None:
        """The prefill is through: its capacity is free for the next one, and decode begins."""
        record = self._run.record
        now = self._clock.monotonic()
        record.phases.enter(Phase.DECODE, now)
        if record.first_token_at is None:
            record.first_token_at = now
        record.last_token_at = now
        if record.stream:
            # A batch stream whose first byte is out can no longer be taken back.
            self._pool.gate.interruptible(self._ticket, None)
        self._pool.gate.first_token(self._ticket)
        if self.way is not None:
            self._routing.first_token(self.way)

    def complete(self) -> None:
        """All of the answer has come: its usage is known, and no end of this process may lose it from here on."""
        record = self._run.record
        record.phases.enter(Phase.FINISH, self._clock.monotonic())
        record.usage, record.usage_whole = self.usage, True
        self._settler.book(record)

    def tokens(self, total: int, *, last: bool) -> None:
        """`total` output tokens so far; after the last of them the release says all there is to say."""
        record, onward = self._run.record, self._run.onward
        self.total = total
        record.counted_tokens = total if onward is None else onward.tokens + total
        record.last_token_at = self._clock.monotonic()
        if total - self._reported >= _PROGRESS_EVERY and not last:
            self._reported = total
            self._pool.gate.progress(self._ticket, total)
            self._settler.progress(record)


async def refusal_of(pool: PoolEntry, answer: Answer) -> Failure:
    """What an upstream's error answer means. Raises TransportError."""
    pieces: list[bytes] = []
    size = 0
    while size < _MOST_ERROR_BYTES:
        data = await answer.read()
        if not data:
            break
        pieces.append(data)
        size += len(data)
    return pool.kind.failure(answer.status, answer.headers, b"".join(pieces))
