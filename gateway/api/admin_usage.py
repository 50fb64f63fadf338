"""Usage over the admin API: sums, single requests, refusals, CSV. A tenant admin sees its own tenant's."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from gateway.api.admin_call import PAGE_PARAMETERS, READERS, Answer, Call, Parameter, Route
from gateway.api.admin_models import PageView, RefusalView, RequestView, UsageListView
from gateway.api.admin_tenants import unknown, when
from gateway.api.problems import Problem
from gateway.registry import usage
from gateway.registry.usage import GROUPS, Window

_MOST_DAYS: Final = 400
_MINUTE_US: Final = 60_000_000


def _window(call: Call) -> Window:
    """What the query narrows to: this month so far unless it says otherwise."""
    today = datetime.fromtimestamp(call.parts.fleet.unix_us() / 1e6, UTC).date()
    first = _day(call, "from", today.replace(day=1))
    end = _day(call, "to", today + timedelta(days=1))
    if not first < end or (end - first).days > _MOST_DAYS:
        raise Problem(400, "invalid_query", f"from must be before to, and at most {_MOST_DAYS} days before it.")
    tenant = call.query.get("tenant")
    if tenant is not None and not call.who.sees(tenant):
        raise unknown(tenant)
    return Window(first, end, call.who.tenant or tenant, call.query.get("key"), call.query.get("model"))


def _day(call: Call, name: str, default: date) -> date:
    given = call.query.get(name)
    if given is None:
        return default
    try:
        return date.fromisoformat(given)
    except ValueError:
        raise Problem(400, "invalid_query", f"{name} must be a day like 2027-01-31.") from None


async def sums(call: Call) -> Answer:
    """Sums of usage."""
    window = _window(call)
    by = [one for one in call.query.get("by", "tenant").split(",") if one]
    if len(set(by)) != len(by) or not set(by) <= set(GROUPS):
        raise Problem(400, "invalid_query", f"by must be some of {', '.join(GROUPS)}, with commas between.")
    found = await usage.sums(call.registry.database, window, by)
    return Answer({"from": window.first.isoformat(), "to": window.end.isoformat(), "by": by, "data": found})


async def requests(call: Call) -> Answer:
    """Single requests, the newest first."""
    window, size = _window(call), call.size()
    after = _mark(call, int, str)
    found = await usage.requests(call.registry.database, window, before=after, most=size + 1)
    return call.page(
        found, size, lambda row: [row["at"], row["request_id"]], lambda row: {**row, "at": when(row["at"])}
    )


async def refusals(call: Call) -> Answer:
    """Refusals by minute, key and reason, the newest minute first."""
    window, size = _window(call), call.size()
    after = _mark(call, int, str, str, str)
    found = await usage.refusals(call.registry.database, window, before=after, most=size + 1)
    return call.page(
        found,
        size,
        lambda row: [row["minute"], row["tenant"], row["key"], row["reason"]],
        lambda row: {**row, "minute": when(row["minute"] * _MINUTE_US)},
    )


def _mark(call: Call, *kinds: type) -> Any:
    after = call.after()
    if after is None:
        return None
    if len(after) != len(kinds) or not all(type(one) is kind for one, kind in zip(after, kinds, strict=True)):
        raise Problem(400, "invalid_query", "after must be the 'next' of a page.")
    return tuple(after)


async def export(call: Call) -> Answer:
    """Single requests as CSV."""
    window = _window(call)
    name = f"usage-{window.first}-{window.end}.csv"
    return Answer(
        headers={"content-disposition": f'attachment; filename="{name}"'},
        stream=usage.export(call.registry.database, window),
        content_type="text/csv; charset=utf-8",
    )


_WINDOW: Final = (
    Parameter("from", "First day (UTC); the first of this month unless given.", {"type": "string", "format": "date"}),
    Parameter("to", "Day after the last one (UTC); tomorrow unless given.", {"type": "string", "format": "date"}),
    Parameter("tenant", "Only of this tenant."),
    Parameter("key", "Only of this key, by id."),
)
_MODEL: Final = Parameter("model", "Only of this model.")

ROUTES: Final = (
    Route(
        "GET", "/usage", "sumUsage", "Sums of usage over days.", READERS, sums, answer=UsageListView,
        query=(*_WINDOW, _MODEL, Parameter("by", "Some of tenant, key, model, day, with commas between.")),
    ),
    Route(
        "GET", "/usage/requests", "listRequests", "Single requests, the newest first.", READERS, requests,
        answer=PageView[RequestView], paged=True, query=(*PAGE_PARAMETERS, *_WINDOW, _MODEL),
    ),
    Route(
        "GET", "/usage/refusals", "listRefusals", "Requests that ended before they were sent, by minute and reason.",
        READERS, refusals, answer=PageView[RefusalView], paged=True, query=(*PAGE_PARAMETERS, *_WINDOW),
    ),
    Route(
        "GET", "/usage/export", "exportUsage", "Single requests as CSV, the newest first.", READERS, export,
        query=(*_WINDOW, _MODEL), media_type="text/csv",
    ),
)  # fmt: skip
