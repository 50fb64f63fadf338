"""An OpenAI chat request read into the common form, for upstreams of another dialect.

What only hints (a cache key, an end user's id at a vendor without one) is left out; what changes the answer and has no
common form is refused by name, for an answer that silently ignores half of the request helps nobody.
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
from providers.fields import asks, unread

_ROLES: Mapping[str, Role] = MappingProxyType(
    {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
)

_READ = frozenset(
    {
        "model", "messages", "stream", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k",
        "seed", "presence_penalty", "frequency_penalty", "stop", "tools", "functions", "tool_choice",
        "function_call", "parallel_tool_calls", "response_format", "reasoning_effort",
    }
)  # fmt: skip
"""The fields that have a common form. Any other changes the answer in a way no other dialect can be asked for, or asks
nothing of it.
"""
EMPTY_SCHEMA: Mapping[str, Any] = MappingProxyType({"type": "object", "properties": {}})


def read_prompt(call: Call) -> Prompt:
    """The chat request of `call`. Raises Unsupported naming the first field that has no common form."""
    body = call.body
    unread(body, _READ)
    choice, tool_name = _choice(body)
    stop = body.get("stop")
    cap = body.get("max_completion_tokens")
    return Prompt(
        turns=_turns(body.get("messages")),
        stream=call.stream,
        output_cap=integer("max_tokens", body.get("max_tokens") if cap is None else cap),
        temperature=number("temperature", body.get("temperature")),
        top_p=number("top_p", body.get("top_p")),
        top_k=integer("top_k", body.get("top_k")) if asks("top_k", body.get("top_k")) else None,
        seed=integer("seed", body.get("seed")),
        presence_penalty=number("presence_penalty", body.get("presence_penalty")) or None,
        frequency_penalty=number("frequency_penalty", body.get("frequency_penalty")) or None,
        stop=(stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, list) else (),
        tools=_tools(body),
        choice=choice,
        tool_name=tool_name,
        parallel_tools=body.get("parallel_tool_calls"),
        format=_format(body.get("response_format")),
        effort=string("reasoning_effort", body.get("reasoning_effort")),
        user=string("user", body.get("safety_identifier") or body.get("user")),
        service_tier=string("service_tier", body.get("service_tier")),
    )


def number(name: str, value: Any) -> float | None:
    """A number or None. Raises Unsupported."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise Unsupported(name, f"{name} must be a number")


def integer(name: str, value: Any) -> int | None:
    """A whole number or None. Raises Unsupported."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise Unsupported(name, f"{name} must be an integer")


def string(name: str, value: Any) -> str | None:
    """A text or None. Raises Unsupported."""
    if value is None or isinstance(value, str):
        return value
    raise Unsupported(name, f"{name} must be a string")


def _turns(messages: Any) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    names: dict[str, str] = {}  # id of a tool call -> name of its tool, for results that only carry the id
    for place, message in enumerate(messages if isinstance(messages, list) else ()):
        where = f"messages[{place}]"
        if not isinstance(message, dict):
            raise Unsupported(where, f"{where} must be an object")
        role = message.get("role")
        if role in ("tool", "function"):
            turns.append(Turn(Role.USER, (_result(message, where, names),)))
            continue
        known = _ROLES.get(role) if isinstance(role, str) else None
        if known is None:
            raise Unsupported(f"{where}.role", f"{where}.role {role!r} is not supported by this provider")
        parts: list[Part] = []
        if known is Role.ASSISTANT:
            if message.get("audio") is not None:
                raise Unsupported(f"{where}.audio")
            parts.extend(_thoughts(message))
        parts.extend(_content(message.get("content"), f"{where}.content"))
        if known is Role.ASSISTANT:
            refusal = message.get("refusal")
            if isinstance(refusal, str) and refusal:
                parts.append(Text(refusal))
            parts.extend(_calls(message, where, names))
        if parts:
            turns.append(Turn(known, tuple(parts)))
    return tuple(turns)


def _thoughts(message: dict[str, Any]) -> list[Part]:
    text = message.get("reasoning_content") or message.get("reasoning")
    return [Thought(text)] if isinstance(text, str) and text else []


def _content(content: Any, where: str) -> list[Text | Media]:
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [Text(content)]
    if not isinstance(content, list):
        raise Unsupported(where, f"{where} must be a string or a list of parts")
    parts: list[Text | Media] = []
    for place, part in enumerate(content):
        found = _part(part, f"{where}[{place}]")
        if found is not None:
            parts.append(found)
    return parts


def _part(part: Any, where: str) -> Text | Media | None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", "refusal", "input_text", "output_text"):
        text = part.get("refusal" if kind == "refusal" else "text")
        return Text(text) if isinstance(text, str) and text else None
    if kind == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        if isinstance(url, str):
            return media_of(url, f"{where}.image_url")
    if kind == "file":
        file = part.get("file")
        data = file.get("file_data") if isinstance(file, dict) else None
        if isinstance(data, str):
            return media_of(data, f"{where}.file", file.get("filename"))
        raise Unsupported(f"{where}.file", f"{where}: only files given as file_data are supported by this provider")
    raise Unsupported(f"{where}.type", f"{where}: content of type {kind!r} is not supported by this provider")


def media_of(url: str, where: str, name: Any = None) -> Media:
    """A data URI or a URL. Raises Unsupported for a data URI that is not base64."""
    name = name if isinstance(name, str) else None
    if not url.startswith("data:"):
        if not url.startswith(("http://", "https://")):
            raise Unsupported(where, f"{where} is neither a data URI nor a URL")
        return Media(where, url=url, name=name)
    head, comma, data = url[5:].partition(",")
    media_type, *options = head.split(";")
    if not comma or "base64" not in options:
        raise Unsupported(where, f"{where} is not a base64 data URI")
    return Media(where, media_type=media_type.lower() or "application/octet-stream", data=data, name=name)


def _calls(message: dict[str, Any], where: str, names: dict[str, str]) -> list[Part]:
    calls: list[Part] = []
    given = message.get("tool_calls")
    for place, call in enumerate(given if isinstance(given, list) else ()):
        here = f"{where}.tool_calls[{place}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Unsupported(here, f"{here} is not a call of a function")
        id_ = call.get("id") if isinstance(call.get("id"), str) else f"call_{place}"
        names[id_] = function["name"]
        calls.append(_use(id_, function, here, call.get("extra_content")))
    legacy = message.get("function_call")
    if isinstance(legacy, dict) and isinstance(legacy.get("name"), str):
        names[legacy["name"]] = legacy["name"]
        calls.append(_use(legacy["name"], legacy, f"{where}.function_call", None))
    return calls


def _use(id_: str, function: dict[str, Any], where: str, extra: Any) -> ToolUse:
    arguments = function.get("arguments")
    google = extra.get("google") if isinstance(extra, dict) else None
    signature = google.get("thought_signature") if isinstance(google, dict) else None
    return ToolUse(
        id=id_,
        name=function["name"],
        arguments=arguments if isinstance(arguments, str) else "",
        where=where,
        signature=signature if isinstance(signature, str) else None,
    )


def arguments_of(use: ToolUse) -> dict[str, Any]:
    """A call's arguments as an object. Raises Unsupported when the text is none, naming the call."""
    try:
        value = orjson.loads(use.arguments or "{}")
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        field = f"{use.where}.function.arguments"
        raise Unsupported(field, f"{field} is not a JSON object, which this provider needs")
    return value


