"""A stream that goes on from another replica after the one that served it has died.

What was relayed is kept as the bytes it was, and read only when it is needed. Another replica is then asked to continue
the partial answer: the same request with the text so far as the beginning of the answer, and as many tokens less. Its
stream is given on as if it were the first one's: the same id, time and model, no second beginning, and a usage in which
the text so far counts as output and not as prompt. At temperature 0 the text is what the first replica would have said.

This is for plain text of one choice. A tool call or a structured answer cannot be begun in the middle, and what depends
on the tokens themselves (log probabilities, penalties on output tokens at temperature 0) would not be the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from providers.exchange import Call, Dialect, Endpoint, FailureKind, Reader, Relayed, Usage

CURABLE = frozenset({FailureKind.TRANSIENT, FailureKind.CAPACITY})
"""Failures of a server, not of the request."""

_KEPT_BYTES = 64 << 10  # of a stream before its text alone is kept
_CAPS = ("max_completion_tokens", "max_tokens")
_DONE = b"data: [DONE]\n\n"

# Fields that ask for more than plain text of one choice, or for something that counts tokens.
_EXCLUDE = (
    "tools", "functions", "logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids", "return_hidden_states",
    "echo", "suffix", "audio", "modalities", "use_beam_search", "truncate_prompt_tokens", "structured_outputs",
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "regex", "ebnf", "grammar", "json_schema",
    "format", "include_reasoning", "thinking_token_budget",
)  # fmt: skip
_OF_OUTPUT = ("presence_penalty", "frequency_penalty")  # they would forget what is now part of the prompt


def continuable(call: Call, policy: str) -> bool:
    """Whether a call's stream may be continued if it breaks, `policy` being that of its model."""
    body = call.body
    if policy == "never" or not call.stream or call.dialect is not Dialect.OPENAI:
        return False
    if policy == "auto" and (body.get("temperature") != 0 or any(body.get(name) for name in _OF_OUTPUT)):
        return False
    if call.endpoint is Endpoint.CHAT:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            return False
        last = messages[-1]
        begun = body.get("continue_final_message") is True
        if begun and not (isinstance(last, dict) and isinstance(last.get("content"), str)):
            return False
        if not begun and body.get("add_generation_prompt") is False:
            return False
    elif call.endpoint is not Endpoint.COMPLETIONS or not isinstance(body.get("prompt"), str):
        return False
    if body.get("n") not in (None, 1) or body.get("best_of") not in (None, 1):
        return False
    form = body.get("response_format")
    if form is not None and not (isinstance(form, dict) and form.get("type") == "text"):
        return False
    return not any(body.get(name) for name in _EXCLUDE)


@dataclass(frozen=True, slots=True)
class Said:
    """What a client has of a stream."""

    text: str
    head: dict[str, Any]  # id, object, created, model: as the first frame had them
    finish: str | None  # the reason it ended with, when that is out
    counted: bool  # the usage is out


class Transcript:
    """What has been relayed of one stream. Frames come whole, so the text is that of all frames."""

    __slots__ = ("_counted", "_finish", "_head", "_odd", "_parts", "_size", "_text")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._text: list[str] = []
        self._head: dict[str, Any] | None = None
        self._finish: str | None = None
        self._counted = False
        self._odd = False  # it holds something that is not plain text of one choice

    def add(self, data: bytes) -> None:
        """These bytes have been relayed."""
        self._parts.append(data)
        self._size += len(data)
        if self._size > _KEPT_BYTES:
            self._read()

    def said(self) -> Said | None:
        """What the client has; None where that cannot be continued."""
        self._read()
        if self._odd or self._head is None:
            return None
        return Said("".join(self._text), self._head, self._finish, self._counted)

    def _read(self) -> None:
        frames = b"".join(self._parts).split(b"\n\n")
        self._parts.clear()
        self._size = 0
        for frame in frames:
            text = frame[5:].lstrip() if frame.startswith(b"data:") else b""
            if text.startswith(b"{"):
                self._frame(orjson.loads(text))

    def _frame(self, chunk: dict[str, Any]) -> None:
        if self._head is None:
            self._head = {name: value for name, value in chunk.items() if name not in ("choices", "usage")}
        choices = chunk["choices"]
        if not choices:
            self._counted = self._counted or chunk.get("usage") is not None
            return
        choice = choices[0]
        if len(choices) > 1 or choice.get("index", 0) != 0 or choice.get("logprobs"):
            self._odd = True
        self._finish = choice.get("finish_reason") or self._finish
        delta = choice.get("delta")
        if delta is None:
            self._text.append(choice.get("text") or "")
            return
        self._text.append(delta.get("content") or "")
        if any(value for name, value in delta.items() if name not in ("role", "content")):
            self._odd = True


