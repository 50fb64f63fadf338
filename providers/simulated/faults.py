"""Faults that can be switched on: which there are, which request each one hits, and when it is used up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from providers.simulated.chance import uniform
from providers.simulated.errors import ApiError


class FaultKind(StrEnum):
    """What goes wrong. The first two hold for the whole server until they are removed; the rest hit single requests."""

    SLOW = "slow"
    """Every step takes `factor` times as long."""
    DOWN = "down"
    """As if the machine were gone: open answers are cut, further requests reset, health included."""
    STATUS = "status"
    """Answer `status`, with Retry-After if `retry_after_s` is given."""
    DELAY = "delay"
    """Wait `seconds` (engine time) before the request is looked at."""
    RESET = "reset"
    """Reset the connection instead of answering."""
    CLOSE = "close"
    """Close the connection without answering."""
    SILENT_BEFORE_HEADERS = "silent_before_headers"
    """Never answer, keep the connection."""
    SILENT_AFTER_HEADERS = "silent_after_headers"
    """Send the headers and then nothing."""
    SILENT_AFTER_TOKENS = "silent_after_tokens"
    """Stop sending after `tokens`, keep the connection."""
    CUT = "cut"
    """Break the connection after `tokens`; with `reset` by a reset, else by closing in the middle of the body."""
    UNFINISHED = "unfinished"
    """End the body properly after `tokens`, without finish reason, usage and terminator."""
    NO_DONE = "no_done"
    """Leave out the terminator alone."""
    ERROR_IN_STREAM = "error_in_stream"
    """After `tokens` an error event with `status` in it, then the terminator. Not streamed: 200 with an error body."""
    GARBAGE = "garbage"
    """After `tokens` an event that is not JSON, then the end. Not streamed: 200 with a body that is not JSON."""
    GARBAGE_HTTP = "garbage_http"
    """Answer with bytes that are not HTTP."""
    EMPTY_200 = "empty_200"
    """Status 200 with no body at all."""


STANDING = frozenset({FaultKind.SLOW, FaultKind.DOWN})
IN_STREAM = frozenset(
    {
        FaultKind.SILENT_AFTER_TOKENS,
        FaultKind.CUT,
        FaultKind.UNFINISHED,
        FaultKind.NO_DONE,
        FaultKind.ERROR_IN_STREAM,
        FaultKind.GARBAGE,
    }
)


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests a fault may hit; every condition that is given must hold. Without `path`: all under /v1/."""

    path: str | None = None
    model: str | None = None
    stream: bool | None = None
    header: tuple[tuple[str, str], ...] = ()
    contains: str | None = None

    def hits(self, path: str, headers: Mapping[str, str], body: bytes, fields: Mapping[str, Any]) -> bool:
        """Whether a request is meant. `headers` have lower-case names, `fields` is its parsed body."""
        if not (path.startswith("/v1/") if self.path is None else path == self.path):
            return False
        if self.model is not None and fields.get("model") != self.model:
            return False
        if self.stream is not None and bool(fields.get("stream")) is not self.stream:
            return False
        if any(headers.get(name) != value for name, value in self.header):
            return False
        return self.contains is None or self.contains.encode() in body


@dataclass(slots=True)
class Fault:
    """One fault that is on. It lets `skip` requests pass, then strikes `count` times (None: for ever)."""

    kind: FaultKind
    probability: float = 1.0
    count: int | None = None
    skip: int = 0
    match: Match = field(default_factory=Match)
    factor: float = 1.0
    status: int = 500
    retry_after_s: float | None = None
    message: str | None = None
    type: str | None = None
    code: str | None = None
    seconds: float = 0.0
    tokens: int = 0
    reset: bool = False
    struck: int = 0

    def error(self) -> ApiError:
        """The error that it makes the server answer."""
        headers: tuple[tuple[str, str], ...] = ()
        if self.retry_after_s is not None:
            headers = (("retry-after", f"{self.retry_after_s:g}"),)
        message = self.message or f"simulated fault: status {self.status}"
        return ApiError(self.status, message, kind=self.type, code=self.code, headers=headers)


