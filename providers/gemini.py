"""Gemini's native wire format as a target, at Google AI and on Vertex.

A stream is a series of whole answers, each with a little more; it has no terminator, so it is complete when it has
closed after a finish reason. Function calls arrive whole. Usage is cumulative and the last one counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import orjson

from providers.conversation import Argued, Began, Broke, Called, Complete, Counted, Ended, Event, Mused, Reason, Said
from providers.engines import FACTS, Facts
from providers.exchange import (
    Call,
    Failure,
    FailureKind,
    Headers,
    Outgoing,
    Reader,
    Unsupported,
    Upstream,
    Usage,
)
from providers.failures import broken, classify
from providers.gemini_request import write_request
from providers.ingress import TRANSLATED, read_prompt
from providers.messages_usage import count
from providers.openai import root_path
from providers.translate import SseDecoder, WholeDecoder, reader

_REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        "STOP": Reason.STOP,
        "MAX_TOKENS": Reason.LENGTH,
        "SAFETY": Reason.CONTENT_FILTER,
        "RECITATION": Reason.CONTENT_FILTER,
        "BLOCKLIST": Reason.CONTENT_FILTER,
        "PROHIBITED_CONTENT": Reason.CONTENT_FILTER,
        "SPII": Reason.CONTENT_FILTER,
        "LANGUAGE": Reason.CONTENT_FILTER,
        "MODEL_ARMOR": Reason.CONTENT_FILTER,
    }
)


def usage_of(told: Mapping[str, Any]) -> Usage:
    """OpenAI's way of counting: thoughts are output, and what tools put into the prompt is prompt."""
    prompt, tools = count(told.get("promptTokenCount")), count(told.get("toolUsePromptTokenCount"))
    said, thought = count(told.get("candidatesTokenCount")), count(told.get("thoughtsTokenCount"))
    return Usage(
        prompt_tokens=None if prompt is None else prompt + (tools or 0),
        output_tokens=None if said is None and thought is None else (said or 0) + (thought or 0),
        cached_tokens=count(told.get("cachedContentTokenCount")),
        reasoning_tokens=thought,
    )


class _Candidates:
    """One answer, piece by piece. Only the first candidate is read: more are never asked for."""

    __slots__ = ("_began", "_calls", "_ended", "_id")

    def __init__(self) -> None:
        self._began = False
        self._calls = 0
        self._ended = False
        self._id = "0"

    def read(self, piece: dict[str, Any]) -> list[Event]:
        """The events of one piece of the stream."""
        events: list[Event] = []
        if not self._began:
            blocked = _blocked(piece)
            if blocked is not None:
                return [blocked]
            self._began = True
            id_, model = piece.get("responseId"), piece.get("modelVersion")
            self._id = id_ if isinstance(id_, str) and id_ else "0"
            events.append(Began(self._id, model if isinstance(model, str) else None))
        usage = piece.get("usageMetadata")
        if isinstance(usage, dict):
            events.append(Counted(usage_of(usage)))
        candidates = piece.get("candidates")
        candidate = candidates[0] if isinstance(candidates, list) and candidates else None
        if not isinstance(candidate, dict):
            return events
        content = candidate.get("content")
        parts = content.get("parts") if isinstance(content, dict) else None
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict):
                events += self._part(part)
        return events + self._stopped(candidate.get("finishReason"))

    def whole(self, answer: dict[str, Any]) -> list[Event]:
        """The events of a whole answer."""
        return [*self.read(answer), *self.last()]

    def last(self) -> list[Event]:
        """A stream that closed after it had said why it stops is complete."""
        return [Complete()] if self._ended else []

    def _part(self, part: dict[str, Any]) -> list[Event]:
        call = part.get("functionCall")
        if isinstance(call, dict):
            index = self._calls
            self._calls += 1
            given, id_, signature = call.get("args"), call.get("id"), part.get("thoughtSignature")
            called = Called(
                index,
                id_ if isinstance(id_, str) and id_ else f"call_{self._id}_{index}",
                str(call.get("name")),
                signature if isinstance(signature, str) else None,
            )
            return [called, Argued(index, orjson.dumps(given if isinstance(given, dict) else {}).decode())]
        text = part.get("text")
        if not isinstance(text, str) or not text:
            return []
        return [Mused(text) if part.get("thought") else Said(text)]

    def _stopped(self, reason: Any) -> list[Event]:
        if not isinstance(reason, str) or reason == "FINISH_REASON_UNSPECIFIED":
            return []
        known = Reason.CONTENT_FILTER if reason.startswith("IMAGE_") else _REASONS.get(reason)
        if known is None:
            return [Broke(broken(f"The model's answer could not be finished ({reason}).", "upstream_malformed"))]
        self._ended = True
        return [Ended(Reason.TOOL_CALLS if known is Reason.STOP and self._calls else known)]


def _blocked(piece: dict[str, Any]) -> Broke | None:
    """A prompt the vendor's filter refused: status 200, no candidate, and a reason."""
    feedback = piece.get("promptFeedback")
    reason = feedback.get("blockReason") if isinstance(feedback, dict) else None
    if reason is None or piece.get("candidates"):
        return None
    message = f"The prompt was refused by the provider's content filter ({reason})."
    error = {"message": message, "type": "invalid_request_error", "param": "messages", "code": "content_filter"}
    return Broke(
        Failure(
            FailureKind.CONTENT,
            400,
            message,
            code="content_filter",
            param="messages",
            body=orjson.dumps({"error": error}),
            type="invalid_request_error",
        )
    )


class GeminiKind:
    """Gemini by its own API."""

    name = "gemini"

    @property
    def facts(self) -> Facts:
        """What it can do."""
        return FACTS[self.name]

    @property
    def engine(self) -> bool:
        """An account at a vendor."""
        return False

    def prepare(self, call: Call, upstream: Upstream) -> Outgoing:
        """The request for one attempt. Raises Unsupported."""
        if call.endpoint not in TRANSLATED:
            raise Unsupported("endpoint", f"{call.endpoint} is not served by {self.name} upstreams")
        streams = call.stream or upstream.gather
        body = orjson.dumps(write_request(read_prompt(call), upstream.model))
        model = upstream.model if "/" in upstream.model else f"models/{upstream.model}"
        verb = "streamGenerateContent?alt=sse" if streams else "generateContent"
        return Outgoing(
            method="POST",
            url_path=f"{root_path(upstream.base_url, '/v1beta')}/{quote(model, safe='/')}:{verb}",
            headers=(("content-type", "application/json"), *_credential(upstream)),
            body=body,
            streams=streams,
        )

    def reader(self, call: Call, upstream: Upstream, status: int, headers: Headers) -> Reader:
        """The reader of an answer of status 200 to 299."""
        candidates = _Candidates()
        if call.stream or upstream.gather:
            decoder = SseDecoder(self.name, candidates.read, candidates.whole, candidates.last)
            return reader(decoder, call, upstream, whole=False)
        return reader(WholeDecoder(self.name, candidates.whole), call, upstream, whole=True)

    def failure(self, status: int, headers: Headers, body: bytes) -> Failure:
        """What an answer of any other status means."""
        return classify(self.name, status, headers, body)


def _credential(upstream: Upstream) -> tuple[tuple[str, str], ...]:
    """A key of Google AI, or on Vertex an access token."""
    if upstream.credential is None:
        return ()
    if "aiplatform.googleapis.com" in upstream.base_url or upstream.credential.startswith("ya29."):
        return (("authorization", f"Bearer {upstream.credential}"),)
    return (("x-goog-api-key", upstream.credential),)
