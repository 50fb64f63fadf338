"""The OpenAI wire format, both ways: what is sent to an OpenAI-compatible upstream, and which reader takes its answer.

A client of the OpenAI dialect and an upstream of the OpenAI dialect need no translation, so as little as possible is
touched: the model's name, the usage a stream must end with, and fields a tenant has no business to set. A request in
which nothing changes is sent as the bytes that came. What a kind of upstream reads and refuses is in `engines.FACTS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from providers.engines import FACTS, Facts
from providers.exchange import UNREAD, Call, Endpoint, Failure, Headers, Outgoing, Reader, Unsupported, Upstream
from providers.failures import classify
from providers.fields import ENGINE_FIELDS, READS, refuse, unread
from providers.fields import STEERING as STEERING
from providers.gather import GatherReader, WholeReader
from providers.messages_native import native_reader
from providers.openai_stream import StreamReader
from providers.over_chat import OTHER_DIALECTS, as_chat, chat_reader
from providers.passing import passed_on, refuse_files, refuse_kept
from providers.responses_native import response_reader
from providers.unread import UnreadReader

PATHS: Mapping[Endpoint, str] = MappingProxyType(
    {
        Endpoint.CHAT: "/chat/completions",
        Endpoint.COMPLETIONS: "/completions",
        Endpoint.EMBEDDINGS: "/embeddings",
        Endpoint.MESSAGES: "/messages",
        Endpoint.COUNT_TOKENS: "/messages/count_tokens",
        Endpoint.RESPONSES: "/responses",
        Endpoint.RERANK: "/rerank",
        Endpoint.MODERATIONS: "/moderations",
        Endpoint.IMAGES: "/images/generations",
        Endpoint.TOKENIZE: "/tokenize",
        Endpoint.DETOKENIZE: "/detokenize",
    }
)

_AT_THE_TOP = frozenset({Endpoint.TOKENIZE, Endpoint.DETOKENIZE})
"""Engines serve these beside their API, not under it."""
_NOT_CHAT = OTHER_DIALECTS | UNREAD

_NO_READS: Mapping[Endpoint, frozenset[str]] = MappingProxyType({})

_WHOLE_ONLY = (
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "return_token_ids",
    "echo",
    "audio",
    "return_hidden_states",
)


def gatherable(call: Call) -> bool:
    """Whether a call that was not to be streamed can be streamed and put together without losing anything."""
    body = call.body
    if call.stream or call.endpoint not in (Endpoint.CHAT, Endpoint.COMPLETIONS):
        return False
    if body.get("n") not in (None, 1) or body.get("best_of") not in (None, 1):
        return False
    given = (body.get(name) for name in _WHOLE_ONLY)
    if any(value is not None and value is not False for value in given):
        return False
    prompt = body.get("prompt")
    return not (isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int))


def root_path(base_url: str, default: str = "/v1") -> str:
    """The path of the API root: that of the base URL, or `default` when it names none."""
    start = base_url.find("/", base_url.find("://") + 3)
    path = base_url[start:].rstrip("/") if start >= 0 else ""
    return path or default


def rewrite(call: Call, upstream: Upstream, facts: Facts, *, streams: bool) -> dict[str, Any] | None:
    """The body for the upstream, or None when the bytes that came will do. `call.body` is left as it is. Raises
    Unsupported naming a field that asks for what the upstream cannot do.
    """
    body = call.body
    changes: dict[str, Any] = {}
    drops: set[str] = set()
    if body.get("model") != upstream.model:
        changes["model"] = upstream.model
    if not STEERING.isdisjoint(body):
        drops.update(STEERING.intersection(body))
    reads = READS.get(upstream.kind, _NO_READS).get(call.endpoint)
    if reads is not None:
        drops |= unread(body, reads)
    elif not facts.extras and not ENGINE_FIELDS.isdisjoint(body):
        refuse(body, ENGINE_FIELDS)
        drops |= ENGINE_FIELDS & body.keys()
    if call.endpoint is not Endpoint.EMBEDDINGS:
        _stream_fields(call, upstream, facts, streams, changes, drops)
        _output_cap(call, upstream, facts, changes, drops)
        if facts.priority is not None and upstream.priority:
            changes["priority"] = facts.priority * upstream.priority
        if not facts.developer_role and b'"developer"' in call.raw:
            messages = body.get("messages")
            if isinstance(messages, list):
                changes["messages"] = [_as_system(message) for message in messages]
    if facts.salt and upstream.cache_salt is not None:
        changes["cache_salt"] = upstream.cache_salt
    if not changes and not drops:
        return None
    rewritten = {name: value for name, value in body.items() if name not in drops} if drops else dict(body)
    rewritten.update(changes)
    return rewritten


def _stream_fields(
    call: Call, upstream: Upstream, facts: Facts, streams: bool, changes: dict[str, Any], drops: set[str]
) -> None:
    """Always ask for the usage a stream ends with, where the upstream knows how to be asked."""
    options = call.body.get("stream_options")
    if streams != bool(call.body.get("stream")):
        changes["stream"] = streams
    if not streams:
        return
    if not _tells_usage(upstream, facts):
        if call.wants_usage:
            raise Unsupported("stream_options.include_usage")
        if "stream_options" in call.body:
            drops.add("stream_options")
        return
    known = options if isinstance(options, dict) else {}
    if known.get("include_usage") is True and (facts.continuous_usage or "continuous_usage_stats" not in known):
        return
    wanted = {
        name: value for name, value in known.items() if facts.continuous_usage or name != "continuous_usage_stats"
    }
    changes["stream_options"] = {**wanted, "include_usage": True}


def _tells_usage(upstream: Upstream, facts: Facts) -> bool:
    """Whether its streams end with usage when they are asked to."""
    return facts.stream_options and upstream.extra.get("stream_options") != "false"


def _output_cap(call: Call, upstream: Upstream, facts: Facts, changes: dict[str, Any], drops: set[str]) -> None:
    """One name for the output cap, the one the upstream is sure to read; a cap it overlooks would be no cap."""
    body = call.body
    if call.endpoint is not Endpoint.CHAT:
        return
    old, new = body.get("max_tokens"), body.get("max_completion_tokens")
    name = upstream.extra.get("max_tokens_field", facts.output_cap)
    if name == "max_tokens":
        if "max_completion_tokens" in body:
            drops.add("max_completion_tokens")
            if new is not None:
                changes["max_tokens"] = new
    elif name == "max_completion_tokens":
        if "max_tokens" in body:
            drops.add("max_tokens")
            if new is None and old is not None:
                changes["max_completion_tokens"] = old
    elif old is not None and new is not None:
        drops.add("max_tokens")


def _as_system(message: Any) -> Any:
    if isinstance(message, dict) and message.get("role") == "developer":
        return {**message, "role": "system"}
    return message


def headers_for(credential: tuple[tuple[str, str], ...], upstream: Upstream) -> tuple[tuple[str, str], ...]:
    """What every upstream is sent: our credential and nothing of the client's."""
    headers = (("content-type", "application/json"), *credential)
    organization, project = upstream.extra.get("organization"), upstream.extra.get("project")
    if organization:
        headers += (("openai-organization", organization),)
    if project:
        headers += (("openai-project", project),)
    return headers