class Continuation:
    """The rest of one stream: the call that asks for it, and the reader that makes it the same stream.

    `tokens` are the output tokens the client has. When these are all it may have, or it has the end of the text and not
    the end of the stream, one token is asked for and thrown away: only the usage is still wanted.
    """

    __slots__ = ("_finish", "_said", "call", "tokens")

    def __init__(self, call: Call, said: Said, tokens: int) -> None:
        self.tokens = tokens
        self._said = said
        body = {**call.body}
        cap = next((body[name] for name in _CAPS if isinstance(body.get(name), int)), None)
        self._finish = said.finish
        if self._finish is None and cap is not None and tokens >= cap:
            self._finish = "length"
        for name in _CAPS:
            if isinstance(body.get(name), int):
                body[name] = 1 if self._finish is not None else body[name] - tokens
        if self._finish is not None and cap is None:
            body["max_tokens"] = 1
        if isinstance(body.get("min_tokens"), int):
            body["min_tokens"] = max(0, body["min_tokens"] - tokens)
        if said.text:
            _put(body, said.text, chat=call.endpoint is Endpoint.CHAT)
        self.call = Call(
            endpoint=call.endpoint,
            dialect=call.dialect,
            raw=orjson.dumps(body),
            body=body,
            model=call.model,
            stream=True,
            wants_usage=call.wants_usage,
        )

    @property
    def complete(self) -> bool:
        """The client has everything but the terminator."""
        return self._said.finish is not None and (self._said.counted or not self.call.wants_usage)

    @property
    def over(self) -> bool:
        """Nothing more is generated."""
        return self._finish is not None

    def reader(self, inner: Reader) -> Reader:
        """Reads the answer to `call`."""
        return _Resumed(inner, self._said, self.tokens, self._finish)


def _put(body: dict[str, Any], text: str, *, chat: bool) -> None:
    """Makes `text` the beginning of the answer."""
    if not chat:
        body["prompt"] += text
        return
    messages = list(body["messages"])
    if body.get("continue_final_message") is True:
        messages[-1] = {**messages[-1], "content": messages[-1]["content"] + text}
    else:
        messages.append({"role": "assistant", "content": text})
    body["messages"] = messages
    body["continue_final_message"] = True
    body["add_generation_prompt"] = False


class _Resumed:
    """A reader whose answer continues one that the client has already."""

    __slots__ = ("_finish", "_gap", "_inner", "_said", "_tokens")

    def __init__(self, inner: Reader, said: Said, tokens: int, finish: str | None) -> None:
        self._gap = said.text[len(said.text.rstrip()) :]
        self._inner = inner
        self._said = said
        self._tokens = tokens
        self._finish = finish  # set: no text is wanted any more

    @property
    def usage(self) -> Usage:
        """Of the whole answer: the prompt of the first attempt, the output of both."""
        used = self._inner.usage
        prompt, output = used.prompt_tokens, used.output_tokens
        if prompt is None or output is None:
            return used
        prompt = max(0, prompt - self._tokens)
        cached = None if used.cached_tokens is None else min(used.cached_tokens, prompt)
        more = 0 if self._finish is not None else output
        return Usage(prompt, self._tokens + more, cached, used.cache_write_tokens, used.reasoning_tokens)

    @property
    def tokens(self) -> int:
        """Of this attempt alone."""
        return 0 if self._finish is not None else self._inner.tokens

    def feed(self, data: bytes) -> Relayed:
        """Take the next bytes as they came."""
        return self._mend(self._inner.feed(data))

    def end(self) -> Relayed:
        """The upstream closed."""
        return self._mend(self._inner.end())

    def _mend(self, relayed: Relayed) -> Relayed:
        if relayed.out:
            frames = relayed.out.split(b"\n\n")
            frames.pop()
            relayed.out = b"".join([self._frame(frame) for frame in frames])
        if self._finish is not None:
            relayed.tokens, relayed.content = 0, False
        return relayed

    def _frame(self, frame: bytes) -> bytes:
        text = frame[5:].lstrip() if frame.startswith(b"data:") else b""
        if not text.startswith(b"{"):
            return frame + b"\n\n"
        chunk = orjson.loads(text)
        chunk.update(self._said.head)
        choices = chunk["choices"]
        if choices and not self._choice(choices[0]):
            return b""
        used = chunk.get("usage")
        if isinstance(used, dict):
            self._recount(used)
        return b"data: %b\n\n" % orjson.dumps(chunk)

    def _choice(self, choice: dict[str, Any]) -> bool:
        """Takes out of a choice what the client has or must not get; False when nothing is left of it."""
        if self._finish is not None:
            if self._said.finish is not None or not choice.get("finish_reason"):
                return False
            choice["finish_reason"] = self._finish
            choice["delta" if "delta" in choice else "text"] = {} if "delta" in choice else ""
            return True
        delta = choice.get("delta")
        if delta is None:
            choice["text"] = self._joined(choice.get("text") or "")
            return bool(choice["text"] or choice.get("finish_reason"))
        delta.pop("role", None)
        content = self._joined(delta.pop("content", None) or "")
        if content:
            delta["content"] = content
        return bool(delta or choice.get("finish_reason"))

    def _joined(self, text: str) -> str:
        """A chat template may cut the white space at the end of the partial answer, and the model says it again."""
        gap = self._gap
        if gap and text:
            self._gap = ""
            return text.removeprefix(gap)
        return text

    def _recount(self, used: dict[str, Any]) -> None:
        prompt, output = used.get("prompt_tokens"), used.get("completion_tokens")
        if not isinstance(prompt, int) or not isinstance(output, int):
            return
        used["prompt_tokens"] = max(0, prompt - self._tokens)
        used["completion_tokens"] = self._tokens + (0 if self._finish is not None else output)
        if "total_tokens" in used:
            used["total_tokens"] = used["prompt_tokens"] + used["completion_tokens"]
        details = used.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
            details["cached_tokens"] = min(details["cached_tokens"], used["prompt_tokens"])


TERMINATOR = _DONE
"""What is missing of a stream that is complete."""
