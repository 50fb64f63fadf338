"""One request being answered: its sequences in the engine, the bytes that go out, the fault that hits it in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from providers.simulated.answers import DONE, Events, embeddings, error_event, usage, whole
from providers.simulated.ask import Ask, Kind, prompt_tokens
from providers.simulated.errors import ApiError, error_body, error_object
from providers.simulated.faults import Fault, FaultKind
from providers.simulated.httpd import Exchange
from providers.simulated.metrics import ServingMetrics
from providers.simulated.plan import Choice
from providers.simulated.realtime import RealTime
from providers.simulated.record import Record
from providers.simulated.sequence import Phase, Request, Sequence
from providers.simulated.text import block_keys

SSE_HEADERS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)


@dataclass(slots=True)
class Setting:
    """What all jobs of one server share."""

    realtime: RealTime
    metrics: ServingMetrics
    account: bool
    embedding_dimensions: int
    unix_time: Callable[[], float]
    open: set[Job]
    """Jobs that have sequences in the engine or may yet send something."""


class Job:
    """Lives from the submission until the answer is complete, broken or unwanted; `end` is called exactly once."""

    def __init__(
        self,
        setting: Setting,
        exchange: Exchange,
        ask: Ask,
        choices: list[Choice],
        record: Record,
        fault: Fault | None,
        headers: tuple[tuple[str, str], ...],
    ) -> None:
        self._setting = setting
        self._exchange = exchange
        self._ask = ask
        self._choices = choices
        self._record = record
        self._fault = fault
        self._headers = headers
        prefix = {Kind.CHAT: "chatcmpl", Kind.COMPLETION: "cmpl", Kind.EMBEDDING: "embd"}[ask.kind]
        self._answer_id = f"{prefix}-{record.id}"
        self._created = int(setting.unix_time())
        self._events = Events(ask, self._answer_id, self._created)
        self._runs: list[Run] = []
        # Output tokens of all choices that went out or would have, and choices that are complete.
        self._tokens = 0
        self._complete = 0
        self._ended = False

    def start(self, number: int, adapter: str | None) -> None:
        """Hand the sequences to the engine. A streamed answer gets its head now, as engines send it."""
        ask, engine = self._ask, self._setting.realtime.engine
        self._setting.open.add(self)
        size, keyed = engine.settings.block_tokens, engine.settings.prefix_cache
        for choice in self._choices:
            keys = block_keys(choice.prompt, size) if keyed else ()
            request = Request(
                id=f"{number}-{choice.index}",
                prompt_tokens=prompt_tokens(choice.prompt),
                output_tokens=choice.output_tokens,
                max_tokens=choice.max_tokens,
                keys=keys,
                salt=ask.salt,
                adapter=adapter,
                priority=ask.priority,
                grown=choice.grown(keys, size) if keyed else None,
            )
            run = Run(self, choice)
            run.sequence = self._setting.realtime.submit(request, run)
            self._runs.append(run)
        self._record.prompt_tokens = self._prompt_tokens()
        self._exchange.on_gone = self._gone
        if ask.stream:
            self._record.status = 200
            self._exchange.begin(200, (*SSE_HEADERS, *self._headers))

    # -- from the engine ---------------------------------------------------------------------------------------------

    def produced(self, run: Run, sequence: Sequence, now: float) -> None:
        """Tokens of one choice came out."""
        fresh = sequence.fresh
        self._count(run, sequence, fresh, now)
        fault = self._fault
        if fault is not None and fault.kind is not FaultKind.NO_DONE and self._tokens + fresh > fault.tokens:
            fresh = fault.tokens - self._tokens
            if self._ask.stream and fresh > 0:
                self._exchange.send(self._text(run, fresh))
            self._tokens += fresh
            self._break(fault)
            return
        self._tokens += fresh
        if not self._ask.stream:
            run.sent += fresh
            return
        data = self._text(run, fresh)
        if sequence.phase is Phase.FINISHED:
            run.held = data  # goes out together with the finish reason
        else:
            self._exchange.send(data)

    def finished(self, run: Run, now: float) -> None:
        """One choice is complete."""
        if self._ended:
            return
        self._complete += 1
        fault = self._fault
        if fault is not None and fault.kind is not FaultKind.NO_DONE and self._complete == len(self._runs):
            if self._ask.stream:
                self._exchange.send(run.held)
            self._break(fault)
            return
        self._measure(run, now)
        if self._ask.stream:
            data = run.held + self._events.finish(run.choice, self._running_usage())
            if self._complete < len(self._runs):
                self._exchange.send(data)
                return
            if self._ask.include_usage:
                data += self._events.final_usage(self._usage())
            self._exchange.finish(data if fault is not None else data + DONE)
        elif self._complete < len(self._runs):
            return
        else:
            self._record.status = 200
            self._exchange.respond(200, self._body(), headers=self._headers)
        self._end("finished", now)

    # -- ends --------------------------------------------------------------------------------------------------------

    def _gone(self) -> None:
        """The client left, or the server is closing."""
        self._cancel("abort")
        self._end("cancelled", self._setting.realtime.now)

    def _break(self, fault: Fault) -> None:
        """The fault strikes now."""
        self._cancel("error")
        exchange, stream = self._exchange, self._ask.stream
        kind = fault.kind
        if kind is FaultKind.CUT:
            if not stream:
                body = self._body()
                exchange.begin(200, (("content-type", "application/json"), *self._headers))
                exchange.send(body[: len(body) // 2])
            exchange.cut(reset=fault.reset)
        elif kind is FaultKind.UNFINISHED:
            if stream:
                exchange.finish()
            else:
                exchange.respond(200, self._body()[:-20], headers=self._headers)
        elif kind is FaultKind.ERROR_IN_STREAM:
            account = self._setting.account
            error = fault.error()
            if stream:
                exchange.finish(error_event(error_object(error, account=account)) + DONE)
            else:
                exchange.respond(200, error_body(error, account=account), headers=self._headers)
        elif kind is FaultKind.GARBAGE:
            if stream:
                exchange.finish(b'data: {"id": \xff\xfe<garbage>\n\n')
            else:
                exchange.respond(200, b"<html>not JSON \xff\xfe", headers=self._headers)
        # SILENT_AFTER_TOKENS: nothing more is sent, and the connection stays.
        if kind is FaultKind.SILENT_AFTER_TOKENS:
            exchange.on_gone = None
        self._end(f"fault:{kind}", self._setting.realtime.now)

    def fail(self, error: ApiError) -> None:
        """Refuse after some of the sequences were submitted already."""
        self._cancel("error")
        self._exchange.on_gone = None
        self._exchange.respond(error.status, error_body(error, account=self._setting.account), headers=self._headers)
        self._end("refused", self._setting.realtime.now)

    def _cancel(self, reason: str) -> None:
        for run in self._runs:
            if run.sequence is not None and self._setting.realtime.cancel(run.sequence.id):
                self._setting.metrics.finished[reason] += 1

    def _end(self, outcome: str, now: float) -> None:
        if self._ended:
            return
        self._ended = True
        record = self._record
        self._fill(record)
        record.outcome = outcome
        record.ended_at = now
        self._setting.open.discard(self)

    # -- figures -----------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Bring the record up to date while the job runs."""
        if not self._ended:
            self._fill(self._record)

    def _fill(self, record: Record) -> None:
        record.cached_tokens = self._cached_tokens()
        record.output_tokens = self._tokens
        record.preemptions = sum(run.sequence.preemptions for run in self._runs if run.sequence is not None)

    def _count(self, run: Run, sequence: Sequence, fresh: int, now: float) -> None:
        metrics = self._setting.metrics
        if run.last_at is None:
            metrics.first_token.add(now - sequence.arrived_at)
            if self._record.first_token_at is None:
                self._record.first_token_at = now
        else:
            metrics.token_gap.add(now - run.last_at)
        run.last_at = now

    def _measure(self, run: Run, now: float) -> None:
        sequence = run.sequence
        assert sequence is not None
        metrics = self._setting.metrics
        metrics.finished[run.choice.reason if run.choice.reason in metrics.finished else "stop"] += 1
        metrics.whole.add(now - sequence.arrived_at)
        started = sequence.arrived_at if sequence.admitted_at is None else sequence.admitted_at
        metrics.queue.add(started - sequence.arrived_at)
        first = now if sequence.first_token_at is None else sequence.first_token_at
        metrics.prefill.add(first - started)
        metrics.decode.add(now - first)
        if sequence.generated > 1:
            metrics.per_output_token.add((now - first) / (sequence.generated - 1))
        metrics.prompt_sizes.add(sequence.request.prompt_tokens)
        metrics.output_sizes.add(sequence.generated)

    def _prompt_tokens(self) -> int:
        """Each prompt counts once, however many choices it has."""
        return sum(prompt_tokens(choice.prompt) for choice in self._choices[:: self._ask.n])

    def _cached_tokens(self) -> int:
        runs = self._runs[:: self._ask.n]
        return sum(run.sequence.cached_tokens for run in runs if run.sequence is not None)

    def _usage(self) -> dict[str, object]:
        return usage(self._record.prompt_tokens, self._tokens, self._cached_tokens())

    def _running_usage(self) -> dict[str, object] | None:
        return self._usage() if self._ask.running_usage else None

    def _text(self, run: Run, fresh: int) -> bytes:
        """Events for the next tokens of a choice, with its opening before the first."""
        choice, position = run.choice, run.sent
        run.sent = position + fresh
        if fresh == 1:
            text = choice.piece(position)
        else:
            text = "".join([choice.piece(position + more) for more in range(fresh)])
        used = self._running_usage()
        data = self._events.text(choice, text, used) if text else b""
        return data if position else self._events.opening(choice, used) + data

    def _body(self) -> bytes:
        if self._ask.kind is Kind.EMBEDDING:
            return embeddings(self._ask, self._setting.embedding_dimensions, self._record.prompt_tokens)
        tokens = [run.sent for run in self._runs]
        return whole(self._ask, self._answer_id, self._created, self._choices, tokens, self._usage())


class Run:
    """One choice of a job while it is in the engine."""

    __slots__ = ("choice", "held", "job", "last_at", "sent", "sequence")

    def __init__(self, job: Job, choice: Choice) -> None:
        self.job = job
        self.choice = choice
        self.sequence: Sequence | None = None
        self.sent = 0
        """Output tokens handed on."""
        self.last_at: float | None = None
        self.held = b""

    def produced(self, sequence: Sequence, now: float) -> None:
        """`Owner`."""
        self.job.produced(self, sequence, now)

    def finished(self, sequence: Sequence, now: float) -> None:
        """`Owner`."""
        self.job.finished(self, now)
