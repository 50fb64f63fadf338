"""What a request takes and what it is charged in the end: reserve, progress, settle, exactly once.

The estimate is reserved before anything is sent. The settlement replaces it by what the upstream
reported, or by what was counted passing by where nothing was reported (and says so in the metrics).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway import limit_headers
from gateway.clock import Clock
from gateway.estimate import Estimator
from gateway.outcomes import Ending, Outcome, Refused
from gateway.record import Phase, Record
from gateway.registry.ledger import Ledger
from gateway.telemetry.instruments import Instruments
from gateway.telemetry.logs import RequestLog
from providers.exchange import NO_USAGE, Dialect
from ratelimit.limit import BUDGETS, Amounts, Limit, Reason, Refusal
from ratelimit.reservation import kept
from ratelimit.store import Limiter, LocalLimiter, StoreMode
from ratelimit.usage import TokenUse, weigh

if TYPE_CHECKING:
    from gateway.accept import Accepted
    from gateway.api.seam import Headers

_OUTCOMES: dict[Reason, Outcome] = {
    Reason.EXCEEDED: Outcome.RATE_LIMITED,
    Reason.CONCURRENCY: Outcome.RATE_LIMITED,
    Reason.NEVER_FITS: Outcome.NEVER_FITS_LIMIT,
    Reason.BUDGET_EXHAUSTED: Outcome.BUDGET_EXHAUSTED,
    Reason.STORE_UNAVAILABLE: Outcome.STORE_AWAY,
}

_NOTHING = Amounts()
_PHASES = {phase: phase.value for phase in Phase}  # as the log names them
_PROGRESS_TOKENS = 64  # a stream is charged again each time it has passed what is charged by this much


class Settler:
    """Takes estimates, corrects them while a stream runs, and closes the books of each request once."""

    def __init__(
        self,
        *,
        clock: Clock,
        limiter: Limiter,
        estimator: Estimator,
        instruments: Instruments,
        log: RequestLog,
        ledger: Ledger,
    ) -> None:
        self._clock = clock
        self._limiter = limiter
        self._shared = not isinstance(limiter, LocalLimiter)  # a store may be away
        self._estimator = estimator
        self._instruments = instruments
        self._log = log
        self._ledger = ledger
        self._charging: set[asyncio.Future[None]] = set()  # progress calls under way, kept from being collected

    async def reserve(self, accepted: Accepted, record: Record) -> None:
        """Takes the estimate from every limit of the principal, or raises Refused naming the one that refuses."""
        group = accepted.world.group_of(accepted.principal, accepted.model)
        estimate = accepted.estimate
        use = TokenUse(prompt=estimate.prompt_tokens, output=estimate.output_tokens)
        prices = accepted.model.prices
        if not prices.by_target and any(limit.dimension in BUDGETS for limit in group.limits):
            raise Refused(
                Outcome.FORBIDDEN,
                f"The model '{accepted.model.name}' has no price, and a money limit applies to this key.",
                code="model_without_price",
            )
        worst = prices.worst(use.prompt, estimate.output_cap or use.output)
        amounts = weigh(use, micro_usd=prices.cost(use), worst_micro_usd=worst)
        verdict = await self._limiter.reserve(record.request_id, group, amounts, self._clock.unix_us())
        record.limits = verdict
        if isinstance(verdict, Refusal):
            self._instruments.refusals_by_limit[verdict.limit.level, verdict.limit.dimension] += 1
            raise _refused(verdict)
        record.reserved = amounts

    async def choose(self, record: Record, target: tuple[str, str]) -> None:
        """A target was chosen and prices differ: its own count from here on, money held beyond them is given back."""
        accepted, reservation, estimate = record.accepted, record.limits, record.estimate
        if accepted is None or estimate is None:
            return
        if reservation is None or isinstance(reservation, Refusal):
            return
        prices = accepted.model.prices.by_target[target]
        use = TokenUse(prompt=estimate.prompt_tokens, output=estimate.output_tokens)
        worst = prices.worst(use.prompt, estimate.output_cap or use.output)
        await self._limiter.reprice(reservation, prices.cost(use), worst, self._clock.unix_us())

    def sending(self, record: Record) -> None:
        """The request goes to an upstream now: from here on it is in the ledger, however this process ends."""
        self._ledger.sending(record)

    def progress(self, record: Record) -> None:
        """Charges a stream that has passed its estimate while it still runs; the relay does not wait for it."""
        reservation, reserved = record.limits, record.reserved
        if reserved is None or reservation is None or isinstance(reservation, Refusal):
            return
        if record.counted_tokens - reserved.output_tokens < _PROGRESS_TOKENS:
            return
        so_far = self._used(record)
        record.reserved = Amounts(*map(max, reserved, so_far))
        task = asyncio.ensure_future(self._limiter.progress(reservation, so_far, self._clock.unix_us()))
        self._charging.add(task)
        task.add_done_callback(self._charging.discard)

    def headers(self, record: Record) -> Headers:
        """Request ids and rate-limit headers of an answer."""
        ids = [("x-request-id", record.request_id), ("request-id", record.request_id)]
        if self._shared and self._limiter.status().mode is StoreMode.AWAY:
            ids.append(("x-weighbridge-degraded", "limit-store-away"))
        if record.limits is not None:
            accepted = record.accepted
            anthropic = accepted is not None and accepted.call.dialect is Dialect.ANTHROPIC
            told = limit_headers.anthropic if anthropic else limit_headers.openai
            ids += told(self._limiter, record.limits, self._clock.unix_us())
        return ids

    def book(self, record: Record) -> None:
        """A whole answer is about to leave: no caller may have what the ledger calls lost."""
        ending = Outcome.FINISHED.ending
        charged = kept(ending.end, self._used(record)) if record.reserved is not None else _NOTHING
        self._ledger.settled(record, ending, charged, estimated=charged.output_tokens > 0 and not _reported(record))
        record.booked = True

    async def settle(self, record: Record) -> None:
        """Closes the books: limits, estimator, instruments, log. Called once, on every way out."""
        record.phases.end(self._clock.monotonic())
        outcome = record.outcome or Outcome.INTERNAL
        ending = outcome.ending
        charged = kept(ending.end, self._used(record)) if record.reserved is not None else _NOTHING
        estimated = charged.output_tokens > 0 and not _reported(record)
        if not record.booked:
            self._ledger.settled(record, ending, charged, estimated=estimated)  # before anything here waits
        reservation = record.limits
        if reservation is not None and not isinstance(reservation, Refusal):
            await self._limiter.settle(reservation, charged, self._clock.unix_us())
        self._learn(record, outcome)
        self._count(record, ending, charged)
        self._log.write(_line(record, ending, charged))

    def _used(self, record: Record) -> Amounts:
        """What the request has used so far: as reported, else as counted and estimated."""
        usage = record.usage or NO_USAGE
        estimate = record.estimate
        prompt = usage.prompt_tokens
        if prompt is None:
            prompt = estimate.prompt_tokens if estimate is not None else 0
        use = TokenUse(
            prompt=prompt,
            output=_output(record),
            cached=usage.cached_tokens or 0,
            cache_write=usage.cache_write_tokens or 0,
            reasoning=usage.reasoning_tokens or 0,
        )
        accepted = record.accepted
        return weigh(use, micro_usd=accepted.model.prices.at(record.target, use) if accepted is not None else 0)

    def _learn(self, record: Record, outcome: Outcome) -> None:
        accepted, usage = record.accepted, record.usage
        if accepted is None or (usage is None and not record.counted_tokens):
            return
        output = usage.output_tokens if usage is not None and record.usage_whole else None
        self._estimator.observe(
            accepted.principal.tenant,
            accepted.model.name,
            accepted.measured,
            prompt_tokens=usage.prompt_tokens if usage is not None else None,
            output_tokens=output if output is not None else record.counted_tokens or None,
            finished=outcome is Outcome.FINISHED,
        )

    def _count(self, record: Record, ending: Ending, charged: Amounts) -> None:
        principal = record.principal
        if principal is None:
            self._instruments.unauthenticated[ending.label] += 1
            return
        series = self._instruments.of(record.model, record.pool, record.cls, principal.tenant)
        series.requests[ending.label] += 1
        for phase, seconds in record.phases.spent.items():
            series.phases[phase].observe(seconds)
        first, last = record.first_token_at, record.last_token_at
        if first is not None and last is not None:
            series.ttft.observe(first - record.phases.started)
            if record.counted_tokens > 1 and last > first:
                series.tpot.observe((last - first) / (record.counted_tokens - 1))
        usage = record.usage or NO_USAGE
        series.prompt_tokens += charged.input_tokens
        series.output_tokens += charged.output_tokens
        series.cached_tokens += usage.cached_tokens or 0
        if charged.output_tokens and not _reported(record):
            series.estimated_usage += 1


def _reported(record: Record) -> bool:
    """Whether the upstream itself said how much the whole answer was."""
    return record.usage_whole and record.usage is not None and record.usage.output_tokens is not None


def _output(record: Record) -> int:
    """Output tokens as reported; of a part of an answer at least what was counted, and of one that is billed on at
    least what was estimated.
    """
    reported = record.usage.output_tokens if record.usage is not None else None
    if reported is not None and record.usage_whole:
        return reported
    counted = max(reported or 0, record.counted_tokens)
    estimate = record.estimate
    return max(counted, estimate.output_tokens) if record.billed_on and estimate is not None else counted


def _refused(refusal: Refusal) -> Refused:
    outcome = _OUTCOMES[refusal.reason]
    return Refused(
        outcome,
        _sentence(refusal),
        code="concurrency_limit_exceeded" if refusal.reason is Reason.CONCURRENCY else None,
        retry_after_s=refusal.retry_after_s,
    )


def _sentence(refusal: Refusal) -> str:
    """Which limit, how much, and when to come back."""
    limit = refusal.limit
    what = limit.dimension.replace("_", " ")
    amount, requested, left = _shown(limit, limit.amount), _shown(limit, refusal.requested), _shown(
        limit, refusal.remaining
    )  # fmt: skip
    head = f"{limit.level.replace('_', ' ').capitalize()} '{limit.subject}' limit on {what} ({amount}{_per(limit)})"
    match refusal.reason:
        case Reason.STORE_UNAVAILABLE:
            return f"{head} cannot be checked at the moment; it admits nothing until it can."
        case Reason.NEVER_FITS:
            burst = _shown(limit, limit.burst)
            return f"{head}: this request needs {requested}, more than the {burst} that can ever be taken at once."
        case Reason.BUDGET_EXHAUSTED:
            return f"{head} is used up: this request needs {requested}, {left} is left."
    wait = refusal.retry_after_s
    when = f" Please try again in {wait:.3f}s." if wait is not None else ""
    return f"{head} reached: this request needs {requested}, {left} left.{when}"


def _per(limit: Limit) -> str:
    match limit.dimension:
        case "money_day":
            return " per day"
        case "money_month":
            return " per month"
        case "concurrency":
            return " at once"
        case _:
            return f" per {limit.period_s} s" if limit.period_s != 60 else " per minute"


def _shown(limit: Limit, units: int) -> str:
    return f"{units / 1e6:.6f} USD" if limit.dimension.startswith("money") else str(units)


def _line(record: Record, ending: Ending, charged: Amounts) -> dict[str, object]:
    """The log line of a request: no prompt, no key, no answer."""
    principal, phases = record.principal, record.phases
    line: dict[str, object] = {
        "time": round(record.wall, 3),
        "request_id": record.request_id,
        "tenant": principal.tenant if principal is not None else None,
        "key": principal.key_id if principal is not None else None,
        "path": record.path,
        "model": record.model,
        "class": record.cls,
        "outcome": ending.label,
        "status": record.status or ending.status,
        "stream": record.stream,
        "pool": record.pool,
        "replica": record.replica,
        "attempts": len(record.attempts),
        "prompt_tokens": charged.input_tokens,
        "output_tokens": charged.output_tokens,
        "micro_usd": charged.micro_usd,
        "total_ms": round(1000 * phases.total, 3),
        "phases_ms": {_PHASES[phase]: round(1000 * seconds, 3) for phase, seconds in phases.spent.items()},
    }
    if record.first_token_at is not None:
        line["ttft_ms"] = round(1000 * (record.first_token_at - phases.started), 3)
    if charged.output_tokens:
        line["usage"] = "reported" if _reported(record) else "estimated"
    if record.detail:
        line["detail"] = record.detail
    if len(record.attempts) > 1 or (record.attempts and record.attempts[-1].result != "served"):
        line["tried"] = [
            {"pool": a.pool, "replica": a.replica, "result": a.result, "ms": round(1000 * a.seconds, 1)}
            for a in record.attempts
        ]
    return line
