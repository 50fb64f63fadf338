"""A request in the common form written as an OpenAI chat request, for upstreams of that dialect.

Results of tools become messages of their own before the rest of the turn they came in; pictures in a result, which a
tool message has no place for, follow as the user's. What depends on the kind of upstream beyond the facts asked here is
left to the rewriting every chat request goes through.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from providers.conversation import Choice, Media, Prompt, Role, Text, Thought, Tool, ToolResult, ToolUse, Turn
from providers.engines import Facts
from providers.exchange import Unsupported

_CHOICES: Mapping[Choice, str] = MappingProxyType({Choice.AUTO: "auto", Choice.ANY: "required", Choice.NONE: "none"})


def write_chat(prompt: Prompt, model: str, facts: Facts) -> dict[str, Any]:
    """The request body. Raises Unsupported naming the field that has no place in it."""
    body: dict[str, Any] = {"model": model, "messages": _messages(prompt.turns, facts)}
    last = prompt.turns[-1] if prompt.turns else None
    if last is not None and last.role is Role.ASSISTANT and isinstance(last.parts[-1], Text):
        if not facts.continues:
            raise Unsupported("messages", "an answer begun by the caller is not supported by this provider")
        body.update(continue_final_message=True, add_generation_prompt=False)
    if prompt.top_k is not None and not facts.extras:
        raise Unsupported("top_k")
    options: dict[str, Any] = {
        "max_completion_tokens": prompt.output_cap,
        "temperature": prompt.temperature,
        "top_p": prompt.top_p,
        "top_k": prompt.top_k,
        "seed": prompt.seed,
        "presence_penalty": prompt.presence_penalty,
        "frequency_penalty": prompt.frequency_penalty,
        "stop": list(prompt.stop) or None,
        "reasoning_effort": prompt.effort,
        "user": prompt.user,
        "service_tier": None if facts.engine else prompt.service_tier,
    }
    body.update((name, value) for name, value in options.items() if value is not None)
    if prompt.tools:
        body["tools"] = [_tool(tool) for tool in prompt.tools]
        if prompt.choice is Choice.NAMED:
            body["tool_choice"] = {"type": "function", "function": {"name": prompt.tool_name}}
        elif prompt.choice is not None:
            body["tool_choice"] = _CHOICES[prompt.choice]
        if prompt.parallel_tools is not None:
            body["parallel_tool_calls"] = prompt.parallel_tools
    if prompt.format is not None:
        body["response_format"] = _format(prompt)
    if prompt.verbosity is not None:
        body["verbosity"] = prompt.verbosity
    if prompt.stream:
        body["stream"] = True
    return body


def _format(prompt: Prompt) -> dict[str, Any]:
    form = prompt.format
    if form is None or form.schema is None:
        return {"type": "json_object"}
    told: dict[str, Any] = {"name": form.name, "schema": form.schema}
    if form.strict is not None:
        told["strict"] = form.strict
    return {"type": "json_schema", "json_schema": told}


def _messages(turns: tuple[Turn, ...], facts: Facts) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for turn in turns:
        if turn.role is Role.SYSTEM:
            words = "\n\n".join(part.text for part in turn.parts if isinstance(part, Text))
            messages.append({"role": "system", "content": words})
        elif turn.role is Role.ASSISTANT:
            messages.append(_assistant(turn, facts))
        else:
            messages.extend(_user(turn))
    return messages


def _assistant(turn: Turn, facts: Facts) -> dict[str, Any]:
    words = "".join(part.text for part in turn.parts if isinstance(part, Text))
    calls = [_call(part) for part in turn.parts if isinstance(part, ToolUse)]
    told: dict[str, Any] = {"role": "assistant", "content": words or (None if calls else "")}
    thought = "".join(part.text for part in turn.parts if isinstance(part, Thought))
    if thought and facts.engine:
        told["reasoning_content"] = thought
    if calls:
        told["tool_calls"] = calls
    return told


def _call(use: ToolUse) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": use.id,
        "type": "function",
        "function": {"name": use.name, "arguments": use.arguments or "{}"},
    }
    if use.signature is not None:
        told["extra_content"] = {"google": {"thought_signature": use.signature}}
    return told


def _user(turn: Turn) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    rest: list[dict[str, Any]] = []
    for part in turn.parts:
        if isinstance(part, ToolResult):
            # There is no slot that says a tool failed, so the text does.
            text = f"Error: {part.text}" if part.is_error else part.text
            messages.append({"role": "tool", "tool_call_id": part.id, "content": text})
            rest.extend(_media(inner) for inner in part.parts if isinstance(inner, Media))
    for part in turn.parts:
        if isinstance(part, Text):
            rest.append({"type": "text", "text": part.text})
        elif isinstance(part, Media):
            rest.append(_media(part))
    if len(rest) == 1 and rest[0]["type"] == "text":
        messages.append({"role": "user", "content": rest[0]["text"]})
    elif rest:
        messages.append({"role": "user", "content": rest})
    return messages


def _media(media: Media) -> dict[str, Any]:
    if media.is_image:
        url = media.url if media.url is not None else f"data:{media.media_type};base64,{media.data}"
        image = {"url": url} if media.detail is None else {"url": url, "detail": media.detail}
        return {"type": "image_url", "image_url": image}
    if media.data is None:
        raise Unsupported(media.where, f"{media.where}: this provider takes documents as data only, not by URL")
    data = f"data:{media.media_type};base64,{media.data}"
    return {"type": "file", "file": {"filename": media.name or "document.pdf", "file_data": data}}


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}
