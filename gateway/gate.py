"""The asyncio shell of one pool's admission: requests wait here for their ticket.

Ownership: `admit` hands a ticket to its caller, who must `release` it exactly once on every path.
A caller that is cancelled while it waits owns nothing; its place in the queue is given up here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from fairqueue.admission import Admission, PoolSettings, Ticket
from fairqueue.item import Item, Reason, Refusal


class QueueRefused(Exception):
    """The pool's queue refused the request; `refusal` says why and how long the wait would be."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


class Gate:
    """One pool's admission, with its waiting coroutines and the timer for what time alone allows."""

    def __init__(self, core: Admission, clock: Callable[[], float]) -> None:
        self.core = core
        self._clock = clock
        self._waiting: dict[int, tuple[Item, asyncio.Future[Ticket]]] = {}  # by id(item)
        self._interrupts: dict[int, Callable[[], None]] = {}  # by id(ticket), batch work under way
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.freed: Callable[[], None] | None = None  # told of each release

    async def admit(self, item: Item) -> Ticket:
        """Waits for a ticket. Raises QueueRefused, at once where the wait would be in vain."""
        now = self._clock()
        refusals = self.core.enqueue(item, now)
        if refusals:
            self._refuse(refusals, item)
        granted: Ticket | None = None
        for ticket in self.core.dispatch(now):
            if ticket.item is item:
                granted = ticket
            else:
                self._grant(ticket)
        if granted is not None:
            if self._waiting:
                self._arm(now)
            return granted
        future: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
        self._waiting[id(item)] = (item, future)
        self._preempt(now)
        self._arm(now)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                # The grant and the cancel crossed: the ticket is ours to give back.
                self.release(future.result(), served=False)
            else:
                self._waiting.pop(id(item), None)
                self.core.cancel(item, self._clock())
                self.pump()
            raise

    def _grant(self, ticket: Ticket) -> None:
        _, future = self._waiting.pop(id(ticket.item), (None, None))
        if future is None or future.done():
            # Its coroutine was cancelled in this same turn and has not come to run yet; the
            # cancel handler above finds the future without a result, so the ticket ends here.
            self.core.release(
                ticket, self._clock(), prompt_tokens=None, cached_tokens=None, output_tokens=0, served=False
            )
            return
        future.set_result(ticket)

    def _refuse(self, refusals: list[Refusal], new: Item | None = None) -> None:
        """Tells those who wait that they were refused; raises when it is `new` itself."""
        own: Refusal | None = None
        for refusal in refusals:
            if refusal.item is new:
                own = refusal
                continue
            _, future = self._waiting.pop(id(refusal.item), (None, None))
            if future is not None and not future.done():
                future.set_exception(QueueRefused(refusal))
        if own is not None:
            raise QueueRefused(own)

    def interruptible(self, ticket: Ticket, interrupt: Callable[[], None] | None) -> None:
        """While set, the pool may call `interrupt` to take `ticket` back for waiting work."""
        if interrupt is None:
            self._interrupts.pop(id(ticket), None)
        else:
            self._interrupts[id(ticket)] = interrupt

    def first_token(self, ticket: Ticket) -> None:
        """The first token of `ticket` was seen: its prefill is through."""
        now = self._clock()
        self.core.first_token(ticket, now)
        self._pump(now)

    def progress(self, ticket: Ticket, output_tokens: int) -> None:
        """`output_tokens` have been produced so far."""
        self.core.progress(ticket, output_tokens, self._clock())

    def release(
        self,
        ticket: Ticket,
        *,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        output_tokens: int = 0,
        served: bool = True,
    ) -> None:
        """Gives back what `ticket` holds; a second call changes nothing."""
        self._interrupts.pop(id(ticket), None)
        now = self._clock()
        self.core.release(
            ticket,
            now,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            output_tokens=output_tokens,
            served=served,
        )
        self._pump(now)
        if self.freed is not None:
            self.freed()

    def usable(self, states: Mapping[str, bool]) -> None:
        """Which replicas may get work. While none may, waiting is in vain here: those who wait move on."""
        now = self._clock()
        for name, state in states.items():
            self.core.set_usable(name, state, now)
        if any(states.values()):
            self._pump(now)
            return
        for item, _ in list(self._waiting.values()):
            if self.core.cancel(item, now):
                self._refuse([Refusal(item, Reason.NO_REPLICA, 0.0, "every replica of the pool has become unusable")])

    def reconfigure(self, settings: PoolSettings) -> None:
        """Other settings from now on; who waits keeps the place, unless smaller bounds leave none."""
        now = self._clock()
        self._refuse(self.core.reconfigure(settings, now))
        self._pump(now)

    def pump(self) -> None:
        """Grants what can be granted now; call after anything that may have made room."""
        self._pump(self._clock())

    def _pump(self, now: float) -> None:
        if not self._waiting:
            return
        for ticket in self.core.dispatch(now):
            self._grant(ticket)
        if self._waiting:
            self._preempt(now)
            self._arm(now)

    def _preempt(self, now: float) -> None:
        for ticket in self.core.preemptions(now):
            interrupt = self._interrupts.pop(id(ticket), None)
            if interrupt is not None:
                interrupt()

    def _arm(self, now: float) -> None:
        at = self.core.next_wake(now)
        if at is None:
            return
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self._wake)

    def _wake(self) -> None:
        self._timer = None
        now = self._clock()
        self._refuse(self.core.expire(now))
        self._pump(now)

    @property
    def waiting(self) -> int:
        """Requests that wait for a ticket."""
        return len(self._waiting)

    def close(self) -> None:
        """Stops the timer; nobody may be waiting any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
