"""Tenants kept apart in a shared engine: their salts, the proof that these part its cache, and what follows without."""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import config, keys
from gateway.app import App
from gateway.isolation import Salts, Trial, Verdict, judge
from providers.simulated import answers, ask, job
from providers.simulated.server import SimulatedServer
from providers.simulated.service import ServiceSettings
from tests.gateway.stack import ALICE, BOB, FAST, MODEL, Stack, until

SECRET = "a secret of at least 16 characters".replace(" ", "-")
PROMPT = "the gateway weighs every request before it may pass " * 8


def text(url: str, *, isolation: str = "salted", secret: str = SECRET, bob: str = "shared", poll_ms: int = 200) -> str:
    return f"""
listen: {{port: 0, drain_s: 5}}
admin: {{port: 0, key: admin-key-for-tests}}
salt_secret: {secret}
pools:
  local: {{kind: simulated, isolation: {isolation}, poll_ms: {poll_ms}, replicas: [{{name: r0, url: "{url}"}}]}}
models:
  {MODEL}: {{context: 16000, tiers: [{{targets: [{{pool: local, model: sim-large}}]}}]}}
tenants:
  alice: {{isolation: salted, keys: [{{id: alice1, hash: "{keys.digest(ALICE)}"}}]}}
  bob: {{isolation: {bob}, keys: [{{id: bob1, hash: "{keys.digest(BOB)}"}}]}}
"""


@asynccontextmanager
async def gateway(server: SimulatedServer, **options: Any) -> AsyncIterator[Stack]:
    """A gateway in front of one running engine."""
    log = io.BytesIO()
    app = await App(config.parse(text(server.url, **options), "test.yaml", {}).config, request_log=log).start()
    async with aiohttp.ClientSession() as session:
        stack = Stack(app, [server], None, log, session)
        try:
            yield stack
            await stack.at_rest()
        finally:
            await app.close()


@asynccontextmanager
async def engine(**service: Any) -> AsyncIterator[SimulatedServer]:
    """A running engine."""
    server = SimulatedServer(ServiceSettings(**{"engine": FAST, **service}))
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def standing(prefix_cache: bool = True, **options: Any) -> AsyncIterator[Stack]:
    """A gateway in front of an engine of its own."""
    async with engine(engine=replace(FAST, prefix_cache=prefix_cache)) as server, gateway(server, **options) as stack:
        yield stack


async def cached(stack: Stack, key: str, prompt: str = PROMPT, **more: Any) -> int:
    """Prompt tokens of a request that were found in the engine's cache."""
    body = stack.chat(messages=[{"role": "user", "content": prompt}], max_tokens=1, **more)
    status, _, answer = await stack.post(body, key=key)
    assert status == 200, answer
    return int(orjson.loads(answer)["usage"]["prompt_tokens_details"]["cached_tokens"])


async def readiness(stack: Stack) -> dict[str, Any]:
    async with stack.session.get(f"http://127.0.0.1:{stack.app.admin_port}/readyz") as answer:
        assert answer.status == 200  # it serves on, whatever it does without
        found: dict[str, Any] = orjson.loads(await answer.read())
        return found


async def verdict(stack: Stack) -> str:
    """The verdict on the metrics page."""
    async with stack.session.get(f"http://127.0.0.1:{stack.app.admin_port}/metrics") as answer:
        page = await answer.text()
    [found] = re.findall(r'weighbridge_isolation\{pool="local",replica="r0",verdict="(\w+)"\} 1\.0', page)
    return str(found)


async def admin(stack: Stack, path: str) -> dict[str, Any]:
    """What the admin API says."""
    url = f"http://127.0.0.1:{stack.app.admin_port}/admin/v1{path}"
    async with stack.session.get(url, headers={"authorization": "Bearer admin-key-for-tests"}) as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found


async def probe(stack: Stack) -> None:
    """Another round now."""
    stack.app.probes._due.clear()
    await stack.app.probes.round()


# -- salts -------------------------------------------------------------------------------------------------


