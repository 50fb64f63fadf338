"""Answers that leave in one piece: an OpenAI-style stream put together, and an answer that came whole.

A call that was not to be streamed is streamed upstream all the same, so that its phases and its progress are known.
What the deltas add up to is what the server would have answered: text and arguments are joined, tool calls are merged
by index, and every field nobody here knows is kept. Until the last frame nothing has left, so the attempt can still
move elsewhere.
"""

from __future__ import annotations

from typing import Any

import orjson

from providers.chunks import gave_up, index_of, read_usage, says
from providers.exchange import NO_USAGE, Call, Endpoint, Relayed, Usage
from providers.failures import broken, classify_error, read_error
from providers.mould import Mould, mould_of
from providers.sse import EventTooLarge, Framer, data_of, encode_event
from providers.whole import Whole

GATHER_MAX = 64 << 20
"""Bytes of a stream that is gathered."""
_MOULDS = 8
"""Looked for in one stream: where every frame differs in more than its text, more would be in vain."""
_PARSE_MAX = 256 << 10
"""Embeddings above this many bytes are not parsed: their usage stands at the end and is read from there."""


class WholeReader(Whole):
    """An answer that comes as one JSON object and leaves as it came, or as a stream for a client that asked for one."""

    __slots__ = ("_call", "_stream")

    def __init__(self, call: Call, kind: str, *, as_stream: bool = False) -> None:
        super().__init__(kind)
        self._call = call
        self._stream = as_stream

    def _unparsed(self, body: bytes) -> Relayed | None:
        if self._call.endpoint is Endpoint.EMBEDDINGS and len(body) > _PARSE_MAX and body.lstrip().startswith(b"{"):
            self.usage = _usage_at_the_end(body)
            return Relayed(body, content=True, done=True)
        return None

    def _accept(self, answer: Any, body: bytes) -> Relayed:
        if not isinstance(answer, dict):
            return Relayed(failure=broken("The upstream's answer is no object.", "upstream_malformed"))
        usage = answer.get("usage")
        if isinstance(usage, dict):
            self.usage = read_usage(usage)
        if self._call.endpoint is Endpoint.EMBEDDINGS:
            self.usage = _of_embeddings(self.usage)
            if not isinstance(answer.get("data"), list):
                return Relayed(failure=broken("The upstream's answer holds no embeddings.", "upstream_malformed"))
            return Relayed(body, content=True, done=True)
        choices = answer.get("choices")
        if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
            return Relayed(failure=broken("The upstream's answer holds no choices.", "upstream_malformed"))
        reason = next((choice["finish_reason"] for choice in choices if gave_up(choice.get("finish_reason"))), None)
        if reason is not None:
            return Relayed(failure=broken(f"The upstream gave the answer up ({reason}).", "upstream_aborted"))
        self.tokens = self.usage.output_tokens or 0
        out = as_stream(answer, self._call.wants_usage) if self._stream else body
        return Relayed(out, self.tokens, content=True, done=True)


def _of_embeddings(usage: Usage) -> Usage:
    """Embeddings generate nothing, and their usage does not say so."""
    return Usage(usage.prompt_tokens, 0, usage.cached_tokens, usage.cache_write_tokens, usage.reasoning_tokens)


def _usage_at_the_end(body: bytes) -> Usage:
    """The usage object of a long list of embeddings, found from its end."""
    at = body.rfind(b'"usage"')
    start = body.find(b"{", at) if at >= 0 else -1
    end = body.find(b"}", start) if start >= 0 else -1
    try:
        usage = orjson.loads(body[start : end + 1]) if end >= 0 else None
    except orjson.JSONDecodeError:
        usage = None
    return _of_embeddings(read_usage(usage) if isinstance(usage, dict) else NO_USAGE)


def as_stream(answer: dict[str, Any], wants_usage: bool) -> bytes:
    """A whole completion as the stream it might have been: all of it, its end, its usage, the terminator."""
    chat = answer.get("object") != "text_completion"
    head = {name: value for name, value in answer.items() if name not in ("choices", "usage", "object")}
    head["object"] = "chat.completion.chunk" if chat else "text_completion"
    said: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    for place, choice in enumerate(answer["choices"]):
        index = index_of(choice, place)
        if not chat:
            said.append(choice)
            continue
        message = choice.get("message")
        delta = (
            {name: value for name, value in message.items() if value is not None} if isinstance(message, dict) else {}
        )
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            delta["tool_calls"] = [{**call, "index": n} for n, call in enumerate(calls) if isinstance(call, dict)]
        rest = {name: value for name, value in choice.items() if name not in ("message", "finish_reason")}
        said.append({**rest, "index": index, "delta": {"role": "assistant", **delta}, "finish_reason": None})
        ends.append({"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")})
    frames = [{**head, "choices": [choice]} for choice in said + ends]
    if wants_usage and isinstance(answer.get("usage"), dict):
        frames.append({**head, "choices": [], "usage": answer["usage"]})
    return b"".join(encode_event(orjson.dumps(frame)) for frame in frames) + b"data: [DONE]\n\n"


