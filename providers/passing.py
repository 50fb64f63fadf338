"""A request passed on to an upstream of its own dialect: what must change in it, and nothing else.

The model's name, whether the answer is streamed, and what is the gateway's to set are exchanged in the bytes that came
(see `splice`); a field no client may set costs the client its bytes, since an object that tries to steer an engine is
better written anew.
"""

from __future__ import annotations

from typing import Any

import orjson

from providers.engines import Facts
from providers.exchange import UNREAD, Call, Endpoint, Unsupported, Upstream
from providers.fields import STEERING
from providers.splice import replaced


def passed_on(call: Call, upstream: Upstream, facts: Facts, *, streams: bool, changes: dict[str, Any]) -> bytes:
    """The body for the upstream. `changes` are fields the kind itself wants otherwise."""
    body = call.body
    changes = dict(changes)
    if body.get("model") != upstream.model:
        changes["model"] = upstream.model
    if call.endpoint is not Endpoint.COUNT_TOKENS and call.endpoint not in UNREAD:
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


def refuse_files(call: Call) -> None:
    """Raises Unsupported where a message names a file an upstream keeps: whose it is cannot be told by its id."""
    if b'"file_id"' not in call.raw:
        return
    where = "input" if call.endpoint is Endpoint.RESPONSES else "messages"
    turns = call.body.get(where)
    for place, turn in enumerate(turns if isinstance(turns, list) else ()):
        content = turn.get("content", turn.get("output")) if isinstance(turn, dict) else None
        _refuse_files(content, f"{where}[{place}].content")


def _refuse_files(content: Any, where: str) -> None:
    for place, part in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(part, dict):
            continue
        source = part.get("source")
        if part.get("file_id") is not None or (isinstance(source, dict) and source.get("file_id") is not None):
            raise Unsupported(f"{where}[{place}].file_id", f"{where}[{place}].file_id: files by id are not supported")
        _refuse_files(part.get("content"), f"{where}[{place}].content")


_KEPT = ("previous_response_id", "conversation", "background", "prompt")


def refuse_kept(call: Call) -> None:
    """Raises Unsupported where a call of the Responses API builds on what an upstream keeps for one account: all
    tenants share that account, and none may come by another's conversation.
    """
    for name in _KEPT:
        if call.body.get(name) not in (None, False):
            raise Unsupported(name, f"{name} is not supported: responses are not kept from one request to the next")
    items = call.body.get("input")
    for place, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and item.get("type") == "item_reference":
            raise Unsupported(f"input[{place}].type", f"input[{place}]: references to kept items are not supported")
