"""One request from key to settlement, top to bottom.

    accept -> estimate -> limit -> route -> queue -> dispatch -> relay -> settle

Every step can refuse with one `Refused`; every way out (success, refusal, a client that left, an
upstream that died, shutdown) passes `_settle`, which gives back the ticket and the reserved amounts
exactly once. The first to name the outcome wins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from gateway.accept import Doorman
from gateway.api.errors import refusal_body, refusal_event, refusal_headers, refusal_status
from gateway.api.ops import Readiness
from gateway.api.routes import dialect_at
from gateway.api.seam import ClientGone, Exchange, Headers
from gateway.clock import Clock
from gateway.dispatch import Dispatcher
from gateway.endings import gone
from gateway.interrupt import Deadlines, Interrupt, Reason
from gateway.outcomes import Outcome, Refused
from gateway.record import Phase, Phases, Record
from gateway.settle import Settler
from gateway.telemetry.instruments import Instruments
from gateway.world import World

log = logging.getLogger("weighbridge.lifecycle")

_HEALTH = frozenset({"/healthz", "/readyz"})
_LAST_WORDS_S = 2.0  # for the error events of streams that are cut at the end of the drain time


class Lifecycle:
    """Serves requests; one instance a process. `world` is replaced on reload, never changed."""

    def __init__(
        self,
        world: World,
        *,
        clock: Clock,
        doorman: Doorman,
        dispatcher: Dispatcher,
        settler: Settler,
        instruments: Instruments,
        readiness: Callable[[], Readiness],
        new_id: Callable[[], str],
    ) -> None:
        self.world = world
        self.draining = False
        self._clock = clock
        self._doorman = doorman
        self._dispatcher = dispatcher
        self._settler = settler
        self._instruments = instruments
        self._readiness = readiness
        self._new_id = new_id
        self._deadlines = Deadlines()
        self._under_way: set[Interrupt] = set()
        self._empty = asyncio.Event()  # set exactly while nothing is under way
        self._empty.set()

    async def serve(self, http: Exchange) -> None:
        """Answers one request; returns when all that was done for it is undone or settled."""
        if http.path in _HEALTH:
            await self._health(http)
            return
        record = Record(self._new_id(), self._clock.unix(), Phases(self._clock.monotonic()))
        interrupt = Interrupt(asyncio.current_task(), self._deadlines)
        self._under_way.add(interrupt)
        self._empty.clear()
        self._instruments.inflight += 1
        try:
            await self._serve(http, record, interrupt)
        except Refused as refused:
            await self._answer(http, record, refused)
        except ClientGone:
            record.finish(gone(record))
        except asyncio.CancelledError:
            ours = _interrupted(interrupt, http)
            if ours is None:
                record.finish(gone(record))
                raise
            await self._answer(http, record, ours)
        except Exception:
            # Ours, whatever it was: the caller gets an answer, the log the traceback.
            log.exception("request %s failed inside the gateway", record.request_id)
            outcome = Outcome.STREAM_INTERNAL if http.started else Outcome.INTERNAL
            await self._answer(http, record, Refused(outcome, "The gateway failed to handle this request."))
        finally:
            interrupt.disarm()
            try:
                await self._settler.settle(record)
            finally:
                self._under_way.discard(interrupt)
                self._instruments.inflight -= 1
                if not self._under_way:
                    self._empty.set()

    async def _health(self, http: Exchange) -> None:
        """Codes only: this listener is open to strangers."""
        alive = (200, b'{"status":"alive"}')
        status, body = alive if http.path == "/healthz" else self._readiness().code_only()
        with contextlib.suppress(ClientGone):
            await http.respond(status, (("content-type", "application/json"),), body)

    async def _serve(self, http: Exchange, record: Record, interrupt: Interrupt) -> None:
        world = self.world
        if self.draining:
            raise Refused(Outcome.SHUTTING_DOWN, "This instance is shutting down.", retry_after_s=1.0)
        accepted = await self._doorman.accept(http, world, record)
        if accepted is None:
            return  # answered in full at the door
        await self._settler.reserve(accepted, record)
        if accepted.answer is not None:
            record.status = 200
            headers = [*self._settler.headers(record), ("content-type", "application/json")]
            await http.respond(200, headers, accepted.answer)
            record.finish(Outcome.FINISHED)
            return
        record.phases.enter(Phase.QUEUE, self._clock.monotonic())
        await self._dispatcher.run(http, accepted, record, interrupt)
        record.finish(Outcome.FINISHED)

    async def _answer(self, http: Exchange, record: Record, refused: Refused) -> None:
        """Tells the client that the request ended badly, in the shape its SDK reads."""
        outcome = refused.outcome
        if not record.finish(outcome):
            return
        record.detail = refused.message
        dialect = dialect_at(http)
        try:
            if http.started:
                record.status = 200
                # The status is spent. An error event and an end without a terminator: no SDK takes
                # what came for a whole answer.
                await http.write(refusal_event(refused, dialect))
                await http.end()
                return
            record.status = refusal_status(refused, dialect)
            headers: Headers = [
                *self._settler.headers(record),
                ("content-type", "application/json"),
                *refusal_headers(refused),
            ]
            await http.respond(record.status, headers, refusal_body(refused, dialect, record.request_id))
        except ClientGone:
            record.detail += " (the client had left)"

    async def drain(self, grace_s: float) -> int:
        """Refuses new requests and waits for running ones, at most `grace_s` seconds; returns how many were cut."""
        self.draining = True
        await self._wait_empty(grace_s)
        left = list(self._under_way)
        for interrupt in left:
            interrupt.fire(Reason.SHUTDOWN)
        await self._wait_empty(_LAST_WORDS_S)
        return len(left)

    async def _wait_empty(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()

    @property
    def in_flight(self) -> int:
        """Requests between their first byte and settlement."""
        return len(self._under_way)


def _interrupted(interrupt: Interrupt, http: Exchange) -> Refused | None:
    """Why we cancelled this request ourselves; None when it was the client who left."""
    match interrupt.take():
        case Reason.DEADLINE:
            outcome = Outcome.STREAM_DEADLINE if http.started else Outcome.DEADLINE
            return Refused(outcome, "The request took longer than the time allowed for it.")
        case Reason.SHUTDOWN:
            outcome = Outcome.STREAM_SHUTDOWN if http.started else Outcome.SHUTTING_DOWN
            return Refused(outcome, "This instance is shutting down.", retry_after_s=1.0)
        case _:
            return None
