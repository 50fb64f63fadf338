"""Everything a simulated server answers besides inference: models, health, metrics, adapters, tokens, faults, state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from providers.simulated.ask import Kind, prompt_tokens, read_ask
from providers.simulated.errors import ApiError
from providers.simulated.faults import FaultKind, read_faults
from providers.simulated.httpd import Exchange
from providers.simulated.service import Flavour

if TYPE_CHECKING:
    from providers.simulated.server import SimulatedServer

VERSION = "0.33.0"
"""The engine version that is imitated."""


def models(server: SimulatedServer, exchange: Exchange) -> None:
    """GET /v1/models and /v1/models/{id}."""
    listed = [_model(server, name, None) for name in server.settings.models]
    listed += [_model(server, name, path) for name, path in sorted(server.adapters.items())]
    wanted = exchange.path.removeprefix("/v1/models").lstrip("/")
    if not wanted:
        exchange.respond(200, orjson.dumps({"object": "list", "data": listed}))
        return
    for entry in listed:
        if entry["id"] == wanted:
            exchange.respond(200, orjson.dumps(entry))
            return
    raise unknown_model(wanted)


def unknown_model(name: str) -> ApiError:
    """404 for a model that is not served."""
    return ApiError(404, f"The model `{name}` does not exist.", param="model", code="model_not_found")


def _model(server: SimulatedServer, name: str, adapter_path: str | None) -> dict[str, Any]:
    adapter = adapter_path is not None
    return {
        "id": name,
        "object": "model",
        "created": server.started_unix,
        "owned_by": "vllm" if server.settings.flavour is Flavour.ENGINE else "simulated",
        "root": adapter_path if adapter else server.settings.models[0],
        "parent": server.settings.models[0] if adapter else None,
        "max_model_len": server.settings.engine.context,
        "permission": [],
    }


def health(server: SimulatedServer, exchange: Exchange) -> None:
    """GET /health and /ping: 200 with no body, 503 while starting."""
    exchange.respond(200 if server.warm else 503, b"", content_type="")


def version(server: SimulatedServer, exchange: Exchange) -> None:
    """GET /version."""
    exchange.respond(200, orjson.dumps({"version": VERSION}))


def load(server: SimulatedServer, exchange: Exchange) -> None:
    """GET /load: requests in the engine."""
    exchange.respond(200, orjson.dumps({"server_load": len(server.engine.live)}))


def metrics(server: SimulatedServer, exchange: Exchange) -> None:
    """GET /metrics."""
    engine = server.engine
    page = server.metrics.page(
        engine.settings,
        engine.snapshot(),
        server.settings.models[0],
        (engine.adapters.in_use, engine.adapters_waiting()),
        server.unix_time(),
        server.settings.extra_labels,
    )
    exchange.respond(200, page.encode(), content_type="text/plain; version=0.0.4; charset=utf-8")


def tokenize(server: SimulatedServer, exchange: Exchange) -> None:
    """POST /tokenize: the count by the rule of four bytes a token."""
    fields = read_json(exchange)
    kind = Kind.CHAT if "messages" in fields else Kind.COMPLETION
    ask = read_ask(kind, {"model": server.settings.models[0], **fields, "stream": False, "stream_options": None})
    prompt = ask.prompts[0]
    tokens = [int.from_bytes(prompt[at : at + 4], "little") for at in range(0, len(prompt), 4)]
    context = server.settings.engine.context
    body = {"count": prompt_tokens(prompt), "max_model_len": context, "tokens": tokens}
    exchange.respond(200, orjson.dumps(body))


def load_adapter(server: SimulatedServer, exchange: Exchange) -> None:
    """POST /v1/load_lora_adapter."""
    fields = read_json(exchange)
    name, path = fields.get("lora_name"), fields.get("lora_path")
    if not isinstance(name, str) or not isinstance(path, str) or not name or not path:
        raise ApiError(400, "Both lora_name and lora_path must be given.")
    if server.settings.engine.lora_slots == 0:
        raise ApiError(400, "LoRA is not enabled on this engine.")
    if name in server.adapters and fields.get("load_inplace") is not True:
        raise ApiError(400, f"The LoRA adapter {name} is loaded already.")
    server.adapters[name] = path
    exchange.respond(200, f"Success: LoRA adapter {name} added.".encode(), content_type="text/plain; charset=utf-8")


def unload_adapter(server: SimulatedServer, exchange: Exchange) -> None:
    """POST /v1/unload_lora_adapter."""
    name = read_json(exchange).get("lora_name")
    if not isinstance(name, str) or server.adapters.pop(name, None) is None:
        raise ApiError(404, f"The LoRA adapter {name} cannot be found.")
    exchange.respond(200, f"Success: LoRA adapter {name} removed.".encode(), content_type="text/plain; charset=utf-8")


def reset_prefix_cache(server: SimulatedServer, exchange: Exchange) -> None:
    """POST /reset_prefix_cache: forget every block that nobody holds."""
    server.engine.blocks.forget()
    exchange.respond(200, b"", content_type="")


def show_faults(server: SimulatedServer, exchange: Exchange) -> None:
    """GET /sim/faults: those that are on, and how often each struck."""
    exchange.respond(200, orjson.dumps({"faults": faults_json(server)}))


def add_faults(server: SimulatedServer, exchange: Exchange) -> None:
    """POST /sim/faults: switch on one fault, a list, or `{"faults": [...]}`."""
    try:
        value = orjson.loads(exchange.body)
    except orjson.JSONDecodeError:
        raise ApiError(400, "the body is not JSON") from None
    server.add_faults(read_faults(value), exchange)
    exchange.respond(200, orjson.dumps({"faults": faults_json(server)}))


def drop_faults(server: SimulatedServer, exchange: Exchange) -> None:
    """DELETE /sim/faults, or only those of `?kind=`."""
    kind = query(exchange).get("kind")
    if kind is not None and kind not in set(FaultKind):
        raise ApiError(400, f"there is no fault {kind}", param="kind")
    server.clear_faults(kind)
    exchange.respond(200, orjson.dumps({"faults": faults_json(server)}))


def state(server: SimulatedServer, exchange: Exchange) -> None:
    """GET /sim/state, with `?id=` only the requests of that id, with `?requests=0` none."""
    asked = query(exchange)
    exchange.respond(200, orjson.dumps(server.state(asked.get("id"), requests=asked.get("requests") != "0")))


def faults_json(server: SimulatedServer) -> list[dict[str, Any]]:
    """The faults that are on, as JSON."""
    return [orjson.loads(orjson.dumps(fault)) for fault in server.faults.faults]


def query(exchange: Exchange) -> dict[str, str]:
    """The query of a request; values are taken as they stand."""
    pairs = (part.partition("=") for part in exchange.query.split("&") if part)
    return {name: value for name, _, value in pairs}


def read_json(exchange: Exchange) -> dict[str, Any]:
    """The body as an object. Raises ApiError 400."""
    try:
        fields = orjson.loads(exchange.body)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"The request body is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "The request body must be a JSON object.")
    return fields
