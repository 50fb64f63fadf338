"""The narrow seam between an HTTP server and the data plane: a request in; head, bytes and end out.

A server implements `Exchange` and calls a `Handler` once per request in a task of its own. When the
client leaves, it sets `gone` and cancels that task; nothing else is asked of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

Headers = Sequence[tuple[str, str]]


class BodyTooLarge(Exception):
    """The request body is larger than the limit given; `limit` is in bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"request body exceeds {limit} bytes")
        self.limit = limit


class BodyTooSlow(Exception):
    """The request body did not arrive in time."""


class ClientGone(Exception):
    """The client closed the connection; nothing more can be written."""


class Exchange(Protocol):
    """One request and its answer."""

    @property
    def method(self) -> str:
        """Upper case."""

    @property
    def path(self) -> str:
        """As sent: percent-encoded, without the query."""

    @property
    def peer(self) -> str:
        """The address of the client; "" when unknown."""

    @property
    def gone(self) -> bool:
        """The client has closed the connection."""

    @property
    def started(self) -> bool:
        """The head of the answer has left."""

    def header(self, name: str) -> str | None:
        """The first value of a request header, by lower-case name."""

    async def body(self, limit: int, timeout_s: float) -> bytes:
        """The whole request body.

        Raises BodyTooLarge past `limit` bytes, BodyTooSlow when it is not complete in `timeout_s`
        and ClientGone when the client leaves before its end.
        """

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """A complete answer with a length. Raises ClientGone."""

    async def head(self, status: int, headers: Headers) -> None:
        """The head of an answer whose length is not known. Raises ClientGone."""

    async def write(self, data: bytes) -> None:
        """Bytes of the answer, at once; waits while the client reads slower. Raises ClientGone."""

    async def end(self) -> None:
        """The proper end of the answer. Raises ClientGone."""

    def abort(self) -> None:
        """Close the connection so that the client cannot take what it has for a whole answer."""


Handler = Callable[[Exchange], Awaitable[None]]


def path_of(target: str) -> str:
    """The path of a request's target without its query: of `/path?query` as of `http://host/path?query`.

    "" when it is neither; `*` (all of the server) is itself.
    """
    path = target.partition("?")[0]
    if path[:1] == "/" or path == "*":
        return path
    scheme, mark, rest = path.partition("://")
    if not mark or scheme.lower() not in ("http", "https"):
        return ""
    return rest[rest.find("/") :] if "/" in rest else "/"