@dataclass(frozen=True, slots=True)
class OpenAIKind:
    """An upstream that speaks the OpenAI dialect to a client that speaks it too."""

    name: str

    @property
    def facts(self) -> Facts:
        """What this kind of upstream can do."""
        return FACTS[self.name]

    @property
    def engine(self) -> bool:
        """Self-hosted, and not an account at a vendor."""
        return self.facts.engine

    def prepare(self, call: Call, upstream: Upstream) -> Outgoing:
        """The request for one attempt. Raises Unsupported naming what the kind cannot do."""
        facts = self.dialect(upstream)
        if call.endpoint in _NOT_CHAT:
            return self._of_other_dialect(call, upstream, facts)
        if call.endpoint not in facts.endpoints:
            raise Unsupported("endpoint", f"{call.endpoint} is not served by {self.name} upstreams")
        streams = _streams(call, upstream, facts)
        body = rewrite(call, upstream, facts, streams=streams)
        changes = self.changes(call)
        if changes:
            body = {**(call.body if body is None else body), **changes}
        return Outgoing(
            method="POST",
            url_path=self.path(call, upstream),
            headers=headers_for(self.credential(upstream), upstream),
            body=call.raw if body is None else orjson.dumps(body),
            streams=streams,
        )

    def _of_other_dialect(self, call: Call, upstream: Upstream, facts: Facts) -> Outgoing:
        """A request of another API: passed on where the upstream serves it itself, else translated to chat."""
        if not _native(call, upstream, facts):
            return self.prepare(as_chat(call, upstream, facts), upstream)
        streams = _streams(call, upstream, facts)
        changes: dict[str, Any] = {}
        refuse_files(call)
        if call.endpoint is Endpoint.RESPONSES:
            refuse_kept(call)
            if facts.priority is not None and upstream.priority:
                changes["priority"] = facts.priority * upstream.priority
        return Outgoing(
            method="POST",
            url_path=self.path(call, upstream),
            headers=headers_for(self.credential(upstream), upstream),
            body=passed_on(call, upstream, facts, streams=streams, changes=changes),
            streams=streams,
        )

    def dialect(self, upstream: Upstream) -> Facts:
        """What the upstream itself can do, where that depends on more than its kind."""
        return FACTS[self.name]

    def changes(self, call: Call) -> dict[str, Any]:
        """Fields that this kind wants otherwise than OpenAI wrote them. Raises Unsupported."""
        return {}

    def path(self, call: Call, upstream: Upstream) -> str:
        """Path and query of the call."""
        root = root_path(upstream.base_url)
        if call.endpoint in _AT_THE_TOP:
            root = root.removesuffix("/v1")
        return root + PATHS[call.endpoint]

    def credential(self, upstream: Upstream) -> tuple[tuple[str, str], ...]:
        """Our credential as headers."""
        return (("authorization", f"Bearer {upstream.credential}"),) if upstream.credential else ()

    def reader(self, call: Call, upstream: Upstream, status: int, headers: Headers) -> Reader:
        """The reader of an answer of status 200 to 299."""
        facts = self.dialect(upstream)
        streams = _streams(call, upstream, facts)
        if call.endpoint in UNREAD:
            return UnreadReader(self.name)
        if call.endpoint in OTHER_DIALECTS:
            if _native(call, upstream, facts):
                of_dialect = response_reader if call.endpoint is Endpoint.RESPONSES else native_reader
                return of_dialect(call, self.name, streams=streams)
            return chat_reader(call, upstream, streams=streams)
        if not streams:
            return WholeReader(call, self.name)
        if call.stream:
            return StreamReader(call, self.name, finish_required=facts.finish_required)
        return GatherReader(call, self.name, finish_required=facts.finish_required)

    def failure(self, status: int, headers: Headers, body: bytes) -> Failure:
        """What an answer of any other status means."""
        return classify(self.name, status, headers, body)


def _streams(call: Call, upstream: Upstream, facts: Facts) -> bool:
    """Whether the upstream is asked to stream. A call is gathered only from a stream that tells its usage."""
    if call.endpoint in OTHER_DIALECTS:
        if _native(call, upstream, facts):
            return call.endpoint is not Endpoint.COUNT_TOKENS and (call.stream or upstream.gather)
        return call.stream or (upstream.gather and _tells_usage(upstream, facts))
    if call.endpoint is Endpoint.EMBEDDINGS or call.endpoint in UNREAD:
        return False
    return call.stream or (upstream.gather and gatherable(call) and _tells_usage(upstream, facts))


def _native(call: Call, upstream: Upstream, facts: Facts) -> bool:
    """Whether the upstream is asked in the client's own dialect. Raises Unsupported when it cannot be asked at all."""
    if not facts.serves(call.endpoint):
        raise Unsupported("endpoint", f"{call.endpoint} is not served by {upstream.kind} upstreams")
    if call.endpoint not in facts.endpoints:
        return False
    return call.endpoint in UNREAD or upstream.extra.get("translate") != "true"
