"""The OpenAPI 3.1 document of the admin API, made from the route table and the models that check the bodies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from pydantic.json_schema import models_json_schema

from gateway.api.admin_call import MERGE_PATCH, PREFIX, Route
from gateway.api.problems import MEDIA_TYPE

_COMPONENT: Final = "#/components/schemas/{model}"
_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "description": "A refusal (RFC 9457).",
    "required": ["type", "title", "status", "detail", "code", "request_id"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
        "code": {"type": "string", "description": "Stable; for programs."},
        "request_id": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"pointer": {"type": "string"}, "detail": {"type": "string"}},
            },
        },
    },
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The document of these routes."""
    routes = tuple(routes)
    models = {model for route in routes for model in (route.body, route.answer) if model is not None}
    named, found = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)], ref_template=_COMPONENT
    )
    schemas: dict[str, Any] = dict(found.get("$defs", {}))
    # What pydantic calls a model here: `PageView[TenantView]` becomes `PageView_TenantView_`.
    reference = {model: schema for (model, _), schema in named.items()}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(PREFIX + route.path, {})[route.method.lower()] = _operation(route, reference)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Weighbridge admin API",
            "version": "1",
            "description": "Tenants, keys, limits, reservations, usage. Times are RFC 3339, money is micro-dollars.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Problem": _PROBLEM},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "Refused.",
                    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
            },
        },
    }


def _operation(route: Route, reference: dict[Any, Any]) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", route.path)
    ]
    parameters += [
        {"name": one.name, "in": "query", "description": one.description, "schema": dict(one.schema)}
        for one in route.query
    ]
    if route.if_match:
        parameters.append(_header("If-Match", "The ETag that was read; 412 when it has changed since.", required=True))
    if route.method == "POST":
        parameters.append(_header("Idempotency-Key", "Repeating the call with it answers the same, and does it once."))
    answer: dict[str, Any] = {"description": route.summary}
    if route.answer is not None:
        answer["content"] = {route.media_type: {"schema": reference[route.answer]}}
    elif route.status != 204:
        answer["content"] = {route.media_type: {"schema": {"type": "string"}}}
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "description": f"Roles: {', '.join(sorted(role.value for role in route.roles))}.",
        "parameters": parameters,
        "responses": {str(route.status): answer, "default": {"$ref": "#/components/responses/Problem"}},
    }
    if route.body is not None:
        media = MERGE_PATCH if route.patch else "application/json"
        operation["requestBody"] = {
            "required": True,
            "content": {media: {"schema": reference[route.body]}},
        }
    return operation


def _header(name: str, description: str, *, required: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": required,
        "description": description,
        "schema": {"type": "string"},
    }
