"""Errors of the admin API: problem details as RFC 9457 has them, with a code that programs can rely on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import orjson
from aiohttp import web
from pydantic import ValidationError

MEDIA_TYPE: Final = "application/problem+json"


class Problem(Exception):
    """A refusal of the admin API. `detail` is for people and names figures; `code` is for programs.

    `errors` point into the body (JSON pointers); `more` are further members. None of them ever holds a secret.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = errors
        self.headers = dict(headers or {})
        self.more = dict(more or {})

    def response(self, request_id: str, instance: str) -> web.Response:
        """The answer, with the standard title of its status."""
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "instance": instance,
            "code": self.code,
            "request_id": request_id,
            **self.more,
        }
        if self.errors:
            body["errors"] = list(self.errors)
        headers = {"x-request-id": request_id, "cache-control": "no-store", **self.headers}
        return web.Response(status=self.status, body=orjson.dumps(body), headers=headers, content_type=MEDIA_TYPE)


def from_http(error: web.HTTPException) -> Problem:
    """What the web framework refuses by itself: unknown paths, methods, bodies that are too large."""
    headers = {"allow": error.headers["allow"]} if "allow" in error.headers else {}
    match error.status:
        case 404:
            return Problem(404, "unknown_path", "There is nothing at this path; see /admin/v1/openapi.json.")
        case 405:
            allowed = error.headers.get("allow", "")
            return Problem(405, "method_not_allowed", f"This path takes {allowed}.", headers=headers)
        case 413:
            return Problem(413, "body_too_large", "The body is larger than 1 MiB.")
        case _:
            return Problem(error.status, "http_error", error.reason)


def from_validation(error: ValidationError) -> Problem:
    """What does not fit the shape of a body: every fault with its place, no value repeated."""
    errors = [
        {"pointer": pointer(item["loc"]), "detail": item["msg"].removeprefix("Value error, ")}
        for item in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    count = f"{len(errors)} fault" + ("" if len(errors) == 1 else "s")
    return Problem(422, "invalid_body", f"The body has {count}.", errors=errors)


def pointer(path: Sequence[object]) -> str:
    """A JSON pointer as a URI fragment."""
    return "#" + "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
