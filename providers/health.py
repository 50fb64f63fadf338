"""What the breakers judge by: how an attempt ended, the numbers, the keys, and how a breaker looks from outside."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from providers.exchange import FailureKind


class State(StrEnum):
    """What a breaker lets through: all, nothing, probes, a growing share, one trial a minute."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    RAMPING = "ramping"
    BARRED = "barred"


class Event(StrEnum):
    """How one attempt ended, as far as the target's health is concerned."""

    OK = "ok"
    FAILURE = "failure"
    CONNECT = "connect"
    """No connection (refused, TLS, DNS): nothing was processed. Counts twice."""
    TIMEOUT = "timeout"
    """No first token in time: a failure and a slow answer at once."""
    RATE = "rate"
    QUOTA = "quota"
    MISCONFIGURED = "misconfigured"
    NEUTRAL = "neutral"
    """Says nothing about the target: the caller's fault, a client that left, a content filter."""


EVENT_OF: dict[FailureKind, Event] = {
    FailureKind.CLIENT: Event.NEUTRAL,
    FailureKind.CONTEXT: Event.NEUTRAL,
    FailureKind.CONTENT: Event.NEUTRAL,
    FailureKind.AUTH: Event.MISCONFIGURED,
    FailureKind.CONFIG: Event.MISCONFIGURED,
    FailureKind.CREDIT: Event.QUOTA,
    FailureKind.QUOTA: Event.QUOTA,
    FailureKind.RATE: Event.RATE,
    FailureKind.CAPACITY: Event.FAILURE,
    FailureKind.TRANSIENT: Event.FAILURE,
}
"""What an answered failure means here. Total over `FailureKind`; connect errors and time-outs are the transport's."""


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """The numbers of one kind of breaker. Times in seconds."""

    window_s: float = 30.0
    min_samples: int = 20
    failure_ratio: float = 0.5
    slow_ratio: float = 0.8
    slow_factor: float = 3.0
    """Times the usual p95 of the prompt's size, above which an answer is slow."""
    connect_errors: int = 5
    """In a row."""
    failures_in_a_row: int = 10
    """Of any kind."""
    open_base_s: float = 5.0
    open_cap_s: float = 300.0
    open_jitter: float = 0.2
    probe_steps: tuple[int, ...] = (1, 2, 4, 8)
    classes: tuple[str, ...] = ("batch", "interactive")
    """Lowest first: probes are taken from the lowest class."""
    class_patience_s: float = 2.0
    """How long a free probe waits for a lower class before the next higher one may take it."""
    probe_lifetime_s: float = 300.0
    """A probe whose end was never reported gives its place back after this."""
    ramp_hold_s: float = 60.0
    """Clean seconds at the first share before it grows."""
    ramp_start: float = 0.1
    ramp_per_s: float = 0.1
    ramp_samples: int = 5
    """Answers that suffice to trip while ramping, when little traffic comes."""
    clean_ratio: float = 0.1
    """Failures in the window above which the clean time starts anew."""
    forgive_s: float = 300.0
    """Clean seconds for which k falls by one."""
    barred_s: float = 60.0
    rate_s: float = 1.0
    """Left alone after a 429 that names no time; doubled for each further one in a row, up to `rate_cap_s`."""
    rate_cap_s: float = 30.0
    quota_s: float = 60.0
    hint_cap_s: float = 300.0
    """The longest wait believed from an overloaded or rate-limiting upstream."""
    quota_cap_s: float = 3600.0
    """The longest wait believed for a quota or an empty account; it is tried once again after that."""


DEFAULT = BreakerSettings()


class BreakerKey(NamedTuple):
    """What fails together: one model of one account (or pool) in one region with one credential."""

    provider: str
    region: str
    model: str
    credential: str


@dataclass(frozen=True, slots=True)
class BreakerSnapshot:
    """A breaker as seen from outside."""

    state: State
    since: float
    until: float | None
    """When it may be tried again; None unless OPEN or BARRED."""
    not_before: float
    """Left alone until then because of 429s or a quota."""
    cause: str
    answers: int
    failures: int
    slow: int
    trips: int
    """k, the exponent of the next OPEN time."""
    share: float
    probes: int
