"""The route table of the data listener: every path that asks an upstream for something, and how its body is read.

All of them take the one way in that `gateway.accept` is; a path that is not here reaches no upstream. The dialect of a
path decides how its errors look, so it is known before anything else of a request is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from gateway.api import anthropic, openai, others, responses
from gateway.api.seam import Exchange
from providers.exchange import Call, Dialect, Endpoint


class Route(NamedTuple):
    """One path: what it asks for, and how a request to it is read (which raises Refused)."""

    endpoint: Endpoint
    dialect: Dialect
    parse: Callable[[bytes, Exchange], Call]


def _openai(endpoint: Endpoint) -> Route:
    return Route(endpoint, Dialect.OPENAI, lambda raw, _: openai.parse_call(endpoint, raw))


def _unread(endpoint: Endpoint) -> Route:
    return Route(endpoint, Dialect.OPENAI, lambda raw, _: others.parse_call(endpoint, raw))


ROUTES: Mapping[str, Route] = MappingProxyType(
    {path: _openai(endpoint) for path, endpoint in openai.CALLS.items()}
    | {path: _unread(endpoint) for path, endpoint in others.CALLS.items()}
    | {responses.PATH: Route(Endpoint.RESPONSES, Dialect.OPENAI, lambda raw, _: responses.parse_call(raw))}
    | {
        path: Route(endpoint, Dialect.ANTHROPIC, partial(anthropic.parse_call, endpoint))
        for path, endpoint in anthropic.CALLS.items()
    }
)
"""By path as sent."""


def dialect_at(http: Exchange) -> Dialect:
    """The dialect a request is to be answered in, whatever becomes of it."""
    path = http.path
    route = ROUTES.get(path)
    if route is not None:
        return route.dialect
    if path.startswith(("/v1/messages", "/v1/v1/messages")) or http.header(anthropic.VERSION_HEADER) is not None:
        return Dialect.ANTHROPIC
    return Dialect.OPENAI
