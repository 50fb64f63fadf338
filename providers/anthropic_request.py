"""A request in the common form written as an Anthropic Messages request.

The conversation must begin with the user and alternate; results of tools come first in the user turn that follows the
call; empty text is refused there, so there is none. Sampling fields exist only under the older version of the API, so a
request that uses one is sent under that version.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from providers.conversation import Choice, Media, Part, Prompt, Role, Text, Tool, ToolResult, ToolUse, Turn
from providers.exchange import Call, Unsupported
from providers.messages_answer import OWN_SIGNATURE
from providers.openai_request import arguments_of

VERSION = "2026-10-21"
VERSION_WITH_SAMPLING = "2023-06-01"
DEFAULT_OUTPUT_CAP = 8192
"""Output tokens asked for when the client named no cap, which Anthropic insists on."""

_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_CHOICES: Mapping[Choice, str] = MappingProxyType(
    {Choice.AUTO: "auto", Choice.ANY: "any", Choice.NONE: "none", Choice.NAMED: "tool"}
)
_EFFORTS: Mapping[str, str] = MappingProxyType(
    {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
)
_TIERS: Mapping[str, str] = MappingProxyType({"auto": "auto", "default": "standard_only"})


def version_for(prompt: Prompt, configured: str | None) -> str:
    """The value of `anthropic-version`: as configured, or the newest that has the fields the request uses."""
    if configured is not None:
        return configured
    return VERSION_WITH_SAMPLING if _sampling(prompt) else VERSION


def write_request(prompt: Prompt, model: str, version: str, default_cap: int = DEFAULT_OUTPUT_CAP) -> dict[str, Any]:
    """The request body. Raises Unsupported naming the field that has no place in it."""
    _refuse(prompt)
    words, turns = prompt.leading_system()
    if not turns or turns[0].role is not Role.USER:
        raise Unsupported("messages", "the conversation must begin with a user message for this provider")
    messages = [_message(turn) for turn in turns]
    last = messages[-1]
    if last["role"] == "assistant" and last["content"] and last["content"][-1].get("type") == "text":
        # An answer begun by the caller may not end in white space there.
        last["content"][-1]["text"] = last["content"][-1]["text"].rstrip()
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": prompt.output_cap if prompt.output_cap is not None else default_cap,
        "messages": messages,
    }
    if words:
        body["system"] = "\n\n".join(words)
    sampling = _sampling(prompt)
    if sampling and version != VERSION_WITH_SAMPLING:
        name = next(iter(sampling))
        raise Unsupported(name, f"{name} is not supported by the version of this provider's API that is configured")
    body.update(sampling)
    if prompt.stop:
        body["stop_sequences"] = list(prompt.stop)
    if prompt.tools:
        body["tools"] = [_tool(tool) for tool in prompt.tools]
        choice = _tool_choice(prompt)
        if choice is not None:
            body["tool_choice"] = choice
    output: dict[str, Any] = {}
    if prompt.format is not None:
        output["format"] = {"type": "json_schema", "schema": prompt.format.schema}
    if prompt.effort == "none":
        body["thinking"] = {"type": "disabled"}
    elif prompt.effort is not None:
        output["effort"] = _EFFORTS[prompt.effort]
    if output:
        body["output_config"] = output
    if prompt.user is not None:
        body["metadata"] = {"user_id": prompt.user}
    tier = _TIERS.get(prompt.service_tier or "")
    if tier is not None:
        body["service_tier"] = tier
    if prompt.stream:
        body["stream"] = True
    return body


def _refuse(prompt: Prompt) -> None:
    for name in ("seed", "presence_penalty", "frequency_penalty"):
        if getattr(prompt, name) is not None:
            raise Unsupported(name)
    if prompt.format is not None and prompt.format.schema is None:
        raise Unsupported("response_format", "response_format json_object is not supported by this provider")
    if prompt.effort is not None and prompt.effort != "none" and prompt.effort not in _EFFORTS:
        raise Unsupported("reasoning_effort")


def _sampling(prompt: Prompt) -> dict[str, Any]:
    """The sampling fields that differ from the default; the temperature's range there is 0 to 1."""
    found: dict[str, Any] = {}
    if prompt.temperature is not None and prompt.temperature != 1:
        found["temperature"] = min(max(prompt.temperature, 0.0), 1.0)
    if prompt.top_p is not None and prompt.top_p != 1:
        found["top_p"] = prompt.top_p
    if prompt.top_k is not None:
        found["top_k"] = prompt.top_k
    return found


def _message(turn: Turn) -> dict[str, Any]:
    results = [_result(part) for part in turn.parts if isinstance(part, ToolResult)]
    others = [_block(part) for part in turn.parts if not isinstance(part, ToolResult)]
    return {"role": turn.role.value, "content": results + [block for block in others if block is not None]}


def _block(part: Part) -> dict[str, Any] | None:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Media):
        return _media(part)
    if isinstance(part, ToolUse):
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments_of(part)}
    # A thought without the vendor's own signature is refused there, and no OpenAI client keeps signatures.
    return None


def _media(media: Media) -> dict[str, Any]:
    if media.url is not None:
        kind = "image" if media.is_image else "document"
        return {"type": kind, "source": {"type": "url", "url": media.url}}
    if media.media_type in _IMAGES:
        return {"type": "image", "source": {"type": "base64", "media_type": media.media_type, "data": media.data}}
    if media.media_type == "application/pdf":
        source = {"type": "base64", "media_type": media.media_type, "data": media.data}
        document: dict[str, Any] = {"type": "document", "source": source}
        return document if media.name is None else {**document, "title": media.name}
    raise Unsupported(media.where, f"{media.where}: {media.media_type} is not supported by this provider")


def _result(result: ToolResult) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.id}
    content = [_block(part) for part in result.parts]
    if content:
        block["content"] = content
    if result.is_error:
        block["is_error"] = True
    return block


def _tool(tool: Tool) -> dict[str, Any]:
    told: dict[str, Any] = {"name": tool.name, "input_schema": tool.schema}
    if tool.description is not None:
        told["description"] = tool.description
    if tool.strict is not None:
        told["strict"] = tool.strict
    return told


def _tool_choice(prompt: Prompt) -> dict[str, Any] | None:
    choice = prompt.choice
    serial = prompt.parallel_tools is False and choice is not Choice.NONE
    if choice is None and not serial:
        return None
    told: dict[str, Any] = {"type": _CHOICES[choice or Choice.AUTO]}
    if choice is Choice.NAMED:
        told["name"] = prompt.tool_name
    if serial:
        told["disable_parallel_tool_use"] = True
    return told


def mend_history(call: Call) -> list[Any] | None:
    """The messages of a request of the vendor's own dialect without what this gateway added to earlier answers that
    came from elsewhere; None when there is nothing of that kind, and the history is as it came.
    """
    if OWN_SIGNATURE.encode() not in call.raw and b'"extra_content"' not in call.raw:
        return None
    messages = call.body.get("messages")
    if not isinstance(messages, list):
        return None
    mended = [_without_ours(message) for message in messages]
    return None if mended == messages else mended


def _without_ours(message: Any) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    kept = []
    for block in content:
        if isinstance(block, dict):
            signature = block.get("signature")
            if isinstance(signature, str) and signature.startswith(OWN_SIGNATURE):
                continue
            if "extra_content" in block:
                block = {name: value for name, value in block.items() if name != "extra_content"}
        kept.append(block)
    return {**message, "content": kept}
