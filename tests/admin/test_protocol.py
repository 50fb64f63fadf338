"""The rules of HTTP that every operation keeps: problems, pages, ETags, idempotency, merge patches, OpenAPI."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel

from gateway.api.admin import ROUTES
from gateway.api.admin_call import merged
from tests.admin.api import MERGE, Api
from tests.gateway.stack import running

pytestmark = pytest.mark.asyncio


async def test_every_refusal_is_a_problem_detail() -> None:
    async with running() as stack:
        api = Api.of(stack)
        patch = {"content_type": "application/json", "if_match": "*"}
        cases = [
            (404, "unknown_path", await api.get("/nothing")),
            (405, "method_not_allowed", await api.call("PUT", "/tenants")),
            (413, "body_too_large", await api.post("/tenants", (b"x" * 1024 * 1025))),
            (415, "media_type", await api.post("/tenants", b"{}", content_type="text/plain")),
            (415, "media_type", await api.call("PATCH", "/tenants/alice", {}, **patch)),
            (400, "invalid_json", await api.post("/tenants", b"{")),
            (422, "invalid_body", await api.post("/tenants", {"name": "a b", "wieght": 2})),
            (422, "rule_broken", await api.post("/tenants", {"name": "a", "models": ["nonsense"]})),
            (400, "no_body_expected", await api.call("DELETE", "/tenants/alice", {}, if_match="*")),
            (400, "invalid_query", await api.get("/tenants?limit=0")),
            (400, "invalid_query", await api.get("/tenants?after=%21")),
            (409, "declared_in_file", await api.call("DELETE", "/tenants/alice", if_match="*")),
            (401, "unauthenticated", await api.as_(None).get("/tenants")),
        ]
        for status, code, reply in cases:
            assert (reply.status, reply.code) == (status, code), reply.raw
            assert reply.headers["content-type"] == "application/problem+json"
            assert (reply.body["status"], reply.body["type"]) == (status, "about:blank")
            assert reply.body["request_id"] == reply.headers["x-request-id"]
        assert set(cases[1][2].headers["allow"].split(",")) == {"GET", "POST"}
        pointers = [one["pointer"] for one in cases[6][2].body["errors"]]
        assert pointers == ["#/name", "#/wieght"]
        assert cases[12][2].headers["www-authenticate"] == "Bearer"


async def test_pages_hold_through_deletions() -> None:
    async with running() as stack:
        api = Api.of(stack)
        for n in range(7):
            await api.post("/tenants", {"name": f"t{n}"})
        first = (await api.get("/tenants?limit=4")).body
        assert [one["name"] for one in first["data"]] == ["alice", "bob", "t0", "t1"]
        assert first["has_more"] is True
        await api.change("DELETE", "/tenants/t1")  # the row that the cursor stands on
        rest, after = [], first["next"]
        while after is not None:
            reply = await api.get(f"/tenants?limit=2&after={after}")
            if reply.body["has_more"]:
                assert f'after={reply.body["next"]}>; rel="next"' in reply.headers["link"]
            rest += [one["name"] for one in reply.body["data"]]
            after = reply.body["next"]
        assert rest == ["t2", "t3", "t4", "t5", "t6"]


async def test_a_change_needs_the_state_it_was_made_for() -> None:
    async with running() as stack:
        api = Api.of(stack)
        made = await api.post("/tenants", {"name": "acme"})
        assert (await api.call("PATCH", "/tenants/acme", {"weight": 2})).status == 428
        changed = await api.call("PATCH", "/tenants/acme", {"weight": 2}, if_match=made.etag)
        assert (changed.status, changed.body["weight"]) == (200, 2)
        late = await api.call("PATCH", "/tenants/acme", {"weight": 3}, if_match=made.etag)
        assert (late.status, late.etag) == (412, changed.etag)
        assert (await api.call("DELETE", "/tenants/acme", if_match=made.etag)).status == 412
        assert (await api.get("/tenants/acme", if_none_match=changed.etag)).status == 304
        assert (await api.get("/tenants/acme", if_none_match=made.etag)).status == 200
        # One that was deleted and made again is another one.
        await api.call("DELETE", "/tenants/acme", if_match=changed.etag)
        again = await api.post("/tenants", {"name": "acme"})
        assert again.etag != made.etag


async def test_of_two_changes_of_one_state_one_wins() -> None:
    async with running() as stack:
        api = Api.of(stack)
        made = await api.post("/tenants", {"name": "acme"})
        replies = await asyncio.gather(
            *(api.call("PATCH", "/tenants/acme", {"weight": n + 2}, if_match=made.etag) for n in range(5))
        )
        assert sorted(reply.status for reply in replies) == [200, 412, 412, 412, 412]
        winner = next(reply for reply in replies if reply.status == 200)
        assert (await api.get("/tenants/acme")).body["weight"] == winner.body["weight"]


async def test_a_repeated_call_happens_once() -> None:
    async with running() as stack:
        api = Api.of(stack)
        first = await api.post("/tenants/alice/keys", {"label": "ci"}, idempotency_key='"one"')
        second = await api.post("/tenants/alice/keys", {"label": "ci"}, idempotency_key="one")
        assert (first.status, second.status) == (201, 201)
        assert second.headers["idempotency-replayed"] == "true"
        # The same answer, but for the key, which was shown once and is kept nowhere.
        shown = first.body.pop("key")
        assert shown.startswith("wb_")
        assert second.body == first.body
        assert second.headers["location"] == first.headers["location"]
        assert len((await api.get("/tenants/alice/keys")).body["data"]) == 2
        other = await api.post("/tenants/alice/keys", {"label": "other"}, idempotency_key="one")
        assert (other.status, other.code) == (422, "idempotency_key_reused")
        # It is the caller's own: somebody else's key of the same text is another one.
        made = await api.post("/admin-keys", {"role": "operator"})
        assert (await api.as_(made.body["key"]).post("/tenants", {"name": "x"}, idempotency_key="one")).status == 201


async def test_refused_calls_are_not_remembered() -> None:
    async with running() as stack:
        api = Api.of(stack)
        wanted = {"name": "acme", "organisation": "corp"}
        assert (await api.post("/tenants", wanted, idempotency_key="k")).status == 422
        assert (await api.post("/organisations", {"name": "corp"})).status == 201
        assert (await api.post("/tenants", wanted, idempotency_key="k")).status == 201


async def test_calls_at_the_same_time_with_one_idempotency_key_happen_once() -> None:
    async with running() as stack:
        api = Api.of(stack)
        replies = await asyncio.gather(*(api.post("/tenants/alice/keys", {}, idempotency_key="same") for _ in range(5)))
        assert {reply.status for reply in replies} <= {201, 409}
        assert len((await api.get("/tenants/alice/keys")).body["data"]) == 2


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
async def test_merge_patches_are_those_of_the_rfc(target: object, patch: object, expected: object) -> None:
    assert merged(target, patch) == expected


async def test_the_openapi_document_describes_every_operation() -> None:
    async with running() as stack:
        reply = await Api.of(stack).as_(None).get("/openapi.json")
        document = reply.body
        assert document["openapi"] == "3.1.0"
        found = {
            operation["operationId"]: (method.upper(), path, operation)
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
        }
        assert {name: where[:2] for name, where in found.items()} == {
            route.name: (route.method, "/admin/v1" + route.path) for route in ROUTES
        }
        for route in ROUTES:
            operation = found[route.name][2]
            assert str(route.status) in operation["responses"]
            assert ("requestBody" in operation) == (route.body is not None)
            if route.patch:
                assert list(operation["requestBody"]["content"]) == [MERGE]
            headers = {one["name"] for one in operation["parameters"] if one["in"] == "header"}
            assert ("If-Match" in headers) == route.if_match
        for reference in _references(document):
            _resolve(document, reference)


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [one for item in value.values() for one in _references(item)]
    return [one for item in value for one in _references(item)] if isinstance(value, list) else []


def _resolve(document: object, reference: str) -> None:
    assert reference.startswith("#/")
    for step in reference[2:].split("/"):
        assert isinstance(document, dict)
        assert step in document, reference
        document = document[step]


async def test_answers_have_the_shape_that_the_document_gives_them() -> None:
    async with running() as stack:
        api = Api.of(stack)
        await api.post("/organisations", {"name": "corp"})
        await api.post("/tenants", {"name": "acme", "organisation": "corp", "class": "batch"})
        await api.post("/tenants/acme/keys", {"expires": "2030-01-01T00:00:00Z"})
        await api.post("/admin-keys", {"role": "auditor"})
        await stack.post(stack.chat())
        names = {"tenant": "acme", "pool": "local", "organisation": "corp"}
        names["key"] = (await api.get("/tenants/acme/keys")).body["data"][0]["id"]
        checked = 0
        for route in ROUTES:
            if route.method == "GET" and route.answer is not None:
                reply = await api.get(route.path.format(**names))
                assert reply.status == 200, (route.path, reply.raw)
                assert issubclass(route.answer, BaseModel)
                route.answer.model_validate_json(reply.raw)
                checked += 1
        assert checked >= 12
