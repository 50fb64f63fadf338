"""Every role on every route of the table: who may, who may not, and who may not even know."""

from __future__ import annotations

import re

import pytest

from gateway.api.admin import ROUTES
from gateway.api.admin_call import Role, Route
from tests.admin.api import Api
from tests.gateway.stack import running

pytestmark = pytest.mark.asyncio
NAMES = {"tenant": "alice", "key": "alice1", "pool": "local", "organisation": "corp"}


def path_of(route: Route) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: NAMES[found[1]], route.path)


async def test_every_role_on_every_route() -> None:
    async with running() as stack:
        operator = Api.of(stack)
        callers: dict[str, tuple[Role | None, str | None, str | None]] = {"config": (Role.OPERATOR, None, operator.key)}
        for name, role, tenant in (
            ("operator", Role.OPERATOR, None),
            ("auditor", Role.AUDITOR, None),
            ("alice's admin", Role.TENANT_ADMIN, "alice"),
            ("bob's admin", Role.TENANT_ADMIN, "bob"),
            ("revoked", Role.OPERATOR, None),
            ("expired", Role.OPERATOR, None),
        ):
            expires = "2020-01-01T00:00:00Z" if name == "expired" else None
            made = await operator.post("/admin-keys", {"role": role, "tenant": tenant, "expires": expires})
            assert made.status == 201
            callers[name] = (role if name not in {"revoked", "expired"} else None, tenant, made.body["key"])
            if name == "revoked":
                assert (await operator.call("DELETE", made.headers["location"][len("/admin/v1") :])).status == 204
        callers["nobody"] = (None, None, None)
        callers["a tenant's key"] = (None, None, "wb_alice1_0")
        tried = 0
        for route in ROUTES:
            for name, (role, tenant, key) in callers.items():
                if role is None and tried % 5:  # every route, but not every wrong credential: guessing is limited
                    tried += 1
                    continue
                tried += 1
                reply = await operator.as_(key).call(route.method, path_of(route))
                where = f"{name}: {route.method} {route.path}: {reply.raw[:200]!r}"
                if role is None:
                    assert (reply.status, reply.code) in {(401, "unauthenticated"), (429, "guessing")}, where
                elif role not in route.roles:
                    assert (reply.status, reply.code) == (403, "forbidden"), where
                elif "{tenant}" in route.path and tenant not in (None, "alice"):
                    assert (reply.status, reply.code) == (404, "unknown_tenant"), where
                else:
                    # Allowed: what stops it now is the missing body or If-Match, or that the file owns it.
                    assert reply.status in {200, 201, 204, 400, 404, 409, 415, 422, 428}, where
                    assert reply.code not in {"unknown_tenant", "forbidden", "unauthenticated"}, where
                if reply.status >= 400:
                    assert reply.headers["content-type"].startswith("application/problem+json"), where
        assert tried == len(ROUTES) * len(callers)


async def test_nothing_is_served_below_admin_that_is_not_in_the_table() -> None:
    async with running() as stack:
        assert stack.app._admin is not None
        served = {
            (route.method, route.resource.canonical)
            for route in stack.app._admin.app.router.routes()  # type: ignore[attr-defined]
            if route.resource is not None and route.resource.canonical.startswith("/admin") and route.method != "HEAD"
        }
        assert served == {(route.method, "/admin/v1" + route.path) for route in ROUTES} | {
            ("GET", "/admin/v1/openapi.json")
        }


async def test_a_tenant_admin_sees_and_manages_only_its_own_tenant() -> None:
    async with running() as stack:
        operator = Api.of(stack)
        made = await operator.post("/admin-keys", {"role": "tenant_admin", "tenant": "alice"})
        admin = operator.as_(made.body["key"])
        assert [one["name"] for one in (await admin.get("/tenants")).body["data"]] == ["alice"]
        # Another tenant and one that does not exist look the same.
        for path in ("/tenants/bob", "/tenants/nobody", "/tenants/bob/keys"):
            reply = await admin.get(path)
            assert (reply.status, reply.code) == (404, "unknown_tenant")
        mine = await admin.post("/tenants/alice/keys", {"label": "mine"})
        assert (mine.status, mine.body["created_by"]) == (201, f"key:{made.body['id']}")
        assert (await stack.post(stack.chat(), key=mine.body["key"]))[0] == 200
        await operator.post("/tenants/bob/keys")
        assert {row["tenant"] for row in (await admin.get("/audit")).body["data"]} == {"alice"}
        assert (await admin.get("/audit?tenant=bob")).status == 404
        # A key of alice cannot be reached through a path of bob, nor the other way round.
        key = mine.body["id"]
        assert (await operator.call("DELETE", f"/tenants/bob/keys/{key}")).code == "unknown_key"


async def test_a_deleted_tenant_takes_its_admins_with_it() -> None:
    async with running() as stack:
        operator = Api.of(stack)
        await operator.post("/tenants", {"name": "acme"})
        made = await operator.post("/admin-keys", {"role": "tenant_admin", "tenant": "acme"})
        assert (await operator.as_(made.body["key"]).get("/tenants/acme")).status == 200
        assert (await operator.change("DELETE", "/tenants/acme")).status == 204
        assert (await operator.as_(made.body["key"]).get("/tenants/acme")).status == 401


async def test_guessing_is_limited_and_locks_nobody_out() -> None:
    async with running(config_changes={"extra": "unauthenticated: {requests_per_minute: 60, burst: 3}"}) as stack:
        api = Api.of(stack)
        statuses = [(await api.as_(f"wba_x_{n}").get("/tenants")).status for n in range(6)]
        assert statuses[:3] == [401, 401, 401]
        assert statuses[-1] == 429
        assert (await api.get("/tenants")).status == 200
