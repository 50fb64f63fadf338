"""Ollama by its OpenAI-compatible face: it takes pictures as data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from providers.exchange import Call, Unsupported
from providers.openai import OpenAIKind


@dataclass(frozen=True, slots=True)
class OllamaKind(OpenAIKind):
    """Ollama."""

    def changes(self, call: Call) -> dict[str, Any]:
        """Nothing. Raises Unsupported for a picture by URL, which it would refuse, while another target may take it."""
        messages = call.body.get("messages")
        if b'"image_url"' not in call.raw or not isinstance(messages, list):
            return {}
        for place, message in enumerate(messages):
            content = message.get("content") if isinstance(message, dict) else None
            for number, part in enumerate(content if isinstance(content, list) else ()):
                image = part.get("image_url") if isinstance(part, dict) else None
                url = image.get("url") if isinstance(image, dict) else image
                if isinstance(url, str) and not url.startswith("data:"):
                    where = f"messages[{place}].content[{number}].image_url"
                    raise Unsupported(where, f"{where}: this provider takes images as data URIs only, not by URL")
        return {}
