"""What a simulated server remembers of each request, for tests and for whoever looks at `/sim/state`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Members of a body that are large and not worth remembering.
_BULK = frozenset({"messages", "prompt", "input", "tools"})
# Values of these headers are not shown.
_SECRET = frozenset({"authorization", "x-api-key", "api-key"})


@dataclass(slots=True)
class Record:
    """One request as the server saw it. Sizes are tokens, times engine seconds."""

    id: str
    path: str
    arrived_at: float
    headers: dict[str, str] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    adapter: str | None = None
    stream: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    max_tokens: int | None = None
    preemptions: int = 0
    first_token_at: float | None = None
    ended_at: float | None = None
    status: int | None = None
    """Status that was answered; None while there is none."""
    outcome: str = "open"
    """open, finished, refused, cancelled (the client left), or fault:<kind>."""

    def as_json(self) -> dict[str, Any]:
        """All fields, with the parts of the body that gateways set lifted out."""
        out = {name: getattr(self, name) for name in self.__slots__}
        out["salt"] = self.fields.get("cache_salt")
        out["priority"] = self.fields.get("priority")
        return out


class Records:
    """The latest requests, oldest first, and how many there ever were."""

    def __init__(self, size: int) -> None:
        self._latest: deque[Record] = deque(maxlen=size)
        self.total = 0

    def open(
        self, request_id: str, path: str, headers: Mapping[str, str], fields: Mapping[str, Any], now: float
    ) -> Record:
        """Remember a request that has just come."""
        self.total += 1
        shown = {name: "(hidden)" if name in _SECRET else value for name, value in headers.items()}
        record = Record(request_id, path, now, shown, {k: v for k, v in fields.items() if k not in _BULK})
        record.model = str(fields.get("model", ""))
        record.stream = fields.get("stream") is True
        self._latest.append(record)
        return record

    def find(self, request_id: str | None) -> list[Record]:
        """Those with this id, or all."""
        return [record for record in self._latest if request_id is None or record.id == request_id]
