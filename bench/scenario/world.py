"""Gateway and engines in one virtual time: every arrival, grant, engine step and scrape is an event.

The gateway side is any `Gate`: the real `Admission`, or a simpler policy to compare it with. The engine side is the
simulated engine of `providers.simulated`. Between them lies `wire_s` each way. A digest of all decisions, with their
times, tells whether two runs were the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol

from bench.scenario.traffic import Ask
from fairqueue.capacity import Capacity, Scrape
from fairqueue.item import Costs, Demand, Item, Refusal, RequestClass
from providers.simulated.engine import Engine
from providers.simulated.sequence import Request, Step
from providers.simulated.settings import EngineSettings


class Grant(Protocol):
    """What a gate gives out."""

    item: Item

    @property
    def replica(self) -> str: ...


class Gate(Protocol):
    """The seam of admission as the world uses it."""

    def set_replica(self, name: str, capacity: Capacity, now: float) -> None: ...
    def observe(self, name: str, scrape: Scrape, now: float) -> None: ...
    def enqueue(self, item: Item, now: float) -> list[Refusal]: ...
    def dispatch(self, now: float) -> Sequence[Any]: ...
    def cancel(self, item: Item, now: float) -> bool: ...
    def expire(self, now: float) -> list[Refusal]: ...
    def first_token(self, ticket: Any, now: float) -> None: ...
    def progress(self, ticket: Any, output_tokens: int, now: float) -> None: ...
    def release(self, ticket: Any, now: float, **actual: Any) -> None: ...
    def preemptions(self, now: float) -> list[Any]: ...
    def next_wake(self, now: float) -> float | None: ...


class Predictor(Protocol):
    """The gateway's guess of output length: expected in all, and still expected after n."""

    def expected(self, ask: Ask) -> int: ...
    def remaining(self, ask: Ask) -> Callable[[int], int]: ...
    def learn(self, ask: Ask) -> None: ...


@dataclass(slots=True)
class Record:
    """One request as its client saw it. Times are absolute; None = never."""

    ask: Ask
    granted: float | None = None
    first: float | None = None
    last: float | None = None
    tokens: int = 0
    outcome: str = "pending"  # served | left | a refusal's reason
    replica: str = ""
    attempts: int = 0
    longest_gap: float = 0.0

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.ask.at

    @property
    def tpot(self) -> float | None:
        if self.first is None or self.last is None or self.tokens < 2:
            return None
        return (self.last - self.first) / (self.tokens - 1)

    @property
    def wait(self) -> float | None:
        return None if self.granted is None else self.granted - self.ask.at


@dataclass(slots=True)
class Sample:
    """Work done by the engines up to a time."""

    at: float
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    recomputed: int
    service: dict[str, float]  # cost units really done for each tenant, as their tokens came


@dataclass(slots=True)
class Outcome:
    """What a run left behind."""

    records: list[Record]
    digest: str
    samples: list[Sample]
    refused: dict[str, int] = field(default_factory=dict)
    preempted: int = 0  # batch requests taken back by the gate


