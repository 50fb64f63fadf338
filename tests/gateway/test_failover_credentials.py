"""Several keys of one account: used in turn, set aside when refused or exhausted, and never the account with one."""

from __future__ import annotations

from collections import Counter

import pytest

from providers.health import Event, State
from providers.simulated.faults import Fault, FaultKind, Match
from tests.gateway.failover import account, engine, forget, route, serving
from tests.gateway.stack import Stack

KEYS = ("one", "two", "three")


def several(url: str, *others: str) -> str:
    keys = ", ".join(f"{{name: {key}, key: key-{key}}}" for key in KEYS)
    more = "".join(f'\n  other: {{kind: simulated, replicas: [{{name: r0, url: "{one}"}}]}}' for one in others)
    return route(
        f"""  account:
    kind: openai-compatible
    capacity: {{seats: 8}}
    account: {{url: "{url}/v1", credentials: [{keys}]}}
    failure_domain: {{vendor: there}}{more}""",
        "      - targets: [{pool: account, model: sim-large}]\n"
        + "".join("      - targets: [{pool: other, model: sim-large}]\n" for _ in others),
    )


def of(key: str, **what: object) -> Fault:
    """A fault that hits the requests of one key."""
    match = Match(header=(("authorization", f"Bearer key-{key}"),))
    return Fault(FaultKind.STATUS, match=match, **what)  # type: ignore[arg-type]


async def ask(stack: Stack, times: int = 1) -> list[int]:
    return [(await stack.post(stack.chat(max_tokens=2)))[0] for _ in range(times)]


def count(stack: Stack) -> None:
    """Lets the account count by key, which it does not show: a fault that does nothing knows how often it struck."""
    stack.engines[0].add_faults([Fault(FaultKind.DELAY, match=of(key).match) for key in KEYS])


def used(stack: Stack) -> Counter[str]:
    """Calls by key."""
    calls: Counter[str] = Counter()
    for fault in stack.engines[0].faults.faults:
        calls[fault.match.header[0][1].removeprefix("Bearer key-")] += fault.struck
    return +calls


def breakers(stack: Stack) -> dict[str, tuple[State, float]]:
    now = stack.app.clock.monotonic()
    found = stack.app.breakers.snapshot(now)
    return {key.credential: (seen.state, max(0.0, seen.not_before - now)) for key, seen in found.items()}


@pytest.mark.asyncio
async def test_keys_are_used_in_turn() -> None:
    async with serving([account(*(f"key-{key}" for key in KEYS))], several) as stack:
        count(stack)
        assert await ask(stack, 9) == [200] * 9
        assert used(stack) == dict.fromkeys(KEYS, 3)


REFUSED = {
    "401": of("one", status=401),
    "403": of("one", status=403),
    "402": of("one", status=402),
    "429": of("one", status=429, retry_after_s=30),
    "quota": of("one", status=429, message="You exceeded your daily limit"),
    "credit": of("one", status=429, code="insufficient_quota"),
}


@pytest.mark.asyncio
async def test_a_refused_key_is_set_aside_and_the_others_serve() -> None:
    async with serving([account(*(f"key-{key}" for key in KEYS))], several) as stack:
        for why, fault in REFUSED.items():
            forget(stack)
            stack.engines[0].add_faults([fault])
            count(stack)
            assert await ask(stack, 9) == [200] * 9, why
            calls = used(stack)
            assert calls["one"] == 1, why  # its failure outlives the request that met it
            assert sum(calls.values()) == 10, why
            state, wait = breakers(stack)["one"]
            assert (state is State.BARRED) == (why in {"401", "403"}), why
            assert state in {State.BARRED, State.CLOSED}, why
            if why == "429":
                assert 25 < wait <= 30
            assert {breakers(stack)[key][0] for key in ("two", "three")} == {State.CLOSED}, why
            # The account itself is well: nobody waits for it.
            assert stack.app.pools["account"].members.any_well(), why


@pytest.mark.asyncio
async def test_all_keys_are_tried_within_the_budget_and_the_last_try_is_the_next_target_s() -> None:
    servers = [account(*(f"key-{key}" for key in KEYS)), engine()]
    async with serving(servers, several) as stack:
        stack.engines[0].add_faults([of(key, status=429, retry_after_s=20) for key in KEYS])
        assert await ask(stack) == [200]
        line = stack.lines()[-1]
        assert [try_["pool"] for try_ in line["tried"]] == ["account", "account", "other"]
        assert await ask(stack, 3) == [200] * 3
        assert sum(used(stack).values()) == 3  # the third key is met by the second request, and no key twice


@pytest.mark.asyncio
async def test_when_every_key_is_limited_the_caller_hears_when_the_first_is_free() -> None:
    async with serving([account(*(f"key-{key}" for key in KEYS))], several) as stack:
        stack.engines[0].add_faults([of(key, status=429, retry_after_s=20 + 10 * n) for n, key in enumerate(KEYS)])
        assert await ask(stack) == [429]
        code, headers, _ = await stack.post(stack.chat())
        assert code == 503
        assert 15 <= float(headers["retry-after"]) <= 40
        assert sum(used(stack).values()) == 3


@pytest.mark.asyncio
async def test_of_two_cool_downs_the_later_stands() -> None:
    async with serving([account(*(f"key-{key}" for key in KEYS))], several) as stack:
        breaker_key = next(iter(stack.app.lifecycle.world.pools["account"].credentials)).name
        stack.engines[0].add_faults([of(breaker_key, status=429, retry_after_s=60, count=1)])
        await ask(stack, 3)
        before = breakers(stack)[breaker_key][1]
        assert before > 55
        entry = stack.app.lifecycle.world.pools["account"]
        breaker = entry.breakers["sim-large", breaker_key]
        breaker.record(Event.RATE, stack.app.clock.monotonic(), retry_after_s=2.0)
        assert breakers(stack)[breaker_key][1] > 55


@pytest.mark.asyncio
async def test_the_sdk_s_own_retries_count() -> None:
    async with serving([account(*(f"key-{key}" for key in KEYS))], several) as stack:
        stack.engines[0].add_faults([Fault(FaultKind.STATUS, status=500)])
        for retry, calls in ((0, 3), (1, 2), (2, 1)):
            before = stack.engines[0].state()["requests_total"]
            code, headers, _ = await stack.post(stack.chat(), headers={"x-stainless-retry-count": str(retry)})
            assert code == 502
            assert headers["x-should-retry"] == "false"
            assert stack.engines[0].state()["requests_total"] - before == calls
