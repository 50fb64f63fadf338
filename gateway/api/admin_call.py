"""What a handler of the admin API is given and gives back, and the route that says who may call it with what.

A route is data: method, path, roles, the shapes of body and answer. From the same table come the served paths, the
checks before a handler runs, the OpenAPI document, and the test that tries every role on every route.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import orjson
from pydantic import BaseModel
from sqlalchemy import delete, insert

from gateway.api.problems import Problem
from gateway.registry import tables
from gateway.registry.change import Actor, Change
from gateway.registry.registry import Registry

PREFIX: Final = "/admin/v1"
MERGE_PATCH: Final = "application/merge-patch+json"
_MOST: Final = 500  # items of one page
_KEPT_US: Final = 48 * 3600 * 1_000_000  # how long an idempotency key is remembered

T = TypeVar("T")


class Role(StrEnum):
    """What a credential of the admin API may do."""

    OPERATOR = "operator"  # everything
    AUDITOR = "auditor"  # reads everything, changes nothing
    TENANT_ADMIN = "tenant_admin"  # reads its own tenant and manages its keys


READERS: Final = frozenset(Role)
FLEET_READERS: Final = frozenset({Role.OPERATOR, Role.AUDITOR})
OPERATORS: Final = frozenset({Role.OPERATOR})
KEEPERS: Final = frozenset({Role.OPERATOR, Role.TENANT_ADMIN})


@dataclass(frozen=True, slots=True)
class Who:
    """Who calls: a name for the audit log, a role, and for a tenant admin the one tenant it sees."""

    name: str
    role: Role
    tenant: str | None = None

    def sees(self, tenant: str) -> bool:
        """Whether this tenant exists as far as the caller may know."""
        return self.tenant is None or self.tenant == tenant


@dataclass(slots=True)
class Answer:
    """What a handler answers. `once` is added to the body that is sent and is kept nowhere."""

    body: Any = None
    status: int = 200
    etag: str | None = None
    location: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    once: Mapping[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Replay:
    """An idempotency key of this call, and what the call is (hash of method, path and body)."""

    key: str
    fingerprint: str


@dataclass(slots=True)
class Call:
    """One call, checked: the caller may make it and its body has the route's shape."""

    parts: Any  # gateway.api.admin.Parts: everything a handler may ask
    registry: Registry
    who: Who
    names: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    if_match: str | None
    address: str
    request_id: str
    path: str
    replay: Replay | None = None
    answer: Answer | None = None

    @asynccontextmanager
    async def change(self) -> AsyncIterator[Change]:
        """A change in this caller's name. With an idempotency key the block sets `answer`, which is remembered in the
        same transaction: whoever repeats the call gets it again, and nothing happens twice.
        """
        actor = Actor(self.who.name, self.who.role, self.address, self.request_id)
        async with self.registry.change(actor) as change:
            yield change
            if self.replay is not None:
                await self._remember(change, self.replay)

    async def _remember(self, change: Change, replay: Replay) -> None:
        answer = self.answer
        if answer is None:
            return
        table = tables.idempotency
        await change.connection.execute(delete(table).where(table.c.at < change.now - _KEPT_US))
        kept = {name: value for name, value in (("etag", answer.etag), ("location", answer.location)) if value}
        await change.connection.execute(
            insert(table).values(
                principal=self.who.name,
                key=replay.key,
                fingerprint=replay.fingerprint,
                status=answer.status,
                headers=kept,
                body=orjson.dumps(answer.body).decode(),  # without `once`
                at=change.now,
            )
        )

    def must_match(self, etag: str) -> None:
        """The caller names the state it means to change. Raises Problem 428 without, 412 for another state."""
        if self.if_match is None:
            raise Problem(428, "if_match_required", "Send If-Match with the ETag that you have read.")
        offered = [one.strip().removeprefix("W/") for one in self.if_match.split(",")]
        if self.if_match.strip() != "*" and etag not in offered:
            raise Problem(
                412,
                "changed_meanwhile",
                f"It has changed since you read it: its ETag is {etag}.",
                headers={"etag": etag},
            )

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number of the query. Raises Problem 400 for anything else."""
        given = self.query.get(name)
        if given is None:
            return default
        if not given.isascii() or not given.isdigit() or len(given) > 18 or not least <= int(given) <= most:
            raise Problem(400, "invalid_query", f"{name} must be a whole number from {least} to {most}.")
        return int(given)

    def after(self) -> list[Any] | None:
        """Where the page before this one ended."""
        given = self.query.get("after")
        if given is None:
            return None
        try:
            found = orjson.loads(urlsafe_b64decode(given.encode() + b"=" * (-len(given) % 4)))
        except ValueError:
            found = None
        if not isinstance(found, list):
            raise Problem(400, "invalid_query", "after must be the 'next' of a page.")
        return found

    def size(self) -> int:
        """Items asked for in one page."""
        return self.number("limit", 100, 1, _MOST)

    def page(self, items: Sequence[T], size: int, mark: Callable[[T], list[Any]], show: Callable[[T], Any]) -> Answer:
        """One page out of `items`, of which there is one more than `size` when more follow."""
        more = len(items) > size
        shown = list(items[:size])
        cursor = urlsafe_b64encode(orjson.dumps(mark(shown[-1]))).decode().rstrip("=") if more else None
        headers = {}
        if cursor is not None:
            query = urlencode({**self.query, "after": cursor})
            headers["link"] = f'<{self.path}?{query}>; rel="next"'
        return Answer({"data": [show(one) for one in shown], "has_more": more, "next": cursor}, headers=headers)


Handler = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query."""

    name: str
    description: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})


@dataclass(frozen=True, slots=True)
class Route:
    """One operation. `path` is below /admin/v1; a `{tenant}` in it is hidden from those who do not see that tenant."""

    method: str
    path: str
    name: str  # operationId
    summary: str
    roles: frozenset[Role]
    handler: Handler
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    status: int = 200
    paged: bool = False
    if_match: bool = False
    query: tuple[Parameter, ...] = ()
    media_type: str = "application/json"

    @property
    def patch(self) -> bool:
        """Whether the body is a merge patch of `body`."""
        return self.method == "PATCH"


PAGE_PARAMETERS: Final = (
    Parameter("limit", "Items of one page.", {"type": "integer", "minimum": 1, "maximum": _MOST, "default": 100}),
    Parameter("after", "The `next` of the page before."),
)


def merged(target: Any, patch: Any) -> Any:
    """A JSON merge patch applied (RFC 7396): null removes, mappings are merged, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


__all__ = ["Answer", "Call", "Handler", "Parameter", "Problem", "Replay", "Role", "Route", "Who", "merged", "replace"]
