"""A client that leaves a provider, in every phase: what was bought is read to its end, and settled as it was billed."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.stack import ALICE, until
from tests.kinds.cases import BY_NAME, Case
from tests.kinds.observe import halfway
from tests.kinds.scripts import OUTPUT, PROMPT
from tests.kinds.stand import Stand, standing
from tests.kinds.upstream import Play
from tests.providers.scripted import JSON, Script, compact
from tests.providers.scripted_vendors import OUT

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROVIDERS = [BY_NAME[name] for name in ("openai", "anthropic", "gemini", "bedrock")]
FULL = {"openai": OUTPUT}
ERROR = Script(429, JSON, compact({"error": {"message": "Rate limit reached", "type": "tokens", "code": None}}))


async def leave(stand: Stand, case: Case, play: Play, **fields: object) -> None:
    """Asks, and leaves soon after the upstream has the request."""
    upstream = stand.at(case)
    upstream.next(play)
    before = len(upstream.seen)
    task = asyncio.ensure_future(stand.ask(case, max_tokens=50, **fields))
    await until(lambda: len(upstream.seen) > before)
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():  # the stream had begun
        await task.result().close()


@pytest.mark.parametrize("case", PROVIDERS, ids=lambda case: case.name)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("late", [True, False], ids=["before its head", "before its first token"])
async def test_in_prefill(stand: Stand, case: Case, stream: bool, late: bool) -> None:
    script, _ = halfway(case)
    await leave(stand, case, Play(script, cut=0, then="hold", late=late), stream=stream)
    await until(lambda: stand.app.leaving.running == 1)
    assert not stand.at(case).last.left
    stand.at(case).release.set()
    line = await stand.line()
    assert line["outcome"] == "gone_prefill"
    assert (line["output_tokens"], line["usage"]) == (FULL.get(case.name, OUT), "reported")
    assert stand.app.leaving.ends == {(case.name, "read"): 1}


@pytest.mark.parametrize("case", PROVIDERS, ids=lambda case: case.name)
async def test_in_a_whole_answer_half_of_which_has_come(stand: Stand, case: Case) -> None:
    script, at = halfway(case)
    await leave(stand, case, Play(script, cut=at, then="hold"))
    await until(lambda: stand.app.leaving.running == 1)
    stand.at(case).release.set()
    line = await stand.line()
    assert line["outcome"] == "gone_decode"
    assert (line["output_tokens"], line["usage"]) == (FULL.get(case.name, OUT), "reported")


async def test_in_a_call_that_nobody_streams(stand: Stand) -> None:
    case = BY_NAME["openai"]
    script = stand.at(case).says["whole"]
    await leave(stand, case, Play(script, cut=0, then="hold", late=True), n=2)
    await until(lambda: stand.app.leaving.running == 1)
    stand.at(case).release.set()
    line = await stand.line()
    assert (line["prompt_tokens"], line["output_tokens"], line["usage"]) == (PROMPT, OUTPUT, "reported")


@pytest.mark.parametrize("then", ["close", "reset", "end"])
async def test_what_breaks_while_it_is_read_is_settled_with_the_estimate(stand: Stand, then: str) -> None:
    case = BY_NAME["anthropic"]
    script, at = halfway(case)
    upstream = stand.at(case)
    after = {"end": "hold", "close": "hold-close", "reset": "hold-reset"}[then]
    await leave(stand, case, Play(Script(200, script.headers, script.body[:at]), cut=at // 2, then=after), stream=True)
    await until(lambda: stand.app.leaving.running == 1)
    upstream.release.set()  # what comes now has no end
    line = await stand.line()
    assert line["usage"] == "estimated"
    assert line["output_tokens"] == 50  # what it may have billed, not the one token it had told of
    assert stand.app.leaving.ends == {(case.name, "unread"): 1}


async def test_an_answer_that_says_no_bills_nothing(stand: Stand) -> None:
    case = BY_NAME["openai"]
    await leave(stand, case, Play(ERROR, late=True))
    await until(lambda: stand.app.leaving.running == 1)
    stand.at(case).release.set()
    line = await stand.line()
    assert (line["outcome"], line["output_tokens"]) == ("gone_prefill", 0)


async def test_only_so_many_are_read_and_only_for_so_long(stand: Stand) -> None:
    case, leaving = BY_NAME["openai"], stand.app.leaving
    script, at = halfway(case)
    leaving.most, leaving.longest_s = 1, 0.15
    try:
        await leave(stand, case, Play(script, cut=at, then="hold"), stream=True)
        await until(lambda: leaving.running == 1)
        await leave(stand, case, Play(script, cut=at, then="hold"), stream=True)
        await until(lambda: stand.app.lifecycle.in_flight == 1)  # the second was closed at once
        assert [seen.left for seen in stand.at(case).seen] == [False, True]
        line = await stand.line()
        await until(lambda: stand.at(case).seen[0].left)
    finally:
        leaving.most, leaving.longest_s = 100, 120.0
    assert (line["output_tokens"], line["usage"]) == (50, "estimated")
    assert leaving.ends == {(case.name, "unread"): 2}


async def test_a_shutdown_does_not_wait_for_them() -> None:
    case = BY_NAME["openai"]
    async with standing((case,)) as stand:
        script, at = halfway(case)
        await leave(stand, case, Play(script, cut=at, then="hold"), stream=True)
        await until(lambda: stand.app.leaving.running == 1)
        assert await stand.app.lifecycle.drain(0.05) == 1
        line = await stand.line()
        assert (line["outcome"], line["usage"]) == ("gone_decode", "estimated")


async def test_the_seat_at_the_account_is_held_until_the_answer_is_over() -> None:
    case = BY_NAME["openai"]
    async with standing((case,)) as stand:
        gate = stand.app.pools[case.name].gate
        script, at = halfway(case)
        await leave(stand, case, Play(script, cut=at, then="hold"), stream=True)
        await until(lambda: stand.app.leaving.running == 1)
        assert gate.core.snapshot(stand.app.clock.monotonic()).seats_held == 1
        url = f"http://127.0.0.1:{stand.app.admin_port}/metrics"
        async with stand.session.get(url, headers={"authorization": f"Bearer {ALICE}"}) as answer:
            page = await answer.text()
        assert "weighbridge_left_answers_running 1.0" in page
        stand.at(case).release.set()
        await stand.at_rest()


async def test_batch_work_at_a_provider_is_not_taken_back(stand: Stand) -> None:
    case = BY_NAME["openai"]
    script, at = halfway(case)
    stand.at(case).next(Play(script, cut=at, then="hold"))
    gate = stand.app.pools[case.name].gate
    task = asyncio.ensure_future(stand.ask(case, service_tier="flex"))
    await until(lambda: bool(stand.at(case).seen))
    assert gate._interrupts == {}
    stand.at(case).release.set()
    await task