@given(st.text(), st.text(min_size=1, max_size=50), st.text(), st.text(min_size=1, max_size=50))
@settings(max_examples=60)
def test_no_tenant_can_write_another_s_salt(tenant: str, namespace: str, other: str, theirs: str) -> None:
    salts = Salts(b"secret")
    plain = (salts.of(tenant), salts.of(other))
    assert (plain[0] == plain[1]) == (tenant == other)
    assert (salts.of(tenant, namespace) == salts.of(other, theirs)) == ((tenant, namespace) == (other, theirs))
    assert salts.of(tenant, namespace) not in plain
    for salt in (*plain, salts.of(tenant, namespace)):
        assert re.fullmatch(r"[A-Za-z0-9_-]{43}", salt)  # none of which an engine refuses


def test_a_salt_follows_from_the_secret_alone() -> None:
    assert Salts(b"one").of("acme") == Salts(b"one").of("acme") != Salts(b"two").of("acme")
    for odd in (None, "", 5, ["x"], "x" * 2000):
        assert Salts(b"one").of("acme", odd) == Salts(b"one").of("acme")


# -- what trials prove ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        ([Trial("chat", 0, 96, 0, True)], Verdict.SEPARATE),
        ([Trial("chat", 0, 96, 96, True)], Verdict.LEAKING),
        ([Trial("chat", 0, 96, 16, True)], Verdict.LEAKING),
        ([Trial("chat", 0, 96, 0, True), Trial("completions", 0, 96, 96, True)], Verdict.LEAKING),
        ([Trial("chat", 0, 0, 0, True)], Verdict.UNPROVED),
        ([Trial("chat", None, None, None, False)], Verdict.UNPROVED),
        ([Trial("chat", 0, 0, 0, True), Trial("completions", 0, 96, 0, True)], Verdict.SEPARATE),
        # Off a counter that others move: a leak must show each time, its absence but once.
        ([Trial("chat", 5, 96, 40, False), Trial("chat", 0, 96, 0, False)], Verdict.SEPARATE),
        ([Trial("chat", 5, 96, 40, False)] * 3, Verdict.LEAKING),
        ([Trial("chat", 5, 0, 0, False)], Verdict.UNPROVED),
        ([], Verdict.UNPROVED),
    ],
)
def test_what_trials_prove(trials: list[Trial], expected: Verdict) -> None:
    found, detail = judge(trials)
    assert found is expected
    assert detail


# -- through the gateway ---------------------------------------------------------------------------------------


