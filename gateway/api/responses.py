"""The Responses API at the door: its paths and checks of a body's types.

Responses are not kept: they could be read by whoever shares the account at a provider. Asking for one by its id is
answered with a clear error, as is every field that refers to one.
"""

from __future__ import annotations

from gateway.api.bodies import parse_object, stream_of, wrong
from gateway.outcomes import Outcome, Refused
from providers.exchange import Call, Dialect, Endpoint

PATH = "/v1/responses"


def parse_call(raw: bytes) -> Call:
    """Reads a request. Raises Refused (400) naming the field that is wrong."""
    body, model = parse_object(raw)
    stream = stream_of(body)
    given = body.get("input")
    if type(given) is not str and (type(given) is not list or not given):
        raise wrong("input", "a string or a non-empty array of items", given)
    for index, item in enumerate(given if type(given) is list else ()):
        if type(item) is not dict:
            raise wrong(f"input[{index}]", "an object", item)
    cap = body.get("max_output_tokens")
    if cap is not None and (type(cap) is not int or cap < 1):
        raise wrong("max_output_tokens", "a positive integer", cap)
    return Call(
        endpoint=Endpoint.RESPONSES,
        dialect=Dialect.OPENAI,
        raw=raw,
        body=body,
        model=model,
        stream=stream,
        wants_usage=True,
    )


def of_kept(method: str, path: str) -> Refused:
    """The answer to a request about an earlier response."""
    name = path.removeprefix(PATH).strip("/").partition("/")[0][:100]
    return Refused(
        Outcome.UNKNOWN_PATH,
        f"Response '{name}' not found: responses are not kept, so none can be read, cancelled or deleted ({method}).",
        code="response_not_found",
    )
