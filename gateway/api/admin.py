"""The admin API as it is served: every route of the table, checked in one place before its handler runs.

In order: who calls, whether that role may, whether it may know of the tenant, the body's type, size and shape, and
whether the call was made before. Every refusal, the web framework's own too, is a problem detail.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson
from aiohttp import web
from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from gateway.api import admin_fleet, admin_keys, admin_limits, admin_organisations, admin_tenants, admin_usage
from gateway.api.admin_auth import Guard
from gateway.api.admin_call import MERGE_PATCH, PREFIX, Answer, Call, Replay, Route, Who
from gateway.api.admin_fleet import Fleet
from gateway.api.admin_openapi import document
from gateway.api.problems import Problem, from_http, from_validation
from gateway.keys import KEY_TEXT
from gateway.registry import tables
from gateway.registry.database import Unavailable
from gateway.registry.registry import Registry

log = logging.getLogger("weighbridge.admin")

_REQUEST_ID: Final = web.RequestKey("request_id", str)
OPENAPI: Final = PREFIX + "/openapi.json"
ROUTES: Final[tuple[Route, ...]] = (
    *admin_tenants.ROUTES,
    *admin_limits.ROUTES,
    *admin_keys.ROUTES,
    *admin_organisations.ROUTES,
    *admin_fleet.ROUTES,
    *admin_usage.ROUTES,
)


@dataclass(frozen=True, slots=True)
class Parts:
    """What handlers may ask."""

    registry: Registry
    guard: Guard
    fleet: Fleet


def add_admin(app: web.Application, parts: Parts) -> None:
    """Adds the admin API to an application. Errors of other paths are left as they are."""
    app.middlewares.append(_problems)
    served = orjson.dumps(document(ROUTES))

    async def openapi(_: web.Request) -> web.Response:
        return web.Response(body=served, content_type="application/json")

    app.router.add_get(OPENAPI, openapi)
    in_progress: set[tuple[str, str]] = set()
    for route in ROUTES:
        app.router.add_route(route.method, PREFIX + route.path, _served(route, parts, in_progress))


@web.middleware
async def _problems(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turns every error below /admin/ into a problem detail."""
    if not request.path.startswith("/admin/"):
        return await handler(request)
    request_id = request[_REQUEST_ID] = "adm_" + secrets.token_hex(10)
    try:
        answer: web.StreamResponse = await handler(request)
        return answer
    except Problem as problem:
        return problem.response(request_id, request.path)
    except web.HTTPException as error:
        return from_http(error).response(request_id, request.path)
    except IntegrityError:
        taken = Problem(409, "conflict", "Something was changed at the same time; read it again.")
        return taken.response(request_id, request.path)
    except Unavailable as error:
        log.warning("admin request %s: registry away (%s)", request_id, type(error).__name__)
        away = Problem(
            503,
            "registry_away",
            "The database cannot be reached; nothing is known to have changed.",
            headers={"retry-after": "1"},
        )
        return away.response(request_id, request.path)
    except Exception:
        log.exception("admin request %s failed", request_id)
        return Problem(500, "internal", "The gateway failed; the log has the cause.").response(request_id, request.path)