class FaultBook:
    """The faults that are on, in the order they were added; a request is hit by the first that wants it."""

    __slots__ = ("_draws", "_seed", "faults")

    def __init__(self, seed: int) -> None:
        self.faults: list[Fault] = []
        self._seed = seed
        self._draws = 0

    def add(self, faults: Sequence[Fault]) -> None:
        """Switch faults on."""
        self.faults.extend(faults)

    def clear(self, kind: str | None = None) -> None:
        """Switch all faults off, or those of one kind."""
        self.faults = [] if kind is None else [f for f in self.faults if f.kind != kind]

    @property
    def slow(self) -> float:
        """By how much steps are stretched."""
        factor = 1.0
        for fault in self.faults:
            if fault.kind is FaultKind.SLOW:
                factor *= fault.factor
        return factor

    @property
    def down(self) -> bool:
        """Whether the server plays dead."""
        return any(fault.kind is FaultKind.DOWN for fault in self.faults)

    def strike(self, path: str, headers: Mapping[str, str], body: bytes, fields: Mapping[str, Any]) -> Fault | None:
        """The fault that hits this request, used up by one; None for most requests."""
        for fault in self.faults:
            if fault.kind in STANDING or fault.count == 0 or not fault.match.hits(path, headers, body, fields):
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            self._draws += 1
            if fault.probability < 1.0 and uniform(self._seed, self._draws) >= fault.probability:
                continue
            if fault.count is not None:
                fault.count -= 1
            fault.struck += 1
            return fault
        return None


_NUMBERS = {"probability", "factor", "retry_after_s", "seconds"}
_WHOLES = {"count", "skip", "status", "tokens"}
_TEXTS = {"message", "type", "code"}


def read_faults(value: Any) -> list[Fault]:
    """Faults from JSON: one object, a list, or `{"faults": [...]}`. Raises ApiError 400 naming what is wrong."""
    if isinstance(value, dict) and isinstance(value.get("faults"), list):
        value = value["faults"]
    return [_read(entry) for entry in (value if isinstance(value, list) else [value])]


def _read(entry: Any) -> Fault:
    if not isinstance(entry, dict):
        raise ApiError(400, "a fault must be an object")
    try:
        kind = FaultKind(entry.get("kind", ""))
    except ValueError:
        raise ApiError(400, f"kind must be one of {', '.join(FaultKind)}", param="kind") from None
    known: dict[str, Any] = {}
    for name, given in entry.items():
        if name == "kind":
            continue
        if name == "match":
            known[name] = _read_match(given)
        elif given is None and name in ("count", "retry_after_s", "message", "type", "code"):
            continue
        elif not _fits(name, given):
            raise ApiError(400, f"{name} is not a field of a fault, or has the wrong type", param=name)
        else:
            known[name] = given
    if not 0 <= known.get("probability", 1) <= 1:
        raise ApiError(400, "probability must be between 0 and 1", param="probability")
    if kind is FaultKind.SLOW and not known.get("factor", 0) > 0:
        raise ApiError(400, "a slow fault needs a factor above 0", param="factor")
    if not 200 <= known.get("status", 500) <= 599:
        raise ApiError(400, "status must be between 200 and 599", param="status")
    return Fault(kind, **known)


def _fits(name: str, value: Any) -> bool:
    if name == "reset":
        return isinstance(value, bool)
    if name in _TEXTS:
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return False
    return name in _NUMBERS or (name in _WHOLES and isinstance(value, int))


def _read_match(value: Any) -> Match:
    if not isinstance(value, dict):
        raise ApiError(400, "match must be an object", param="match")
    kinds: dict[str, type] = {"path": str, "model": str, "stream": bool, "header": dict, "contains": str}
    for name, given in value.items():
        if name not in kinds or not isinstance(given, kinds[name]):
            raise ApiError(400, f"match.{name} is unknown or has the wrong type", param="match")
    header = tuple((str(name).lower(), str(given)) for name, given in value.get("header", {}).items())
    return Match(value.get("path"), value.get("model"), value.get("stream"), header, value.get("contains"))
