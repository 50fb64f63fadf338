"""The door: who asks, for what, and how much it will take. Nothing here waits for anything but the body.

Refusals at the door spend nobody's limits. Whoever comes without a valid key meets a limiter of its
own, by address, so that guessing keys neither costs a tenant anything nor goes on for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

import orjson

from fairqueue.item import RequestClass
from gateway.api import openai, responses
from gateway.api.reserved import passed_on
from gateway.api.routes import ROUTES
from gateway.api.seam import BodyTooLarge, BodyTooSlow, Exchange, Headers
from gateway.clock import Clock
from gateway.estimate import Estimate, Estimator
from gateway.measure import Measured, measure
from gateway.outcomes import Outcome, Refused
from gateway.principals import Principal
from gateway.record import Record
from gateway.strangers import Strangers
from gateway.world import ModelEntry, World
from providers.exchange import UNREAD, Call, Endpoint

# An estimate is only a reason to refuse once it passes the window by more than it is usually wrong.
_ESTIMATE_SLACK = 1.1
_JSON = ("content-type", "application/json")
_CLASSES = {cls.value: cls for cls in RequestClass}
_OF_INPUT = frozenset({Endpoint.EMBEDDINGS, Endpoint.RESPONSES})
_CAPS = {Endpoint.CHAT: "max_completion_tokens", Endpoint.RESPONSES: "max_output_tokens"}
_WITHOUT_OUTPUT = UNREAD | {Endpoint.EMBEDDINGS, Endpoint.COUNT_TOKENS}
# Nothing is generated or cached for these, so they take a request of the limits and no tokens.
_WITHOUT_TOKENS = frozenset({Endpoint.COUNT_TOKENS, Endpoint.MODERATIONS, Endpoint.TOKENIZE, Endpoint.DETOKENIZE})


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request that may go on: everything later steps need to know of it."""

    world: World
    principal: Principal
    model: ModelEntry
    call: Call
    measured: Measured
    estimate: Estimate
    cls: RequestClass
    sdk_retry: int  # which of the SDK's own tries this is, 0 for the first
    patience_s: float | None  # how long the caller says it will wait for bytes
    passed_on: Headers  # the client's headers that go upstream
    answer: bytes | None = None  # the whole answer, where the gateway knows it without asking an upstream


