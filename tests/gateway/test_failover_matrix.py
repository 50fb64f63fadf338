"""Every way an upstream can fail, streamed and whole: what the caller is told and charged, whom the breaker blames,
and how many calls it took; and that a second tier serves wherever trying again makes sense.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest

from providers.health import State
from providers.simulated.faults import Fault, FaultKind
from tests.gateway.failover import account, engine, forget, hear, route, serving
from tests.gateway.stack import ALICE, MODEL, Stack

TIMERS = "timeouts: {connect_ms: 340, first_token_ms: 350, stall_ms: 350, total_ms: 20000}, slo: {ttft_ms: 200}"
PRICES = "prices: {input_usd_per_mtok: 1, output_usd_per_mtok: 10}"
LIMITS = "limits: {usd_per_day: 100}"


class Told(NamedTuple):
    """The end of a request and what it left behind."""

    outcome: str
    status: int
    calls: int
    effect: str
    """On the breaker: none, fails (counted against it), cools (left alone for a while), barred (ours to repair)."""
    retry: str | None
    """x-should-retry."""
    output: int = 0
    """Output tokens charged; the prompt is charged with them or not at all."""


FAILED = Told("upstream_failed", 502, 3, "fails", "false")
TIMEOUT = Told("upstream_timeout", 504, 3, "fails", "false")
BUSY = Told("upstream_busy", 503, 3, "fails", "false")
OURS = Told("misconfigured", 502, 1, "barred", "false")
FULL = Told("upstream_busy", 503, 1, "cools", None)
LIMITED = Told("upstream_limited", 429, 1, "cools", None)
CALLER = Told("rejected", 400, 1, "none", None)
# After the first token of a stream nothing is repeated, and what came is paid for.
CUT = Told("stream_cut", 200, 1, "fails", None, 4)
SILENT = Told("stream_silent", 200, 1, "fails", None, 4)
BROKEN = Told("stream_broken", 200, 1, "fails", None, 4)


@dataclass(frozen=True)
class Case:
    """A fault, and what it means alone: no other replica, credential or target."""

    name: str
    fault: Fault
    whole: Told
    stream: Told | None = None
    vendor: Told | None = None
    """Where an account means something else by it than an engine."""
    moves: bool = True
    """A second tier serves instead."""
    headers: dict[str, str] = field(default_factory=dict)


def status(answered: int, **more: object) -> Fault:
    return Fault(FaultKind.STATUS, status=answered, **more)  # type: ignore[arg-type]


QUOTA = "Quota exceeded for quota metric 'requests per day'."
CASES = [
    Case("400", status(400), CALLER, moves=False),
    Case("401", status(401), OURS),
    Case("402", status(402), OURS._replace(effect="cools")),
    Case("403", status(403), OURS),
    Case("404 model", status(404, code="model_not_found"), OURS),
    Case("408", status(408), FAILED._replace(effect="none")),
    Case("422", status(422), CALLER._replace(status=422), moves=False),
    Case("429", status(429), FULL, vendor=LIMITED),
    Case("429 in 7 s", status(429, retry_after_s=7), FULL, vendor=LIMITED),
    Case("429 in words: 7 s", status(429, message="Please try again in 7s."), FULL, vendor=LIMITED),
    Case("429 a day", status(429, message=QUOTA), FULL, vendor=LIMITED._replace(retry="false")),
    Case("429 no money", status(429, code="insufficient_quota"), FULL, vendor=OURS._replace(effect="cools")),
    Case("500", status(500), FAILED),
    Case("502", status(502), FAILED),
    Case("503", status(503, message="overloaded"), BUSY),
    Case("529", status(529), BUSY),
    Case("reset", Fault(FaultKind.RESET), FAILED),
    Case("close", Fault(FaultKind.CLOSE), FAILED),
    Case("silence before headers", Fault(FaultKind.SILENT_BEFORE_HEADERS), TIMEOUT),
    Case("silence after headers", Fault(FaultKind.SILENT_AFTER_HEADERS), TIMEOUT),
    Case("cut at once", Fault(FaultKind.CUT), FAILED),
    Case("cut", Fault(FaultKind.CUT, tokens=4), FAILED, CUT),
    Case("reset in between", Fault(FaultKind.CUT, tokens=4, reset=True), FAILED, CUT),
    Case("stall", Fault(FaultKind.SILENT_AFTER_TOKENS, tokens=4), TIMEOUT, SILENT),
    Case("error at once", Fault(FaultKind.ERROR_IN_STREAM), FAILED),
    Case("overload at once", Fault(FaultKind.ERROR_IN_STREAM, status=503, message="overloaded"), BUSY),
    Case("error in a stream", Fault(FaultKind.ERROR_IN_STREAM, tokens=4), FAILED, BROKEN),
    Case("garbage at once", Fault(FaultKind.GARBAGE), FAILED),
    Case("garbage", Fault(FaultKind.GARBAGE, tokens=4), FAILED, BROKEN),
    Case("not HTTP", Fault(FaultKind.GARBAGE_HTTP), FAILED),
    Case("unfinished", Fault(FaultKind.UNFINISHED, tokens=4), FAILED, CUT),
    Case("no terminator", Fault(FaultKind.NO_DONE), FAILED, CUT._replace(output=8)),
    Case("empty 200", Fault(FaultKind.EMPTY_200), FAILED),
]  # fmt: skip


def tiers(first: str) -> str:
    return f"""      - targets: [{{pool: {first}, model: sim-large}}]
