"""What the gateway sets for an engine, in front of real ones: the salt and the proof that it parts, the priority."""

from collections.abc import Iterator

import orjson
import pytest

from tests.real import backends
from tests.real.backends import Server
from tests.real.client import Client, client
from tests.real.gateway import Gateway, gateway

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


async def verdicts(running: Gateway, to: Client) -> dict[str, str]:
    """What the probe last saw, by replica."""
    samples = (await running.metrics(to.session))["weighbridge_isolation"]
    return {labels["replica"]: labels["verdict"] for labels, value in samples if value}


async def degraded(running: Gateway, to: Client) -> str:
    """What the readiness page complains of."""
    async with to.session.get(running.admin_url + "/readyz") as response:
        return "; ".join(orjson.loads(await response.read())["degraded"])


@pytest.fixture
def forgetful() -> Iterator[Server]:
    """llama.cpp with one slot: it keeps the last prompt for whoever comes next, whatever its salt."""
    server = backends.start_llama(slots=1, context=8192)
    yield server
    server.stop()


@pytest.mark.asyncio
async def test_vllm_is_proved_to_part_its_cache(vllm: Server) -> None:
    with gateway("vllm", [vllm.url], capacity={"seats": 8}, context=1024, isolation="salted") as running:
        async with client(running.url, running.keys["acme"]) as to:
            assert await verdicts(running, to) == {"r0": "separate"}
            assert "tenants" not in await degraded(running, to)


@pytest.mark.asyncio
async def test_an_engine_that_overlooks_the_salt_is_found_out(forgetful: Server) -> None:
    posing = {"capacity": {"seats": 1}, "context": 2048, "isolation": "salted", "expected": "leaking"}
    with gateway("vllm", [forgetful.url], **posing) as running:
        async with client(running.url, running.keys["acme"]) as to:
            assert await verdicts(running, to) == {"r0": "leaking"}
            assert "does not keep tenants' prefix caches apart" in await degraded(running, to)


@pytest.mark.asyncio
async def test_vllm_takes_the_priority_of_a_class(vllm: Server) -> None:
    with gateway("vllm", [vllm.url], capacity={"seats": 8}, context=1024, priority=True) as running:
        async with client(running.url, running.keys["acme"]) as to:
            answers = [await to.ask("the gateway", 5), await to.ask("the gateway", 5, service_tier="flex")]
    assert [answer.status for answer in answers] == [200, 200]
