"""Limits and reservations of a tenant over the admin API. A reservation that cannot be kept is refused with figures."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from gateway.api.admin_call import OPERATORS, READERS, Answer, Call, Route
from gateway.api.admin_models import ReservationsView
from gateway.api.admin_tenants import changed, check, etag, owned_by_file, tenant_of, unknown, view
from gateway.api.problems import Problem
from gateway.registry.rows import plain
from gateway.settings_tenants import Limits, Reservation


async def limits(call: Call) -> Answer:
    """The limits of a tenant over all its keys together."""
    row = tenant_of(call)
    return Answer(plain(row.settings.limits), etag=etag(row, call.registry.book))


async def set_limits(call: Call) -> Answer:
    """Changes the limits that the patch names; null takes one away."""
    answer = await changed(call, {"limits": call.body})
    return Answer(answer.body["limits"], etag=answer.etag)


async def reservations(call: Call) -> Answer:
    """The reservations of a tenant by pool."""
    row = tenant_of(call)
    return Answer(_shown(row.name, row.settings.reservations), etag=etag(row, call.registry.book))


def _shown(name: str, given: Any) -> dict[str, Any]:
    return {"tenant": name, "reservations": {pool: plain(terms) for pool, terms in given.items()}}


async def reserve(call: Call) -> Answer:
    """Sells a tenant a part of a pool, or says with figures why it cannot be kept."""
    pool, terms = call.names["pool"], call.body
    return await _reserve(call, pool, terms)


async def release(call: Call) -> Answer:
    """Takes a reservation back."""
    pool = call.names["pool"]
    if pool not in tenant_of(call).settings.reservations:
        raise Problem(404, "unknown_reservation", f"This tenant has no reservation in pool {pool!r}.")
    return await _reserve(call, pool, None)


async def _reserve(call: Call, pool: str, terms: Reservation | None) -> Answer:
    name = call.names["tenant"]
    if tenant_of(call).declared:
        raise owned_by_file(f"Tenant {name!r}")
    book = call.registry.book
    async with call.change() as change:
        row = await change.tenant(name)
        if row is None:
            raise unknown(name)
        call.must_match(etag(row, book))
        given = {one: kept for one, kept in row.settings.reservations.items() if one != pool}
        if terms is not None:
            given[pool] = terms
        settings = row.settings.model_copy(update={"reservations": MappingProxyType(given)})
        if terms is not None:
            check(book, name, settings)
            _sell(call, name, pool, terms)
        new = replace(row, settings=settings, revision=row.revision + 1, updated_at=change.now)
        await change.set_tenant(new)
        action = "released" if terms is None else "reserved"
        change.say(action, "reservation", pool, tenant=name, before=view(row, call), after=view(new, call))
    return Answer(None, 204) if terms is None else Answer(_shown(name, given), etag=etag(new, book))


def _sell(call: Call, name: str, pool: str, terms: Reservation) -> None:
    sale = call.parts.fleet.sellable(pool, name, terms)
    if sale.ok:
        return
    figures = [
        {
            "dimension": line.dimension,
            "asked": line.asked,
            "sold": line.sold,
            "sellable": line.limit,
            "measured": line.measured,
        }
        for line in sale.lines
    ]
    raise Problem(409, "cannot_be_kept", f"Pool {pool!r} cannot keep this: {sale.detail}.", more={"figures": figures})


ROUTES: Final = (
    Route("GET", "/tenants/{tenant}/limits", "readLimits", "Limits of a tenant.", READERS, limits, answer=Limits),
    Route(
        "PATCH", "/tenants/{tenant}/limits", "updateLimits", "Changes limits of a tenant.", OPERATORS, set_limits,
        body=Limits, answer=Limits, if_match=True,
    ),
    Route(
        "GET", "/tenants/{tenant}/reservations", "listReservations", "Reservations of a tenant by pool.", READERS,
        reservations, answer=ReservationsView,
    ),
    Route(
        "PUT", "/tenants/{tenant}/reservations/{pool}", "reserve",
        "Sells a tenant a part of a pool; refused with figures when it cannot be kept.", OPERATORS, reserve,
        body=Reservation, answer=ReservationsView, if_match=True,
    ),
    Route(
        "DELETE", "/tenants/{tenant}/reservations/{pool}", "release", "Takes a reservation back.", OPERATORS, release,
        status=204, if_match=True,
    ),
)  # fmt: skip
