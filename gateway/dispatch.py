"""From plan to answer: targets in order, a ticket at each, one attempt after the other until one serves.

Before the first byte to the client a failure moves on: to another replica, another credential or the
next target, as the attempt budget allows. After it, the failure belongs to the caller to know.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from fairqueue.admission import Ticket
from fairqueue.item import Demand, Item, RequestClass
from fairqueue.item import Reason as QueueReason
from gateway.accept import Accepted
from gateway.api.seam import ClientGone, Exchange, Headers
from gateway.clock import Clock
from gateway.endings import after_failure, after_first_byte, from_queue, gone
from gateway.gate import QueueRefused
from gateway.interrupt import Interrupt, Reason
from gateway.leaving import Leaving
from gateway.needs import nobody
from gateway.outcomes import Refused
from gateway.record import Attempt, Phase, Record
from gateway.relay import Broken, describe, relay
from gateway.routing import Routing, Way
from gateway.settle import Settler
from gateway.telemetry.instruments import Instruments
from gateway.world import PoolEntry
from providers.exchange import Call, Failure, FailureKind, Outgoing, Reader, Unsupported, Usage
from providers.ingress import in_words_of
from providers.openai import gatherable
from providers.retry import AttemptBudget, Step
from providers.route import Leg, other_domain_first
from providers.transport import Answer, Transport, TransportError

_PROGRESS_EVERY = 8  # output tokens between reports to admission, which learns the engine's speed from them
_TOO_MANY = 429

_SSE: Headers = (
    ("content-type", "text/event-stream"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)
_JSON: Headers = (("content-type", "application/json"),)
_MOST_ERROR_BYTES = 64 * 1024


@dataclass(slots=True)
class _Run:
    """One request on its way through attempts; what its steps share."""

    http: Exchange
    accepted: Accepted
    record: Record
    interrupt: Interrupt
    budget: AttemptBudget
    legs: list[Leg]  # of the plan, not yet tried
    failed_replicas: dict[str, frozenset[str]] = field(default_factory=dict)  # by pool
    failed_credentials: dict[str, frozenset[str]] = field(default_factory=dict)  # by pool
    last: Refused | None = None  # what the caller is told when nothing else works


class Dispatcher:
    """Carries accepted requests to upstreams; one instance a process."""

    def __init__(
        self,
        *,
        clock: Clock,
        transport: Transport,
        routing: Routing,
        settler: Settler,
        instruments: Instruments,
        leaving: Leaving,
    ) -> None:
        self._clock = clock
        self._transport = transport
        self._routing = routing
        self._settler = settler
        self._instruments = instruments
        self._leaving = leaving

    async def run(self, http: Exchange, accepted: Accepted, record: Record, interrupt: Interrupt) -> None:
        """Returns once the client has a whole answer. Raises Refused, ClientGone, CancelledError."""
        now = self._clock.monotonic()
        plan = self._routing.plan(accepted, now)
        if not plan.legs:
            raise nobody(plan, now)
        longest = max([accepted.world.pools[leg.target.pool].total_s for leg in plan.legs])
        interrupt.deadline(longest)
        budget = self._routing.budget(accepted, now, record.phases.started + longest)
        run = _Run(http, accepted, record, interrupt, budget, plan.legs)
        while run.legs:
            leg, run.legs = run.legs[0], run.legs[1:]
            if await self._leg(run, leg):
                return
        raise run.last or nobody(plan, self._clock.monotonic())

    async def _leg(self, run: _Run, leg: Leg) -> bool:
        """Tries one target until it has served (True) or the next one is due (False)."""
        pool = run.accepted.world.pools[leg.target.pool]
        # One item for all tries at this pool: what is queued again keeps its place inside its tenant.
        item = self._item(run, pool, leg, self._clock.monotonic())
        while True:
            ticket = await self._admit(run, pool, leg, item)
            if ticket is None:
                return False
            broken = await self._attempt(run, pool, leg, ticket)
            if broken is None:
                return True
            if broken is _PREEMPTED:
                continue
            if broken is _NO_CREDENTIAL or not await self._again(run, pool, leg, ticket.replica, broken):
                return False

    async def _again(self, run: _Run, pool: PoolEntry, leg: Leg, replica: str, broken: Broken) -> bool:
        """After a failed attempt: True to try this pool again, False for the next target. Raises Refused to end."""
        if broken.how == "unsupported":
            # Nothing was sent, so nothing was tried: who comes next does so for free.
            run.last = run.last or after_failure(broken)
            return False
        failed = run.failed_replicas.get(pool.name, frozenset()) | {replica}
        barred = run.failed_credentials.get(pool.name, frozenset()) | {run.record.attempts[-1].credential}
        around = self._routing.around(
            run.budget, run.accepted, pool, leg.target.model, failed, barred, len(self._rest(run, leg, broken))
        )
        decision = self._routing.decide(run.budget, broken, around)
        run.last = after_failure(broken, again=decision.again)
        if decision.wait_s > 0.0:
            await asyncio.sleep(decision.wait_s)
        match decision.step:
            case Step.GIVE_UP:
                raise run.last
            case Step.NEXT_TARGET:
                run.legs = self._rest(run, leg, broken)
                return False
            case Step.OTHER_REPLICA:
                run.failed_replicas[pool.name] = failed
            case Step.OTHER_CREDENTIAL:
                run.failed_credentials[pool.name] = barred
            case Step.SAME_AGAIN:
                pass
        return True

    @staticmethod
    def _rest(run: _Run, leg: Leg, broken: Broken) -> list[Leg]:
        """The further targets after `leg` failed so: those that share least with it first."""
        rest = other_domain_first(run.legs, leg.target)
        context = leg.target.context
        if broken.failure.kind is FailureKind.CONTEXT and context is not None:
            rest = [other for other in rest if other.target.context is None or other.target.context > context]
        return rest

    async def _admit(self, run: _Run, pool: PoolEntry, leg: Leg, item: Item) -> Ticket | None:
        """A ticket of the pool; None when the next target is to be tried. Raises Refused."""
        record = run.record
        now = self._clock.monotonic()
        if record.phases.current is not Phase.QUEUE:
            record.phases.enter(Phase.QUEUE, now)
        item.arrived = now  # a queue's timeout is for waiting, not for what a failed attempt took
        item.excluded = run.failed_replicas.get(pool.name, frozenset())
        try:
            return await pool.gate.admit(item)
        except QueueRefused as refused:
            reason = refused.refusal.reason
            answer = from_queue(refused.refusal)
            moves_on = reason in {QueueReason.NO_REPLICA, QueueReason.NEVER_FITS}
            if moves_on or (leg.patience_s is not None and reason in {*_TOO_LONG}):
                run.last = run.last or answer
                return None
            # After failed attempts it is they that the caller should hear of, not the queue they led back to.
            raise (run.last or answer) from None

    def _item(self, run: _Run, pool: PoolEntry, leg: Leg, now: float) -> Item:
        accepted, estimate = run.accepted, run.accepted.estimate
        started = run.record.phases.started
        deadline = started + (pool.total_s if accepted.patience_s is None else min(pool.total_s, accepted.patience_s))
        if leg.patience_s is not None:
            deadline = min(deadline, now + leg.patience_s)
        batch = accepted.cls is RequestClass.BATCH
        return Item(
            request_id=run.record.request_id,
            tenant=accepted.principal.tenant,
            cls=accepted.cls,
            demand=Demand(
                prompt_tokens=estimate.prompt_tokens,
                output_tokens=estimate.output_median,
                output_cap=estimate.output_cap if estimate.output_cap is not None else _NO_CAP,
                seats=accepted.measured.n,
            ),
            arrived=now,
            deadline=deadline,
            remaining=estimate.remaining,
            replicas=pool.adapters.get(leg.target.model),
            adapter=leg.target.model if leg.target.model in pool.adapters else None,
            affinity=self._routing.affinity(accepted, pool, leg.target.model),
            preemptible=batch and not pool.bills_on,  # what is taken back there is paid for all the same
            gathered=batch and not accepted.call.stream,
            silent=not accepted.call.stream and not (pool.gather and gatherable(accepted.call)),
        )

    async def _attempt(self, run: _Run, pool: PoolEntry, leg: Leg, ticket: Ticket) -> Broken | None:
        """One try at one replica; None when it served. The ticket is released here on every way out."""
        record = run.record
        started = self._clock.monotonic()
        record.phases.enter(Phase.PREFILL, started)
        record.pool, record.replica = pool.name, ticket.replica
        attempt = Attempt(pool.name, ticket.replica, started)
        record.attempts.append(attempt)
        progress = _Progress(self, run, pool, ticket)
        if ticket.item.preemptible:
            pool.gate.interruptible(ticket, lambda: run.interrupt.fire(Reason.PREEMPTED))
        broken: Broken | None = None
        served = False
        try:
            broken = await self._exchange(run, pool, leg, ticket, attempt, progress)
            served = broken is None
        except ClientGone:
            await self._client_left(run, pool, progress)
            raise
        except asyncio.CancelledError:
            if not run.interrupt.pending:
                await self._client_left(run, pool, progress)
                raise
            if not run.interrupt.is_pending(Reason.PREEMPTED) or run.http.started or run.http.gone:
                raise
            run.interrupt.take()
            broken = _PREEMPTED
        finally:
            progress.close()
            self._finish(run, pool, ticket, attempt, progress, broken, served)
        if broken is not None and broken.sent:
            raise after_first_byte(broken)
        return broken

    async def _exchange(
        self, run: _Run, pool: PoolEntry, leg: Leg, ticket: Ticket, attempt: Attempt, progress: _Progress
    ) -> Broken | None:
        """Sends the request and relays the answer; a failure before the first byte comes back as a value."""
        call = run.accepted.call
        refused = run.failed_credentials.get(pool.name, frozenset())
        way = self._routing.way(run.accepted, pool, leg, ticket.replica, refused)
        if way is None:
            return _NO_CREDENTIAL
        progress.way = way
        attempt.credential = way.credential.name
        try:
            outgoing = pool.kind.prepare(call, way.upstream)
        except Unsupported as refused:
            error = in_words_of(call, refused)
            failure = Failure(FailureKind.CLIENT, 400, str(error), code="unsupported_parameter", param=error.field)
            return Broken("unsupported", failure, sent=False)
        run.record.target = leg.target.key
        if run.accepted.model.prices.differ:
            await self._settler.choose(run.record, leg.target.key)
        try:
            answer = await self._send(run, pool, ticket.replica, outgoing, progress)
            run.record.phases.connected(answer.connect_s)
            if not 200 <= answer.status < 300:
                return Broken("error", await _refusal_of(pool, answer), sent=False)
        except TransportError as error:
            return describe(error)
        return await relay(
            run.http,
            answer,
            progress.reader(answer),
            progress,
            stream=call.stream,
            head=lambda: self._head(run),
            first_token_s=pool.first_token_s,
            stall_s=pool.stall_s,
        )

    async def _send(self, run: _Run, pool: PoolEntry, replica: str, outgoing: Outgoing, progress: _Progress) -> Answer:
        """Sends the request and gives its answer. Raises TransportError."""
        headers = (*outgoing.headers, *run.accepted.passed_on)
        exchange = (pool.replicas[replica].origin, outgoing.method, outgoing.url_path, headers, outgoing.body)
        if not pool.bills_on:
            answer = progress.answer = await self._transport.send(*exchange, pool.timers)
            return answer
        # What has been sent is paid for, so it goes on when this task is cancelled (see leaving).
        progress.sending = asyncio.ensure_future(self._transport.send(*exchange, pool.timers, progress.went))
        answer = progress.answer = await asyncio.shield(progress.sending)
        answer.abides = True
        return answer

    async def _client_left(self, run: _Run, pool: PoolEntry, progress: _Progress) -> None:
        """The client is gone: an engine is closed at once, a provider that bills on is read to its usage."""
        record = run.record
        record.finish(gone(record))
        if not pool.bills_on:
            self._leaving.ends[pool.name, "closed"] += 1
            return
        if not progress.sent:
            return
        record.phases.enter(Phase.FINISH, self._clock.monotonic())
        record.billed_on = True
        if await self._leaving.see_out(progress, pool.name, pool.stall_s, run.interrupt):
            record.billed_on, record.usage_whole = False, True

    def _finish(
        self,
        run: _Run,
        pool: PoolEntry,
        ticket: Ticket,
        attempt: Attempt,
        progress: _Progress,
        broken: Broken | None,
        served: bool,
    ) -> None:
        """Gives back the ticket and writes down how the attempt ended, whichever way it did."""
        now = self._clock.monotonic()
        record = run.record
        usage = progress.usage
        tokens = progress.total
        if usage is not None and usage.output_tokens is not None and served:
            tokens = usage.output_tokens
        pool.gate.release(
            ticket,
            prompt_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            output_tokens=tokens,
            served=served or progress.total > 0,
        )
        attempt.seconds = now - attempt.started
        record.usage = usage
        if served:
            record.usage_whole = True
            attempt.result = "served"
            record.phases.enter(Phase.FINISH, now)
        elif broken is not None:
            attempt.result = broken.failure.kind.value if broken.how == "error" else broken.how
            attempt.detail = broken.failure.message[:200]
            if broken.failure.status == _TOO_MANY:
                pool.gate.core.throttled(ticket.replica, now, broken.failure.retry_after_s)
            if not broken.sent:
                record.phases.attempt_failed(now)
                record.first_token_at = record.last_token_at = None
                record.counted_tokens = 0
                record.usage = None
        else:
            attempt.result = "abandoned"
        if broken is _NO_CREDENTIAL:
            record.attempts.pop()  # nobody was asked
        else:
            self._instruments.attempts[pool.name, attempt.replica, attempt.result] += 1
        if progress.way is not None:
            failed = _NOBODY if served else run.failed_replicas.get(pool.name, _NOBODY) | {ticket.replica}
            self._routing.report(progress.way, None if broken is _PREEMPTED else broken, served, failed)
            if not pool.members.calm(now):
                self._routing.refresh(pool, pool.gate, pool.members, now)

    def _head(self, run: _Run) -> Headers:
        record = run.record
        record.status = 200
        kind = _SSE if run.accepted.call.stream else _JSON
        return [*self._settler.headers(record), ("server-timing", record.phases.server_timing()), *kind]


_NOBODY: frozenset[str] = frozenset()
_NO_CAP = 1 << 20  # output tokens a request may take when neither it nor its model names a limit
_TOO_LONG = frozenset({QueueReason.QUEUE_TIMEOUT, QueueReason.DEADLINE_UNMEETABLE, QueueReason.QUEUE_FULL})
_PREEMPTED = Broken("preempted", Failure(FailureKind.CAPACITY, None, "taken back for waiting work"), sent=False)
_NO_CREDENTIAL = Broken("error", Failure(FailureKind.CAPACITY, None, "no credential may be used now"), sent=False)


class _Progress:
    """What passes by during an attempt, told to the record, admission, breakers and limits as it does."""

    __slots__ = (
        "_call",
        "_dispatcher",
        "_pool",
        "_reader",
        "_record",
        "_reported",
        "_ticket",
        "answer",
        "sending",
        "sent",
        "total",
        "way",
    )

    def __init__(self, dispatcher: Dispatcher, run: _Run, pool: PoolEntry, ticket: Ticket) -> None:
        self._dispatcher = dispatcher
        self._call: Call = run.accepted.call
        self._record = run.record
        self._pool = pool
        self._ticket = ticket
        self._reported = 0
        self.total = 0
        self.way: Way | None = None
        self.answer: Answer | None = None
        self._reader: Reader | None = None
        self.sending: asyncio.Future[Answer] | None = None  # only where it outlives this request's client
        self.sent = False  # only there: the request may have reached the upstream

    def went(self) -> None:
        """The request is about to go."""
        self.sent = True

    def reader(self, answer: Answer) -> Reader:
        """The one reader of this attempt's answer."""
        if self._reader is None:
            assert self.way is not None, "there is no answer without a way to it"
            self._reader = self._pool.kind.reader(self._call, self.way.upstream, answer.status, answer.headers)
        return self._reader

    async def head(self) -> Answer | None:
        """The answer, once its head has come; None for one that says no and so bills nothing."""
        answer = self.answer
        if answer is None and self.sending is not None:
            answer = self.answer = await self.sending
        if answer is None or 200 <= answer.status < 300:
            return answer
        self._record.billed_on = False
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
        """What the upstream reported; None before its answer began."""
        return None if self._reader is None else self._reader.usage

    def first_token(self) -> None:
        """The prefill is through: its capacity is free for the next one, and decode begins."""
        dispatcher, record = self._dispatcher, self._record
        now = dispatcher._clock.monotonic()
        record.phases.enter(Phase.DECODE, now)
        record.first_token_at = record.last_token_at = now
        if record.stream:
            # A batch stream whose first byte is out can no longer be taken back.
            self._pool.gate.interruptible(self._ticket, None)
        self._pool.gate.first_token(self._ticket)
        if self.way is not None:
            dispatcher._routing.first_token(self.way)

    def tokens(self, total: int, *, last: bool) -> None:
        """`total` output tokens so far; after the last of them the release says all there is to say."""
        self.total = self._record.counted_tokens = total
        self._record.last_token_at = self._dispatcher._clock.monotonic()
        if total - self._reported >= _PROGRESS_EVERY and not last:
            self._reported = total
            self._pool.gate.progress(self._ticket, total)
            self._dispatcher._settler.progress(self._record)


async def _refusal_of(pool: PoolEntry, answer: Answer) -> Failure:
    """What an upstream's error answer means."""
    pieces: list[bytes] = []
    size = 0
    while size < _MOST_ERROR_BYTES:
        data = await answer.read()
        if not data:
            break
        pieces.append(data)
        size += len(data)
    return pool.kind.failure(answer.status, answer.headers, b"".join(pieces))
