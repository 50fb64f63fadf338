"""Rate-limit headers in three families, from where the limits stand.

Per dimension the *tightest* level is told: the one with the fewest units left, and of those the one that is whole
again last. A reset is rounded up, so nothing is ever said to be sooner than it is. Figures are the store's own.

    OpenAI      x-ratelimit-{limit,remaining,reset}-{requests,tokens}; reset is a Go duration: 12ms, 1.5s, 6m0s
    Anthropic   anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset};
                reset is an RFC 3339 time in UTC
    IETF        RateLimit-Policy: "total_tokens";q=100000;w=60 and RateLimit: "total_tokens";r=5000;t=12
                (structured fields; the unit goes into the policy's name, since the draft registers none for tokens)

A refusal adds `retry-after` in whole seconds, rounded up: never early and less than a second late, and
`retry-after-ms`, which the official SDKs read first. `x-should-retry: false` is added where coming back cannot help:
the request can never fit, the budget is spent, or the wait is beyond what an SDK would sit out (120 s).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from ratelimit.limit import BUDGETS, MICROSECONDS, Dimension, Reason, Refusal, Standing

Headers = list[tuple[str, str]]
LONGEST_RETRY_US = 120 * MICROSECONDS
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TOKENS = (Dimension.TOTAL_TOKENS, Dimension.INPUT_TOKENS, Dimension.OUTPUT_TOKENS)


def tightest(standings: Iterable[Standing], dimensions: Sequence[Dimension]) -> Standing | None:
    """The standing with the fewest units left among these dimensions, or None where there is no such limit."""
    found = [s for s in standings if s.limit.dimension in dimensions]
    return min(found, key=lambda s: (s.remaining, -s.reset_us), default=None)


def go_duration(microseconds: int) -> str:
    """A duration as Go prints one, rounded up to the millisecond: 0s, 12ms, 1.5s, 6m0s, 25h0m0s."""
    ms = -(-microseconds // 1_000)
    if ms == 0:
        return "0s"
    if ms < 1_000:
        return f"{ms}ms"
    minutes, ms = divmod(ms, 60_000)
    seconds = f"{ms // 1_000}.{ms % 1_000:03d}".rstrip("0").rstrip(".") + "s"
    if not minutes:
        return seconds
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}" if hours else f"{minutes}m{seconds}"


def rfc3339(microseconds: int) -> str:
    """A Unix time in microseconds as an RFC 3339 UTC time, rounded up to the second."""
    return (_EPOCH + timedelta(seconds=-(-microseconds // MICROSECONDS))).strftime("%Y-%m-%dT%H:%M:%SZ")


def openai(standings: Sequence[Standing]) -> Headers:
    """The `x-ratelimit-*` family. Tokens are total tokens where such a limit exists, else the tighter of the others."""
    headers: Headers = []
    for name, found in (("requests", tightest(standings, (Dimension.REQUESTS,))), ("tokens", _tokens(standings))):
        if found is not None:
            headers += (
                (f"x-ratelimit-limit-{name}", str(found.limit.amount)),
                (f"x-ratelimit-remaining-{name}", str(found.remaining)),
                (f"x-ratelimit-reset-{name}", go_duration(found.reset_us)),
            )
    return headers


def anthropic(standings: Sequence[Standing], now: int) -> Headers:
    """The `anthropic-ratelimit-*` family; `now` is Unix microseconds."""
    headers: Headers = []
    for name, found in (
        ("requests", tightest(standings, (Dimension.REQUESTS,))),
        ("tokens", _tokens(standings)),
        ("input-tokens", tightest(standings, (Dimension.INPUT_TOKENS,))),
        ("output-tokens", tightest(standings, (Dimension.OUTPUT_TOKENS,))),
    ):
        if found is not None:
            headers += (
                (f"anthropic-ratelimit-{name}-limit", str(found.limit.amount)),
                (f"anthropic-ratelimit-{name}-remaining", str(found.remaining)),
                (f"anthropic-ratelimit-{name}-reset", rfc3339(now + found.reset_us)),
            )
    return headers


def ietf(standings: Sequence[Standing]) -> Headers:
    """`RateLimit-Policy` and `RateLimit` of the IETF draft: rates and concurrency, one policy per dimension."""
    policies, states = [], []
    for dimension in Dimension:
        found = None if dimension in BUDGETS else tightest(standings, (dimension,))
        if found is None:
            continue
        window = "" if dimension is Dimension.CONCURRENCY else f";w={found.limit.period_s}"
        policies.append(f'"{dimension}";q={found.limit.amount}{window}')
        states.append(f'"{dimension}";r={found.remaining};t={-(-found.reset_us // MICROSECONDS)}')
    if not policies:
        return []
    return [("ratelimit-policy", ", ".join(policies)), ("ratelimit", ", ".join(states))]


def retry(refusal: Refusal) -> Headers:
    """When to come back, and whether to."""
    wait = refusal.wait_us
    if wait is None:
        return [("x-should-retry", "false")]
    headers = [
        ("retry-after", str(max(1, -(-wait // MICROSECONDS)))),
        ("retry-after-ms", str(max(1, -(-wait // 1_000)))),
    ]
    if refusal.reason is Reason.BUDGET_EXHAUSTED or wait > LONGEST_RETRY_US:
        headers.append(("x-should-retry", "false"))
    return headers


def _tokens(standings: Sequence[Standing]) -> Standing | None:
    return tightest(standings, _TOKENS[:1]) or tightest(standings, _TOKENS[1:])