class GatherReader:
    """Puts a stream together and gives the whole answer with its last frame."""

    __slots__ = ("_call", "_choices", "_finish_required", "_framer", "_head", "_kind", "_mould", "_moulds", "_over",
                 "_raw_usage", "_said", "_size", "_whole", "tokens", "usage")  # fmt: skip

    def __init__(self, call: Call, kind: str, *, finish_required: bool = False) -> None:
        self.usage: Usage = NO_USAGE
        self.tokens = 0
        self._call = call
        self._kind = kind
        self._finish_required = finish_required
        self._framer = Framer()
        self._head: dict[str, Any] = {}
        """Top-level fields: the first value that says something stays."""
        self._choices: dict[int, _Choice] = {}
        self._raw_usage: dict[str, Any] | None = None
        self._mould: Mould | None = None
        """Of the frame that was parsed last."""
        self._said: list[str] = []
        """Where the choice of that frame keeps what a frame of its mould says."""
        self._moulds = _MOULDS
        """How many more may be looked for."""
        self._size = 0
        self._over = False
        self._whole: WholeReader | None = None

    def feed(self, data: bytes) -> Relayed:
        """Take the next bytes; the answer leaves when the terminator has come."""
        if self._over:
            return Relayed()
        if not self._size:
            data = data.lstrip(b" \t\r\n")
            if data[:1] in (b"{", b"["):
                self._whole = WholeReader(self._call, self._kind)
        self._size += len(data)
        if self._whole is not None:
            return self._whole.feed(data)
        if self._size > GATHER_MAX:
            self._over = True
            return Relayed(failure=broken("The upstream's answer is too large.", "upstream_too_large"))
        try:
            return self._frames(self._framer.feed(data))
        except EventTooLarge:
            self._over = True
            return Relayed(failure=broken("The upstream sent an event that is too large.", "upstream_too_large"))

    def _frames(self, frames: list[bytes]) -> Relayed:
        relayed = Relayed()
        for frame in frames:
            said = self._mould.text(frame) if self._mould is not None else None
            if said is not None:
                self._said.append(said)
                relayed.tokens += 1
                relayed.content = True
                continue
            text = (data_of(frame) or b"").strip()
            if text == b"[DONE]":
                self._finish(relayed)
            elif text:
                tokens = relayed.tokens
                self._add(text, relayed)
                if self._moulds and relayed.tokens != tokens and relayed.failure is None:
                    self._look_for_mould(frame)
            if relayed.done or relayed.failure is not None:
                self._over = True
                break
        self.tokens += relayed.tokens
        return relayed

    def end(self) -> Relayed:
        """The upstream closed: an answer without its terminator was cut."""
        if self._over:
            return Relayed()
        if self._whole is not None:
            self._over = True
            relayed = self._whole.end()
            self.usage, self.tokens = self._whole.usage, self._whole.tokens
            return relayed
        frames, rest = self._framer.end()
        relayed = self._frames(frames)
        if self._over:
            return relayed
        self._over = True
        if (data_of(rest) or b"").strip() == b"[DONE]":
            self._finish(relayed)
        elif not self._choices:
            relayed.failure = broken("The upstream answered with an empty stream.", "upstream_empty")
        else:
            relayed.failure = broken("The upstream stopped before the end of its answer.", "upstream_truncated")
        return relayed

    def _add(self, text: bytes, relayed: Relayed) -> None:
        try:
            chunk = orjson.loads(text)
        except orjson.JSONDecodeError:
            chunk = None
        error = read_error(chunk)
        if error is not None:
            relayed.failure = classify_error(self._kind, error)
            return
        if not isinstance(chunk, dict):
            relayed.failure = broken("The upstream sent an event that is no JSON object.", "upstream_malformed")
            return
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._raw_usage = usage
            self.usage = read_usage(usage)
        choices = chunk.get("choices")
        for name, value in chunk.items():
            if name not in ("choices", "usage", "object") and (value or name not in self._head):
                self._head[name] = self._head.get(name) or value
        for place, choice in enumerate(choices if isinstance(choices, list) else ()):
            if not isinstance(choice, dict):
                continue
            index = index_of(choice, place)
            gathered = self._choices.get(index)
            if gathered is None:
                gathered = self._choices[index] = _Choice(index)
            if gathered.add(choice):
                relayed.tokens += 1
                relayed.content = True
            if gave_up(choice.get("finish_reason")):
                reason = choice["finish_reason"]
                relayed.failure = broken(f"The upstream gave the answer up ({reason}).", "upstream_aborted")

    def _look_for_mould(self, frame: bytes) -> None:
        """The frame has been added: from now on others like it need not be parsed."""
        self._moulds -= 1
        self._mould = mould = mould_of(frame)
        if mould is not None:
            choice = self._choices[mould.index]
            self._said = choice.parts[mould.name] if mould.in_delta else choice.text

    def _finish(self, relayed: Relayed) -> None:
        choices = [self._choices[index] for index in sorted(self._choices)]
        if not choices:
            relayed.failure = broken("The upstream answered with an empty stream.", "upstream_empty")
            return
        if self._finish_required and any(choice.rest.get("finish_reason") is None for choice in choices):
            relayed.failure = broken("The upstream ended its answer without saying why.", "upstream_incomplete")
            return
        chat = self._call.endpoint is Endpoint.CHAT
        answer = {
            "id": self._head.pop("id", None),
            "object": "chat.completion" if chat else "text_completion",
            "created": self._head.pop("created", None),
            "model": self._head.pop("model", None),
            "choices": [choice.joined(chat) for choice in choices],
        }
        if self._raw_usage is not None:
            answer["usage"] = self._raw_usage
        relayed.out = orjson.dumps({**answer, **self._head})
        relayed.done = True