"""


def engine_pool(url: str) -> str:
    return f'  first: {{kind: simulated, poll_ms: 60000, {TIMERS}, replicas: [{{name: r0, url: "{url}"}}]}}\n'


def account_pool(name: str, url: str) -> str:
    return (
        f"  {name}: {{kind: openai-compatible, {TIMERS}, capacity: {{seats: 8}}, failure_domain: {{vendor: {name}}},\n"
        f'    account: {{url: "{url}/v1", credentials: [{{name: main, key: k}}]}}}}\n'
    )


async def ask(stack: Stack, *, stream: bool) -> tuple[int, dict[str, str], bytes]:
    return await stack.post(stack.chat(stream=stream, max_tokens=8, temperature=1))


def effect(stack: Stack, pool: str = "first") -> str:
    now = stack.app.clock.monotonic()
    found = [s for key, s in stack.app.breakers.snapshot(now).items() if key.provider == pool]
    assert len(found) == 1
    seen = found[0]
    if seen.state is State.BARRED:
        return "barred"
    assert seen.state is State.CLOSED, seen
    if seen.not_before > now:
        return "cools"
    return "fails" if seen.failures else "none"


def money_left(stack: Stack) -> int:
    """Micro-dollars left of the day's budget."""
    world = stack.app.lifecycle.world
    principal = world.directory.find(ALICE)
    assert principal is not None
    group = world.group_of(principal, world.models[MODEL])
    return group.standings(stack.app.clock.unix_us())[0].remaining


def _check_calls(case: Case, calls: int, attempts: int) -> None:
    """One call an attempt. A connection that was used before and is reset may merely have been too old: once more."""
    spare = case.fault.kind in (FaultKind.RESET, FaultKind.CLOSE)
    assert attempts <= calls <= attempts + spare, (case.name, calls, attempts)


def cases(kind: str) -> list[Case]:
    """Silence takes its time and is the same everywhere: for engines only."""
    return [case for case in CASES if kind == "engine" or case.whole is not TIMEOUT]


def expected(case: Case, *, stream: bool, vendor: bool) -> Told:
    told = case.whole
    if vendor and case.vendor is not None:
        told = case.vendor
    return case.stream if stream and case.stream is not None else told


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", ["engine", "account"])
@pytest.mark.asyncio
async def test_alone(kind: str, stream: bool) -> None:
    pool = engine_pool if kind == "engine" else lambda url: account_pool("first", url)
    server = engine() if kind == "engine" else account("k")

    def text(url: str) -> str:
        return route(pool(url), tiers("first"), PRICES)

    async with serving([server], text, limits=LIMITS) as stack:
        (upstream,) = stack.engines
        for case in cases(kind):
            forget(stack)
            upstream.add_faults([replace(case.fault)])
            calls, left = upstream.state()["requests_total"], money_left(stack)
            code, headers, body = await ask(stack, stream=stream)
            told = expected(case, stream=stream, vendor=kind == "account")
            line = stack.lines()[-1]
            _check_calls(case, upstream.state()["requests_total"] - calls, line["attempts"])
            seen = Told(
                line["outcome"],
                code,
                line["attempts"],
                effect(stack),
                headers.get("x-should-retry"),
                line["output_tokens"],
            )
            assert seen == told, (case.name, seen, line)
            # What the budget lost is what the log says, and nothing at all when nothing came.
            assert left - money_left(stack) == line["micro_usd"], case.name
            assert (line["micro_usd"] == 0) == (told.output == 0), case.name
            if told.output:
                assert line["micro_usd"] == line["prompt_tokens"] + 10 * told.output, case.name
                assert b'data: {"error"' in body, case.name
                assert b"[DONE]" not in body, case.name
            if told.outcome in {"upstream_busy", "upstream_limited"}:
                assert float(headers["retry-after"]) >= 1, case.name
            if "7" in case.name:
                assert headers["retry-after"] == "7", case.name
        await stack.at_rest()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", ["engine", "account"])