class World:
    """One pool behind one gate. `run` may be called once."""

    def __init__(
        self,
        gate: Gate,
        engines: Mapping[str, EngineSettings],
        asks: Iterable[Ask],
        predictor: Predictor,
        *,
        until: float,
        scrape_s: float | None = 1.0,
        wire_s: float = 0.0005,
        tell: Callable[[EngineSettings], Capacity] | None = None,
        progress_every: int = 8,
        deadline_s: float = 600.0,
        preemptible_batch: bool = True,
        stop_s: float = 0.02,
    ) -> None:
        self.gate = gate
        self.now = 0.0
        self._until = until
        self._predictor = predictor
        self._wire = wire_s
        self._progress_every = progress_every
        self._deadline = deadline_s
        self._preemptible = preemptible_batch
        self._stop = stop_s  # from telling batch work to stop until its upstream has
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._digest = sha256()
        self._wake_at = float("inf")
        self.engines = {name: Engine(settings) for name, settings in engines.items()}
        self._idle = set(self.engines)
        self._flights: dict[Item, _Flight] = {}
        self._service: dict[str, float] = {}
        self._costs = Costs()
        self.outcome = Outcome([], "", [])
        for name, settings in engines.items():
            gate.set_replica(name, (tell or capacity_of)(settings), 0.0)
            if scrape_s is not None:
                self.at(scrape_s * 0.37, lambda n=name, s=scrape_s: self._scrape(n, s))  # type: ignore[misc]
        for ask in sorted(asks, key=lambda a: a.at):
            self.at(ask.at, lambda a=ask: self._arrive(a))  # type: ignore[misc]
        self.at(0.0, self._sample)

    # -- events --------------------------------------------------------------------------------------------

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Do something at a time."""
        heappush(self._events, (when, next(self._order), act))

    def run(self) -> Outcome:
        """All events up to `until`; what is unfinished then stays `pending`."""
        events = self._events
        while events and events[0][0] <= self._until:
            self.now, _, act = heappop(events)
            act()
        self._sample()
        self.outcome.digest = self._digest.hexdigest()[:16]
        return self.outcome

    def _note(self, what: str, who: str) -> None:
        self._digest.update(f"{self.now:.6f} {what} {who}\n".encode())

    def _sample(self) -> None:
        parts = [e.snapshot() for e in self.engines.values()]
        self.outcome.samples.append(
            Sample(
                self.now,
                sum(p.prefill_tokens_total for p in parts),
                sum(p.generation_tokens_total for p in parts),
                sum(p.preemptions_total for p in parts),
                sum(p.recomputed_tokens_total for p in parts),
                dict(self._service),
            )
        )
        if self.now + 1.0 <= self._until:
            self.at(self.now + 1.0, self._sample)

    # -- the gateway ---------------------------------------------------------------------------------------

    def _arrive(self, ask: Ask) -> None:
        record = Record(ask)
        self.outcome.records.append(record)
        item = Item(
            request_id=str(len(self.outcome.records)),
            tenant=ask.tenant,
            cls=RequestClass.BATCH if ask.batch else RequestClass.INTERACTIVE,
            demand=Demand(
                prompt_tokens=ask.prompt,
                output_tokens=self._predictor.expected(ask),
                output_cap=ask.cap,
                cached_tokens=ask.shared,
            ),
            arrived=self.now,
            deadline=self.now + self._deadline,
            remaining=self._predictor.remaining(ask),
            affinity=ask.prefix,
            preemptible=ask.batch and self._preemptible,
            gathered=ask.batch,  # batch callers take whole answers
        )
        flight = _Flight(item, record)
        self._flights[item] = flight
        self._enqueue(item)
        if ask.leaves_after is not None:
            self.at(self.now + ask.leaves_after, lambda: self._client_leaves(flight))
        self._turn()

    def _enqueue(self, item: Item) -> None:
        for refusal in self.gate.enqueue(item, self.now):
            self._refuse(refusal)

    def _refuse(self, refusal: Refusal) -> None:
        flight = self._flights.pop(refusal.item)
        flight.record.outcome = str(refusal.reason)
        counts = self.outcome.refused
        counts[flight.record.outcome] = counts.get(flight.record.outcome, 0) + 1
        self._note("refuse", refusal.item.request_id)

    def _client_leaves(self, flight: _Flight) -> None:
        if flight.record.outcome != "pending":
            return
        flight.record.outcome = "left"
        self._note("leave", flight.item.request_id)
        if flight.ticket is None:
            self.gate.cancel(flight.item, self.now)
        else:
            self._abort(flight)
            self.gate.release(
                flight.ticket, self.now, output_tokens=flight.record.tokens, served=flight.record.tokens > 0
            )
        self._flights.pop(flight.item, None)
        self._turn()

    def _turn(self) -> None:
        """What the gateway's shell does after every event."""
        gate = self.gate
        now = self.now
        for refusal in gate.expire(now):
            self._refuse(refusal)
        self._send(gate.dispatch(now))
        for ticket in gate.preemptions(now):
            self.at(now + self._stop, lambda t=ticket: self._stopped(t))  # type: ignore[misc]
        wake = gate.next_wake(now)
        if wake is not None and (wake < self._wake_at - 1e-9 or self._wake_at <= now):
            self._wake_at = max(wake, now + 1e-4)
            self.at(self._wake_at, self._woken)

    def _stopped(self, ticket: Any) -> None:
        """A batch request that was taken back is out of its engine, and waits again."""
        flight = self._flights.get(ticket.item)
        if flight is None or flight.ticket is not ticket:
            return  # it ended meanwhile
        self._note("preempt", ticket.item.request_id)
        self.outcome.preempted += 1
        self._abort(flight)
        self.gate.release(ticket, self.now, output_tokens=0, served=False)
        flight.ticket = None
        flight.record.first = flight.record.last = None
        flight.record.tokens = 0
        self._enqueue(ticket.item)
        self._turn()

    def _woken(self) -> None:
        if self.now >= self._wake_at - 1e-9:
            self._wake_at = float("inf")
            self._turn()

    def _send(self, tickets: Iterable[Any]) -> None:
        for ticket in tickets:
            flight = self._flights[ticket.item]
            flight.ticket = ticket
            flight.attempt += 1
            record = flight.record
            record.attempts += 1
            record.granted = self.now
            record.replica = ticket.replica
            self._note("grant", f"{ticket.item.request_id} {ticket.replica}")
            self.at(self.now + self._wire, lambda f=flight, n=flight.attempt: self._submit(f, n))  # type: ignore[misc]

    def _abort(self, flight: _Flight) -> None:
        engine = self.engines[flight.record.replica]
        engine.cancel(f"{flight.item.request_id}.{flight.attempt}", self.now)
        flight.attempt += 1  # what is still on the wire finds that it is late

    # -- the engines ---------------------------------------------------------------------------------------

    def _submit(self, flight: _Flight, attempt: int) -> None:
        if flight.attempt != attempt or flight.ticket is None:
            return
        ask = flight.record.ask
        name = flight.record.replica
        keys: tuple[str, ...] = ()
        engine = self.engines[name]
        if ask.prefix is not None:
            size = engine.settings.block_tokens
            keys = tuple(f"{ask.prefix}/{n}" for n in range(ask.shared // size))
        request = Request(f"{flight.item.request_id}.{attempt}", ask.prompt, ask.output, max_tokens=ask.cap, keys=keys)
        engine.submit(request, self.now, owner=flight)
        if name in self._idle:
            self._idle.discard(name)
            self._begin(name)

    def _begin(self, name: str) -> None:
        step = self.engines[name].begin(self.now)
        if step is None:
            self._idle.add(name)
            return
        self.at(step.ends_at, lambda: self._finish(name))

    def _finish(self, name: str) -> None:
        step = self.engines[name].finish()
        if step.produced or step.finished:
            self.at(self.now + self._wire, lambda: self._hear(step))
        self._begin(name)

    def _hear(self, step: Step) -> None:
        """The tokens of a step reach the gateway."""
        now = self.now
        gate = self.gate
        first = set(map(id, step.first))
        event = False
        for sequence in step.produced:
            flight: _Flight = sequence.owner
            ticket = flight.ticket
            if ticket is None or not sequence.id.endswith(f".{flight.attempt}"):
                continue
            record = flight.record
            tenant = record.ask.tenant
            done = self._costs.output
            if id(sequence) in first:
                done += self._costs.of(record.ask.prompt, sequence.cached_tokens, 0)
                record.first = now
                gate.first_token(ticket, now)
                event = True
            elif record.last is not None:
                record.longest_gap = max(record.longest_gap, now - record.last)
            self._service[tenant] = self._service.get(tenant, 0.0) + done
            record.tokens += 1
            record.last = now
            if record.tokens % self._progress_every == 0:
                gate.progress(ticket, record.tokens, now)
        for sequence in step.finished:
            flight = sequence.owner
            if flight.ticket is None or not sequence.id.endswith(f".{flight.attempt}"):
                continue
            event = True
            record = flight.record
            record.outcome = "served"
            self._note("done", flight.item.request_id)
            gate.release(
                flight.ticket,
                now,
                prompt_tokens=record.ask.prompt,
                cached_tokens=sequence.cached_tokens,
                output_tokens=record.tokens,
                served=True,
            )
            self._predictor.learn(record.ask)
            del self._flights[flight.item]
        if event:
            self._turn()

    def _scrape(self, name: str, interval: float) -> None:
        engine = self.engines[name]
        s = engine.snapshot()
        self.gate.observe(
            name,
            Scrape(self.now, s.running, s.waiting, s.kv_blocks_held / s.kv_blocks_total, s.preemptions_total),
            self.now,
        )
        self.at(self.now + interval, lambda: self._scrape(name, interval))
        self._turn()


@dataclass(slots=True, eq=False)
class _Flight:
    item: Item
    record: Record
    ticket: Any = None
    attempt: int = 0


def capacity_of(settings: EngineSettings) -> Capacity:
    """What an engine's metrics say of it: cache and block size; seats and chunk as configured by its operator."""
    return Capacity(
        seats=settings.max_seqs,
        kv_tokens=settings.kv_tokens,
        chunk_tokens=settings.chunk_tokens,
        block_tokens=settings.block_tokens,
    )
