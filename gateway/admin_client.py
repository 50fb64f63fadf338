"""A client of the admin API for the command line: one call at a time, errors as sentences one can act on."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import orjson

DEMO: Final = Path(".weighbridge/demo.json")
_TIMEOUT_S: Final = 30.0
_MERGE: Final = "application/merge-patch+json"


class Failed(Exception):
    """A call that came to nothing; the text says why and what to do."""


class AdminClient:
    """The admin API at `url` (scheme, host and port), with a bearer key."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in {"http", "https"} or parts.hostname is None:
            raise Failed(f"{url!r} is not the address of an admin listener, like http://127.0.0.1:8081")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._parts = parts
        self._key = key

    @classmethod
    def of(cls, url: str | None, key: str | None, file: Path = DEMO) -> AdminClient:
        """With what was given, and the rest from the file that `weighbridge demo` writes."""
        facts: Mapping[str, Any] = {}
        if url is None or key is None:
            try:
                facts = orjson.loads(file.read_bytes())
            except (OSError, orjson.JSONDecodeError):
                missing = (
                    "--url and --admin-key"
                    if url is None and key is None
                    else "--url"
                    if url is None
                    else "--admin-key"
                )
                raise Failed(
                    f"give {missing} (or WEIGHBRIDGE_ADMIN_URL and WEIGHBRIDGE_ADMIN_KEY): "
                    f"there is no {file} to take it from, which `weighbridge demo` writes"
                ) from None
        return cls(url or str(facts["admin_url"]), key or str(facts["admin_key"]))

    def call(self, method: str, path: str, body: Any = None, *, etag: str | None = None) -> tuple[Any, str | None]:
        """The answer's JSON (text for CSV) and its ETag. Raises Failed."""
        headers = {"authorization": f"Bearer {self._key}", "accept": "application/json"}
        data = None
        if body is not None:
            data = orjson.dumps(body)
            headers["content-type"] = _MERGE if method == "PATCH" else "application/json"
        if etag is not None:
            headers["if-match"] = etag
        status, kind, tag, raw = self._exchange(method, f"/admin/v1{path}", data, headers)
        if status >= 400:
            raise Failed(_explained(status, raw))
        if not raw:
            return None, tag
        return (orjson.loads(raw) if "json" in kind else raw.decode()), tag

    def _exchange(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, str, str | None, bytes]:
        host, port = self._parts.hostname or "", self._parts.port
        connection = (
            http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=ssl.create_default_context())
            if self._parts.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        )
        try:
            connection.request(method, path, data, dict(headers))
            answer = connection.getresponse()
            kind = answer.getheader("content-type") or ""
            return answer.status, kind, answer.getheader("etag"), answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"{self.url} cannot be reached ({error}); is the gateway running there?") from None
        finally:
            connection.close()

    def get(self, path: str, **query: Any) -> Any:
        """What is at `path`; parameters that are None are left out."""
        return self.call("GET", path + _query(query))[0]

    def all(self, path: str, most: int | None = None, **query: Any) -> list[Any]:
        """Every item of a list (at most `most`), page after page."""
        return list(self._pages(path, most, query))

    def _pages(self, path: str, most: int | None, query: dict[str, Any]) -> Iterator[Any]:
        left = most
        after: str | None = None
        while left is None or left > 0:
            limit = 500 if left is None else min(left, 500)
            page = self.get(path, **query, limit=limit, after=after)
            yield from page["data"]
            left = None if left is None else left - len(page["data"])
            after = page["next"]
            if after is None:
                return

    def change(self, method: str, path: str, body: Any = None, *, of: str | None = None) -> Any:
        """Changes what is read first (at `of`, or at the path itself), and only in that state."""
        _, etag = self.call("GET", of or path)
        return self.call(method, path, body, etag=etag)[0]


def name_in_path(text: str) -> str:
    """A name as part of a path."""
    return quote(text, safe="")


def _query(query: Mapping[str, Any]) -> str:
    given = {name.rstrip("_"): value for name, value in query.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def _explained(status: int, raw: bytes) -> str:
    try:
        problem = orjson.loads(raw)
        lines = [str(problem["detail"])]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"the gateway answered {status}, which is not the admin API's way of refusing; is this its address?"
    lines += [f"  {one['pointer'].removeprefix('#/') or 'body'}: {one['detail']}" for one in problem.get("errors", [])]
    for line in problem.get("figures", []):
        measured = "not measured" if line["measured"] is None else f"{line['measured']:g} measured"
        lines.append(
            f"  {line['dimension']}: {line['asked']:g} asked, {line['sold']:g} sold, "
            f"{line['sellable']:g} sellable, {measured}"
        )
    if status == 401:
        lines.append("  (--admin-key or WEIGHBRIDGE_ADMIN_KEY)")
    return "\n".join(lines)