@pytest.mark.asyncio
async def test_with_a_second_tier(kind: str, stream: bool) -> None:
    pool = engine_pool if kind == "engine" else lambda url: account_pool("first", url)
    server = engine() if kind == "engine" else account("k")

    def text(url: str, other: str) -> str:
        return route(pool(url) + account_pool("second", other), tiers("first") + tiers("second"), PRICES)

    async with serving([server, account("k")], text, limits=LIMITS) as stack:
        upstream, other = stack.engines
        for case in cases(kind):
            told = expected(case, stream=stream, vendor=kind == "account")
            if told.output or (stream and told == TIMEOUT):
                continue  # the stream is out already; silence is as long as above
            forget(stack)
            upstream.add_faults([replace(case.fault)])
            before = upstream.state()["requests_total"], other.state()["requests_total"]
            code, headers, _ = await ask(stack, stream=stream)
            line = stack.lines()[-1]
            calls = upstream.state()["requests_total"] - before[0], other.state()["requests_total"] - before[1]
            if not case.moves:
                assert (line["outcome"], calls) == ("rejected", (1, 0)), case.name
                continue
            assert (code, line["outcome"], line["pool"]) == (200, "finished", "second"), (case.name, line)
            # A way around needs no second try at the same place.
            assert (line["attempts"], calls[1]) == (2, 1), (case.name, line)
            _check_calls(case, calls[0], 1)
            assert effect(stack) == told.effect, case.name
            assert line["micro_usd"] == line["prompt_tokens"] + 80, case.name
            assert headers["x-weighbridge-tier"] == "2", case.name
        await stack.at_rest()


@pytest.mark.parametrize("kind", ["engine", "account"])
@pytest.mark.asyncio
async def test_cut_at_every_event_boundary_of_a_stream_that_cannot_go_on(kind: str) -> None:
    pool = engine_pool if kind == "engine" else lambda url: account_pool("first", url)
    server = engine() if kind == "engine" else account("k")
    async with serving([server], lambda url: route(pool(url), tiers("first"), PRICES), limits=LIMITS) as stack:
        faults = (FaultKind.CUT, FaultKind.UNFINISHED, FaultKind.GARBAGE, FaultKind.ERROR_IN_STREAM)
        for fault in faults if kind == "engine" else faults[:1]:
            for tokens in range(1, 10):
                forget(stack)
                stack.engines[0].add_faults([Fault(fault, tokens=tokens)])
                left = money_left(stack)
                heard = hear(*(await ask(stack, stream=True))[::2])
                line = stack.lines()[-1]
                where = (fault, tokens, line)
                came = min(tokens, 8)
                assert (len(heard.text), heard.done, line["attempts"]) == (4 * came, False, 1), where
                assert heard.error is not None, where
                assert line["outcome"] in {"stream_cut", "stream_broken"}, where
                assert left - money_left(stack) == line["prompt_tokens"] + 10 * came, where
        await stack.at_rest()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.asyncio
async def test_no_connection(stream: bool) -> None:
    """Refused, and TLS spoken to a server that has none."""
    for scheme in ("http", "https"):

        def text(url: str, other: str, scheme: str = scheme) -> str:
            first = engine_pool(url.replace("http", scheme)) + account_pool("second", other)
            return route(first, tiers("first") + tiers("second"), PRICES)

        async with serving([engine(), account("k")], text, limits=LIMITS) as stack:
            if scheme == "http":
                await stack.engines[0].close()
            code, _, _ = await ask(stack, stream=stream)
            line = stack.lines()[-1]
            assert (code, line["pool"]) == (200, "second")
            assert [try_["result"] for try_ in line["tried"]] == ["connect", "served"]
            seen = next(iter(stack.app.breakers.snapshot(0.0).items()))
            assert (seen[0].provider, seen[1].failures) == ("first", 2)  # nothing was even tried: it counts twice
