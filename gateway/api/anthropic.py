"""The Anthropic dialect at the door: its paths and checks of a body's types.

Only what the gateway itself reads is checked here; every other field is the upstream's to judge.
"""

from __future__ import annotations

from typing import Any

from gateway.api.bodies import parse_object, stream_of, wrong
from gateway.api.seam import Exchange
from gateway.outcomes import Outcome, Refused
from providers.exchange import Call, Dialect, Endpoint

CALLS: dict[str, Endpoint] = {
    "/v1/messages": Endpoint.MESSAGES,
    "/v1/messages/count_tokens": Endpoint.COUNT_TOKENS,
}
VERSION_HEADER = "anthropic-version"

# What an Anthropic upstream must see as the client sent it.
_HEADERS = (VERSION_HEADER, "anthropic-beta")
_LONGEST_HEADER = 2000


def parse_call(endpoint: Endpoint, raw: bytes, http: Exchange) -> Call:
    """Reads a request. Raises Refused (400) naming the field that is wrong."""
    body, model = parse_object(raw)
    stream = stream_of(body)
    _check_messages(body.get("messages"))
    system = body.get("system")
    if system is not None and type(system) is not str and type(system) is not list:
        raise wrong("system", "a string or an array of text blocks", system)
    if body.get("thread"):
        # A vendor would hold the conversation for the account that all tenants share. By this code the SDK's helpers
        # know to send the whole history instead.
        raise Refused(
            Outcome.UNSUPPORTED,
            "thread is not supported: conversations are not kept, send all messages with each request.",
            param="thread",
            code="thread_unsupported_request",
        )
    if endpoint is Endpoint.MESSAGES:
        cap = body.get("max_tokens")
        if type(cap) is not int or cap < 0:
            raise wrong("max_tokens", "an integer of at least 0", cap)
    return Call(
        endpoint=endpoint,
        dialect=Dialect.ANTHROPIC,
        raw=raw,
        body=body,
        model=model,
        stream=stream and endpoint is Endpoint.MESSAGES,
        wants_usage=True,
        headers=tuple(
            (name, value)
            for name in _HEADERS
            if (value := http.header(name)) is not None and len(value) <= _LONGEST_HEADER
        ),
    )


def _check_messages(messages: Any) -> None:
    if type(messages) is not list or not messages:
        raise wrong("messages", "a non-empty array of messages", messages)
    for index, message in enumerate(messages):
        if type(message) is not dict:
            raise wrong(f"messages[{index}]", "an object", message)
        if message.get("role") not in ("user", "assistant", "system"):
            raise wrong(f"messages[{index}].role", "'user' or 'assistant'", message.get("role"))
        content = message.get("content")
        if type(content) is not str and type(content) is not list:
            raise wrong(f"messages[{index}].content", "a string or an array of blocks", content)