@pytest.fixture
def leak(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Makes engines drop the salt: on requests with this field, or not at all any more."""
    real, on = ask._salt, {"field": ""}

    def salt(body: Any) -> str | None:
        found = real(body)
        return None if on["field"] and on["field"] in body else found

    monkeypatch.setattr(ask, "_salt", salt)

    def begin(field: str | None) -> None:
        on["field"] = field or ""

    return begin


@pytest.mark.asyncio
async def test_a_salted_pool_is_proved_before_it_serves() -> None:
    async with standing() as stack:
        assert await verdict(stack) == "separate"
        assert (await readiness(stack))["degraded"] == []
        assert [await cached(stack, ALICE), await cached(stack, ALICE) > 0, await cached(stack, BOB)] == [0, True, 0]
        asked = stack.engines[0].state()["requests"]
        assert {record["path"] for record in asked[:6]} == {"/v1/chat/completions", "/v1/completions"}
        assert len({record["salt"] for record in asked}) == 2 * 2 + 2  # new ones for each path, and the two tenants'


@pytest.mark.asyncio
async def test_instances_with_one_secret_share_a_tenant_s_cache() -> None:
    async with engine() as server:
        async with gateway(server) as first:
            assert await cached(first, ALICE) == 0
        async with gateway(server) as restarted:
            assert await cached(restarted, ALICE) > 0
        async with gateway(server, secret="another-secret-of-16-characters") as stranger:
            assert await cached(stranger, ALICE) == 0


@pytest.mark.asyncio
async def test_what_a_client_calls_its_salt_parts_only_its_own_requests() -> None:
    async with standing() as stack:
        assert await cached(stack, ALICE, cache_salt="mine") == 0
        assert await cached(stack, ALICE) == 0
        assert await cached(stack, ALICE, cache_salt="mine") > 0
        assert await cached(stack, BOB, cache_salt="mine") == 0
        assert b"mine" not in orjson.dumps([record["salt"] for record in stack.engines[0].state()["requests"]])


@pytest.mark.parametrize("field", ["messages", "prompt"], ids=["on chat", "on completions only"])
@pytest.mark.asyncio
async def test_a_pool_that_leaks_is_taken_out_of_salted_service(field: str, leak: Callable[[str | None], None]) -> None:
    leak(field)
    async with standing() as stack:
        assert await verdict(stack) == "leaking"
        status, headers, body = await stack.post(stack.chat(), key=ALICE)
        error = orjson.loads(body)["error"]
        assert (status, error["code"]) == (503, "isolation_not_kept")
        assert "another tenant found" in error["message"]
        assert "retry-after" in headers
        assert (await stack.post(stack.chat(), key=BOB))[0] == 200  # who shares is served on
        [problem] = (await readiness(stack))["degraded"]
        assert "pool local does not keep tenants' prefix caches apart" in problem
        assert "another tenant found" in str(await admin(stack, "/tenants/alice/boundaries"))
        pool = await admin(stack, "/pools/local")
        assert pool["separation"]["r0"]["verdict"] == "leaking"
        leak(None)
        await probe(stack)
        assert await verdict(stack) == "separate"
        [boundary] = (await admin(stack, "/tenants/alice/boundaries"))["pools"]
        assert (boundary["prefix_cache"], boundary["problem"]) == ("salted", None)
        assert (await stack.post(stack.chat(), key=ALICE))[0] == 200
        assert (await readiness(stack))["degraded"] == []


@pytest.mark.asyncio
async def test_a_pool_that_begins_to_leak_is_found_out(leak: Callable[[str | None], None]) -> None:
    async with standing() as stack:
        assert (await stack.post(stack.chat(), key=ALICE))[0] == 200
        leak("messages")
        await probe(stack)
        assert (await stack.post(stack.chat(), key=ALICE))[0] == 503


@pytest.mark.parametrize("leaking", [False, True])
@pytest.mark.asyncio
async def test_an_engine_that_tells_of_no_cached_tokens_is_judged_by_its_counters(
    leaking: bool, leak: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(prompt: int, output: int, cached: int) -> dict[str, Any]:
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    monkeypatch.setattr(job, "usage", usage)
    assert answers.usage is not usage
    leak("messages" if leaking else None)
    async with standing() as stack:
        assert await verdict(stack) == ("leaking" if leaking else "separate")


@pytest.mark.asyncio
async def test_an_engine_without_a_prefix_cache_serves_and_is_said_to_prove_nothing() -> None:
    async with standing(prefix_cache=False) as stack:
        assert await verdict(stack) == "unproved"
        assert (await stack.post(stack.chat(), key=ALICE))[0] == 200
        [problem] = (await readiness(stack))["degraded"]
        assert "isolation of r0 is not proved" in problem


@pytest.mark.asyncio
async def test_a_replica_that_comes_back_is_asked_before_it_serves_salted_tenants() -> None:
    async with engine(cold_start_s=0.6) as server, gateway(server, poll_ms=50) as stack:
        assert await verdict(stack) == "pending"
        status, _, body = await stack.post(stack.chat(), key=ALICE)
        assert (status, orjson.loads(body)["error"]["code"]) == (503, "isolation_not_kept")
        separation = stack.app.probes.pools["local"]
        await until(lambda: separation.hindrance() is None, 5.0)
        assert (await stack.post(stack.chat(), key=ALICE))[0] == 200


@pytest.mark.asyncio
async def test_a_shared_pool_is_proved_for_the_tenant_that_requires_it() -> None:
    async with standing(isolation="shared") as stack:
        assert await verdict(stack) == "separate"
        assert [await cached(stack, BOB), await cached(stack, ALICE), await cached(stack, BOB) > 0] == [0, 0, True]
        assert await cached(stack, ALICE) > 0


@pytest.mark.asyncio
async def test_the_probe_takes_its_turn_and_leaves_nothing_behind() -> None:
    async with standing() as stack:
        snapshot = stack.app.pools["local"].gate.core.snapshot(stack.app.clock.monotonic())
        assert (snapshot.inflight, snapshot.seats_held, snapshot.kv_tokens_held) == (0, 0, 0)
        assert await stack.metric("weighbridge_isolation_probes_total") == 1
        assert stack.lines() == []  # it is nobody's request
        before = len(stack.engines[0].state()["requests"])
        await stack.app.probes.round()  # nothing is due for an hour
        assert len(stack.engines[0].state()["requests"]) == before
