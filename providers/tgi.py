"""Text Generation Inference by its OpenAI-compatible face, which differs in how a schema and stop words are written.

Its `response_format` keeps the schema under `value`, and `stop` is always a list; OpenAI's forms of both are refused
there before anything is generated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from providers.exchange import Call, Unsupported
from providers.openai import OpenAIKind


@dataclass(frozen=True, slots=True)
class TgiKind(OpenAIKind):
    """Text Generation Inference."""

    def changes(self, call: Call) -> dict[str, Any]:
        """A schema and stop words in its own form. Raises Unsupported for JSON without a schema."""
        changes: dict[str, Any] = {}
        stop = call.body.get("stop")
        if isinstance(stop, str):
            changes["stop"] = [stop]
        form = call.body.get("response_format")
        if not isinstance(form, dict) or "value" in form:
            return changes
        kind = form.get("type")
        if kind == "text":
            changes["response_format"] = None
        elif kind == "json_schema":
            inner = form.get("json_schema")
            if not isinstance(inner, dict) or not isinstance(inner.get("schema"), dict):
                raise Unsupported("response_format")
            value = {name: inner[name] for name in ("name", "schema") if inner.get(name) is not None}
            changes["response_format"] = {"type": "json_schema", "value": value}
        elif kind == "json_object":
            raise Unsupported("response_format", "response_format json_object is not supported by this provider")
        return changes
