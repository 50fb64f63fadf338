"""What depends on the client's dialect: which reader its requests need and which writer its answers.

The upstream's side of a translation asks here and never looks at the dialect itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from providers import messages_request, openai_request, responses_request
from providers.conversation import Prompt
from providers.exchange import Call, Endpoint, Unsupported, Upstream
from providers.messages_answer import MessagesStream, MessagesWhole
from providers.openai_answer import StreamWriter, WholeWriter, Writer
from providers.responses_answer import ResponseStream, ResponseWhole

TRANSLATED = frozenset({Endpoint.CHAT, Endpoint.MESSAGES, Endpoint.RESPONSES})
"""What a target that converses in another dialect can be asked for."""

_NAMES: Mapping[Endpoint, Mapping[str, str]] = {
    Endpoint.MESSAGES: messages_request.NAMES,
    Endpoint.RESPONSES: responses_request.NAMES,
}


def read_prompt(call: Call) -> Prompt:
    """The conversation of `call`. Raises Unsupported naming the first field that has no common form."""
    if call.endpoint is Endpoint.MESSAGES:
        return messages_request.read_messages(call)
    if call.endpoint is Endpoint.RESPONSES:
        return responses_request.read_responses(call)
    return openai_request.read_prompt(call)


def writer_for(call: Call, upstream: Upstream) -> Writer:
    """Writes the answer to `call` from events."""
    if call.endpoint is Endpoint.MESSAGES:
        return MessagesStream(upstream.model) if call.stream else MessagesWhole(upstream.model)
    if call.endpoint is Endpoint.RESPONSES:
        response = ResponseStream if call.stream else ResponseWhole
        return response(call, upstream.model, upstream.at)
    if call.stream:
        return StreamWriter(upstream.model, upstream.at, wants_usage=call.wants_usage)
    return WholeWriter(upstream.model, upstream.at)


def in_words_of(call: Call, error: Unsupported) -> Unsupported:
    """The error with the field named as the client's dialect names it."""
    name = _NAMES.get(call.endpoint, {}).get(error.field)
    return error if name is None else Unsupported(name, error.detail.replace(error.field, name))