class _Choice:
    """One choice of a stream, growing."""

    __slots__ = ("calls", "index", "message", "parts", "rest", "text")

    def __init__(self, index: int) -> None:
        self.index = index
        self.parts: dict[str, list[str]] = {}
        """Text fields of the message, by name, in pieces."""
        self.message: dict[str, Any] = {}
        """The other fields of the message."""
        self.calls: dict[int, dict[str, Any]] = {}
        """Tool calls by index; `arguments` is a list of pieces until joined."""
        self.text: list[str] = []
        self.rest: dict[str, Any] = {"finish_reason": None}
        """The other fields of the choice: the last value that says something stays."""

    def add(self, choice: dict[str, Any]) -> bool:
        """Take one delta; True when the model said something in it."""
        delta = choice.get("delta")
        said = False
        if isinstance(delta, dict):
            said = says(delta)
            self._add_delta(delta)
        text = choice.get("text")
        if isinstance(text, str) and text:
            self.text.append(text)
            said = True
        for name, value in choice.items():
            if name in ("delta", "text", "index") or (value is None and name in self.rest):
                continue
            if name == "logprobs" and isinstance(value, dict) and isinstance(self.rest.get(name), dict):
                _extend(self.rest[name], value)
            else:
                self.rest[name] = value
        return said

    def _add_delta(self, delta: dict[str, Any]) -> None:
        for name, value in delta.items():
            if value is None or name == "role":
                continue
            if name == "tool_calls" and isinstance(value, list):
                for call in value:
                    if isinstance(call, dict):
                        self._add_call(call)
            elif name == "function_call" and isinstance(value, dict):
                legacy = self.message.setdefault(name, {"name": "", "arguments": ""})
                legacy["name"] = legacy["name"] or value.get("name") or ""
                arguments = value.get("arguments")
                legacy["arguments"] += arguments if isinstance(arguments, str) else ""
            elif isinstance(value, str):
                self.parts.setdefault(name, []).append(value)
            elif isinstance(value, list) and isinstance(self.message.get(name), list):
                self.message[name] = self.message[name] + value
            else:
                self.message[name] = value

    def _add_call(self, call: dict[str, Any]) -> None:
        index = index_of(call, len(self.calls) if call.get("id") or not self.calls else max(self.calls))
        known = self.calls.setdefault(
            index, {"id": None, "type": "function", "function": {"name": "", "arguments": []}}
        )
        for name, value in call.items():
            if name == "function":
                if isinstance(value, dict):
                    self._add_function(known["function"], value)
            elif name == "id":
                known["id"] = known["id"] or value
            elif name != "index" and value:
                known[name] = value

    def _add_function(self, known: dict[str, Any], more: dict[str, Any]) -> None:
        known["name"] = known["name"] or more.get("name") or ""
        arguments = more.get("arguments")
        if isinstance(arguments, str) and arguments:
            known["arguments"].append(arguments)
        known.update({name: value for name, value in more.items() if name not in ("name", "arguments")})

    def joined(self, chat: bool) -> dict[str, Any]:
        """The choice as a whole answer holds it."""
        if not chat:
            return {"index": self.index, "text": "".join(self.text), **self.rest}
        message: dict[str, Any] = {"role": "assistant", "content": None, **self.message}
        message.update({name: "".join(pieces) for name, pieces in self.parts.items()})
        if self.calls:
            for call in self.calls.values():
                call["function"]["arguments"] = "".join(call["function"]["arguments"])
            message["content"] = message["content"] or None
            message["tool_calls"] = [self.calls[index] for index in sorted(self.calls)]
        return {"index": self.index, "message": message, **self.rest}


def _extend(known: dict[str, Any], more: dict[str, Any]) -> None:
    """Add the lists of one logprobs object to another's."""
    for name, value in more.items():
        if isinstance(value, list) and isinstance(known.get(name), list):
            known[name] = known[name] + value
        elif value is not None:
            known[name] = value
