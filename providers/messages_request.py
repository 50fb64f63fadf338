"""An Anthropic Messages request read into the common form, for upstreams of another dialect.

Caching hints, and what only tunes how fast or by whom a request is served, are left out; whatever would change the
answer and has no common form is refused by name. A signature this gateway made up (see `messages_answer`) is no
signature: the thought is kept and the signature is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson

from providers.conversation import (
    Choice,
    Format,
    Media,
    Part,
    Prompt,
    Role,
    Text,
    Thought,
    Tool,
    ToolResult,
    ToolUse,
    Turn,
)
from providers.exchange import Call, Unsupported
from providers.fields import STEERING
from providers.messages_answer import OWN_SIGNATURE
from providers.openai_request import EMPTY_SCHEMA, integer, number

_ROLES: Mapping[str, Role] = MappingProxyType({"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM})
_CHOICES: Mapping[str, Choice] = MappingProxyType(
    {"auto": Choice.AUTO, "any": Choice.ANY, "none": Choice.NONE, "tool": Choice.NAMED}
)
_READ = frozenset(
    {
        "model", "messages", "system", "max_tokens", "stream", "stop_sequences", "temperature", "top_p", "top_k",
        "tools", "tool_choice", "thinking", "output_config", "output_format", "metadata", "service_tier",
    }
)  # fmt: skip
_HINTS = frozenset({"cache_control", "diagnostics", "speed", "betas"})
"""Fields without a meaning elsewhere that leave the answer as it is."""
_BILLING = "x-anthropic-billing-header"
"""Begins a system block that differs with every request and would spoil the prefix cache of any engine."""
_EFFORTS = frozenset({"low", "medium", "high", "xhigh", "max"})
# Thinking tokens up to which an effort is meant, where a target knows efforts only.
_EFFORT_UP_TO = ((2048, "low"), (16384, "medium"))

NAMES: Mapping[str, str] = MappingProxyType(
    {
        "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
        "response_format": "output_config.format",
        "reasoning_effort": "thinking",
        "stop": "stop_sequences",
    }
)
"""Names of the common form's own errors in this dialect's words."""


def read_messages(call: Call) -> Prompt:
    """The request of `call`. Raises Unsupported naming the first field that has no common form."""
    body = call.body
    for name, value in body.items():
        if name not in _READ and name not in _HINTS and name not in STEERING and value not in (None, [], {}):
            raise Unsupported(name)
    choice, tool_name, parallel = _choice(body.get("tool_choice"))
    effort, budget = _thinking(body)
    cap = integer("max_tokens", body.get("max_tokens"))
    if cap == 0:
        raise Unsupported("max_tokens", "max_tokens 0 (warming the cache) is not supported by this provider")
    stop = body.get("stop_sequences")
    metadata = body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    tier = body.get("service_tier")
    return Prompt(
        turns=(*_system(body.get("system")), *_turns(body.get("messages"))),
        stream=call.stream,
        output_cap=cap,
        temperature=number("temperature", body.get("temperature")),
        top_p=number("top_p", body.get("top_p")),
        top_k=integer("top_k", body.get("top_k")),
        stop=tuple(word for word in stop if isinstance(word, str)) if isinstance(stop, list) else (),
        tools=_tools(body.get("tools")),
        choice=choice,
        tool_name=tool_name,
        parallel_tools=parallel,
        format=_format(body),
        effort=effort,
        thinking_budget=budget,
        user=user if isinstance(user, str) else None,
        service_tier="default" if tier == "standard_only" else "auto" if tier == "auto" else None,
    )


def _system(given: Any) -> list[Turn]:
    if given is None or given == "":
        return []
    if isinstance(given, str):
        return [Turn(Role.SYSTEM, (Text(given),))]
    parts = [part for part in _blocks(given, "system") if isinstance(part, Text)]
    kept = tuple(part for part in parts if not part.text.startswith(_BILLING))
    return [Turn(Role.SYSTEM, kept)] if kept else []


def _turns(messages: Any) -> list[Turn]:
    turns: list[Turn] = []
    names: dict[str, str] = {}  # id of a tool call -> name of its tool, for results that only carry the id
    for place, message in enumerate(messages if isinstance(messages, list) else ()):
        where = f"messages[{place}]"
        if not isinstance(message, dict):
            raise Unsupported(where, f"{where} must be an object")
        role = message.get("role")
        known = _ROLES.get(role) if isinstance(role, str) else None
        if known is None:
            raise Unsupported(f"{where}.role", f"{where}.role {role!r} is not supported by this provider")
        content = message.get("content")
        if isinstance(content, str):
            parts: list[Part] = [Text(content)] if content else []
        else:
            parts = _blocks(content, f"{where}.content", names)
        if parts:
            turns.append(Turn(known, tuple(parts)))
    return turns


def _blocks(content: Any, where: str, names: dict[str, str] | None = None) -> list[Part]:
    if not isinstance(content, list):
        raise Unsupported(where, f"{where} must be a string or a list of blocks")
    parts: list[Part] = []
    for place, block in enumerate(content):
        parts.extend(_block(block, f"{where}[{place}]", {} if names is None else names))
    return parts


def _block(block: Any, where: str, names: dict[str, str]) -> list[Part]:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text":
        text = block.get("text")
        return [Text(text)] if isinstance(text, str) and text else []
    if kind == "image":
        return [_image(block.get("source"), where)]
    if kind == "document":
        return _document(block, where)
    if kind == "thinking":
        return _thought(block)
    if kind == "redacted_thinking":
        data = block.get("data")
        return [Thought("", sealed=data)] if isinstance(data, str) and data else []
    if kind == "tool_use" and isinstance(block.get("name"), str) and isinstance(block.get("id"), str):
        names[block["id"]] = block["name"]
        return [_use(block, where)]
    if kind == "tool_result" and isinstance(block.get("tool_use_id"), str):
        return [_result(block, where, names)]
    raise Unsupported(f"{where}.type", f"{where}: a block of type {kind!r} is not supported by this provider")


def _thought(block: dict[str, Any]) -> list[Part]:
    text, signature = block.get("thinking"), block.get("signature")
    text = text if isinstance(text, str) else ""
    own = not isinstance(signature, str) or not signature or signature.startswith(OWN_SIGNATURE)
    return [] if own and not text else [Thought(text, None if own else signature)]


def _use(block: dict[str, Any], where: str) -> ToolUse:
    given = block.get("input")
    extra = block.get("extra_content")
    google = extra.get("google") if isinstance(extra, dict) else None
    signature = google.get("thought_signature") if isinstance(google, dict) else None
    return ToolUse(
        id=block["id"],
        name=block["name"],
        arguments=orjson.dumps(given).decode() if isinstance(given, dict) else "{}",
        where=where,
        signature=signature if isinstance(signature, str) else None,
    )


def _result(block: dict[str, Any], where: str, names: dict[str, str]) -> ToolResult:
    content, id_ = block.get("content"), block["tool_use_id"]
    if content is None or isinstance(content, str):
        parts: tuple[Text | Media, ...] = (Text(content),) if content else ()
    else:
        inner = _blocks(content, f"{where}.content")
        parts = tuple(part for part in inner if isinstance(part, Text | Media))
        if len(parts) != len(inner):
            raise Unsupported(f"{where}.content", f"{where}.content may hold text, images and documents only")
    return ToolResult(id_, names.get(id_), parts, where, is_error=block.get("is_error") is True)


def _image(source: Any, where: str) -> Media:
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "base64" and isinstance(source.get("data"), str) and isinstance(source.get("media_type"), str):
        return Media(where, media_type=source["media_type"].lower(), data=source["data"])
    if kind == "url" and isinstance(source.get("url"), str):
        return Media(where, url=source["url"])
    raise Unsupported(f"{where}.source", f"{where}: an image of source {kind!r} is not supported by this provider")


def _document(block: dict[str, Any], where: str) -> list[Part]:
    given, title = block.get("source"), block.get("title")
    source: dict[str, Any] = given if isinstance(given, dict) else {}
    kind = source.get("type")
    citations = block.get("citations")
    if isinstance(citations, dict) and citations.get("enabled") is True:
        raise Unsupported(f"{where}.citations", f"{where}: citations are not supported by this provider")
    name = title if isinstance(title, str) and title else None
    if kind == "text" and isinstance(source.get("data"), str):
        return [Text(source["data"] if name is None else f"{name}\n\n{source['data']}")]
    if kind == "content":
        content = source.get("content")
        return [Text(content)] if isinstance(content, str) and content else _blocks(content, f"{where}.source.content")
    if kind == "base64" and isinstance(source.get("data"), str):
        media_type = source.get("media_type")
        media_type = media_type.lower() if isinstance(media_type, str) else "application/pdf"
        return [Media(where, media_type=media_type, data=source["data"], name=name)]
    if kind == "url" and isinstance(source.get("url"), str):
        return [Media(where, media_type="application/pdf", url=source["url"], name=name)]
    raise Unsupported(f"{where}.source", f"{where}: a document of source {kind!r} is not supported by this provider")


def _tools(given: Any) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    for place, tool in enumerate(given if isinstance(given, list) else ()):
        where = f"tools[{place}]"
        kind = tool.get("type") if isinstance(tool, dict) else "nothing"
        if kind not in (None, "custom"):
            raise Unsupported(f"{where}.type", f"{where}: a tool of type {kind!r} is not supported by this provider")
        name, schema = tool.get("name"), tool.get("input_schema")
        if not isinstance(name, str):
            raise Unsupported(f"{where}.name", f"{where}.name is missing")
        description, strict = tool.get("description"), tool.get("strict")
        tools.append(
            Tool(
                name=name,
                description=description if isinstance(description, str) else None,
                schema=schema if isinstance(schema, dict) and schema else dict(EMPTY_SCHEMA),
                strict=strict if isinstance(strict, bool) else None,
            )
        )
    return tuple(tools)


def _choice(given: Any) -> tuple[Choice | None, str | None, bool | None]:
    if given is None:
        return None, None, None
    kind = given.get("type") if isinstance(given, dict) else None
    choice = _CHOICES.get(kind) if isinstance(kind, str) else None
    name = given.get("name") if choice is Choice.NAMED else None
    if choice is None or (choice is Choice.NAMED and not isinstance(name, str)):
        raise Unsupported("tool_choice")
    return choice, name, False if given.get("disable_parallel_tool_use") is True else None


def _format(body: dict[str, Any]) -> Format | None:
    config = body.get("output_config")
    given = config.get("format") if isinstance(config, dict) else None
    given = body.get("output_format") if given is None else given
    if given is None:
        return None
    if isinstance(given, dict) and given.get("type") == "json_schema" and isinstance(given.get("schema"), dict):
        return Format(schema=given["schema"])
    raise Unsupported("output_config.format")


def _thinking(body: dict[str, Any]) -> tuple[str | None, int | None]:
    """Effort and budget; a model's own judgement where the client leaves it that."""
    config, thinking = body.get("output_config"), body.get("thinking")
    effort = config.get("effort") if isinstance(config, dict) else None
    if effort is not None and not (isinstance(effort, str) and effort in _EFFORTS):
        raise Unsupported("output_config.effort")
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if thinking is not None and kind not in ("enabled", "disabled", "adaptive", "between_tools"):
        raise Unsupported("thinking")
    if kind == "disabled":
        return "none", None
    budget = thinking.get("budget_tokens") if kind == "enabled" and isinstance(thinking, dict) else None
    if not isinstance(budget, int) or isinstance(budget, bool):
        return effort, None
    if effort is None:
        effort = next((name for most, name in _EFFORT_UP_TO if budget <= most), "high")
    return effort, budget
