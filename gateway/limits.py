"""Limit rules of the configuration as limits of the limiter: who counts what, with which burst.

The default burst is ten seconds of a limit's rate, so that a minute's allowance cannot arrive in the
engine at once. It is never less than one large request, or the limit could not be used at all.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.limit_rules import LimitRule
from ratelimit.limit import Dimension, Level, Limit, Mode, default_burst

# A handful of calls may always come together; ten are no burden to any pool.
_REQUESTS_TOGETHER = 10


def compiled(rule: LimitRule, *, organisation: str, largest_tokens: int, when_away: Mode) -> Limit:
    """One rule as a limit. `largest_tokens` is the largest request the models allow (prompt and output)."""
    dimension = Dimension(rule.dimension)
    level = Level(rule.level)
    subject = f"{rule.subject}/{rule.model}" if level is Level.TENANT_MODEL else rule.subject
    period = rule.period_s or 60
    burst = rule.burst
    if burst is None:
        largest = _REQUESTS_TOGETHER if dimension is Dimension.REQUESTS else largest_tokens
        burst = default_burst(rule.amount, period, largest)
    return Limit(
        level=level,
        subject=subject,
        dimension=dimension,
        amount=rule.amount,
        period_s=period,
        burst=burst,
        mode=when_away,
        exact=rule.exact,
        shadow=rule.shadow,
        organisation="" if level is Level.MODEL else organisation,
    )


def compiled_all(
    rules: Iterable[LimitRule], *, organisation: str, largest_tokens: int, when_away: Mode
) -> tuple[Limit, ...]:
    """Every rule as a limit."""
    return tuple(
        compiled(rule, organisation=organisation, largest_tokens=largest_tokens, when_away=when_away) for rule in rules
    )
