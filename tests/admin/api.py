"""A client of the admin API for tests: short calls, JSON in and out."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from tests.gateway.stack import Stack

OPERATOR = "admin-key-for-tests"
MERGE = "application/merge-patch+json"


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: Any
    raw: bytes

    @property
    def code(self) -> str | None:
        return self.body.get("code") if isinstance(self.body, dict) else None

    @property
    def etag(self) -> str:
        return self.headers["etag"]


class Api:
    """The admin API of one instance, as somebody with this key."""

    def __init__(self, session: aiohttp.ClientSession, port: int, key: str | None = OPERATOR) -> None:
        self.session = session
        self.port = port
        self.key = key

    @classmethod
    def of(cls, stack: Stack, key: str | None = OPERATOR) -> Api:
        return cls(stack.session, stack.app.admin_port, key)

    def as_(self, key: str | None) -> Api:
        return Api(self.session, self.port, key)

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """`path` is below /admin/v1. Header names are written with underscores."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.key is not None:
            sent.setdefault("authorization", f"Bearer {self.key}")
        raw_body = body if isinstance(body, bytes) else None if body is None else orjson.dumps(body)
        data = None if raw_body is None else io.BytesIO(raw_body)
        if data is not None:
            sent.setdefault("content-type", MERGE if method == "PATCH" else "application/json")
        url = f"http://127.0.0.1:{self.port}/admin/v1{path}"
        async with self.session.request(method, url, data=data, headers=sent) as answer:
            raw = await answer.read()
            found = orjson.loads(raw) if raw and "json" in answer.content_type else None
            return Reply(answer.status, {k.lower(): v for k, v in answer.headers.items()}, found, raw)

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.call("GET", path, **headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        return await self.call("POST", path, body, **headers)

    async def change(self, method: str, path: str, body: Any = None, *, of: str | None = None) -> Reply:
        """A call with the ETag of what is read at `of` (the path itself unless given)."""
        seen = await self.get(of or path)
        return await self.call(method, path, body, if_match=seen.etag)
