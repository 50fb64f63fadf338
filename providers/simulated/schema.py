"""The smallest JSON value that a JSON schema allows, for answers that promise a structure."""

from __future__ import annotations

from typing import Any

_FORMATS = {
    "date": "2026-01-01",
    "time": "00:00:00Z",
    "date-time": "2026-01-01T00:00:00Z",
    "email": "a@example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uri": "https://example.com/",
    "ipv4": "192.0.2.1",
}
_DEEPEST = 24
_LONGEST = 64


def smallest(schema: Any) -> Any:
    """A value for the schema: required properties only, lower bounds kept, the first of any choice.

    Patterns are not understood, and a schema that needs endless nesting gets null at some depth.
    """
    return _value(schema, schema, 0)


def _value(schema: Any, root: Any, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    if "const" in schema:
        return schema["const"]
    for name in ("enum", "examples"):
        if isinstance(schema.get(name), list) and schema[name]:
            return schema[name][0]
    if isinstance(schema.get("$ref"), str):
        return _value(_resolve(schema["$ref"], root), root, depth + 1)
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list) and schema[name]:
            return _value(schema[name][0], root, depth + 1)
    if isinstance(schema.get("allOf"), list) and schema["allOf"]:
        merged: dict[str, Any] = {}
        for part in schema["allOf"]:
            if isinstance(part, dict):
                merged.update(_resolve(part["$ref"], root) if isinstance(part.get("$ref"), str) else part)
        return _value({**merged, **{k: v for k, v in schema.items() if k != "allOf"}}, root, depth + 1)
    return _typed(schema, root, depth)


def _typed(schema: dict[str, Any], root: Any, depth: int) -> Any:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind is None:
        kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
    if kind == "object":
        properties = schema.get("properties") or {}
        names = schema.get("required") or []
        if not isinstance(properties, dict) or not isinstance(names, list):
            return {}
        return {name: _value(properties.get(name, {}), root, depth + 1) for name in names if isinstance(name, str)}
    if kind == "array":
        return [_value(schema.get("items", {}), root, depth + 1)] * _least(schema, "minItems")
    if kind in ("integer", "number"):
        return _number(schema, whole=kind == "integer")
    if kind == "boolean":
        return False
    if kind == "null":
        return None
    text = _FORMATS.get(str(schema.get("format", "")), "")
    return text + "x" * (_least(schema, "minLength") - len(text))


def _least(schema: dict[str, Any], name: str) -> int:
    value = schema.get(name, 0)
    return min(int(value), _LONGEST) if isinstance(value, int | float) else 0


def _number(schema: dict[str, Any], *, whole: bool) -> int | float:
    bounds = {name: value for name, value in schema.items() if isinstance(value, int | float)}
    if "minimum" in bounds:
        lowest = bounds["minimum"]
        return -int(-lowest // 1) if whole else lowest
    if "exclusiveMinimum" in bounds:
        return int(bounds["exclusiveMinimum"] // 1) + 1
    for name in ("maximum", "exclusiveMaximum"):
        if name in bounds and bounds[name] <= 0:
            return int(bounds[name] // 1) - 1
    return 0


def _resolve(reference: str, root: Any) -> Any:
    here = root
    for part in reference.removeprefix("#").split("/"):
        if part:
            here = here.get(part.replace("~1", "/").replace("~0", "~"), {}) if isinstance(here, dict) else {}
    return here
