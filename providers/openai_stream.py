"""An OpenAI-style stream passed on as it came.

Nearly every frame is one delta that needs no change; `plain.Plain` knows those without parsing them. All others are
parsed here: the first frames, so that nothing is out before it has proved to be no error, and those that may hold an
error, usage, a finish reason, a role, tool calls or the end.

What is changed on the way, because strict clients break on it: a usage chunk nobody asked for is dropped; a role, tool
id or tool name said twice is removed and a role never said is added; frames without choices are dropped; fields other
than data are dropped.
"""

from __future__ import annotations

from typing import Any

import orjson

from providers.chunks import gave_up, index_of, read_usage, says
from providers.exchange import NO_USAGE, Call, Endpoint, Failure, Relayed, Usage
from providers.failures import broken, classify_error, read_error
from providers.gather import WholeReader
from providers.plain import Plain, plain_like
from providers.sse import EventTooLarge, Framer, data_of, encode_comment

_DONE = b"data: [DONE]\n\n"
_KEEP_ALIVE = encode_comment()


class StreamReader:
    """Passes on one stream. `finish_required`: a stream without a finish_reason has failed even if its terminator
    came.
    """

    __slots__ = (
        "_begun",
        "_call",
        "_choices",
        "_finish_required",
        "_finished",
        "_framer",
        "_held",
        "_kind",
        "_names",
        "_over",
        "_plain",
        "_said",
        "_whole",
        "tokens",
        "usage",
    )

    def __init__(self, call: Call, kind: str, *, finish_required: bool = False) -> None:
        self.usage: Usage = NO_USAGE
        self.tokens = 0
        self._call = call
        self._kind = kind
        self._finish_required = finish_required
        self._framer = Framer()
        self._held = 0
        """Bytes the framer keeps of a frame that is not complete."""
        self._plain: Plain | None = None
        """None until the first frame has been passed on, and for servers whose spacing cannot be relied on."""
        self._choices: set[int] = set()
        """Choices whose role has been said."""
        self._names: set[tuple[int, int]] = set()
        """Tool calls, as (choice, index), whose id and name have been said."""
        self._begun = False
        """Something other than white space has come."""
        self._said = False
        """A frame has been passed on."""
        self._finished = False
        """A finish_reason has been seen."""
        self._over = False
        self._whole: WholeReader | None = None
        """Takes over when the upstream answers with one JSON object instead of a stream."""

    def feed(self, data: bytes) -> Relayed:
        """Take the next bytes as they came."""
        if self._plain is not None and not self._held:
            plain = self._plain.take(data)
            if plain is not None:
                frames, out = plain
                self.tokens += frames
                return Relayed(out, frames, True)
        return self._inspect(data)

    def end(self) -> Relayed:
        """The upstream closed. A stream without its terminator was cut, whatever it had said."""
        if self._over:
            return Relayed()
        if self._whole is not None:
            relayed = self._whole.end()
            self.usage, self.tokens = self._whole.usage, self._whole.tokens
            self._stop()
            return relayed
        frames, rest = self._framer.end()
        relayed = self._frames(frames)
        if self._over:
            return relayed
        if (data_of(rest) or b"").strip() == b"[DONE]":
            self._terminator(relayed)
        elif not self._said:
            relayed.failure = broken("The upstream answered with an empty stream.", "upstream_empty")
        else:
            relayed.failure = broken("The upstream stopped before the end of its answer.", "upstream_truncated")
        self._stop()
        return relayed

    def _inspect(self, data: bytes) -> Relayed:
        """The careful way: frame by frame, each parsed."""
        if self._over:
            return Relayed()
        if not self._begun:
            data = data.lstrip(b" \t\r\n")
            if not data:
                return Relayed()
            self._begun = True
            if data[:1] in (b"{", b"["):
                self._whole = WholeReader(self._call, self._kind, as_stream=True)
        if self._whole is not None:
            return self._whole.feed(data)
        try:
            frames = self._framer.feed(data)
        except EventTooLarge as error:
            relayed = self._frames(error.frames)
            if not self._over:
                self._stop()
                relayed.failure = broken("The upstream sent an event that is too large.", "upstream_too_large")
            return relayed
        self._held += len(data) - sum(map(len, frames))
        return self._frames(frames)

    def _frames(self, frames: list[bytes]) -> Relayed:
        """Pass on complete frames until one of them ends the answer."""
        relayed = Relayed()
        out: list[bytes] = []
        for frame in frames:
            plain = self._plain.take(frame) if self._plain is not None else None
            if plain is not None:
                relayed.tokens += 1
                relayed.content = True
                out.append(plain[1])
                continue
            text = (data_of(frame) or b"").strip()
            if not text:
                if self._said and frame.startswith(b":"):
                    out.append(_KEEP_ALIVE)
                continue
            if text == b"[DONE]":
                self._terminator(relayed)
                break
            passed = self._pass_on(frame, text, relayed)
            if relayed.failure is not None:
                self._stop()
                break
            if passed:
                out.append(passed)
                self._said = True
        self.tokens += relayed.tokens
        relayed.out = b"".join(out) + relayed.out
        return relayed

    def _stop(self) -> None:
        self._over = True
        self._plain = None

    def _terminator(self, relayed: Relayed) -> None:
        """The upstream says it is done: believe it, unless nothing or no end was said."""
        self._stop()
        if self._finish_required and not self._finished:
            relayed.failure = broken("The upstream ended its answer without saying why.", "upstream_incomplete")
        elif not self._said:
            relayed.failure = broken("The upstream answered with an empty stream.", "upstream_empty")
        else:
            relayed.done = True
            relayed.out = _DONE

    def _pass_on(self, frame: bytes, text: bytes, relayed: Relayed) -> bytes:
        """The bytes to pass on for one frame, b"" when it is dropped; counts and failures go into `relayed`."""
        try:
            chunk = orjson.loads(text)
        except orjson.JSONDecodeError:
            relayed.failure = broken("The upstream sent an event that is not JSON.", "upstream_malformed")
            return b""
        error = read_error(chunk)
        if error is not None:
            relayed.failure = classify_error(self._kind, error)
            return b""
        if not isinstance(chunk, dict):
            relayed.failure = broken("The upstream sent an event that is no object.", "upstream_malformed")
            return b""
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self.usage = read_usage(usage)
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            if not (isinstance(usage, dict) and self._call.wants_usage):
                return b""
            changed = choices is None
            chunk["choices"] = []
        else:
            changed = False
            kept = [choice for choice in choices if self._relevant(choice)]
            if not kept:
                return b""
            for choice in kept:
                changed |= self._mend(choice, relayed)
            if relayed.failure is not None:
                return b""
            if len(kept) != len(choices):
                chunk["choices"] = kept
                changed = True
        if self._plain is None and self._choices_are_one():
            self._plain = plain_like(text, chat=self._call.endpoint is Endpoint.CHAT)
        if changed:
            return b"data: %b\n\n" % orjson.dumps(chunk)
        if frame.startswith(b"data:") and frame.endswith(b"\n\n") and frame.count(b"\n") == 2 and b"\r" not in frame:
            return frame
        return b"data: %b\n\n" % (text if b"\n" not in text and b"\r" not in text else orjson.dumps(chunk))

    def _relevant(self, choice: Any) -> bool:
        """Whether a client can do anything with a choice: a content filter's note without a delta breaks clients."""
        if not isinstance(choice, dict):
            return False
        return "delta" in choice or "text" in choice or bool(choice.get("finish_reason"))

    def _mend(self, choice: dict[str, Any], relayed: Relayed) -> bool:
        """Note how a choice goes on and remove from it what was said before; True when it was changed."""
        reason = choice.get("finish_reason")
        if reason:
            self._finished = True
            if gave_up(reason):
                relayed.failure = _given_up(str(reason))
        if self._call.endpoint is not Endpoint.CHAT:
            if says(choice):
                relayed.tokens += 1
                relayed.content = True
            return False
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            choice["delta"] = {}
            return True
        index = index_of(choice, 0)
        changed = False
        if index not in self._choices:
            self._choices.add(index)
            if not delta.get("role"):
                choice["delta"] = delta = {**delta, "role": "assistant"}
                changed = True
        elif delta.get("role"):
            del delta["role"]
            changed = True
        if says(delta):
            relayed.tokens += 1
            relayed.content = True
            calls = delta.get("tool_calls")
            if isinstance(calls, list):
                for position, call in enumerate(calls):
                    if isinstance(call, dict):
                        changed |= self._mend_tool(index, position, call)
        return changed

    def _mend_tool(self, choice: int, position: int, call: dict[str, Any]) -> bool:
        changed = False
        index = index_of(call, position)
        if call.get("index") != index:
            call["index"] = index
            changed = True
        function = call.get("function")
        named = isinstance(function, dict) and bool(function.get("name"))
        if not call.get("id") and not named:
            return changed
        if (choice, index) not in self._names:
            self._names.add((choice, index))
            return changed
        call.pop("id", None)
        call.pop("type", None)
        if isinstance(function, dict):
            function.pop("name", None)
        return True

    def _choices_are_one(self) -> bool:
        """With several choices, whose role was said depends on the choice, so every frame is parsed."""
        return self._call.body.get("n") in (None, 1) and (
            bool(self._choices) or self._call.endpoint is not Endpoint.CHAT
        )


def _given_up(reason: str) -> Failure:
    return broken(f"The upstream gave the answer up ({reason}).", "upstream_aborted")
