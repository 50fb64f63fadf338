"""Conversations of other dialects held with an upstream over chat: what it is sent, and how its answer is read."""

from __future__ import annotations

import orjson

from providers.chat_answer import ChatAnswer
from providers.chat_request import write_chat
from providers.engines import Facts
from providers.exchange import Call, Dialect, Endpoint, Reader, Upstream
from providers.ingress import read_prompt
from providers.translate import SseDecoder, WholeDecoder, reader

OTHER_DIALECTS = frozenset({Endpoint.MESSAGES, Endpoint.COUNT_TOKENS, Endpoint.RESPONSES})
"""What an upstream of the OpenAI dialect either serves itself or is asked for as chat."""


def as_chat(call: Call, upstream: Upstream, facts: Facts) -> Call:
    """The call as a client of chat would have made it. Raises Unsupported naming what has no place in chat."""
    body = write_chat(read_prompt(call), upstream.model, facts)
    if call.stream and facts.continuous_usage:
        # The prompt's tokens then come with the first chunk, where other dialects tell them.
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    raw = orjson.dumps(body)
    return Call(Endpoint.CHAT, Dialect.OPENAI, raw, body, call.model, call.stream, wants_usage=False)


def chat_reader(call: Call, upstream: Upstream, *, streams: bool) -> Reader:
    """The reader of a chat answer for a client of another dialect."""
    answer = ChatAnswer()
    if streams:
        decoder = SseDecoder(upstream.kind, answer.read, answer.whole, list, answer.done)
        return reader(decoder, call, upstream, whole=False)
    return reader(WholeDecoder(upstream.kind, answer.whole), call, upstream, whole=True)
