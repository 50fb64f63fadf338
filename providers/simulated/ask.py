"""A request body read into what the simulated engine needs: prompts as tokens, lengths, and the text it will answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Any

import orjson

from providers.simulated.errors import ApiError
from providers.simulated.schema import smallest
from providers.simulated.text import TOKEN_BYTES, padded, tokens_of

IMAGE_TOKENS = 256
_MOST_CHOICES = 128


class Kind(StrEnum):
    """The three things that can be asked for."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True)
class Ask:
    """One parsed request. Sizes are tokens."""

    kind: Kind
    model: str
    prompts: tuple[bytes, ...]
    """Padded, four bytes a token; several only for completions and embeddings."""
    context: bytes
    """What decides the text: the prompt without the partial answer that is to be continued."""
    offset: int = 0
    """Tokens of the answer that exist already (a partial answer to be continued)."""
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    running_usage: bool = False
    """Usage in every event."""
    max_tokens: int | None = None
    exact: bool = False
    """Run to the maximum whatever length would be drawn."""
    stop: tuple[str, ...] = ()
    fixed: str | None = None
    """The answer if it must be this (a JSON value, arguments of a tool call); ASCII."""
    tool: str | None = None
    """The function to call with `fixed` as arguments."""
    greedy: bool = False
    seed: int | None = None
    salt: str | None = None
    priority: int = 0
    base64: bool = False
    dimensions: int | None = None


def read_ask(kind: Kind, body: Mapping[str, Any]) -> Ask:
    """Parse a body. Raises ApiError 400 naming the field; the model name is not looked up here."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise ApiError(400, "model is required and must be a string", param="model")
    stream = _flag(body, "stream")
    options = body.get("stream_options") or {}
    if options and not stream:
        raise ApiError(400, "stream_options needs stream to be true", param="stream_options")
    if not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object", param="stream_options")
    if kind is Kind.CHAT:
        prompt, context, offset = _chat_prompt(body)
        prompts: tuple[bytes, ...] = (prompt,)
    else:
        prompts = _prompts(body.get("prompt" if kind is Kind.COMPLETION else "input"), kind)
        context, offset = prompts[0], 0
    fixed, tool = _structure(body) if kind is Kind.CHAT else (None, None)
    return Ask(
        kind=kind,
        model=model,
        prompts=prompts,
        context=context,
        offset=offset,
        n=_whole(body, "n", 1, _MOST_CHOICES) or 1,
        stream=stream and kind is not Kind.EMBEDDING,
        include_usage=options.get("include_usage") is True,
        running_usage=options.get("continuous_usage_stats") is True,
        max_tokens=_maximum(kind, body),
        exact=_flag(body, "ignore_eos"),
        stop=_stop(body.get("stop")),
        fixed=fixed,
        tool=tool,
        greedy=body.get("temperature") == 0,
        seed=_whole(body, "seed", None, None),
        salt=_salt(body),
        priority=_whole(body, "priority", None, None) or 0,
        base64=body.get("encoding_format") == "base64",
        dimensions=_whole(body, "dimensions", 1, 65_536),
    )


def _maximum(kind: Kind, body: Mapping[str, Any]) -> int | None:
    value = _whole(body, "max_completion_tokens", 1, None)
    if value is None:
        value = _whole(body, "max_tokens", 1, None)
    return 16 if value is None and kind is Kind.COMPLETION else value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise ApiError(400, f"{name} must be true or false", param=name)


def _whole(body: Mapping[str, Any], name: str, least: int | None, most: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise ApiError(400, f"{name} must be an integer", param=name)
    if least is not None and value < least:
        raise ApiError(400, f"{name} must be at least {least}, got {value}", param=name)
    if most is not None and value > most:
        raise ApiError(400, f"{name} must be at most {most}, got {value}", param=name)
    return value


def _salt(body: Mapping[str, Any]) -> str | None:
    value = body.get("cache_salt")
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= 128 or any(c in value for c in "@/\\\0"):
        raise ApiError(400, "cache_salt must be 1 to 128 characters without @, / or \\", param="cache_salt")
    return value


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(s, str) for s in stops):
        raise ApiError(400, "stop must be a string or a list of strings", param="stop")
    return tuple(s for s in stops if s)


def _prompts(value: Any, kind: Kind) -> tuple[bytes, ...]:
    """A string, a list of strings, a list of token ids, or a list of such lists."""
    name = "prompt" if kind is Kind.COMPLETION else "input"
    if isinstance(value, str):
        prompts = [value.encode("utf-8", "surrogatepass")]
    elif isinstance(value, list) and value and all(isinstance(v, str) for v in value):
        prompts = [v.encode("utf-8", "surrogatepass") for v in value]
    elif isinstance(value, list) and value and all(_is_token(v) for v in value):
        prompts = [_ids(value)]
    elif (
        isinstance(value, list)
        and value
        and all(isinstance(v, list) and v and all(_is_token(t) for t in v) for v in value)
    ):
        prompts = [_ids(v) for v in value]
    else:
        raise ApiError(400, f"{name} must be text, token ids, or a list of either", param=name)
    if any(not p for p in prompts):
        raise ApiError(400, f"{name} must not be empty", param=name)
    return tuple(padded(p) for p in prompts)


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32


def _ids(tokens: list[int]) -> bytes:
    return b"".join(token.to_bytes(TOKEN_BYTES, "little") for token in tokens)


def _chat_prompt(body: Mapping[str, Any]) -> tuple[bytes, bytes, int]:
    """(prompt, the part of it that decides the text, tokens of the partial answer at its end)."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list with at least one message", param="messages")
    continues = _flag(body, "continue_final_message")
    generation = body.get("add_generation_prompt")
    if continues and generation is not False:
        raise ApiError(
            400,
            "continue_final_message and add_generation_prompt cannot both be true",
            param="continue_final_message",
        )
    parts = [_header("tools") + padded(orjson.dumps(body["tools"]))] if body.get("tools") else []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ApiError(400, "each message must be an object with a role", param="messages")
        parts.append(_header(message["role"]) + _content(message))
    if continues:
        last = messages[-1]
        if last["role"] != "assistant":
            raise ApiError(400, "only a final assistant message can be continued", param="messages")
        before = b"".join(parts[:-1]) + _header("assistant")
        partial = parts[-1][TOKEN_BYTES:]
        return before + partial, before, len(partial) // TOKEN_BYTES
    prompt = b"".join(parts) + (b"" if generation is False else _header("assistant"))
    return prompt, prompt, 0


