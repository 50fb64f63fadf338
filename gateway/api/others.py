"""Other `/v1` paths that take JSON and give JSON: passed on by the same door, and on the same books.

Only the model is read here; all else is the upstream's.
"""

from __future__ import annotations

from gateway.api.bodies import parse_object, stream_of
from gateway.outcomes import Outcome, Refused
from providers.exchange import Call, Dialect, Endpoint

CALLS: dict[str, Endpoint] = {
    "/v1/rerank": Endpoint.RERANK,
    "/v1/moderations": Endpoint.MODERATIONS,
    "/v1/images/generations": Endpoint.IMAGES,
    "/v1/tokenize": Endpoint.TOKENIZE,
    "/v1/detokenize": Endpoint.DETOKENIZE,
}


def parse_call(endpoint: Endpoint, raw: bytes) -> Call:
    """Reads a request. Raises Refused (400) naming the field that is wrong."""
    body, model = parse_object(raw)
    if stream_of(body):
        raise Refused(Outcome.UNSUPPORTED, "Streams are not supported on this path.", param="stream")
    return Call(
        endpoint=endpoint,
        dialect=Dialect.OPENAI,
        raw=raw,
        body=body,
        model=model,
        stream=False,
        wants_usage=False,
    )
