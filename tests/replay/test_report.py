"""The figures of a replay, by value."""

import io

import orjson
from rich.console import Console

from gateway.replay.report import End, Quantiles, Report, Result, Targets, quantiles, remarks, summarise, table

TARGETS = Targets(ttft_s=1.0, tpot_s=0.05)


def test_quantiles_are_nearest_rank() -> None:
    assert quantiles(value / 1000 for value in range(1, 101)) == Quantiles(50.0, 90.0, 99.0, 100.0)
    assert quantiles([0.25]) == Quantiles(250.0, 250.0, 250.0, 250.0)
    assert quantiles([]) is None


def results() -> list[Result]:
    return [
        Result("a", End.OK, ttft_s=0.5, tpot_s=0.02, queue_s=0.1, prompt_tokens=100, output_tokens=50),
        Result("a", End.OK, ttft_s=1.5, tpot_s=0.02, prompt_tokens=100, output_tokens=50),  # first token late
        Result("a", End.OK, ttft_s=0.5, tpot_s=0.08, prompt_tokens=100, output_tokens=50),  # slow tokens
        Result("a", End.OK, ttft_s=0.5, prompt_tokens=100, output_tokens=1),  # one token has no gap
        Result("a", End.REFUSED, "rate_limit_exceeded"),
        Result("a", End.CANCELLED, ttft_s=0.4, tpot_s=0.02, output_tokens=7),
        Result("b", End.FAILED, "truncated", ttft_s=0.2, output_tokens=3),
        Result("b", End.UNFINISHED, output_tokens=2),
        Result("c", End.CANCELLED),
    ]


def test_each_tenant_gets_its_row() -> None:
    report = summarise(results(), duration_s=10.0, planned=12, targets=TARGETS)
    assert list(report.tenants) == ["a", "b", "c"]
    a = report.tenants["a"]
    assert (a.sent, a.ok, a.refused, a.failed, a.cancelled, a.unfinished) == (6, 4, 1, 0, 1, 0)
    assert (a.good, a.goodput_per_s, a.attainment) == (2, 0.2, 0.4)  # 2 of the 5 that were not abandoned
    assert a.ttft_ms == Quantiles(500.0, 1500.0, 1500.0, 1500.0)
    assert a.tpot_ms == Quantiles(20.0, 80.0, 80.0, 80.0)
    assert a.queue_ms == Quantiles(100.0, 100.0, 100.0, 100.0)
    assert (a.prompt_tokens, a.output_tokens, a.output_tokens_per_s) == (400, 158, 15.8)
    assert a.reasons == {"rate_limit_exceeded": 1}
    b = report.tenants["b"]
    assert (b.failed, b.unfinished, b.attainment, b.reasons) == (1, 1, 0.0, {"truncated": 1})
    assert report.tenants["c"].attainment is None
    assert report.total.sent == sum(row.sent for row in report.tenants.values()) == 9


def test_without_targets_whatever_came_to_its_end_is_good() -> None:
    report = summarise(results(), duration_s=10.0, planned=12, targets=Targets())
    assert report.total.good == 4


def test_nothing_sent_is_a_report_too() -> None:
    report = summarise([], duration_s=0.0, planned=5, targets=TARGETS, interrupted=True)
    assert (report.total.sent, report.total.attainment, report.total.ttft_ms) == (0, None, None)
    assert shown(report)
    assert remarks(report) == ["Interrupted: the figures are those of the requests sent until then."]


def shown(report: Report) -> list[list[str]]:
    """The table's lines as words."""
    screen = io.StringIO()
    Console(file=screen, width=100).print(table(report))
    return [line.split() for line in screen.getvalue().splitlines()]


def test_the_table_names_every_tenant_and_the_sum() -> None:
    lines = shown(summarise(results(), duration_s=10.0, planned=12, targets=TARGETS))
    assert lines[0] == ["9", "of", "12", "requests", "in", "10.0", "s"]
    assert lines[3][:7] == ["tenant", "sent", "ok", "refused", "failed", "left", "open"]
    assert ["a", "6", "4", "1", "-", "1", "-", "500", "1,500", "1,500", "20.0", "80.0", "16", "0.20", "40.0%"] in lines
    assert [line[0] for line in lines if line[1:2] and line[1].isdigit()] == ["a", "b", "c", "all"]


def test_the_table_has_no_column_for_what_did_not_happen() -> None:
    lines = shown(summarise(results()[:4], duration_s=10.0, planned=4, targets=TARGETS))
    assert lines[3][:4] == ["tenant", "sent", "ok", "p50"]


def test_remarks_say_why_and_whether_the_client_kept_up() -> None:
    late = [*results(), *[Result("a", End.OK, late_s=0.2)] * 5]
    lines = remarks(summarise(late, duration_s=10.0, planned=14, targets=TARGETS))
    assert lines == [
        "Refused or failed: rate_limit_exceeded 1, truncated 1.",
        "The client itself was late (p99 200 ms): TTFT includes that. Use a lower speed.",
    ]


def test_the_report_is_json() -> None:
    report = summarise(results(), duration_s=10.0, planned=12, targets=TARGETS)
    plain = orjson.loads(orjson.dumps(report.plain()))
    assert plain["tenants"]["a"]["ttft_ms"]["p90"] == 1500.0
    assert plain["targets"] == {"ttft_s": 1.0, "tpot_s": 0.05}