def _header(role: str) -> bytes:
    return padded(b"\2" + role.encode("utf-8", "surrogatepass")[:3])


def _content(message: Mapping[str, Any]) -> bytes:
    content = message.get("content")
    out = b""
    if isinstance(content, str):
        out = padded(content.encode("utf-8", "surrogatepass"))
    elif isinstance(content, list):
        out = b"".join(_part(part) for part in content)
    elif content is not None:
        raise ApiError(400, "content must be text, a list of parts or null", param="messages")
    if message.get("tool_calls"):
        out += padded(orjson.dumps(message["tool_calls"]))
    return out


def _part(part: Any) -> bytes:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return padded(part["text"].encode("utf-8", "surrogatepass"))
    if isinstance(part, dict) and isinstance(part.get("type"), str):
        # Pictures and sounds take a fixed room and are told apart by their bytes.
        return blake2b(orjson.dumps(part), digest_size=32).digest() * (IMAGE_TOKENS * TOKEN_BYTES // 32)
    raise ApiError(400, "a content part must be an object with a type", param="messages")


def _structure(body: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """(text that the answer must be, function to call with it)."""
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools is not None and not isinstance(tools, list):
        raise ApiError(400, "tools must be a list", param="tools")
    functions: dict[str, Any] = {}
    for tool in tools or []:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ApiError(400, "each tool must have a function with a name", param="tools")
        functions[function["name"]] = function.get("parameters") or {"type": "object"}
    if choice == "required" or isinstance(choice, dict):
        wanted = next(iter(functions), None) if choice == "required" else _wanted(choice)
        if wanted not in functions:
            raise ApiError(400, "tool_choice names no function of tools", param="tool_choice")
        return _dump(smallest(functions[wanted])), wanted
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") == "json_object":
        return "{}", None
    if isinstance(form, dict) and form.get("type") == "json_schema":
        wrapper = form.get("json_schema")
        return _dump(smallest(wrapper.get("schema", {}) if isinstance(wrapper, dict) else {})), None
    return None, None


def _wanted(choice: Mapping[str, Any]) -> str | None:
    function = choice.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _dump(value: Any) -> str:
    """JSON in ASCII, so that it can be cut anywhere."""
    text = orjson.dumps(value).decode()
    return text if text.isascii() else "".join(c if ord(c) < 128 else _escape(c) for c in text)


def _escape(character: str) -> str:
    raw = character.encode("utf-16-be")
    return "".join(f"\\u{int.from_bytes(raw[i : i + 2], 'big'):04x}" for i in range(0, len(raw), 2))


def prompt_tokens(prompt: bytes) -> int:
    """Tokens of a padded prompt."""
    return len(prompt) // TOKEN_BYTES


def fixed_tokens(text: str) -> int:
    """Tokens of a fixed answer; even an empty one takes the token that ends it."""
    return max(1, tokens_of(text))
