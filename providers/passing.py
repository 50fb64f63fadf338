"""A request passed on to an upstream of its own dialect: what must change in it, and nothing else.

The model's name, whether the answer is streamed, and what is the gateway's to set are exchanged in the bytes that came
(see `splice`); a field no client may set costs the client its bytes, since an object that tries to steer an engine is
better written anew.
"""

from __future__ import annotations

from typing import Any

import orjson

from providers.engines import Facts
from providers.exchange import Call, Endpoint, Upstream
from providers.fields import STEERING
from providers.splice import replaced


def passed_on(call: Call, upstream: Upstream, facts: Facts, *, streams: bool, changes: dict[str, Any]) -> bytes:
    """The body for the upstream. `changes` are fields the kind itself wants otherwise."""
    body = call.body
    changes = dict(changes)
    if body.get("model") != upstream.model:
        changes["model"] = upstream.model
    if call.endpoint is not Endpoint.COUNT_TOKENS:
        if streams != bool(body.get("stream")):
            changes["stream"] = streams
        if facts.salt and upstream.cache_salt is not None:
            changes["cache_salt"] = upstream.cache_salt
    # Some servers read names without regard to case, so a twin in capitals would win over a field that was checked.
    drops = {name for name in body if name in STEERING or name != name.lower()}
    if not changes and not drops:
        return call.raw
    if not drops:
        spliced = replaced(call.raw, {name: orjson.dumps(value) for name, value in changes.items()})
        if spliced is not None:
            return spliced
    return orjson.dumps({**{name: value for name, value in body.items() if name not in drops}, **changes})
