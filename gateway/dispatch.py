"""From plan to answer: targets in order, a ticket at each, one attempt after the other until one serves.

Before the first byte to the client a failure moves on: to another replica, another credential or the
next target, as the attempt budget allows. After it a stream may go on from another replica, where its
engine can continue a partial answer; else the failure belongs to the caller to know.
"""

from __future__ import annotations

import asyncio

from fairqueue.admission import Ticket
from fairqueue.item import Demand, Item, RequestClass
from fairqueue.item import Reason as QueueReason
from gateway.accept import Accepted
from gateway.api.seam import ClientGone, Exchange, Headers
from gateway.clock import Clock
from gateway.continuation import CURABLE, TERMINATOR, Continuation, Transcript, continuable
from gateway.endings import after_failure, after_first_byte, from_queue, gone
from gateway.gate import QueueRefused
from gateway.interrupt import Interrupt, Reason
from gateway.leaving import Leaving
from gateway.legs import billed, price, rest, taken
from gateway.lora import NotHere
from gateway.needs import nobody
from gateway.outcomes import Outcome, Refused
from gateway.progress import Progress, Run, refusal_of
from gateway.record import Attempt, Phase, Record
from gateway.relay import Broken, describe, relay
from gateway.routing import Routing
from gateway.settle import Settler
from gateway.telemetry.instruments import Instruments
from gateway.world import PoolEntry
from providers.exchange import Failure, FailureKind, Outgoing, Unsupported
from providers.ingress import in_words_of
from providers.openai import gatherable
from providers.retry import Step
from providers.route import Leg
from providers.transport import Answer, Transport, TransportError

