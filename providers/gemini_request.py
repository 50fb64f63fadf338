"""A request in the common form written as a native Gemini request.

A tool's result must name the tool, which OpenAI's form does not, so the name is looked up by the id of the call. A
thought signature must come back with the call it came with; it travels with the client in `extra_content`, and a
history another model made is let through by the word the vendor keeps for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson

from providers.conversation import Choice, Media, Prompt, Role, Text, Thought, Tool, ToolResult, ToolUse, Turn
from providers.exchange import Unsupported
from providers.openai_request import arguments_of

SKIP_SIGNATURE = "skip_thought_signature_validator"
_ROLES: Mapping[Role, str] = MappingProxyType({Role.USER: "user", Role.ASSISTANT: "model"})
_MODES: Mapping[Choice, str] = MappingProxyType(
    {Choice.AUTO: "AUTO", Choice.ANY: "ANY", Choice.NONE: "NONE", Choice.NAMED: "ANY"}
)
_LEVELS: Mapping[str, str] = MappingProxyType(
    {"minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM", "high": "HIGH", "xhigh": "XHIGH", "max": "XHIGH"}
)
# Models up to 2.5 know no levels; these are the budgets, in tokens, that the vendor's own compatible endpoint uses.
_BUDGETS: Mapping[str, int] = MappingProxyType(
    {"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24576, "xhigh": 24576, "max": 24576}
)


def write_request(prompt: Prompt, model: str) -> dict[str, Any]:
    """The request body, the same for a stream. Raises Unsupported naming the field that has no place in it."""
    if prompt.parallel_tools is False and prompt.tools:
        raise Unsupported("parallel_tool_calls")
    words, turns = prompt.leading_system()
    if not turns:
        raise Unsupported("messages", "the conversation must hold a user message for this provider")
    body: dict[str, Any] = {"contents": [_content(turn) for turn in turns]}
    if words:
        body["systemInstruction"] = {"parts": [{"text": text} for text in words]}
    config = _config(prompt, model)
    if config:
        body["generationConfig"] = config
    if prompt.tools:
        body["tools"] = [{"functionDeclarations": [_tool(tool) for tool in prompt.tools]}]
        if prompt.choice is not None:
            calling: dict[str, Any] = {"mode": _MODES[prompt.choice]}
            if prompt.choice is Choice.NAMED:
                calling["allowedFunctionNames"] = [prompt.tool_name]
            body["toolConfig"] = {"functionCallingConfig": calling}
    return body


def _config(prompt: Prompt, model: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "maxOutputTokens": prompt.output_cap,
        "temperature": prompt.temperature,
        "topP": prompt.top_p,
        "topK": prompt.top_k,
        "seed": prompt.seed,
        "presencePenalty": prompt.presence_penalty,
        "frequencyPenalty": prompt.frequency_penalty,
        "stopSequences": list(prompt.stop) or None,
    }
    config = {name: value for name, value in config.items() if value is not None}
    if prompt.format is not None:
        config["responseMimeType"] = "application/json"
        if prompt.format.schema is not None:
            config["responseJsonSchema"] = prompt.format.schema
    if prompt.effort is not None:
        config["thinkingConfig"] = _thinking(prompt.effort, prompt.thinking_budget, model)
    return config


def _thinking(effort: str, budget: int | None, model: str) -> dict[str, Any]:
    if effort not in _BUDGETS:
        raise Unsupported("reasoning_effort")
    if effort == "none":
        return {"thinkingBudget": 0}
    if "gemini-2" in model:
        return {"thinkingBudget": _BUDGETS[effort] if budget is None else budget, "includeThoughts": True}
    return {"thinkingLevel": _LEVELS[effort], "includeThoughts": True}


def _content(turn: Turn) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    first_call = True
    for part in turn.parts:
        if isinstance(part, Thought):
            continue  # only this vendor's own signature would vouch for it, and its thoughts come without one
        told = _part(part)
        if isinstance(part, ToolUse):
            if part.signature is not None:
                told["thoughtSignature"] = part.signature
            elif first_call:
                told["thoughtSignature"] = SKIP_SIGNATURE
            first_call = False
        parts.append(told)
        if isinstance(part, ToolResult):
            parts.extend(_part(media) for media in part.parts if isinstance(media, Media))
    return {"role": _ROLES[turn.role], "parts": parts}


def _part(part: Text | Media | ToolUse | ToolResult) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"text": part.text}
    if isinstance(part, Media):
        if part.data is None:
            raise Unsupported(part.where, f"{part.where}: this provider takes images as data URIs only, not by URL")
        return {"inlineData": {"mimeType": part.media_type, "data": part.data}}
    if isinstance(part, ToolUse):
        return {"functionCall": {"id": part.id, "name": part.name, "args": arguments_of(part)}}
    return {"functionResponse": _response(part)}


def _response(result: ToolResult) -> dict[str, Any]:
    if result.name is None:
        field = f"{result.where}.tool_call_id"
        raise Unsupported(field, f"{field} {result.id!r} answers no tool call of this conversation")
    try:
        value = orjson.loads(result.text)
    except orjson.JSONDecodeError:
        value = None
    response = value if isinstance(value, dict) else {"error" if result.is_error else "result": result.text}
    return {"id": result.id, "name": result.name, "response": response}


def _tool(tool: Tool) -> dict[str, Any]:
    told: dict[str, Any] = {"name": tool.name, "parametersJsonSchema": tool.schema}
    if tool.description is not None:
        told["description"] = tool.description
    return told