def _served(
    route: Route, parts: Parts, in_progress: set[tuple[str, str]]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def serve(request: web.Request) -> web.StreamResponse:
        address = request.remote or ""
        who = parts.guard.admit(request.headers.get("authorization"), address)
        names = dict(request.match_info)
        _authorise(route, who, names)
        raw = await request.read()
        _no_key_in(request, raw)
        call = Call(
            parts=parts,
            registry=parts.registry,
            who=who,
            names=names,
            query=_query(request),
            body=_body(route, request, raw),
            if_match=request.headers.get("if-match"),
            address=address,
            request_id=request[_REQUEST_ID],
            path=request.path,
        )
        key = request.headers.get("idempotency-key") if route.method == "POST" else None
        if key is None:
            return await _send(request, await route.handler(call))
        call.replay = _replay(key, request, raw)
        mark = (who.name, call.replay.key)
        if mark in in_progress:
            raise Problem(409, "still_running", "The first call with this idempotency key is still running.")
        in_progress.add(mark)
        try:
            return await _send(request, await _once(route, call, call.replay))
        finally:
            in_progress.discard(mark)

    return serve


def _authorise(route: Route, who: Who, names: dict[str, str]) -> None:
    if who.role not in route.roles:
        needed = " or ".join(sorted(role.value for role in route.roles))
        raise Problem(403, "forbidden", f"This takes the role {needed}; this key has the role {who.role.value}.")
    if "tenant" in names and not who.sees(names["tenant"]):
        raise unknown_tenant(names["tenant"])


def unknown_tenant(name: str) -> Problem:
    """The same answer whether it does not exist or is not the caller's to see."""
    return admin_tenants.unknown(name)


def _no_key_in(request: web.Request, raw: bytes) -> None:
    """A key has no place but in the authorization header: whatever else it is put into is kept, shown and logged."""
    for text in (request.path_qs, request.headers.get("idempotency-key", ""), raw.decode(errors="replace")):
        if KEY_TEXT.search(text):
            raise Problem(422, "holds_a_key", "This holds an API key; keys are kept nowhere in clear.")


def _query(request: web.Request) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in request.query.items():
        if name in found:
            raise Problem(400, "invalid_query", f"{name} is given twice.")
        found[name] = value
    return found


def _body(route: Route, request: web.Request, raw: bytes) -> Any:
    """The body in the route's shape; a merge patch as plain JSON, since it has the shape only once applied."""
    if route.body is None:
        if raw:
            raise Problem(400, "no_body_expected", "This call takes no body.")
        return None
    if not raw and not any(field.is_required() for field in route.body.model_fields.values()) and not route.patch:
        return route.body()
    expected = MERGE_PATCH if route.patch else "application/json"
    if request.content_type != expected:
        header = "accept-patch" if route.patch else "accept"
        raise Problem(415, "media_type", f"Send the body as {expected}.", headers={header: expected})
    try:
        given = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Problem(400, "invalid_json", f"The body is not valid JSON: {error}") from None
    if route.patch:
        if not isinstance(given, dict):
            raise Problem(422, "invalid_body", "A merge patch is a JSON object.")
        return given
    try:
        return route.body.model_validate(given)
    except ValidationError as error:
        raise from_validation(error) from None


def _replay(key: str, request: web.Request, raw: bytes) -> Replay:
    key = key.strip().strip('"')
    if not 1 <= len(key) <= 200 or not key.isascii() or not key.isprintable():
        raise Problem(400, "invalid_idempotency_key", "An idempotency key is 1 to 200 printable ASCII characters.")
    framed = b"\0".join((request.method.encode(), request.path_qs.encode(), raw))
    return Replay(key, hashlib.sha256(framed).hexdigest())


async def _once(route: Route, call: Call, replay: Replay) -> Answer:
    """The answer of the first call with this key; the handler runs only for that one."""
    found = await _earlier(call, replay)
    if found is not None:
        return found
    try:
        return await route.handler(call)
    except IntegrityError:
        found = await _earlier(call, replay)  # another instance was first
        if found is None:
            raise
        return found


async def _earlier(call: Call, replay: Replay) -> Answer | None:
    table = tables.idempotency
    query = select(table).where(table.c.principal == call.who.name, table.c.key == replay.key)
    async with call.registry.database.reading() as connection:
        row = (await connection.execute(query)).mappings().first()
    if row is None:
        return None
    if row["fingerprint"] != replay.fingerprint:
        raise Problem(422, "idempotency_key_reused", "This idempotency key was used for another call.")
    kept = row["headers"]
    return Answer(
        orjson.loads(row["body"]),
        row["status"],
        kept.get("etag"),
        kept.get("location"),
        {"idempotency-replayed": "true"},
    )


async def _send(request: web.Request, answer: Answer) -> web.StreamResponse:
    headers = {"x-request-id": request[_REQUEST_ID], "cache-control": "no-store", **answer.headers}
    if answer.location is not None:
        headers["location"] = answer.location
    if answer.etag is not None:
        headers["etag"] = answer.etag
        if request.method == "GET" and request.headers.get("if-none-match") == answer.etag:
            return web.Response(status=304, headers=headers)
    if answer.stream is not None:
        response = web.StreamResponse(headers={**headers, "content-type": answer.content_type})
        await response.prepare(request)
        async for chunk in answer.stream:
            await response.write(chunk)
        await response.write_eof()
        return response
    if answer.body is None:
        return web.Response(status=answer.status, headers=headers)
    body = {**answer.body, **answer.once} if answer.once else answer.body
    return web.Response(
        status=answer.status,
        body=orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS),
        headers=headers,
        content_type=answer.content_type,
    )
