"""What the bodies of all dialects have in common at the door: JSON, an object, a model, a wrong field told by name."""

from __future__ import annotations

from typing import Any

import orjson

from gateway.outcomes import Outcome, Refused

_SHOWN = 60


def parse_object(raw: bytes) -> tuple[dict[str, Any], str]:
    """The body and the model it names. Raises Refused (400)."""
    try:
        body: Any = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refused(Outcome.BAD_REQUEST, f"The body is not valid JSON: {error}") from None
    if type(body) is not dict:
        raise Refused(Outcome.BAD_REQUEST, "The body must be a JSON object.")
    model = body.get("model")
    if type(model) is not str or not model:
        raise wrong("model", "a non-empty string", model)
    return body, model


def stream_of(body: dict[str, Any]) -> bool:
    """Whether a stream is asked for. Raises Refused (400)."""
    stream = body.get("stream")
    if stream is not None and type(stream) is not bool:
        raise wrong("stream", "a boolean", stream)
    return stream is True


def wrong(name: str, wanted: str, value: Any) -> Refused:
    """The refusal of a field that is missing or of the wrong type."""
    if value is None:
        return Refused(Outcome.BAD_REQUEST, f"Missing required parameter: '{name}' must be {wanted}.", param=name)
    shown = orjson.dumps(value).decode()
    if len(shown) > _SHOWN:
        shown = shown[:_SHOWN] + "…"
    return Refused(Outcome.BAD_REQUEST, f"Invalid value for '{name}': must be {wanted}, got {shown}.", param=name)