class Doorman:
    """Turns an exchange into an `Accepted`, answers small questions itself, or refuses."""

    def __init__(self, *, clock: Clock, estimator: Estimator, strangers: Strangers) -> None:
        self._clock = clock
        self._estimator = estimator
        self._strangers = strangers

    async def accept(self, http: Exchange, world: World, record: Record) -> Accepted | None:
        """None when the answer has been given here. Raises Refused and ClientGone."""
        path = record.path = http.path
        route = ROUTES.get(path)
        if route is None:
            await self._other(http, world, record, path)
            return None
        if http.method != "POST":
            raise Refused(
                Outcome.METHOD_NOT_ALLOWED, f"{path} takes POST, not {http.method}.", headers=(("allow", "POST"),)
            )
        principal = self._authenticate(http, world)
        record.principal = principal
        raw = await self._body(http, world)
        call = route.parse(raw, http)
        return self._weigh(http, world, record, principal, call)

    async def _body(self, http: Exchange, world: World) -> bytes:
        encoding = http.header("content-encoding")
        if encoding is not None and encoding.lower() != "identity":
            raise Refused(Outcome.ENCODED_BODY, f"Content-Encoding {encoding!r} is not supported; send plain JSON.")
        try:
            return await http.body(world.max_body_bytes, world.body_timeout_s)
        except BodyTooLarge as error:
            raise Refused(Outcome.TOO_LARGE, f"The request body is larger than {error.limit} bytes.") from None
        except BodyTooSlow:
            raise Refused(
                Outcome.SLOW_BODY, f"The request body did not arrive within {world.body_timeout_s:g} s."
            ) from None

    def _authenticate(self, http: Exchange, world: World) -> Principal:
        presented = _presented_key(http)
        if presented is not None:
            principal = world.directory.find(presented)
            if principal is not None:
                return principal
        wait = self._strangers.refuse(http.peer, self._clock.monotonic())
        if wait is not None:
            raise Refused(
                Outcome.GUESSING, "Too many requests without a valid API key from this address.", retry_after_s=wait
            )
        if presented is None:
            raise Refused(
                Outcome.UNAUTHENTICATED,
                "You didn't provide an API key. Send it as 'Authorization: Bearer wb_...'.",
                headers=(("www-authenticate", "Bearer"),),
            )
        raise Refused(Outcome.UNAUTHENTICATED, "Incorrect API key provided.", headers=(("www-authenticate", "Bearer"),))

    def _weigh(self, http: Exchange, world: World, record: Record, principal: Principal, call: Call) -> Accepted:
        entry = world.model(call.model)
        if entry is None:
            raise _unknown_model(call.model)
        record.model = entry.name
        record.stream = call.stream
        if not principal.allows(entry.name):
            raise Refused(
                Outcome.FORBIDDEN, f"The API key's tenant may not use the model '{call.model}'.", param="model"
            )
        _cap_output(call, entry)
        measured = measure(call.body, len(call.raw), generates=call.endpoint not in _WITHOUT_OUTPUT)
        estimate = self._estimator.estimate(principal.tenant, entry.name, measured, entry.context)
        answer = None
        if call.endpoint in _WITHOUT_TOKENS:
            if call.endpoint is Endpoint.COUNT_TOKENS and not _anybody_counts(world, entry):
                answer = orjson.dumps({"input_tokens": estimate.prompt_tokens})
            estimate = replace(estimate, prompt_tokens=0)
        record.estimate = estimate
        if entry.context is not None and estimate.prompt_tokens > entry.context * _ESTIMATE_SLACK:
            raise Refused(
                Outcome.CONTEXT_TOO_LONG,
                f"This model's maximum context length is {entry.context} tokens; "
                f"the prompt is about {estimate.prompt_tokens} tokens.",
                param="input" if call.endpoint in _OF_INPUT else "messages",
            )
        cls = _CLASSES[principal.cls]
        if call.body.get("service_tier") == "flex":
            cls = RequestClass.BATCH  # a caller may always ask for less urgency than it has
        record.cls = cls
        accepted = record.accepted = Accepted(
            world=world,
            principal=principal,
            model=entry,
            call=call,
            measured=measured,
            estimate=estimate,
            cls=cls,
            sdk_retry=_small_int(http.header("x-stainless-retry-count")),
            patience_s=_seconds(http.header("x-stainless-read-timeout")),
            passed_on=passed_on(http),
            answer=answer,
        )
        return accepted

    async def _other(self, http: Exchange, world: World, record: Record, path: str) -> None:
        """GET /v1/models and /v1/models/{id}; anything else is unknown here."""
        if path != openai.MODELS_PATH and not path.startswith(openai.MODELS_PATH + "/"):
            if path.startswith(responses.PATH + "/"):
                record.principal = self._authenticate(http, world)
                raise responses.of_kept(http.method, path)
            hint = ""
            if path.startswith("/v1/v1/messages"):
                hint = " Anthropic's SDK adds /v1 itself: leave it off the base URL."
            elif path.startswith("/v1/v1/"):
                hint = " The base URL should end in /v1 only once."
            raise Refused(Outcome.UNKNOWN_PATH, f"Unknown request URL: {http.method} {path}.{hint}")
        if http.method not in {"GET", "HEAD"}:
            raise Refused(
                Outcome.METHOD_NOT_ALLOWED, f"{path} takes GET, not {http.method}.", headers=(("allow", "GET"),)
            )
        principal = self._authenticate(http, world)
        record.principal = principal
        visible = [(name, entry) for name, entry in sorted(world.models.items()) if principal.allows(entry.name)]
        if path == openai.MODELS_PATH:
            body = openai.model_list(visible)
        else:
            # Model ids hold slashes and colons; SDKs send them percent-encoded.
            wanted = unquote(path[len(openai.MODELS_PATH) + 1 :])
            found = next((entry for name, entry in visible if name == wanted), None)
            if found is None:
                raise _unknown_model(wanted)
            body = orjson.dumps(openai.model_object(found, wanted))
        record.status = 200
        record.finish(Outcome.FINISHED)
        ids: Sequence[tuple[str, str]] = (("x-request-id", record.request_id), ("request-id", record.request_id))
        await http.respond(200, [*ids, _JSON], body)


def _anybody_counts(world: World, entry: ModelEntry) -> bool:
    """Whether a target of the model counts tokens itself."""
    pools = (world.pools[target.pool] for tier in entry.route.tiers for target in tier.targets)
    return any(pool.kind.facts.serves(Endpoint.COUNT_TOKENS) for pool in pools)


def _cap_output(call: Call, entry: ModelEntry) -> None:
    """Holds an answer to the model's own maximum: a larger one asked for is refused, one not named is set."""
    most = entry.max_output
    if most is None or call.endpoint in _WITHOUT_OUTPUT:
        return
    named = False
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        asked = call.body.get(name)
        if asked is None:
            continue
        named = True
        if asked > most:
            raise Refused(
                Outcome.BAD_REQUEST,
                f"{name} is too large: {asked}. This model answers at most {most} tokens.",
                param=name,
            )
    if not named:
        call.body[_CAPS.get(call.endpoint, "max_tokens")] = most
        call.raw = orjson.dumps(call.body)


def _presented_key(http: Exchange) -> str | None:
    """The key as any client sends it: bearer first, then the two header forms of other SDKs."""
    authorization = http.header("authorization")
    if authorization is not None:
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() == "bearer" and key:
            return key.strip()
    return http.header("x-api-key") or http.header("api-key")


def _unknown_model(name: str) -> Refused:
    shown = name if len(name) <= 100 else name[:100] + "…"
    return Refused(
        Outcome.UNKNOWN_MODEL, f"The model '{shown}' does not exist or you do not have access to it.", param="model"
    )


def _small_int(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 4 else 0


def _seconds(text: str | None) -> float | None:
    """A duration an SDK sends as float text; what does not parse is not a deadline."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0.0 < seconds < 1e6 else None