_SSE: Headers = (
    ("content-type", "text/event-stream"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)
_JSON: Headers = (("content-type", "application/json"),)


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
        run = Run(http, accepted, record, interrupt, budget, plan.legs)
        while run.legs:
            leg, run.legs = run.legs[0], run.legs[1:]
            if await self._leg(run, leg):
                return
        raise run.last or nobody(plan, self._clock.monotonic())

    async def _leg(self, run: Run, leg: Leg) -> bool:
        """Tries one target until it has served (True) or the next one is due (False)."""
        pool = run.accepted.world.pools[leg.target.pool]
        run.tier = leg.tier
        # One item for all tries at this pool: what is queued again keeps its place inside its tenant.
        item = self._item(run, pool, leg, self._clock.monotonic())
        if item.adapter is not None and not await self._place(run, pool, item):
            return False
        if not leg.tier or pool.spillway is None:
            return await self._tries(run, leg, pool, item)
        spilled = await self._spill(run, leg, pool)
        if spilled is None:
            return False
        try:
            return await self._tries(run, leg, pool, item)
        finally:
            pool.spillway.settle(spilled, taken(run))

    async def _tries(self, run: Run, leg: Leg, pool: PoolEntry, item: Item) -> bool:
        """Attempts at one pool, each with a ticket of its own; True when one served."""
        while True:
            ticket = await self._admit(run, pool, leg, item)
            if ticket is None:
                return False
            broken = await self._attempt(run, pool, leg, ticket)
            if broken is None:
                if run.onward is not None:
                    self._instruments.broken_streams[pool.name, "continued"] += 1
                return True
            if broken is _PREEMPTED:
                continue
            if broken is _NO_CREDENTIAL:
                if run.cut is not None:
                    raise run.cut
                return False
            if broken.sent and run.http.started:
                if await self._onward(run, pool, broken):
                    return True
                item = self._item(run, pool, leg, self._clock.monotonic())
            if not await self._again(run, pool, leg, ticket.replica, broken):
                return False

    async def _onward(self, run: Run, pool: PoolEntry, broken: Broken) -> bool:
        """After a stream broke: prepares its continuation. True when the client has all of it already.

        Raises Refused where the stream has to end here.
        """
        cut = run.cut = run.cut or after_first_byte(broken)
        said = None
        if run.transcript is not None and broken.failure.kind in CURABLE:
            said = run.transcript.said()
        if said is None:
            self._instruments.broken_streams[pool.name, "impossible"] += 1
            raise cut
        run.onward = Continuation(run.accepted.call, said, run.record.counted_tokens)
        if not run.onward.complete:
            return False
        await run.http.write(TERMINATOR)
        await run.http.end()
        self._instruments.broken_streams[pool.name, "continued"] += 1
        run.record.phases.enter(Phase.FINISH, self._clock.monotonic())
        return True

    async def _place(self, run: Run, pool: PoolEntry, item: Item) -> bool:
        """Waits until the request's adapter is resident somewhere; False when the next target is to be tried."""
        assert pool.loras is not None
        assert item.adapter is not None
        now = self._clock.monotonic()
        usable = [name for name, state in pool.members.usable(now).items() if state]
        until = min(item.deadline, now + pool.gate.core.patience_s(item.cls))
        try:
            item.replicas = await pool.loras.place(item.adapter, usable, until)
        except NotHere as absent:
            wait = 5.0 if absent.until is None else max(1.0, absent.until - self._clock.monotonic())
            run.last = run.last or Refused(
                Outcome.NO_TARGET, f"The model's adapter cannot be used now: {absent.cause}.", retry_after_s=wait
            )
            return False
        return True

    async def _spill(self, run: Run, leg: Leg, pool: PoolEntry) -> float | None:
        """Waits until the pool has room to spare for work that lost its tier; the cost, None for the next target."""
        assert pool.spillway is not None
        now = self._clock.monotonic()
        if run.record.phases.current is not Phase.QUEUE:
            run.record.phases.enter(Phase.QUEUE, now)
        item = self._item(run, pool, leg, now)
        if run.legs:
            item.deadline = min(item.deadline, now + _SHORT_SPILL_S)
        try:
            return await pool.spillway.enter(item)
        except QueueRefused as refused:
            run.last = run.last or from_queue(refused.refusal)
            return None

    async def _again(self, run: Run, pool: PoolEntry, leg: Leg, replica: str, broken: Broken) -> bool:
        """After a failed attempt: True to try this pool again, False for the next target. Raises Refused to end."""
        if broken.how == "unsupported":
            # Nothing was sent, so nothing was tried: who comes next does so for free.
            run.last = run.last or after_failure(broken)
            return False
        failed = run.failed_replicas.get(pool.name, frozenset()) | {replica}
        barred = run.failed_credentials.get(pool.name, frozenset()) | {run.record.attempts[-1].credential}
        left = [] if run.onward is not None else rest(run, leg, broken)
        around = self._routing.around(run.budget, run.accepted, pool, leg.target.model, failed, barred, len(left))
        if leg.tier and pool.spillway is not None and broken.failure.kind in _FULL:
            pool.spillway.overloaded()
        decision = self._routing.decide(
            run.budget,
            broken,
            around,
            free=run.onward is not None and run.moved,
            billed=0 if pool.kind.engine else billed(run, leg, broken),
            following=price(run, left[0] if left else leg),
        )
        if run.cut is not None and decision.step not in {Step.OTHER_REPLICA, Step.SAME_AGAIN}:
            self._instruments.broken_streams[pool.name, "failed"] += 1
            raise run.cut
        run.last = after_failure(broken, again=decision.again)
        if decision.wait_s > 0.0:
            await asyncio.sleep(decision.wait_s)
        match decision.step:
            case Step.GIVE_UP:
                raise run.last
            case Step.NEXT_TARGET:
                run.legs = left
                return False
            case Step.OTHER_REPLICA:
                run.failed_replicas[pool.name] = failed
            case Step.OTHER_CREDENTIAL:
                run.failed_credentials[pool.name] = barred
            case Step.SAME_AGAIN:
                pass
        return True

    async def _admit(self, run: Run, pool: PoolEntry, leg: Leg, item: Item) -> Ticket | None:
        """A ticket of the pool; None when the next target is to be tried. Raises Refused."""
        record = run.record
        now = self._clock.monotonic()
        if record.phases.current is not Phase.QUEUE and run.onward is None:
            record.phases.enter(Phase.QUEUE, now)
        item.arrived = now  # a queue's timeout is for waiting, not for what a failed attempt took
        item.excluded = run.failed_replicas.get(pool.name, frozenset())
        try:
            return await pool.gate.admit(item)
        except QueueRefused as refused:
            reason = refused.refusal.reason
            answer = from_queue(refused.refusal)
            if run.cut is not None:
                raise run.cut from None
            if reason in {QueueReason.NO_REPLICA, QueueReason.NEVER_FITS}:
                run.last = run.last or answer
                return None
            if leg.patience_s is not None and reason in _TOO_LONG:
                # The wait is too long only if somebody else can serve: failing that it is taken up again.
                run.legs.append(leg._replace(patience_s=None))
                return None
            # After failed attempts it is they that the caller should hear of, not the queue they led back to.
            raise (run.last or answer) from None

    def _item(self, run: Run, pool: PoolEntry, leg: Leg, now: float) -> Item:
        accepted, estimate = run.accepted, run.accepted.estimate
        started = run.record.phases.started
        deadline = started + (pool.total_s if accepted.patience_s is None else min(pool.total_s, accepted.patience_s))
        if leg.patience_s is not None:
            deadline = min(deadline, now + leg.patience_s)
        batch = accepted.cls is RequestClass.BATCH
        done = 0 if run.onward is None else run.onward.tokens
        cap = estimate.output_cap if estimate.output_cap is not None else _NO_CAP
        return Item(
            request_id=run.record.request_id,
            tenant=accepted.principal.tenant,
            cls=accepted.cls,
            demand=Demand(
                prompt_tokens=estimate.prompt_tokens + done,
                output_tokens=max(1, estimate.output_median - done),
                output_cap=max(1, cap - done),
                seats=accepted.measured.n,
            ),
            arrived=now,
            deadline=deadline,
            remaining=estimate.remaining if not done else lambda more: estimate.remaining(done + more),
            replicas=pool.adapters.get(leg.target.model),
            adapter=leg.target.model if leg.target.model in pool.adapters else None,
            affinity=self._routing.affinity(accepted, pool, leg.target.model),
            preemptible=batch
            and not pool.bills_on
            and run.onward is None,  # what is taken back there is paid for all the same
            gathered=batch and not accepted.call.stream,
            silent=not accepted.call.stream and not (pool.gather and gatherable(accepted.call)),
        )

    async def _attempt(self, run: Run, pool: PoolEntry, leg: Leg, ticket: Ticket) -> Broken | None:
        """One try at one replica; None when it served. The ticket is released here on every way out."""
        record = run.record
        started = self._clock.monotonic()
        if run.onward is None:
            record.phases.enter(Phase.PREFILL, started)
        record.pool, record.replica = pool.name, ticket.replica
        attempt = Attempt(pool.name, ticket.replica, started)
        record.attempts.append(attempt)
        progress = Progress(self._clock, self._routing, self._settler, run, pool, ticket)
        item = ticket.item
        if item.adapter is not None and pool.loras is not None:
            pool.loras.began(ticket.replica, item.adapter)
        if pool.spillway is not None and not leg.tier:
            pool.spillway.own(item)
        if item.preemptible:
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
        return broken

    async def _exchange(
        self, run: Run, pool: PoolEntry, leg: Leg, ticket: Ticket, attempt: Attempt, progress: Progress
    ) -> Broken | None:
        """Sends the request and relays the answer; a failure before the first byte comes back as a value."""
        call = run.accepted.call if run.onward is None else run.onward.call
        barred = run.failed_credentials.get(pool.name, _NOBODY)
        way = self._routing.way(run.accepted, pool, leg, ticket.replica, barred)
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
        self._settler.sending(run.record)
        if call.stream and run.transcript is None and pool.kind.facts.continues:
            policy = run.accepted.model.continuation
            if continuable(call, policy):
                run.transcript = Transcript()
        self._routing.sent(way, ticket.item)
        try:
            answer = await self._send(run, pool, ticket.replica, outgoing, progress)
            if run.onward is None:
                run.record.phases.connected(answer.connect_s)
            if pool.spillway is not None and not pool.kind.engine:
                pool.spillway.heard(way.credential.name, answer.headers)
            if not 200 <= answer.status < 300:
                return Broken("error", await refusal_of(pool, answer), sent=False)
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
            keep=progress.keep,
        )

    async def _send(self, run: Run, pool: PoolEntry, replica: str, outgoing: Outgoing, progress: Progress) -> Answer:
        """Sends the request and gives its answer. Raises TransportError."""
        # Our request id goes along, so that an upstream's own log and the ledger can be laid side by side.
        headers = (*outgoing.headers, *run.accepted.passed_on, ("x-request-id", run.record.request_id))
        exchange = (pool.replicas[replica].origin, outgoing.method, outgoing.url_path, headers, outgoing.body)
        if not pool.bills_on:
            answer = progress.answer = await self._transport.send(*exchange, pool.timers)
            return answer
        # What has been sent is paid for, so it goes on when this task is cancelled (see leaving).
        progress.sending = asyncio.ensure_future(self._transport.send(*exchange, pool.timers, progress.went))
        answer = progress.answer = await asyncio.shield(progress.sending)
        answer.abides = True
        return answer

    async def _client_left(self, run: Run, pool: PoolEntry, progress: Progress) -> None:
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
        run: Run,
        pool: PoolEntry,
        ticket: Ticket,
        attempt: Attempt,
        progress: Progress,
        broken: Broken | None,
        served: bool,
    ) -> None:
        """Gives back the ticket and writes down how the attempt ended, whichever way it did."""
        now = self._clock.monotonic()
        record = run.record
        usage = progress.own_usage
        tokens = progress.total
        if usage is not None and usage.output_tokens is not None and served:
            tokens = usage.output_tokens
        item = ticket.item
        if item.adapter is not None and pool.loras is not None:
            pool.loras.ended(ticket.replica, item.adapter)
            if broken is not None and broken.failure.kind is FailureKind.CONFIG:
                pool.loras.missing(ticket.replica, item.adapter)
        pool.gate.release(
            ticket,
            prompt_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            output_tokens=tokens,
            served=served or progress.total > 0,
        )
        attempt.seconds = now - attempt.started
        run.moved = progress.total > 0
        if run.onward is None or served:
            record.usage = progress.usage
        if served:
            record.usage_whole = True
            attempt.result = "served"
            record.phases.enter(Phase.FINISH, now)
        elif broken is not None:
            attempt.result = broken.failure.kind.value if broken.how == "error" else broken.how
            attempt.detail = broken.failure.message[:200]
            if broken.sent or run.onward is not None:
                record.phases.enter(Phase.FAILED, now)
            else:
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

    def _head(self, run: Run) -> Headers:
        record = run.record
        record.status = 200
        kind = _SSE if run.accepted.call.stream else _JSON
        headers = [*self._settler.headers(record), ("server-timing", record.phases.server_timing()), *kind]
        if run.tier:
            headers.append(("x-weighbridge-tier", str(run.tier + 1)))  # a substitute, and says so
        return headers


_NOBODY: frozenset[str] = frozenset()
_SHORT_SPILL_S = 1.0  # to wait for room to spare while a further target is left
_FULL = frozenset({FailureKind.RATE, FailureKind.CAPACITY})
_NO_CAP = 1 << 20  # output tokens a request may take when neither it nor its model names a limit
_TOO_LONG = frozenset({QueueReason.QUEUE_TIMEOUT, QueueReason.DEADLINE_UNMEETABLE, QueueReason.QUEUE_FULL})
_PREEMPTED = Broken("preempted", Failure(FailureKind.CAPACITY, None, "taken back for waiting work"), sent=False)
_NO_CREDENTIAL = Broken("error", Failure(FailureKind.CAPACITY, None, "no credential may be used now"), sent=False)
