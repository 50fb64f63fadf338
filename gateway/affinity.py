"""Which requests belong together: the names of a prompt's beginnings, and the session a caller says it is part of.

The beginning is named from the body's own bytes, from the list of messages on: no prompt is put together for it, and
what a client wrote in the same way has the same name. Names are hints. Equal names mean equal beginnings; a prompt
written differently merely has another name.
"""

from __future__ import annotations

from hashlib import blake2b

import orjson

from providers.exchange import Call, Endpoint
from providers.prefix import BOUNDARIES, Affinity, affinity

_START = {
    Endpoint.CHAT: b'"messages"',
    Endpoint.COMPLETIONS: b'"prompt"',
    Endpoint.MESSAGES: b'"messages"',
    Endpoint.RESPONSES: b'"input"',
}
_BEFORE = ("system", "instructions")  # of other dialects: what comes before the first message
_LONGEST_TOKENS = 48_000  # of a prompt that is named: what is longer than this and differs later is rare
_NAMED = sum(tokens <= _LONGEST_TOKENS for tokens in BOUNDARIES)
_NAMED_BYTES = 4 * BOUNDARIES[_NAMED - 1]
_SESSIONS = ("session_id", "prompt_cache_key", "user")  # the first that is a text counts
_LONGEST_NAME = 256  # characters of a session's name that count

_BUSY = 30  # requests a minute above which a "session" is a service that calls itself by one name
_REMEMBERED = 20_000


def session_of(call: Call) -> str | None:
    """The session a caller names, by whichever field."""
    body = call.body
    for name in _SESSIONS:
        value = body.get(name)
        if value is not None and isinstance(value, str) and value:
            return value[:_LONGEST_NAME]
    return None


def name_of(call: Call, tenant: str, salt: str, adapter: str | None) -> Affinity | None:
    """The names of a call's beginnings; None where nothing is worth finding again.

    `salt` separates tenants and is empty where they share a cache. A session is always its tenant's own.
    """
    start = _START.get(call.endpoint)
    if start is None:
        return None
    at = call.raw.find(start)
    if at < 0:
        return None
    pieces = [call.raw[at : at + _NAMED_BYTES]]
    if call.endpoint is not Endpoint.CHAT:
        pieces[:0] = [orjson.dumps(call.body[name]) for name in _BEFORE if call.body.get(name)]
    tools = call.body.get("tools")
    if tools:
        # Engines put the tools before the first message, wherever they stand in the body.
        pieces.insert(0, orjson.dumps(tools))
    session = session_of(call)
    return affinity(
        salt,
        adapter,
        pieces,
        session=None if session is None else f"{len(tenant)}:{tenant}:{session}",
        boundaries=_NAMED,
    )


class Sessions:
    """Keeps a session's requests on one target of a tier, unless so many come that it is no session.

    Some callers send one name with everything; all of it on one target would undo the weights of the tier.
    """

    __slots__ = ("_counts", "_minute")

    def __init__(self) -> None:
        self._minute = -1
        self._counts: dict[bytes, int] = {}  # requests of this minute by session, at most _REMEMBERED

    def pick(self, tenant: str, call: Call, now: float) -> float | None:
        """A number in [0, 1) that stays the same for the session; None where there is none, or it is too busy."""
        session = session_of(call)
        if session is None:
            return None
        minute = int(now // 60.0)
        if minute != self._minute or len(self._counts) >= _REMEMBERED:
            self._minute = minute
            self._counts.clear()
        name = blake2b(f"{len(tenant)}:{tenant}:{session}".encode(errors="replace"), digest_size=8).digest()
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return int.from_bytes(name, "big") / 2.0**64 if count <= _BUSY else None