def _result(message: dict[str, Any], where: str, names: dict[str, str]) -> ToolResult:
    id_ = message.get("tool_call_id") or message.get("name")
    if not isinstance(id_, str):
        raise Unsupported(f"{where}.tool_call_id", f"{where}.tool_call_id is missing")
    parts = tuple(_content(message.get("content"), f"{where}.content"))
    return ToolResult(id_, names.get(id_), parts, where)


def _tools(body: dict[str, Any]) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    given = body.get("tools")
    for place, tool in enumerate(given if isinstance(given, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != "function" or not isinstance(tool.get("function"), dict):
            raise Unsupported(f"tools[{place}].type", f"tools[{place}]: only functions are supported by this provider")
        tools.append(tool_of(tool["function"], f"tools[{place}].function"))
    legacy = body.get("functions")
    for place, function in enumerate(legacy if isinstance(legacy, list) else ()):
        if not isinstance(function, dict):
            raise Unsupported(f"functions[{place}]", f"functions[{place}] must be an object")
        tools.append(tool_of(function, f"functions[{place}]"))
    return tuple(tools)


def tool_of(function: dict[str, Any], where: str) -> Tool:
    """A function the model may call. Raises Unsupported."""
    name, schema = function.get("name"), function.get("parameters")
    if not isinstance(name, str):
        raise Unsupported(f"{where}.name", f"{where}.name is missing")
    description, strict = function.get("description"), function.get("strict")
    return Tool(
        name=name,
        description=description if isinstance(description, str) else None,
        schema=schema if isinstance(schema, dict) and schema else dict(EMPTY_SCHEMA),
        strict=strict if isinstance(strict, bool) else None,
    )


def _choice(body: dict[str, Any]) -> tuple[Choice | None, str | None]:
    field = "tool_choice" if body.get("tool_choice") is not None else "function_call"
    choice = body.get(field)
    if choice is None:
        return None, None
    if choice in ("auto", "none"):
        return Choice(choice), None
    if choice == "required":
        return Choice.ANY, None
    if isinstance(choice, dict):
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            return Choice.NAMED, name
    raise Unsupported(field)


def _format(given: Any) -> Format | None:
    kind = given.get("type") if isinstance(given, dict) else None
    if given is None or kind == "text":
        return None
    if kind == "json_object":
        return Format()
    inner = given.get("json_schema") if isinstance(given, dict) else None
    if kind == "json_schema" and isinstance(inner, dict) and isinstance(inner.get("schema"), dict):
        name, strict = inner.get("name"), inner.get("strict")
        return Format(
            schema=inner["schema"],
            name=name if isinstance(name, str) else "answer",
            strict=strict if isinstance(strict, bool) else None,
        )
    raise Unsupported("response_format")
