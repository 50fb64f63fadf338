"""One way in for every path: the same key, the same limits, the same books, whatever the dialect."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from gateway.api.routes import ROUTES
from providers.exchange import Dialect, Endpoint
from tests.clients.stack import KEY, clients

BODIES: dict[Endpoint, dict[str, Any]] = {
    Endpoint.CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    Endpoint.COMPLETIONS: {"prompt": "hi"},
    Endpoint.EMBEDDINGS: {"input": "hi"},
    Endpoint.RESPONSES: {"input": "hi"},
    Endpoint.MESSAGES: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
    Endpoint.COUNT_TOKENS: {"messages": [{"role": "user", "content": "hi"}]},
    Endpoint.RERANK: {"query": "a", "documents": ["b", "c"]},
    Endpoint.MODERATIONS: {"input": "hi"},
    Endpoint.IMAGES: {"prompt": "a cat", "n": 2, "size": "1024x1024"},
    Endpoint.TOKENIZE: {"prompt": "hi"},
    Endpoint.DETOKENIZE: {"tokens": [1, 2]},
}


def test_every_endpoint_has_a_body_here() -> None:
    assert {route.endpoint for route in ROUTES.values()} == BODIES.keys()


@pytest.mark.asyncio
@pytest.mark.parametrize("path", sorted(ROUTES))
async def test_no_path_comes_by_the_door_the_limits_or_the_books(path: str) -> None:
    route = ROUTES[path]
    kind = "anthropic" if route.dialect is Dialect.ANTHROPIC else "vllm"
    if route.endpoint in (Endpoint.MODERATIONS, Endpoint.IMAGES):
        kind = "openai"
    body = {"model": f"{kind}:text", **BODIES[route.endpoint]}
    async with clients("{requests_per_minute: 6}") as c, aiohttp.ClientSession() as session:

        async def post(sent: Any = body, key: str | None = KEY) -> tuple[int, dict[str, Any], Any]:
            headers = {"authorization": f"Bearer {key}"} if key is not None else {}
            async with session.post(c.base_url + path, json=sent, headers=headers) as answer:
                return answer.status, dict(answer.headers), await answer.json()

        def is_own(told: dict[str, Any]) -> bool:
            return (told.get("type") == "error") == (route.dialect is Dialect.ANTHROPIC) and "error" in told

        status, _, told = await post(key=None)
        assert (status, is_own(told)) == (401, True)
        async with session.get(c.base_url + path, headers={"authorization": f"Bearer {KEY}"}) as answer:
            assert (answer.status, answer.headers["allow"], is_own(await answer.json())) == (405, "POST", True)
        status, _, told = await post({**body, "model": "nope"})
        assert (status, is_own(told)) == (404, True)
        status, _, told = await post({})
        assert (status, is_own(told)) == (400, True)
        assert not c.upstreams.seen
        statuses = []
        while not statuses or (statuses[-1] != 429 and len(statuses) < 30):
            status, headers, told = await post()
            statuses.append(status)
        assert statuses[-1] == 429
        assert is_own(told)
        assert float(headers["retry-after-ms"]) > 0
        lines = c.lines()
        assert {line["path"] for line in lines} == {path}
        assert sum(line["outcome"] == "rate_limited" for line in lines) == 1
        assert all(line["tenant"] == "alice" for line in lines if line["status"] in (200, 429))


@pytest.mark.asyncio
async def test_other_paths_are_answered_in_the_caller_s_dialect() -> None:
    async with clients() as c, aiohttp.ClientSession() as session:
        for path, headers in (("/v1/messages/batches", {}), ("/v1/nope", {"anthropic-version": "2023-06-01"})):
            async with session.post(c.base_url + path, headers=headers) as answer:
                assert (answer.status, (await answer.json())["type"]) == (404, "error")
        key = {"authorization": f"Bearer {KEY}"}
        for method, path in (("GET", "resp_1"), ("DELETE", "resp_1"), ("POST", "resp_1/cancel")):
            async with session.request(method, f"{c.base_url}/v1/responses/{path}", headers=key) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (404, "response_not_found")
        async with session.get(f"{c.base_url}/v1/responses/resp_1") as answer:
            assert answer.status == 401


@pytest.mark.asyncio
async def test_what_is_not_looked_into_is_passed_on_where_it_is_served() -> None:
    async with clients() as c, aiohttp.ClientSession() as session:

        async def post(path: str, **body: Any) -> tuple[int, Any]:
            key = {"authorization": f"Bearer {KEY}"}
            async with session.post(c.base_url + path, json=body, headers=key) as answer:
                return answer.status, await answer.json()

        assert await post("/v1/rerank", model="vllm:text", query="a", documents=["b"], priority=5) == (
            200,
            {"results": [], "usage": {"total_tokens": 11}},
        )
        seen = c.upstreams.last("vllm")
        assert (seen.path, seen.body) == ("/v1/rerank", {"model": "text", "query": "a", "documents": ["b"]})
        assert (await post("/v1/tokenize", model="vllm:text", prompt="hi"))[0] == 200
        assert c.upstreams.last("vllm").path == "/tokenize"
        images = await c.openai.images.generate(model="openai:text", prompt="a cat", n=2)
        assert c.upstreams.last("openai").path == "/v1/images/generations"
        assert images.created is None
        assert [line["prompt_tokens"] for line in c.lines()[:2]] == [11, 0]
        status, told = await post("/v1/moderations", model="vllm:text", input="hi")
        assert (status, told["error"]["code"]) == (400, "unsupported_parameter")
        status, told = await post("/v1/images/generations", model="openai:text", prompt="a cat", stream=True)
        assert (status, told["error"]["param"]) == (400, "stream")
