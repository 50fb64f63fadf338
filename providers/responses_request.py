"""An OpenAI Responses request read into the common form, for upstreams that converse otherwise.

Nothing is kept between two requests, so whatever refers to an earlier one is refused by name, as are the tools a vendor
would run itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

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
from providers.fields import unread
from providers.openai_request import integer, media_of, number, string, tool_of

_ROLES: Mapping[str, Role] = MappingProxyType(
    {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
)
_READ = frozenset(
    {
        "model", "input", "instructions", "stream", "max_output_tokens", "temperature", "top_p", "top_k", "tools",
        "tool_choice", "parallel_tool_calls", "text", "reasoning",
        # at these values they ask for nothing, see below
        "background", "truncation", "include", "top_logprobs", "previous_response_id", "conversation", "prompt",
    }
)  # fmt: skip
_NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "background": (None, False),
        "truncation": (None, "disabled"),
        "include": (None, []),
        "top_logprobs": (None, 0),
        "previous_response_id": (None,),
        "conversation": (None,),
        "prompt": (None,),
    }
)
NAMES: Mapping[str, str] = MappingProxyType(
    {
        "response_format": "text.format",
        "reasoning_effort": "reasoning.effort",
        "verbosity": "text.verbosity",
        "max_tokens": "max_output_tokens",
        "messages": "input",
    }
)
"""Names of the common form's own errors in this dialect's words."""


def read_responses(call: Call) -> Prompt:
    """The request of `call`. Raises Unsupported naming the first field that has no common form."""
    body = call.body
    for name, neutral in _NEUTRAL.items():
        if body.get(name) not in neutral:
            raise Unsupported(name)
    unread(body, _READ)
    choice, tool_name = _choice(body.get("tool_choice"))
    text, reasoning = body.get("text"), body.get("reasoning")
    text = text if isinstance(text, dict) else {}
    instructions = string("instructions", body.get("instructions"))
    first = (Turn(Role.SYSTEM, (Text(instructions),)),) if instructions else ()
    return Prompt(
        turns=(*first, *_turns(body.get("input"))),
        stream=call.stream,
        output_cap=integer("max_output_tokens", body.get("max_output_tokens")),
        temperature=number("temperature", body.get("temperature")),
        top_p=number("top_p", body.get("top_p")),
        top_k=integer("top_k", body.get("top_k")),
        tools=_tools(body.get("tools")),
        choice=choice,
        tool_name=tool_name,
        parallel_tools=False if body.get("parallel_tool_calls") is False else None,
        format=_format(text.get("format")),
        effort=string("reasoning.effort", reasoning.get("effort") if isinstance(reasoning, dict) else None),
        verbosity=string("text.verbosity", text.get("verbosity")),
        user=string("user", body.get("safety_identifier") or body.get("user")),
        service_tier=string("service_tier", body.get("service_tier")),
    )


def _turns(given: Any) -> list[Turn]:
    if isinstance(given, str):
        return [Turn(Role.USER, (Text(given),))] if given else []
    turns: list[Turn] = []
    names: dict[str, str] = {}  # id of a tool call -> name of its tool
    for place, item in enumerate(given if isinstance(given, list) else ()):
        where = f"input[{place}]"
        if not isinstance(item, dict):
            raise Unsupported(where, f"{where} must be an object")
        role, parts = _item(item, where, names)
        if turns and turns[-1].role is role and role is Role.ASSISTANT:
            # What the model thought, said and called in one turn are items of their own here.
            turns[-1] = Turn(role, turns[-1].parts + parts)
        elif parts:
            turns.append(Turn(role, parts))
    return turns


def _item(item: dict[str, Any], where: str, names: dict[str, str]) -> tuple[Role, tuple[Part, ...]]:
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        known = _ROLES.get(role) if isinstance(role, str) else None
        if known is None:
            raise Unsupported(f"{where}.role", f"{where}.role {role!r} is not supported by this provider")
        return known, tuple(_content(item.get("content"), f"{where}.content"))
    if kind == "function_call" and isinstance(item.get("call_id"), str) and isinstance(item.get("name"), str):
        names[item["call_id"]] = item["name"]
        arguments, extra = item.get("arguments"), item.get("extra_content")
        google = extra.get("google") if isinstance(extra, dict) else None
        signature = google.get("thought_signature") if isinstance(google, dict) else None
        use = ToolUse(
            id=item["call_id"],
            name=item["name"],
            arguments=arguments if isinstance(arguments, str) else "",
            where=where,
            signature=signature if isinstance(signature, str) else None,
        )
        return Role.ASSISTANT, (use,)
    if kind == "function_call_output" and isinstance(item.get("call_id"), str):
        id_ = item["call_id"]
        result = ToolResult(id_, names.get(id_), tuple(_content(item.get("output"), f"{where}.output")), where)
        return Role.USER, (result,)
    if kind == "reasoning":
        words = _thought(item.get("content")) or _thought(item.get("summary"))
        return Role.ASSISTANT, ((Thought(words),) if words else ())
    raise Unsupported(f"{where}.type", f"{where}: an item of type {kind!r} is not supported by this provider")


def _thought(parts: Any) -> str:
    texts = (part.get("text") for part in (parts if isinstance(parts, list) else ()) if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def _content(content: Any, where: str) -> list[Text | Media]:
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [Text(content)]
    if not isinstance(content, list):
        raise Unsupported(where, f"{where} must be a string or a list of parts")
    parts = [_part(part, f"{where}[{place}]") for place, part in enumerate(content)]
    return [part for part in parts if part is not None]


def _part(part: Any, where: str) -> Text | Media | None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "output_text", "text", "refusal"):
        text = part.get("refusal" if kind == "refusal" else "text")
        return Text(text) if isinstance(text, str) and text else None
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        image = media_of(part["image_url"], f"{where}.image_url")
        detail = part.get("detail")
        return Media(where, image.media_type, image.data, image.url, detail=detail if isinstance(detail, str) else None)
    if kind == "input_file" and isinstance(part.get("file_data"), str):
        return media_of(part["file_data"], f"{where}.file_data", part.get("filename"))
    if kind == "input_file" and isinstance(part.get("file_url"), str):
        return Media(f"{where}.file_url", media_type="application/pdf", url=part["file_url"])
    if kind in ("input_image", "input_file"):
        raise Unsupported(f"{where}.file_id", f"{where}: files by id are not supported by this provider")
    raise Unsupported(f"{where}.type", f"{where}: content of type {kind!r} is not supported by this provider")


def _tools(given: Any) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    for place, tool in enumerate(given if isinstance(given, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != "function":
            where = f"tools[{place}].type"
            raise Unsupported(where, f"tools[{place}]: a tool of type {kind!r} is not supported by this provider")
        tools.append(tool_of(tool, f"tools[{place}]"))
    return tuple(tools)


def _choice(given: Any) -> tuple[Choice | None, str | None]:
    if given is None:
        return None, None
    if given in ("auto", "none"):
        return Choice(given), None
    if given == "required":
        return Choice.ANY, None
    if isinstance(given, dict) and given.get("type") == "function" and isinstance(given.get("name"), str):
        return Choice.NAMED, given["name"]
    raise Unsupported("tool_choice")


def _format(given: Any) -> Format | None:
    kind = given.get("type") if isinstance(given, dict) else None
    if given is None or kind == "text":
        return None
    if kind == "json_object":
        return Format()
    if kind == "json_schema" and isinstance(given.get("schema"), dict):
        name, strict = given.get("name"), given.get("strict")
        return Format(
            schema=given["schema"],
            name=name if isinstance(name, str) else "answer",
            strict=strict if isinstance(strict, bool) else None,
        )
    raise Unsupported("text.format")
