"""The OpenAI dialect at the door: paths, checks of a body's types, and the answers of the models endpoints.

Only what the gateway itself reads is checked here; every other field is the upstream's to judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from gateway.api.bodies import parse_object, stream_of, wrong
from gateway.outcomes import Outcome, Refused
from gateway.world import ModelEntry
from providers.exchange import Call, Dialect, Endpoint

CALLS: dict[str, Endpoint] = {
    "/v1/chat/completions": Endpoint.CHAT,
    "/v1/completions": Endpoint.COMPLETIONS,
    "/v1/embeddings": Endpoint.EMBEDDINGS,
}
MODELS_PATH = "/v1/models"


def parse_call(endpoint: Endpoint, raw: bytes) -> Call:
    """Reads a request body. Raises Refused (400) naming the field that is wrong."""
    body, model = parse_object(raw)
    stream = stream_of(body)
    _check_input(endpoint, body)
    for name in ("max_tokens", "max_completion_tokens", "n", "best_of"):
        value = body.get(name)
        if value is not None and (type(value) is not int or value < 1):
            raise wrong(name, "a positive integer", value)
    wants_usage = False
    options = body.get("stream_options")
    if options is not None:
        if type(options) is not dict:
            raise wrong("stream_options", "an object", options)
        asked = options.get("include_usage")
        if asked is not None and type(asked) is not bool:
            raise wrong("stream_options.include_usage", "a boolean", asked)
        wants_usage = asked is True
        if not stream:
            raise Refused(
                Outcome.BAD_REQUEST,
                "The 'stream_options' parameter is only allowed when 'stream' is true.",
                param="stream_options",
            )
    return Call(
        endpoint=endpoint,
        dialect=Dialect.OPENAI,
        raw=raw,
        body=body,
        model=model,
        stream=stream and endpoint is not Endpoint.EMBEDDINGS,
        wants_usage=wants_usage,
    )


def _check_input(endpoint: Endpoint, body: dict[str, Any]) -> None:
    if endpoint is Endpoint.CHAT:
        messages = body.get("messages")
        if type(messages) is not list or not messages:
            raise wrong("messages", "a non-empty array of messages", messages)
        for index, message in enumerate(messages):
            if type(message) is not dict:
                raise wrong(f"messages[{index}]", "an object", message)
            if type(message.get("role")) is not str:
                raise wrong(f"messages[{index}].role", "a string", message.get("role"))
            content = message.get("content")
            if content is not None and type(content) is not str and type(content) is not list:
                raise wrong(f"messages[{index}].content", "a string, an array of parts or null", content)
        return
    name = "prompt" if endpoint is Endpoint.COMPLETIONS else "input"
    value = body.get(name)
    if type(value) is str or (type(value) is list and value and _alike(value)):
        return
    raise wrong(name, "a string, an array of strings, or an array of token numbers", value)


def _alike(values: list[Any]) -> bool:
    """Strings, token numbers, or arrays of token numbers; not a mixture."""
    first = type(values[0])
    if first is list:
        return all(type(v) is list and v and all(type(t) is int for t in v) for v in values)
    return first in (str, int) and all(type(v) is first for v in values)


def model_object(entry: ModelEntry, name: str) -> dict[str, Any]:
    """One model as both SDKs read it."""
    return {
        "id": name,
        "object": "model",
        "created": entry.created,
        "owned_by": entry.owned_by,
        "type": "model",
        "display_name": name,
        "created_at": _rfc3339(entry.created),
        "lifecycle": "active",
    }


def _rfc3339(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def model_list(models: Sequence[tuple[str, ModelEntry]]) -> bytes:
    """The answer of GET /v1/models for the models a principal may use, by name."""
    data = [model_object(entry, name) for name, entry in models]
    return orjson.dumps(
        {
            "object": "list",
            "data": data,
            "has_more": False,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
        }
    )
