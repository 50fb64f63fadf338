"""Failures of upstreams and refusals of queues, as the caller is told of them.

One table: what kind of failure it was decides the outcome; nothing of our own credentials, addresses
or set-up is ever shown to a caller.
"""

from __future__ import annotations

from fairqueue.item import Reason, Refusal
from gateway.outcomes import Outcome, Refused
from gateway.record import Phase, Record
from gateway.relay import Broken
from providers.exchange import Failure, FailureKind

_BY_QUEUE: dict[Reason, Outcome] = {
    Reason.QUEUE_FULL: Outcome.QUEUE_FULL,
    Reason.EVICTED: Outcome.QUEUE_FULL,
    Reason.DEADLINE_UNMEETABLE: Outcome.DEADLINE_UNMEETABLE,
    Reason.QUEUE_TIMEOUT: Outcome.QUEUE_TIMEOUT,
    Reason.NEVER_FITS: Outcome.CONTEXT_TOO_LONG,
    Reason.NO_REPLICA: Outcome.NO_TARGET,
}

_BY_FAILURE: dict[FailureKind, Outcome] = {
    FailureKind.CLIENT: Outcome.REJECTED,
    FailureKind.CONTENT: Outcome.REJECTED,
    FailureKind.CONTEXT: Outcome.CONTEXT_TOO_LONG,
    FailureKind.AUTH: Outcome.MISCONFIGURED,
    FailureKind.CREDIT: Outcome.MISCONFIGURED,
    FailureKind.CONFIG: Outcome.MISCONFIGURED,
    FailureKind.QUOTA: Outcome.UPSTREAM_LIMITED,
    FailureKind.RATE: Outcome.UPSTREAM_LIMITED,
    FailureKind.CAPACITY: Outcome.UPSTREAM_BUSY,
    FailureKind.TRANSIENT: Outcome.UPSTREAM_FAILED,
}

_SENTENCES: dict[Outcome, str] = {
    Outcome.MISCONFIGURED: "The upstream refused the gateway's own request; the operator has been told.",
    Outcome.UPSTREAM_LIMITED: "Every upstream for this model is rate limited.",
    Outcome.UPSTREAM_BUSY: "Every upstream for this model is overloaded.",
    Outcome.UPSTREAM_FAILED: "Every upstream for this model failed.",
    Outcome.UPSTREAM_TIMEOUT: "The upstream did not answer in time.",
}

# A caller is told to come back after this when an upstream named no time (seconds).
_DEFAULT_RETRY_S = 1.0


def from_queue(refusal: Refusal) -> Refused:
    """A queue's refusal; the predicted wait is when to come back."""
    outcome = _BY_QUEUE[refusal.reason]
    wait = None if outcome is Outcome.CONTEXT_TOO_LONG else max(1.0, refusal.predicted_wait_s)
    return Refused(outcome, refusal.detail, retry_after_s=wait)


def after_failure(broken: Broken, *, again: bool = True) -> Refused:
    """The last attempt's failure, before any byte was sent; `again` says whether the client's own retry is welcome."""
    failure = broken.failure
    if broken.how == "unsupported":
        return Refused(Outcome.UNSUPPORTED, failure.message, param=failure.param)
    outcome = _BY_FAILURE[failure.kind]
    if outcome is Outcome.UPSTREAM_FAILED and broken.how == "silent":
        outcome = Outcome.UPSTREAM_TIMEOUT
    if outcome in {Outcome.REJECTED, Outcome.CONTEXT_TOO_LONG}:
        status = failure.status if failure.status is not None and 400 <= failure.status < 500 else 400
        return Refused(
            outcome,
            failure.message,
            status=status,
            body=failure.body,
            code=failure.code,
            param=failure.param,
            error_type=failure.type,
        )
    wait = failure.retry_after_s
    if wait is None and outcome in {Outcome.UPSTREAM_LIMITED, Outcome.UPSTREAM_BUSY, Outcome.UPSTREAM_FAILED}:
        wait = _DEFAULT_RETRY_S
    # Where we have tried what there was, the SDK's own retries would only multiply the load.
    tried = () if again or outcome.ending.should_retry is not None else (("x-should-retry", "false"),)
    return Refused(outcome, _SENTENCES[outcome], retry_after_s=wait, headers=tried)


_BY_BREAK: dict[str, tuple[Outcome, str]] = {
    "cut": (Outcome.STREAM_CUT, "The upstream closed the connection in the middle of its answer."),
    "silent": (Outcome.STREAM_SILENT, "The upstream fell silent in the middle of its answer."),
    "garbage": (Outcome.STREAM_BROKEN, "The upstream sent something that is not part of an answer."),
    "error": (Outcome.STREAM_BROKEN, "The upstream reported an error in the middle of its answer."),
    "connect": (Outcome.STREAM_CUT, "The connection to the upstream was lost."),
}


def after_first_byte(broken: Broken) -> Refused:
    """A failure after the caller has received bytes: told in the stream, never repaired in silence."""
    outcome, sentence = _BY_BREAK[broken.how]
    failure: Failure = broken.failure
    if broken.how == "error" and failure.kind in {FailureKind.CLIENT, FailureKind.CONTEXT, FailureKind.CONTENT}:
        sentence = failure.message
    return Refused(outcome, sentence)


def gone(record: Record) -> Outcome:
    """Which of the endings of a client that left: by the phase it left in."""
    match record.phases.current:
        case Phase.LIMIT:
            return Outcome.GONE_UNREAD
        case Phase.QUEUE:
            return Outcome.GONE_QUEUED
        case Phase.DECODE | Phase.FINISH:
            return Outcome.GONE_DECODE
        case _:
            return Outcome.GONE_PREFILL
