"""An OpenAI chat answer read into events, for clients of another dialect."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from providers.chunks import gave_up, index_of, read_usage
from providers.conversation import (
    Argued,
    Began,
    Broke,
    Called,
    Complete,
    Counted,
    Ended,
    Event,
    Mused,
    Reason,
    Refused,
    Said,
)
from providers.failures import broken

_REASONS: Mapping[str, Reason] = MappingProxyType(
    {
        "stop": Reason.STOP,
        "length": Reason.LENGTH,
        "tool_calls": Reason.TOOL_CALLS,
        "function_call": Reason.TOOL_CALLS,
        "content_filter": Reason.CONTENT_FILTER,
    }
)


class ChatAnswer:
    """One answer, chunk by chunk. Only the first choice is read: more are never asked for."""

    __slots__ = ("_began", "_calls", "_ended")

    def __init__(self) -> None:
        self._began = False
        self._calls: dict[int, int] = {}
        """The upstream's index of a call -> ours, which counts from 0."""
        self._ended = False

    def read(self, chunk: dict[str, Any]) -> list[Event]:
        """The events of one chunk."""
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        events: list[Event] = []
        if isinstance(choice, dict):
            delta = choice.get("delta")
            events = self._begin(chunk)
            events += self._said(delta if isinstance(delta, dict) else {})
            events += self._stopped(choice)
        return [*events, *_counted(chunk)]

    def whole(self, answer: dict[str, Any]) -> list[Event]:
        """The events of a whole answer."""
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(message, dict):
            return [Broke(broken("The upstream's answer holds no choices.", "upstream_malformed"))]
        events = [*self._begin(answer), *self._said(message), *_counted(answer)]
        return [*events, *self._stopped(choice), Complete()]

    def done(self) -> list[Event]:
        """The terminator has come."""
        return [Complete()]

    def _begin(self, envelope: dict[str, Any]) -> list[Event]:
        if self._began:
            return []
        self._began = True
        id_, model = envelope.get("id"), envelope.get("model")
        return [Began(id_ if isinstance(id_, str) else None, model if isinstance(model, str) and model else None)]

    def _said(self, delta: dict[str, Any]) -> list[Event]:
        events: list[Event] = []
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thought, str) and thought:
            events.append(Mused(thought))
        text, refusal, calls = delta.get("content"), delta.get("refusal"), delta.get("tool_calls")
        if isinstance(text, str) and text:
            events.append(Said(text))
        if isinstance(refusal, str) and refusal:
            events.append(Refused(refusal))
        for place, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                events += self._call(call, place)
        return events

    def _call(self, call: dict[str, Any], place: int) -> list[Event]:
        theirs = index_of(call, place)
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        index = self._calls.get(theirs)
        events: list[Event] = []
        if index is None:
            index = self._calls[theirs] = len(self._calls)
            id_ = call.get("id")
            extra = call.get("extra_content")
            google = extra.get("google") if isinstance(extra, dict) else None
            signature = google.get("thought_signature") if isinstance(google, dict) else None
            events.append(
                Called(
                    index,
                    id_ if isinstance(id_, str) and id_ else f"call_{index}",
                    str(function.get("name") or ""),
                    signature if isinstance(signature, str) else None,
                )
            )
        arguments = function.get("arguments")
        if isinstance(arguments, str) and arguments:
            events.append(Argued(index, arguments))
        return events

    def _stopped(self, choice: dict[str, Any]) -> list[Event]:
        reason = choice.get("finish_reason")
        if not isinstance(reason, str) or self._ended:
            return []
        if gave_up(reason):
            return [Broke(broken(f"The upstream gave the answer up ({reason}).", "upstream_aborted"))]
        self._ended = True
        known = _REASONS.get(reason, Reason.STOP)
        if known is Reason.STOP and self._calls:
            known = Reason.TOOL_CALLS  # a tool that was forced ends in "stop"
        met = choice.get("stop_reason") or choice.get("matched_stop")
        return [Ended(known, met if isinstance(met, str) else None)]


def _counted(envelope: dict[str, Any]) -> list[Event]:
    usage = envelope.get("usage")
    return [Counted(read_usage(usage))] if isinstance(usage, dict) else []
