"""An origin, and the head of a request to it: checked, then built by joining.

Header injection is made impossible, not unlikely: every header may bring exactly one line end into the block, the one
put there here; the block is counted once, so the check costs three scans instead of one per value.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TARGET = re.compile(r"/[\x21\x22\x24-\x7e]*")  # visible ASCII without the mark of a fragment
_HOST = re.compile(r"[0-9A-Za-z._~%:\-]+")
_OURS = frozenset(  # headers that frame the message or belong to the connection
    {"accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})  # methods whose empty body is said to be empty
_KNOWN = 256  # remembered first lines and header names; more than that are checked anew each time
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """Whom to connect to. `host` is in lower case and without brackets."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> "tuple[Origin, str]":
        """Split a base URL into its origin and its path prefix (without a slash at the end). Raises ValueError."""
        parts = urlsplit(url)
        host = parts.hostname
        if parts.scheme not in _PORTS or not host or not _HOST.fullmatch(host):
            raise ValueError(f"not an http or https URL: {url!r}")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError(f"a base URL has no user, query or fragment: {url!r}")
        prefix = parts.path.rstrip("/")
        if prefix and not _TARGET.fullmatch(prefix):
            raise ValueError(f"a path that cannot be sent as it is: {url!r}")
        return cls(parts.scheme, host, _PORTS[parts.scheme] if parts.port is None else parts.port), prefix

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS.get(self.scheme) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


class Heads:
    """Builds the heads of requests to one origin, and remembers what it has already checked."""

    __slots__ = ("_common", "_starts", "_vetted")

    def __init__(self, origin: Origin) -> None:
        if not _HOST.fullmatch(origin.host):
            raise ValueError(f"not a host: {origin.host!r}")
        self._common = f" HTTP/1.1\r\nhost: {origin.authority}\r\naccept-encoding: identity\r\n"
        self._starts: dict[tuple[str, str], bytes] = {}  # (method, path) -> request line and common headers
        self._vetted: set[str] = set()  # header names found good

    def build(self, method: str, path: str, headers: Sequence[tuple[str, str]], length: int) -> bytes:
        """The bytes up to a body of `length` bytes.

        Raises ValueError for a method, path, name or value that could not arrive as it was meant, and for headers
        that are set here (framing, host, accept-encoding).
        """
        start = self._starts.get((method, path)) or self._start(method, path)
        vetted = self._vetted
        for name, _ in headers:
            if name not in vetted:
                self._vet(name)
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        count = len(headers)
        if lines.count("\n") != count or lines.count("\r") != count or "\0" in lines:
            raise ValueError("a header value holds CR, LF or NUL")
        if length or method in _WITH_BODY:
            return b"%b%bcontent-length: %d\r\n\r\n" % (start, lines.encode("latin-1"), length)
        return b"%b%b\r\n" % (start, lines.encode("latin-1"))

    def _start(self, method: str, path: str) -> bytes:
        if not _TOKEN.fullmatch(method):
            raise ValueError(f"not a method: {method!r}")
        if method == "CONNECT" or not _TARGET.fullmatch(path):
            raise ValueError(f"not a path that can be sent: {path!r}")
        start = f"{method} {path}{self._common}".encode("ascii")
        if len(self._starts) < _KNOWN and len(path) < 1024:
            self._starts[method, path] = start
        return start

    def _vet(self, name: str) -> None:
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"not a header name: {name!r}")
        if name.lower() in _OURS or name.lower().startswith("proxy-"):
            raise ValueError(f"a header that the transport sets or never sends: {name}")
        if len(self._vetted) < _KNOWN and len(name) < 128:
            self._vetted.add(name)
