"""The simulated engine over HTTP: an OpenAI-compatible server with vLLM's manners, or a limited provider account.

One `SimulatedServer` is one engine on one port; several run in one process. It never waits for anything: a request is
parsed, its sequences are submitted, and the engine's steps write the answer. The work of a request is in `job`, of the
engine in `engine`; this file routes, checks who may ask, and lets faults strike before a request begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from providers.simulated import control
from providers.simulated.account import AccountLimits
from providers.simulated.ask import Ask, Kind, prompt_tokens, read_ask
from providers.simulated.chance import mix
from providers.simulated.engine import Engine
from providers.simulated.errors import ApiError, error_body
from providers.simulated.faults import IN_STREAM, Fault, FaultBook, FaultKind
from providers.simulated.httpd import Exchange, HttpServer
from providers.simulated.job import SSE_HEADERS, Job, Setting
from providers.simulated.metrics import ServingMetrics
from providers.simulated.plan import plan_choices
from providers.simulated.realtime import RealTime
from providers.simulated.record import Record, Records
from providers.simulated.sequence import Refused
from providers.simulated.service import Flavour, ServiceSettings
from providers.simulated.settings import Scheduling

Route = Callable[["SimulatedServer", Exchange], None]

_INFERENCE = {
    "/v1/chat/completions": Kind.CHAT,
    "/v1/completions": Kind.COMPLETION,
    "/v1/embeddings": Kind.EMBEDDING,
}
_CONTROL: dict[tuple[str, str], Route] = {
    ("GET", "/sim/faults"): control.show_faults,
    ("POST", "/sim/faults"): control.add_faults,
    ("DELETE", "/sim/faults"): control.drop_faults,
    ("GET", "/sim/state"): control.state,
}
_ROUTES: dict[tuple[str, str], Route] = {("GET", "/v1/models"): control.models}
_ENGINE_ROUTES: dict[tuple[str, str], Route] = {
    ("GET", "/health"): control.health,
    ("GET", "/ping"): control.health,
    ("GET", "/version"): control.version,
    ("GET", "/load"): control.load,
    ("GET", "/metrics"): control.metrics,
    ("POST", "/tokenize"): control.tokenize,
    ("POST", "/v1/load_lora_adapter"): control.load_adapter,
    ("POST", "/v1/unload_lora_adapter"): control.unload_adapter,
    ("POST", "/reset_prefix_cache"): control.reset_prefix_cache,
}


class SimulatedServer:
    """One simulated engine that listens. Make it inside a running event loop, `await start()`, and `close` it."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.engine = Engine(settings.engine)
        self.metrics = ServingMetrics()
        self.faults = FaultBook(settings.seed)
        self.adapters = {name: f"/adapters/{name}" for name in settings.adapters}
        self.started_unix = int(time.time())
        self.realtime = RealTime(self.engine, settings.speed)
        self._account = settings.flavour is Flavour.ACCOUNT
        self._setting = Setting(
            self.realtime, self.metrics, self._account, settings.embedding_dimensions, self.unix_time, set()
        )
        self._limits = AccountLimits(settings.requests_per_minute, settings.tokens_per_minute, 0.0)
        self._records = Records(settings.record)
        self._numbers = 0
        self._http = HttpServer(self._handle, settings.max_body_bytes)
        self._host = ""

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes a free one. Raises OSError when the address is taken."""
        await self._http.start(host, port)
        self._host = host

    async def close(self, *, reset: bool = False) -> None:
        """Stop listening and drop every connection (as a crash would, with `reset`). Idempotent."""
        await self._http.close(reset=reset)
        self.realtime.close()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._http.port

    @property
    def url(self) -> str:
        """Its base URL without a path."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    @property
    def warm(self) -> bool:
        """Whether the cold start is over."""
        return self.realtime.now >= self.settings.cold_start_s

    @staticmethod
    def unix_time() -> float:
        """Unix time in seconds."""
        return time.time()

    # -- faults and state --------------------------------------------------------------------------------------------

    def add_faults(self, faults: list[Fault], asked_by: Exchange | None = None) -> None:
        """Switch faults on; `down` breaks every connection at once but the one that asked for it."""
        self.faults.add(faults)
        self.engine.slow = self.faults.slow
        if any(fault.kind is FaultKind.DOWN for fault in faults):
            self._http.drop_all(reset=True, but=asked_by)

    def clear_faults(self, kind: str | None = None) -> None:
        """Switch faults off: all, or those of one kind."""
        self.faults.clear(kind)
        self.engine.slow = self.faults.slow

    def state(self, request_id: str | None = None, *, requests: bool = True) -> dict[str, Any]:
        """The engine now, the faults, and the latest requests. Sizes are tokens, times engine seconds."""
        for job in self._setting.open:
            job.refresh()
        counts = self.engine.snapshot()
        return {
            "now": self.realtime.now,
            "late_s": self.realtime.late_s,
            "running": counts.running,
            "waiting": counts.waiting,
            "kv_usage": counts.kv_usage,
            "kv_blocks_held": counts.kv_blocks_held,
            "kv_blocks_total": counts.kv_blocks_total,
            "kv_tokens_held": counts.kv_tokens_held,
            "block_tokens": self.engine.settings.block_tokens,
            "prefill_tokens_left": counts.prefill_tokens_left,
            "prompt_tokens_total": counts.prompt_tokens_total,
            "generation_tokens_total": counts.generation_tokens_total,
            "recomputed_tokens_total": counts.recomputed_tokens_total,
            "preemptions_total": counts.preemptions_total,
            "prefix_queries_total": counts.prefix_queries_total,
            "prefix_hits_total": counts.prefix_hits_total,
            "steps_total": counts.steps_total,
            "busy_s_total": counts.busy_s_total,
            "requests_total": self._records.total,
            "adapters": sorted(self.adapters),
            "faults": control.faults_json(self),
            "requests": [record.as_json() for record in self._records.find(request_id)] if requests else [],
        }

    # -- requests ----------------------------------------------------------------------------------------------------

    def _handle(self, exchange: Exchange) -> None:
        path = exchange.path
        try:
            control_route = _CONTROL.get((exchange.method, path))
            if control_route is not None:
                control_route(self, exchange)
            elif self.faults.down:
                exchange.cut(reset=True)
            elif path in _INFERENCE and exchange.method == "POST":
                self._infer(_INFERENCE[path], exchange)
            else:
                self._other(exchange, path)
        except ApiError as error:
            exchange.respond(error.status, error_body(error, account=self._account), headers=error.headers)
        except Exception:
            # A fault of ours: the client gets a proper answer, the event loop's handler the traceback.
            failed = ApiError(500, "The simulated server failed.")
            exchange.respond(500, error_body(failed, account=self._account))
            raise

    def _other(self, exchange: Exchange, path: str) -> None:
        name = "/v1/models" if path.startswith("/v1/models/") else path
        route = _ROUTES.get((exchange.method, name))
        if route is None and not self._account:
            route = _ENGINE_ROUTES.get((exchange.method, name))
        if route is None:
            raise ApiError(404, "Not Found", kind="NotFound" if not self._account else None)
        fault = self.faults.strike(path, exchange.headers, exchange.body, {})
        if fault is not None and not self._early(fault, exchange, None):
            return
        if path.startswith("/v1/"):
            self._authorise(exchange)
        route(self, exchange)

    def _infer(self, kind: Kind, exchange: Exchange) -> None:
        self._numbers = number = self._numbers + 1
        request_id = exchange.headers.get("x-request-id") or f"{mix(self.settings.seed, number):016x}"
        fields, broken = _fields(exchange)
        record = self._records.open(request_id, exchange.path, exchange.headers, fields, self.realtime.now)
        fault = self.faults.strike(exchange.path, exchange.headers, exchange.body, fields)
        if fault is not None and fault.kind is FaultKind.DELAY:
            later = self.realtime.call_later(
                fault.seconds, lambda: self._admit(kind, number, exchange, record, fields, broken, None)
            )

            def left() -> None:
                later.cancel()
                self._close_record(record, "cancelled", None)

            exchange.on_gone = left
            return
        self._admit(kind, number, exchange, record, fields, broken, fault)

    def _admit(
        self,
        kind: Kind,
        number: int,
        exchange: Exchange,
        record: Record,
        fields: dict[str, Any],
        broken: ApiError | None,
        fault: Fault | None,
    ) -> None:
        exchange.on_gone = None
        exchange.body = b""  # it is in `fields` by now, and large
        job: Job | None = None
        try:
            if fault is not None and fault.kind not in IN_STREAM:
                self._early(fault, exchange, record)
                return
            self._authorise(exchange)
            if broken is not None:
                raise broken
            if not self.warm:
                raise ApiError(503, "The engine is starting.", code="server_is_overloaded")
            ask = self._ranked(read_ask(kind, fields), exchange)
            adapter = self._adapter(ask.model)
            choices = plan_choices(ask, self.settings, mix(self.settings.seed ^ 0xA5, number))
            bound = self.settings.max_waiting
            if bound is not None and self.engine.waiting + len(choices) > bound:
                self.metrics.rejected += 1
                raise ApiError(503, f"The waiting line is full: {self.engine.waiting} of {bound} requests wait.")
            record.adapter = adapter
            record.max_tokens = ask.max_tokens
            headers = (("x-request-id", record.id), *self._limit_headers(ask, choices[0].max_tokens))
            job = Job(self._setting, exchange, ask, choices, record, fault, headers)
            job.start(number, adapter)
        except (ApiError, Refused) as problem:
            error = problem if isinstance(problem, ApiError) else ApiError(400, str(problem))
            self._close_record(record, "refused", error.status)
            if job is not None:
                job.fail(error)
                return
            body = error_body(error, account=self._account)
            exchange.respond(error.status, body, headers=(("x-request-id", record.id), *error.headers))

    def _ranked(self, ask: Ask, exchange: Exchange) -> Ask:
        """The priority header stands above the body; an engine that serves by arrival refuses any."""
        header = exchange.headers.get("x-vllm-priority")
        if header is not None and not self._account:
            try:
                ask = replace(ask, priority=int(header))
            except ValueError:
                raise ApiError(400, "The priority header must be an integer.", param="priority") from None
        if ask.priority and self.settings.engine.scheduling is not Scheduling.PRIORITY:
            raise ApiError(
                400, f"Got priority {ask.priority} but priority scheduling is not enabled here.", param="priority"
            )
        return ask

    def _limit_headers(self, ask: Ask, maximum: int) -> tuple[tuple[str, str], ...]:
        if not self._account:
            return ()
        tokens = sum(prompt_tokens(prompt) for prompt in ask.prompts) + maximum * ask.n
        return self._limits.take(tokens, self.realtime.now)

    def _adapter(self, model: str) -> str | None:
        if model in self.settings.models:
            return None
        if model in self.adapters:
            return model
        raise control.unknown_model(model)

    def _authorise(self, exchange: Exchange) -> None:
        keys = self.settings.api_keys
        if not keys and not self._account:
            return
        headers = exchange.headers
        bearer = headers.get("authorization", "")
        scheme, _, given = bearer.partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        given = given or headers.get("api-key", "") or headers.get("x-api-key", "")
        if not given or (keys and given not in keys):
            raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key")

    def _early(self, fault: Fault, exchange: Exchange, record: Record | None) -> bool:
        """A fault strikes before the request is looked at. True: the request goes on all the same."""
        kind = fault.kind
        status: int | None = None
        if kind is FaultKind.STATUS:
            status = fault.status
            error = fault.error()
            exchange.respond(status, error_body(error, account=self._account), headers=error.headers)
        elif kind is FaultKind.RESET:
            exchange.cut(reset=True)
        elif kind is FaultKind.CLOSE:
            exchange.cut()
        elif kind is FaultKind.SILENT_AFTER_HEADERS:
            status = 200
            stream = record is None or record.stream
            exchange.begin(200, SSE_HEADERS if stream else (("content-type", "application/json"),))
        elif kind is FaultKind.GARBAGE_HTTP:
            exchange.raw(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        elif kind is FaultKind.EMPTY_200:
            status = 200
            stream = record is not None and record.stream
            exchange.respond(200, b"", content_type="text/event-stream" if stream else "application/json")
        elif kind is not FaultKind.SILENT_BEFORE_HEADERS:
            return True
        if record is not None:
            self._close_record(record, f"fault:{kind}", status)
        return False

    def _close_record(self, record: Record, outcome: str, status: int | None) -> None:
        record.outcome = outcome
        record.status = status
        record.ended_at = self.realtime.now


def _fields(exchange: Exchange) -> tuple[dict[str, Any], ApiError | None]:
    """(parsed body, what is wrong with it)."""
    if exchange.oversize:
        return {}, ApiError(413, f"The body of {exchange.oversize} bytes is too large.")
    try:
        return control.read_json(exchange), None
    except ApiError as error:
        return {}, error


async def serve_simulated(settings: ServiceSettings, host: str = "127.0.0.1", port: int = 0) -> SimulatedServer:
    """Start a server in the running event loop; the caller must `close` it. Raises OSError when the port is taken."""
    server = SimulatedServer(settings)
    await server.start(host, port)
    return server


async def run_simulated(
    settings: ServiceSettings, host: str, port: int, ready: Callable[[SimulatedServer], None] | None = None
) -> None:
    """Serve until cancelled; `ready` is told once it listens. Raises OSError for a taken port."""
    server = await serve_simulated(settings, host, port)
    try:
        if ready is not None:
            ready(server)
        await asyncio.Event().wait()
    finally:
        await server.close()
