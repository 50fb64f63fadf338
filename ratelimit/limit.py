"""Values: a limit, a charge, a verdict with the wait until it would pass.

A limit is one number on one thing: so many units of one *dimension* for one subject at one *level*.
What a request takes is never a bare number: `Amounts` has a field per unit, and a limit reads its own
field, so a token limit cannot be fed a request count.

Burst is a setting of its own. Its default is bounded in seconds of work, not in periods: a limit of 600
requests a minute does not let 600 in at once, it lets in what 10 seconds earn (100), and never less than
one large request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

MICROSECONDS = 1_000_000
"""Microseconds in a second. All times in this package are integers of Unix microseconds."""

BURST_SECONDS = 10
"""The default burst is what this many seconds of a limit earn."""

MAX_INTEGER = 2**53 - 1
"""The store's script computes in doubles; integers are exact up to here, so no limit may need more."""


class Dimension(StrEnum):
    """What a limit counts."""

    REQUESTS = "requests"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    TOTAL_TOKENS = "total_tokens"
    CONCURRENCY = "concurrency"
    MONEY_DAY = "money_day"
    MONEY_MONTH = "money_month"


RATES = frozenset(
    (Dimension.REQUESTS, Dimension.INPUT_TOKENS, Dimension.OUTPUT_TOKENS, Dimension.TOTAL_TOKENS),
)
BUDGETS = frozenset((Dimension.MONEY_DAY, Dimension.MONEY_MONTH))


class Level(StrEnum):
    """Whose limit it is. `MODEL` is a ceiling over all organisations."""

    ORGANISATION = "organisation"
    TENANT = "tenant"
    KEY = "key"
    TENANT_MODEL = "tenant_model"
    MODEL = "model"


class Mode(StrEnum):
    """What a limit does while the shared store is away."""

    LOCAL = "local"  # each instance enforces its part of it
    CLOSED = "closed"  # nothing passes
    OPEN = "open"  # everything passes, and is charged afterwards


class Reason(StrEnum):
    """Why a limit refused; each is a code of its own for the caller."""

    EXCEEDED = "limit_exceeded"
    NEVER_FITS = "request_exceeds_limit"
    BUDGET_EXHAUSTED = "budget_exhausted"
    CONCURRENCY = "concurrency_exceeded"
    STORE_UNAVAILABLE = "limit_store_unavailable"


class Amounts(NamedTuple):
    """What one request takes or took. Money in integer micro-USD.

    `worst_micro_usd` is the dearest the request can become (its token maximum at the dearest target); 0
    means "not known to differ from `micro_usd`". It is read at reserve and reprice only.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    micro_usd: int = 0
    worst_micro_usd: int = 0


def request_amounts(
    input_tokens: int, output_tokens: int, *, micro_usd: int = 0, worst_micro_usd: int = 0, requests: int = 1
) -> Amounts:
    """One request's amounts with the total filled in, so that a total-token limit is never fed nothing."""
    return Amounts(requests, input_tokens, output_tokens, input_tokens + output_tokens, micro_usd, worst_micro_usd)


def default_burst(amount: int, period_s: int, largest: int = 1) -> int:
    """Burst in units: what 10 seconds earn, at least one request of `largest` units, at most one period's amount."""
    if amount <= 0:
        return 0
    seconds = min(period_s, BURST_SECONDS)
    return min(amount, max(1, -(-amount * seconds // period_s), largest))


@dataclass(frozen=True, slots=True)
class Limit:
    """`amount` units of `dimension` per `period_s` seconds for one subject.

    `amount` is requests or tokens per period for a rate, slots for concurrency (period unused), micro-USD
    per UTC day or calendar month for money (period unused). `burst` and `max_debt` are in units and used by
    rates only; `-1` asks for the defaults: `default_burst` and one burst of debt.

    `exact`   never leased, so never above its bound by a lease; money always holds the worst case.
    `strict`  a rate refunds only what the bucket could not have refilled meanwhile, so that admitted
              tokens stay within `burst + rate * window` at the price of throughput for long requests.
    `shadow`  counts and reports, refuses nothing.
    `organisation` says with whom the limit is decided in one step in the shared store.

    Raises ValueError when a figure is negative, or a period is not positive.
    """

    level: Level
    subject: str
    dimension: Dimension
    amount: int
    period_s: int = 60
    burst: int = -1
    mode: Mode = Mode.LOCAL
    exact: bool = False
    shadow: bool = False
    strict: bool = False
    max_debt: int = -1
    organisation: str = ""

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError(f"{self.key}: amount must not be negative, got {self.amount}")
        if self.period_s <= 0:
            raise ValueError(f"{self.key}: period must be positive, got {self.period_s}")
        if self.amount > MAX_INTEGER >> 8:
            raise ValueError(f"{self.key}: amount {self.amount} is too large")
        if self.burst == -1:
            object.__setattr__(self, "burst", default_burst(self.amount, self.period_s))
        if self.max_debt == -1:
            object.__setattr__(self, "max_debt", self.burst)
        if self.burst < 0 or self.max_debt < 0:
            raise ValueError(f"{self.key}: burst and max_debt must not be negative")
        if (self.burst + self.max_debt) * self.period_s * MICROSECONDS > self.amount * (MAX_INTEGER >> 1) > 0:
            raise ValueError(f"{self.key}: burst and max_debt would take more than a century to earn back")
        if self.level is Level.MODEL and self.organisation:
            raise ValueError(f"{self.key}: a model-wide ceiling belongs to no organisation")

    @property
    def key(self) -> str:
        """Identity of what is counted. The amount is not part of it: changing a limit keeps its level."""
        if self.dimension in RATES:
            return f"{self.level}:{self.subject}:{self.dimension}:{self.period_s}"
        return f"{self.level}:{self.subject}:{self.dimension}"


class StandingSource(Protocol):
    """Something that can say how its limits stood when it was decided on."""

    def standings(self, now: int) -> tuple[Standing, ...]: ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """The limit that refuses longest, with figures in its units.

    `wait_us` is when the same request would pass if nothing else were sent: exact for a rate, the end of
    the period for an exhausted budget, a guess of one second for a slot; None if it can never pass.
    """

    limit: Limit
    requested: int
    remaining: int
    wait_us: int | None
    reason: Reason
    source: StandingSource | None = field(default=None, repr=False, compare=False)

    @property
    def retry_after_s(self) -> float | None:
        return None if self.wait_us is None else self.wait_us / MICROSECONDS


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a limit stands: units left now (never negative), and microseconds until it is whole again."""

    limit: Limit
    remaining: int
    reset_us: int

    @property
    def reset_after_s(self) -> float:
        return self.reset_us / MICROSECONDS
