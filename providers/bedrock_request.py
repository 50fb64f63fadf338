"""A request in the common form written as a Bedrock Converse request.

Converse is one form over models of many vendors, so what a model cannot do is its own error; refused here is only what
the form has no place for. Images come as bytes, never by URL. There is no way to forbid tools but to leave them out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeGuard

import orjson

from providers.conversation import Choice, Format, Media, Part, Prompt, Role, Text, Thought, Tool, ToolResult, ToolUse
from providers.exchange import Unsupported
from providers.openai_request import arguments_of

_IMAGES: Mapping[str, str] = MappingProxyType(
    {"image/png": "png", "image/jpeg": "jpeg", "image/jpg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
)
_DOCUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "application/pdf": "pdf",
        "text/csv": "csv",
        "text/html": "html",
        "text/plain": "txt",
        "text/markdown": "md",
        "application/msword": "doc",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
        "application/vnd.ms-excel": "xls",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    }
)
_TIERS = frozenset({"priority", "default", "flex"})
_NAME = re.compile(r"[^0-9A-Za-z \-()\[\]]+")


def write_request(prompt: Prompt) -> dict[str, Any]:
    """The request body, the same for a stream. Raises Unsupported naming the field that has no place in it."""
    _refuse(prompt)
    words, turns = prompt.leading_system()
    if not turns or turns[0].role is not Role.USER:
        raise Unsupported("messages", "the conversation must begin with a user message for this provider")
    body: dict[str, Any] = {
        "messages": [{"role": turn.role.value, "content": _content(turn.parts)} for turn in turns],
    }
    if words:
        body["system"] = [{"text": text} for text in words]
    inference = {
        "maxTokens": prompt.output_cap,
        "temperature": prompt.temperature,
        "topP": prompt.top_p,
        "stopSequences": list(prompt.stop) or None,
    }
    inference = {name: value for name, value in inference.items() if value is not None}
    if inference:
        body["inferenceConfig"] = inference
    tools = _tool_config(prompt, any(isinstance(part, ToolUse) for turn in turns for part in turn.parts))
    if tools is not None:
        body["toolConfig"] = tools
    output: dict[str, Any] = {}
    if prompt.format is not None:
        output["textFormat"] = _format(prompt.format)
    if prompt.effort is not None and prompt.effort != "none" and prompt.thinking_budget is None:
        output["effort"] = prompt.effort
    if output:
        body["outputConfig"] = output
    extra: dict[str, Any] = {}
    if prompt.top_k is not None:
        extra["top_k"] = prompt.top_k
    if prompt.effort == "none":
        extra["thinking"] = {"type": "disabled"}
    elif prompt.thinking_budget is not None:
        extra["thinking"] = {"type": "enabled", "budget_tokens": prompt.thinking_budget}
    if extra:
        body["additionalModelRequestFields"] = extra
    if prompt.service_tier in _TIERS:
        body["serviceTier"] = {"type": prompt.service_tier}
    return body


def _refuse(prompt: Prompt) -> None:
    for name in ("seed", "presence_penalty", "frequency_penalty"):
        if getattr(prompt, name) is not None:
            raise Unsupported(name)
    if prompt.format is not None and prompt.format.schema is None:
        raise Unsupported("response_format", "response_format json_object is not supported by this provider")
    if prompt.parallel_tools is False and prompt.tools:
        raise Unsupported("parallel_tool_calls")


def _content(parts: tuple[Part, ...]) -> list[dict[str, Any]]:
    results = [_result(part) for part in parts if isinstance(part, ToolResult)]
    others = [_thought(part) if isinstance(part, Thought) else _block(part) for part in parts if _is_said(part)]
    return results + others


def _is_said(part: Part) -> TypeGuard[Text | Media | ToolUse | Thought]:
    return not isinstance(part, ToolResult)


def _thought(thought: Thought) -> dict[str, Any]:
    """A thought the model has signed or sealed (others have been left out before)."""
    if thought.sealed is not None:
        return {"reasoningContent": {"redactedContent": thought.sealed}}
    return {"reasoningContent": {"reasoningText": {"text": thought.text, "signature": thought.signature}}}


def _block(part: Text | Media | ToolUse) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"text": part.text}
    if isinstance(part, ToolUse):
        return {"toolUse": {"toolUseId": part.id, "name": part.name, "input": arguments_of(part)}}
    return _media(part)


def _media(media: Media) -> dict[str, Any]:
    if media.data is None:
        raise Unsupported(media.where, f"{media.where}: this provider takes images as data URIs only, not by URL")
    source = {"bytes": media.data}
    kind = media.media_type or ""
    if kind in _IMAGES:
        return {"image": {"format": _IMAGES[kind], "source": source}}
    if kind in _DOCUMENTS:
        name = _NAME.sub(" ", media.name or "document").strip() or "document"
        return {"document": {"format": _DOCUMENTS[kind], "name": name, "source": source}}
    raise Unsupported(media.where, f"{media.where}: {kind} is not supported by this provider")


def _result(result: ToolResult) -> dict[str, Any]:
    content = [_block(part) for part in result.parts] or [{"text": ""}]
    told: dict[str, Any] = {"toolUseId": result.id, "content": content}
    if result.is_error:
        told["status"] = "error"
    return {"toolResult": told}


def _tool_config(prompt: Prompt, called_before: bool) -> dict[str, Any] | None:
    if prompt.choice is Choice.NONE and called_before:
        raise Unsupported("tool_choice", "tool_choice none is not supported by this provider once tools were called")
    if not prompt.tools or prompt.choice is Choice.NONE:
        return None
    config: dict[str, Any] = {"tools": [{"toolSpec": _tool(tool)} for tool in prompt.tools]}
    if prompt.choice is Choice.NAMED:
        config["toolChoice"] = {"tool": {"name": prompt.tool_name}}
    elif prompt.choice is not None:
        config["toolChoice"] = {prompt.choice.value: {}}
    return config


def _tool(tool: Tool) -> dict[str, Any]:
    told: dict[str, Any] = {"name": tool.name, "inputSchema": {"json": tool.schema}}
    if tool.description is not None:
        told["description"] = tool.description
    if tool.strict is not None:
        told["strict"] = tool.strict
    return told


def _format(form: Format) -> dict[str, Any]:
    schema = {"name": form.name, "schema": orjson.dumps(form.schema).decode()}
    return {"type": "json_schema", "structure": {"jsonSchema": schema}}
