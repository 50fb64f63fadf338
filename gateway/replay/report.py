"""What a replay found: for each tenant what was sent and refused, the quantiles of its waits, and its goodput.

Quantiles are exact (nearest rank over all samples). TTFT counts from the moment the request was *due*, not from when
the client got round to sending it, so a slow gateway or client cannot hide waits by slowing the schedule. TPOT is the
mean time per output token after the first. Goodput is the rate of requests that came to their end inside both targets;
attainment is their share of all requests that their client did not abandon, refused ones included.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table


class End(StrEnum):
    """How a request ended, as its client saw it."""

    OK = "ok"
    REFUSED = "refused"  # the gateway said not now: 429, or 503 before anything was answered
    FAILED = "failed"  # any other error, or a stream that broke or ended without its terminator
    CANCELLED = "cancelled"  # the client went away, as planned
    UNFINISHED = "unfinished"  # still running when the replay ended


@dataclass(frozen=True, slots=True)
class Result:
    """One request that was sent."""

    tenant: str
    end: End
    reason: str | None = None  # error code, or the status or exception where there is none
    late_s: float = 0.0  # sent so long after it was due
    ttft_s: float | None = None  # from when it was due to its first token
    tpot_s: float | None = None  # None with fewer than two tokens
    queue_s: float | None = None  # time in the gateway's queue, as its Server-Timing header said
    prompt_tokens: int | None = None  # as reported; None where no usage came
    output_tokens: int = 0  # as reported, else as counted


@dataclass(frozen=True, slots=True)
class Targets:
    """Service level: a request is good if it meets both. Seconds; None = no target."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def met(self, result: Result) -> bool:
        """Whether a request came to its end inside the targets."""
        if result.end is not End.OK:
            return False
        if self.ttft_s is not None and (result.ttft_s is None or result.ttft_s > self.ttft_s):
            return False
        return self.tpot_s is None or result.tpot_s is None or result.tpot_s <= self.tpot_s


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Milliseconds."""

    p50: float
    p90: float
    p99: float
    largest: float


@dataclass(frozen=True, slots=True)
class Row:
    """One tenant, or all of them."""

    sent: int
    ok: int
    refused: int
    failed: int
    cancelled: int
    unfinished: int
    reasons: dict[str, int]  # of those refused and failed
    ttft_ms: Quantiles | None
    tpot_ms: Quantiles | None
    queue_ms: Quantiles | None
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    good: int
    goodput_per_s: float
    attainment: float | None  # None where every request was abandoned by its client


@dataclass(frozen=True, slots=True)
class Report:
    """A whole replay."""

    duration_s: float
    planned: int
    interrupted: bool
    late_ms: Quantiles | None  # how far the client itself was behind its schedule
    targets: Targets
    total: Row
    tenants: dict[str, Row] = field(default_factory=dict)  # most requests first

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def quantiles(seconds: Iterable[float]) -> Quantiles | None:
    """Nearest-rank quantiles of times in seconds, given in ms; None without samples."""
    times = sorted(seconds)
    if not times:
        return None

    def at(share: float) -> float:
        return round(times[max(0, math.ceil(share * len(times)) - 1)] * 1000.0, 3)

    return Quantiles(at(0.5), at(0.9), at(0.99), at(1.0))


def summarise(
    results: Sequence[Result], *, duration_s: float, planned: int, targets: Targets, interrupted: bool = False
) -> Report:
    """The report of a replay of `planned` requests whose results are given; those missing were never sent."""
    counts = Counter(result.tenant for result in results)
    return Report(
        duration_s=round(duration_s, 3),
        planned=planned,
        interrupted=interrupted,
        late_ms=quantiles(result.late_s for result in results),
        targets=targets,
        total=_row(results, duration_s, targets),
        tenants={
            tenant: _row([result for result in results if result.tenant == tenant], duration_s, targets)
            for tenant, _ in counts.most_common()
        },
    )


def _row(results: Sequence[Result], duration_s: float, targets: Targets) -> Row:
    ends = Counter(result.end for result in results)
    good = sum(map(targets.met, results))
    counted = len(results) - ends[End.CANCELLED]
    output = sum(result.output_tokens for result in results)
    duration_s = max(duration_s, 1e-9)
    unhappy = (End.REFUSED, End.FAILED)
    return Row(
        sent=len(results),
        ok=ends[End.OK],
        refused=ends[End.REFUSED],
        failed=ends[End.FAILED],
        cancelled=ends[End.CANCELLED],
        unfinished=ends[End.UNFINISHED],
        reasons=dict(Counter(str(one.reason) for one in results if one.end in unhappy).most_common()),
        ttft_ms=quantiles(one.ttft_s for one in results if one.ttft_s is not None),
        tpot_ms=quantiles(one.tpot_s for one in results if one.tpot_s is not None),
        queue_ms=quantiles(one.queue_s for one in results if one.queue_s is not None),
        prompt_tokens=sum(one.prompt_tokens or 0 for one in results),
        output_tokens=output,
        output_tokens_per_s=round(output / duration_s, 1),
        good=good,
        goodput_per_s=round(good / duration_s, 3),
        attainment=round(good / counted, 4) if counted else None,
    )


_SHORT = {End.CANCELLED: "left", End.UNFINISHED: "open"}


def table(report: Report) -> Table:
    """The report for a terminal; ends that no request came to have no column."""
    ends = [end for end in End if end is End.OK or getattr(report.total, end.value)]
    title = f"{report.total.sent} of {report.planned} requests in {report.duration_s:.1f} s"
    shown = Table(title=title, box=SIMPLE_HEAD, padding=0, pad_edge=False)
    shown.add_column("tenant")
    for column in ("sent", *(_SHORT.get(end, end.value) for end in ends)):
        shown.add_column(column, justify="right")
    for column in ("TTFT\np50", "ms\np90", "\np99", "TPOT\np50", "ms\np99", "\ntok/s", "good\n/s", "in\nSLO"):
        shown.add_column(column, justify="right")
    last = list(report.tenants)[-1:]
    for tenant, row in (*report.tenants.items(), ("all", report.total)):
        shown.add_row(
            tenant,
            str(row.sent),
            *(str(getattr(row, end.value) or "-") for end in ends),
            *_times(row.ttft_ms, "p50", "p90", "p99"),
            *_times(row.tpot_ms, "p50", "p99"),
            f"{row.output_tokens_per_s:,.0f}",
            f"{row.goodput_per_s:.2f}",
            "-" if row.attainment is None else f"{row.attainment:.1%}",
            end_section=[tenant] == last,
        )
    return shown


def _times(found: Quantiles | None, *names: str) -> list[str]:
    return ["-" if found is None else _readable(getattr(found, name)) for name in names]


def _readable(milliseconds: float) -> str:
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.1f}"


def remarks(report: Report) -> list[str]:
    """Sentences a reader of the table needs: why requests were refused, and whether the client kept its schedule."""
    lines = []
    if report.total.reasons:
        reasons = ", ".join(f"{reason} {count}" for reason, count in report.total.reasons.items())
        lines.append(f"Refused or failed: {reasons}.")
    if report.late_ms is not None and report.late_ms.p99 > 50.0:
        lines.append(
            f"The client itself was late (p99 {report.late_ms.p99:,.0f} ms): TTFT includes that. Use a lower speed."
        )
    if report.interrupted:
        lines.append("Interrupted: the figures are those of the requests sent until then.")
    return lines
