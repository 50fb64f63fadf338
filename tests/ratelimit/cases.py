"""One table of cases that drives every limiter: the in-process one and the shared one over any server.

A case is a list of limits and steps in time. Each step states what must come out, by value: the limit that refuses,
its reason and its exact wait, and the units left in every limit after the decision.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ratelimit.limit import Amounts, Dimension, Level, Limit, Reason, Refusal, request_amounts
from ratelimit.reservation import Reservation
from ratelimit.store import Limiter

SECOND = 1_000_000
NOON = 1_796_126_400 * SECOND  # 2026-12-01 12:00:00 UTC
HOUR, DAY = 3_600 * SECOND, 86_400 * SECOND

RPM, ITPM, OTPM, TPM = Dimension.REQUESTS, Dimension.INPUT_TOKENS, Dimension.OUTPUT_TOKENS, Dimension.TOTAL_TOKENS
CONC, USD_DAY, USD_MONTH = Dimension.CONCURRENCY, Dimension.MONEY_DAY, Dimension.MONEY_MONTH


def limit(dimension: Dimension, amount: int, burst: int = -1, level: Level = Level.TENANT, **more: object) -> Limit:
    subject = "" if level is Level.MODEL else "acme"
    return Limit(level, subject or "chat", dimension, amount, burst=burst, organisation=subject, **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Reserve:
    """Expect admission (`refused` None) or (limit dimension, reason, wait in microseconds)."""

    at: int
    request_id: str
    amounts: Amounts
    refused: tuple[Dimension, Reason, int | None] | None = None
    left: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Progress:
    at: int
    request_id: str
    so_far: Amounts


@dataclass(frozen=True)
class Reprice:
    at: int
    request_id: str
    micro_usd: int
    worst: int


@dataclass(frozen=True)
class Seed:
    at: int
    dimension: Dimension
    spent: int


@dataclass(frozen=True)
class Settle:
    at: int
    request_id: str
    actual: Amounts


Step = Reserve | Progress | Reprice | Seed | Settle


@dataclass(frozen=True)
class Case:
    name: str
    limits: Sequence[Limit]
    steps: Sequence[Step]


def tok(i: int, o: int = 0, usd: int = 0, worst: int = 0) -> Amounts:
    return request_amounts(i, o, micro_usd=usd, worst_micro_usd=worst)


ONE = Amounts(requests=1)
NOTHING = Amounts()
PROBE = Amounts()  # takes nothing but shows what is left

CASES = (
    Case(
        "a burst passes, then the exact wait is told, and a call at that time passes",
        [limit(RPM, 60, 2)],
        [
            Reserve(0, "a", ONE, left=(1,)),
            Reserve(0, "b", ONE, left=(0,)),
            Reserve(0, "c", ONE, (RPM, Reason.EXCEEDED, SECOND), left=(0,)),
            Reserve(SECOND - 1, "c", ONE, (RPM, Reason.EXCEEDED, 1), left=(0,)),
            Reserve(SECOND, "c", ONE, left=(0,)),
        ],
    ),
    Case(
        "a rate that does not divide a minute loses nothing to rounding",
        [limit(RPM, 7_000, 3)],
        [
            Reserve(0, "a", ONE),
            Reserve(0, "b", ONE),
            Reserve(0, "c", ONE, left=(0,)),
            Reserve(0, "d", ONE, (RPM, Reason.EXCEEDED, 8_572)),  # 60 s / 7,000 = 8,571.43 us, never early
            Reserve(8_571, "d", ONE, (RPM, Reason.EXCEEDED, 1)),
            Reserve(8_572, "d", ONE),
            Reserve(60 * SECOND, "e", Amounts(requests=3), left=(0,)),
        ],
    ),
    *(
        Case(
            f"{dimension} alone is enforced",
            [limit(dimension, 600, 100)],
            [Reserve(0, "a", take, left=(0,)), Reserve(0, "b", take, (dimension, Reason.EXCEEDED, 10 * SECOND))],
        )
        for dimension, take in (
            (RPM, Amounts(requests=100)),
            (ITPM, tok(100)),
            (OTPM, tok(0, 100)),
            (TPM, tok(40, 60)),
        )
    ),
    *(
        Case(
            f"{level} alone is enforced",
            [limit(RPM, 60, 1, level)],
            [Reserve(0, "a", ONE, left=(0,)), Reserve(0, "b", ONE, (RPM, Reason.EXCEEDED, SECOND))],
        )
        for level in (Level.ORGANISATION, Level.TENANT, Level.KEY, Level.TENANT_MODEL)
    ),
    Case(
        "a request refused by one limit spends none of the others, and the longest wait is told",
        [
            limit(RPM, 60, 10, Level.ORGANISATION),
            limit(ITPM, 6_000, 1_000),
            limit(OTPM, 600, 100),
            limit(CONC, 1),
            limit(USD_DAY, 1_000),
        ],
        [
            Reserve(0, "a", tok(900, 50, 400), left=(9, 100, 50, 0, 600)),
            Settle(0, "a", tok(900, 50, 400)),
            Reserve(0, "b", tok(100, 90, 100), (OTPM, Reason.EXCEEDED, 4 * SECOND), left=(9, 100, 50, 1, 600)),
            Reserve(0, "b", tok(700, 60, 100), (ITPM, Reason.EXCEEDED, 6 * SECOND), left=(9, 100, 50, 1, 600)),
            Reserve(0, "b", tok(50, 10, 700), (USD_DAY, Reason.BUDGET_EXHAUSTED, 12 * HOUR), left=(9, 100, 50, 1, 600)),
            Reserve(0, "b", tok(100, 50, 600), left=(8, 0, 0, 0, 0)),
        ],
    ),
    Case(
        "more than the burst can never pass, and says so",
        [limit(RPM, 60, 10), limit(ITPM, 6_000, 1_000)],
        [
            Reserve(0, "a", tok(1_001), (ITPM, Reason.NEVER_FITS, None), left=(10, 1_000)),
            Reserve(0, "a", tok(1_000), left=(9, 0)),
        ],
    ),
    Case(
        "the same request id again is the same reservation",
        [limit(RPM, 60, 5), limit(CONC, 3)],
        [
            Reserve(0, "a", ONE, left=(4, 2)),
            Reserve(0, "a", ONE),
            Reserve(0, "b", ONE, left=(3, 1)),
            Settle(0, "a", NOTHING),
            Reserve(0, "p", PROBE, left=(4, 1)),
        ],
    ),
    Case(
        "only the first settle counts",
        [limit(ITPM, 6_000, 1_000)],
        [
            Reserve(0, "a", tok(800), left=(200,)),
            Settle(0, "a", tok(500)),
            Settle(0, "a", tok(0)),
            Reserve(0, "p", PROBE, left=(500,)),
        ],
    ),
    Case(
        "a refund never fills beyond the burst",
        [limit(ITPM, 6_000, 1_000)],
        [
            Reserve(0, "a", tok(800), left=(200,)),
            Reserve(8 * SECOND, "p", PROBE, left=(1_000,)),
            Settle(8 * SECOND, "a", tok(0)),
            Reserve(8 * SECOND, "q", PROBE, left=(1_000,)),
        ],
    ),
    Case(
        "a strict limit refunds only what it has not earned back meanwhile",
        [limit(ITPM, 6_000, 1_000, strict=True)],
        [
            Reserve(0, "a", tok(800), left=(200,)),
            Reserve(3 * SECOND, "b", tok(500), left=(0,)),
            Settle(3 * SECOND, "a", tok(0)),  # 800 unused, 300 of them already earned back
            Reserve(3 * SECOND, "p", PROBE, left=(500,)),
        ],
    ),
    Case(
        "a stream that passes its estimate is charged while it runs, into debt up to one burst, and not twice",
        [limit(OTPM, 600, 100)],
        [
            Reserve(0, "a", tok(0, 80), left=(20,)),
            Progress(0, "a", tok(0, 60)),
            Reserve(0, "p", PROBE, left=(20,)),
            Progress(0, "a", tok(0, 130)),
            Reserve(0, "b", tok(0, 10), (OTPM, Reason.EXCEEDED, 4 * SECOND), left=(0,)),
            Settle(0, "a", tok(0, 150)),
            Reserve(0, "b", tok(0, 10), (OTPM, Reason.EXCEEDED, 6 * SECOND), left=(0,)),
            Reserve(6 * SECOND, "b", tok(0, 10), left=(0,)),
        ],
    ),
    Case(
        "debt stops at its ceiling",
        [limit(OTPM, 600, 100, max_debt=50)],
        [
            Reserve(0, "a", tok(0, 100)),
            Settle(0, "a", tok(0, 5_000)),
            Reserve(0, "b", tok(0, 1), (OTPM, Reason.EXCEEDED, 5_100_000)),
        ],
    ),
    Case(
        "a request without output passes an output limit in debt",
        [limit(ITPM, 6_000, 1_000), limit(OTPM, 600, 100)],
        [
            Reserve(0, "a", tok(0, 100)),
            Settle(0, "a", tok(0, 150)),
            Reserve(0, "b", tok(10), left=(990, 0)),
        ],
    ),
    Case(
        "slots come back at settle",
        [limit(CONC, 2)],
        [
            Reserve(0, "a", ONE, left=(1,)),
            Reserve(0, "b", ONE, left=(0,)),
            Reserve(0, "c", ONE, (CONC, Reason.CONCURRENCY, SECOND), left=(0,)),
            Settle(0, "a", ONE),
            Reserve(0, "c", ONE, left=(0,)),
        ],
    ),
    Case(
        "no slot at all is said to be for ever",
        [limit(CONC, 0)],
        [Reserve(0, "a", ONE, (CONC, Reason.NEVER_FITS, None))],
    ),
    Case(
        "money holds the estimate while the budget is far, the worst case near its end, and one call cannot pass it",
        [limit(USD_DAY, 1_000)],
        [
            Reserve(0, "a", tok(1, 1, 100, 300), left=(900,)),
            Reserve(0, "b", tok(1, 1, 100, 901), (USD_DAY, Reason.EXCEEDED, SECOND), left=(900,)),
            Reserve(0, "c", tok(1, 1, 790, 800), left=(110,)),
            Reserve(0, "d", tok(1, 1, 20, 80), left=(30,)),  # 90 would stay: less than a tenth, so the worst is held
            Settle(0, "d", tok(1, 1, 25)),
            Reserve(0, "p", PROBE, left=(85,)),
            Settle(0, "a", tok(1, 1, 150)),
            Settle(0, "c", tok(1, 1, 800)),
            Reserve(0, "e", tok(1, 1, 26, 26), (USD_DAY, Reason.BUDGET_EXHAUSTED, 12 * HOUR), left=(25,)),
            Reserve(0, "e", tok(1, 1, 1_001, 1_001), (USD_DAY, Reason.NEVER_FITS, None)),
            Reserve(0, "e", tok(1, 1, 25, 25), left=(0,)),
        ],
    ),
    Case(
        "an exact budget always holds the worst case",
        [limit(USD_DAY, 1_000, exact=True)],
        [
            Reserve(0, "a", tok(1, 1, 100, 300), left=(700,)),
            Reserve(0, "b", tok(1, 1, 1, 701), (USD_DAY, Reason.EXCEEDED, SECOND)),
        ],
    ),
    Case(
        "money is held down to the chosen target's price, and up again for a dearer second attempt",
        [limit(USD_DAY, 1_000, exact=True), limit(USD_MONTH, 10_000)],
        [
            Reserve(0, "a", tok(1, 1, 100, 300), left=(700, 9_900)),
            Reprice(0, "a", 40, 90),
            Reserve(0, "p", PROBE, left=(910, 9_960)),
            Reprice(0, "a", 100, 300),
            Reserve(0, "q", PROBE, left=(700, 9_900)),
            Progress(0, "a", tok(1, 1, 120)),
            Reprice(0, "a", 40, 90),
            Reserve(0, "r", PROBE, left=(880, 9_880)),
            Settle(0, "a", tok(1, 1, 130)),
            Reserve(0, "s", PROBE, left=(870, 9_870)),
        ],
    ),
    Case(
        "a day ends at midnight UTC, and a stream that crosses it is charged to the day it began in",
        [limit(USD_DAY, 1_000), limit(USD_MONTH, 2_000)],
        [
            Reserve(12 * HOUR - SECOND, "a", tok(1, 1, 700), left=(300, 1_300)),
            Reserve(12 * HOUR - 1, "b", tok(1, 1, 1), left=(299, 1_299)),
            Reserve(12 * HOUR, "p", PROBE, left=(1_000, 1_299)),
            Progress(12 * HOUR, "a", tok(1, 1, 800)),
            Settle(12 * HOUR + SECOND, "a", tok(1, 1, 900)),
            Reserve(12 * HOUR + SECOND, "q", PROBE, left=(1_000, 1_099)),
        ],
    ),
    Case(
        "a month ends with the calendar's",
        [limit(USD_MONTH, 1_000)],
        [
            Reserve(0, "a", tok(1, 1, 1_000), left=(0,)),
            Settle(0, "a", tok(1, 1, 1_000)),
            Reserve(30 * DAY, "b", tok(1, 1, 1), (USD_MONTH, Reason.BUDGET_EXHAUSTED, 12 * HOUR), left=(0,)),
            Reserve(30 * DAY + 12 * HOUR, "b", tok(1, 1, 1), left=(999,)),
        ],
    ),
    Case(
        "a clock that steps back over midnight does not begin a budget twice",
        [limit(USD_DAY, 1_000)],
        [
            Reserve(12 * HOUR, "a", tok(1, 1, 400), left=(600,)),
            Reserve(11 * HOUR, "b", tok(1, 1, 400), left=(200,)),
            Reserve(12 * HOUR + 1, "c", tok(1, 1, 300), (USD_DAY, Reason.EXCEEDED, SECOND), left=(200,)),
        ],
    ),
    Case(
        "a clock that steps back an hour neither earns nor loses",
        [limit(RPM, 60, 10)],
        [
            Reserve(0, "a", Amounts(requests=10), left=(0,)),
            Reserve(-HOUR, "b", ONE, (RPM, Reason.EXCEEDED, SECOND), left=(0,)),
            Reserve(-HOUR + SECOND, "p", PROBE, left=(0,)),
        ],
    ),
    Case(
        "a clock that steps forward an hour gives at most one burst",
        [limit(RPM, 60, 10)],
        [
            Reserve(0, "a", Amounts(requests=10), left=(0,)),
            Reserve(HOUR, "b", Amounts(requests=10), left=(0,)),
            Reserve(2, "c", ONE, (RPM, Reason.EXCEEDED, SECOND), left=(0,)),
        ],
    ),
    Case(
        "a budget learns from a ledger what was spent before, and forgets it with its period",
        [limit(USD_DAY, 1_000), limit(USD_MONTH, 5_000)],
        [
            Reserve(0, "a", tok(1, 1, 100), left=(900, 4_900)),
            Seed(0, USD_DAY, 700),
            Seed(0, USD_DAY, 300),
            Seed(0, USD_MONTH, 2_000),
            Reserve(0, "b", tok(1, 1, 301), (USD_DAY, Reason.BUDGET_EXHAUSTED, 12 * HOUR), left=(200, 2_900)),
            Settle(0, "a", tok(1, 1, 50)),
            Reserve(0, "p", PROBE, left=(250, 2_950)),
            Reserve(12 * HOUR, "q", PROBE, left=(1_000, 2_950)),
        ],
    ),
    Case(
        "a shadow limit refuses nothing",
        [limit(RPM, 60, 1, shadow=True), limit(ITPM, 6_000, 1_000), limit(CONC, 0, shadow=True)],
        [Reserve(0, "a", tok(10), left=(990,)), Reserve(0, "b", tok(10), left=(980,)), Settle(0, "a", tok(5))],
    ),
)


async def drive(limiter: Limiter, case: Case, settled: Callable[[int], Awaitable[None]]) -> None:
    """Run a case. `settled` waits until what progress and settle have handed over has arrived."""
    open_: dict[str, Reservation] = {}
    group = limiter.group(case.limits)
    for number, step in enumerate(case.steps):
        now, where = NOON + step.at, f"{case.name}, step {number}: {step}"
        match step:
            case Reserve():
                decided = await limiter.reserve(step.request_id, group, step.amounts, now)
                got = None
                if isinstance(decided, Refusal):
                    got = (decided.limit.dimension, decided.reason, decided.wait_us)
                assert got == step.refused, where
                if step.left is not None:
                    assert tuple(s.remaining for s in limiter.standings(decided, now)) == step.left, where
                if isinstance(decided, Reservation):
                    open_[step.request_id] = decided
                    if step.amounts == PROBE:
                        await limiter.settle(decided, NOTHING, now)
            case Progress():
                await limiter.progress(open_[step.request_id], step.so_far, now)
            case Reprice():
                await limiter.reprice(open_[step.request_id], step.micro_usd, step.worst, now)
            case Seed():
                budget = next(found for found in case.limits if found.dimension is step.dimension)
                await limiter.seed(budget, step.spent, now)
            case Settle():
                await limiter.settle(open_[step.request_id], step.actual, now)
        await settled(now)
