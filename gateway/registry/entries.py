"""What is spooled of a request, as lines of JSON: that it is about to be sent, and how it ended.

    ["i", id, at, tenant, key, model, class, stream, prompt tokens, output tokens, micro-USD]     all estimated
    ["o", id, at, tenant, key, model, class, stream, pool, replica, outcome, status, attempts, prompt, cached, output,
     reasoning, micro-USD, estimated, queue ms, TTFT ms, total ms]

The second says everything by itself. The first is used only when there is no second: the process died in between.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.outcomes import Ending
from gateway.record import Phase, Record
from providers.exchange import NO_USAGE
from ratelimit.limit import Amounts

LOST: Final = "lost"
"""The outcome of a request whose gateway died while it was under way: what it used is estimated."""

_OUTCOME: Final = (
    "request_id", "at", "tenant", "key", "model", "class", "stream", "pool", "replica", "outcome", "status", "attempts",
    "prompt_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "micro_usd", "estimated", "queue_ms",
    "ttft_ms", "total_ms",
)  # fmt: skip
_INTENT: Final = (
    "request_id", "at", "tenant", "key", "model", "class", "stream", "prompt_tokens", "output_tokens", "micro_usd",
)  # fmt: skip

_INTENT_HEAD: Final = b'["i","'  # a request id holds nothing that JSON would escape

Row = dict[str, Any]


def intent(record: Record) -> bytes:
    """That a request is about to be sent."""
    principal, reserved = record.principal, record.reserved or Amounts()
    assert principal is not None
    return orjson.dumps(
        (
            "i",
            record.request_id,
            int(record.wall * 1e6),
            principal.tenant,
            principal.key_id,
            record.model,
            record.cls,
            record.stream,
            reserved.input_tokens,
            reserved.output_tokens,
            reserved.micro_usd,
        )
    )


def outcome(record: Record, ending: Ending, charged: Amounts, *, estimated: bool) -> bytes:
    """How a request ended."""
    principal, usage, phases = record.principal, record.usage or NO_USAGE, record.phases
    assert principal is not None
    first = record.first_token_at
    return orjson.dumps(
        (
            "o",
            record.request_id,
            int(record.wall * 1e6),
            principal.tenant,
            principal.key_id,
            record.model,
            record.cls,
            record.stream,
            record.pool,
            record.replica,
            ending.label,
            record.status or ending.status,
            len(record.attempts),
            charged.input_tokens,
            min(usage.cached_tokens or 0, charged.input_tokens),
            charged.output_tokens,
            min(usage.reasoning_tokens or 0, charged.output_tokens),
            charged.micro_usd,
            estimated,
            round(1000 * phases.spent.get(Phase.QUEUE, 0.0), 3),
            None if first is None else round(1000 * (first - phases.started), 3),
            round(1000 * phases.total, 3),
        )
    )


def announced(line: bytes) -> str | None:
    """The request id of an intent, None for any other line. Cheaper than parsing what its outcome will say again."""
    if not line.startswith(_INTENT_HEAD):
        return None
    return line[len(_INTENT_HEAD) : line.find(b'"', len(_INTENT_HEAD))].decode()


def parse(line: bytes) -> tuple[str, Row] | None:
    """ "i" or "o", and the row of the ledger; None for a line that was not written whole."""
    try:
        kind, *values = orjson.loads(line)
    except ValueError:
        return None
    if kind == "o" and len(values) == len(_OUTCOME):
        return kind, dict(zip(_OUTCOME, values, strict=True))
    if kind == "i" and len(values) == len(_INTENT):
        return kind, lost(dict(zip(_INTENT, values, strict=True)))
    return None


def lost(given: Row) -> Row:
    """The row of a request of which only the intent is known."""
    return {
        **given,
        "pool": "",
        "replica": "",
        "outcome": LOST,
        "status": 0,
        "attempts": 1,
        "cached_tokens": 0,
        "reasoning_tokens": 0,
        "estimated": True,
        "queue_ms": None,
        "ttft_ms": None,
        "total_ms": None,
    }
