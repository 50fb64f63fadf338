"""What a client may not set: engine-steering fields and reserved headers never reach an upstream of any kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from providers.fields import STEERING
from tests.gateway.stack import ALICE, running
from tests.kinds.cases import BY_NAME, CASES, Case
from tests.kinds.stand import MESSAGES, Stand, standing

pytestmark = pytest.mark.asyncio(loop_scope="module")

RESERVED = {
    "x-vllm-priority": "-9",
    "x-data-parallel-rank": "1",
    "x-session-id": "s",
    "x-request-id": "mine",
    "x-smg-routing-key": "k",
    "x-prefiller-host-port": "10.0.0.1:80",
    "x-encoder-hosts-ports": "10.0.0.1:80",
    "x-data-parallel-host-port": "10.0.0.1:80",
    "x-gateway-destination-endpoint": "10.0.0.1:80",
    "x-gateway-inference-objective": "o",
    "x-gateway-inference-fairness-id": "f",
    "x-gateway-model-name-rewrite": "other",
    "x-session-token": "t",
    "x-tenant": "bob",
    "x-forwarded-for": "10.0.0.1",
    "endpoint-load-metrics-format": "TEXT",
    "anthropic-beta": "something",
    "anthropic-version": "1999-01-01",
    "openai-organization": "org-of-mine",
    "openai-project": "proj-of-mine",
    "x-api-key": "k",
    "api-key": "k",
    "x-goog-api-key": "k",
    "x-amz-security-token": "t",
    "cookie": "a=b",
}
VALUES: dict[str, Any] = {"priority": -9, "cache_salt": "stolen", "keep_alive": -1, "options": {"num_ctx": 10}}


def steering() -> dict[str, Any]:
    """Every such field, with something in it."""
    return {name: VALUES.get(name, "stolen") for name in sorted(STEERING)}


async def sent(stand: Stand, case: Case) -> Any:
    """What reaches the upstream of a request with everything that is forbidden."""
    body = {"model": case.model, "messages": MESSAGES, **steering()}
    url = f"http://127.0.0.1:{stand.app.port}/v1/chat/completions"
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    async with stand.session.post(url, data=orjson.dumps(body), headers={**RESERVED, **trace}) as answer:
        assert answer.status == 200, await answer.text()
    return stand.at(case).last


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_nothing_of_it_arrives(stand: Stand, case: Case) -> None:
    seen = await sent(stand, case)
    assert case.authorised(seen)
    assert b"stolen" not in seen.raw
    assert STEERING.isdisjoint(seen.body)
    of_its_own = {"host", "content-type", "content-length", "accept-encoding", "traceparent", "x-request-id"}
    credential = {"authorization", "api-key", "x-api-key", "x-goog-api-key", "x-amz-date", "x-amz-security-token"}
    assert set(seen.headers) <= of_its_own | credential | {"anthropic-version", "openai-organization"}
    for name, value in RESERVED.items():
        assert seen.headers.get(name) != value, name
    assert ALICE not in str(seen.headers)


async def test_what_is_configured_is_sent_in_its_place(stand: Stand) -> None:
    seen = await sent(stand, BY_NAME["openai"])
    assert seen.headers["openai-organization"] == "org-1"
    assert seen.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(("kind", "interactive"), [("vllm", -1), ("sglang", 1)])
@pytest.mark.asyncio(loop_scope="function")
async def test_an_engine_that_serves_by_priority_is_told_the_class_in_its_own_direction(
    kind: str, interactive: int
) -> None:
    case = replace(BY_NAME[kind], more="priority: true, ")
    async with standing((case,)) as stand:
        await stand.ask(case, extra_body={"priority": 99})
        assert stand.at(case).last.body["priority"] == interactive
        await stand.ask(case, service_tier="flex")
        assert stand.at(case).last.body["priority"] == -interactive


@pytest.mark.asyncio(loop_scope="function")
async def test_the_simulated_engine_is_asked_for_no_more_than_it_should() -> None:
    async with running() as stack:
        for path, fields in (
            ("/chat/completions", {"messages": MESSAGES}),
            ("/completions", {"prompt": "weigh this"}),
            ("/embeddings", {"input": "weigh this"}),
        ):
            body = {"model": "chat-large", **fields, **steering()}
            status, _, answer = await stack.post(body, path=path, headers=dict(RESERVED))
            assert status == 200, answer
        records = stack.engines[0].state()["requests"]
        assert len(records) == 3
        for record in records:
            assert STEERING.isdisjoint(record["fields"])
            assert (record["salt"], record["priority"]) == (None, None)
            for name, value in RESERVED.items():
                assert record["headers"].get(name) != value, name
            assert not record["id"].startswith("mine")
