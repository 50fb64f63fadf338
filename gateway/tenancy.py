"""Keeps the data plane in step with the registry: who may come in, with what weight, and what is reserved for whom.

A change of a tenant replaces its keys in the directory and its terms in every pool, between two requests. Reservations
are shares of measured capacity, so their figures follow what is measured too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from fairqueue.admission import Admission
from fairqueue.reservations import Reservation, Sale
from gateway import values
from gateway.clock import Clock
from gateway.principals import Directory, directory, of_tenant
from gateway.registry.book import Book
from gateway.settings import Config
from gateway.settings_tenants import Reservation as ReservationSettings

log = logging.getLogger("weighbridge.registry")


class Tenancy:
    """One instance a process. `cores` gives the admission of every pool by name."""

    def __init__(self, config: Config, clock: Clock, cores: Callable[[], Mapping[str, Admission]]) -> None:
        self.known = config  # the file with every tenant that the registry has
        self.directory: Directory = directory(config, clock.unix)  # the keys of exactly these tenants
        self._clock = clock
        self._cores = cores
        # Weight and reservation as last told to a pool, by (pool, tenant).
        self._sold: dict[tuple[str, str], tuple[float, Reservation | None]] = {}

    def declare(self, book: Book) -> None:
        """The file has been read again: everything is made anew."""
        self.known = book.config()
        self.directory = directory(self.known, self._clock.unix)
        self._miss(self.known.tenants)
        self.keep_reservations()

    def follow(self, book: Book, touched: frozenset[str] | None) -> None:
        """The registry has changed: the tenants it names (None: all) follow."""
        before = self.known
        self.known = book.config() if touched is None else book.config_after(before, touched)
        self._miss(self.known.tenants if touched is None else touched)
        for name in touched if touched is not None else before.tenants.keys() | self.known.tenants.keys():
            if name in before.tenants:
                self.directory.drop_tenant(name)
            for record in of_tenant(self.known, name):
                self.directory.put(record)
        self.keep_reservations(touched)

    def _miss(self, names: Iterable[str]) -> None:
        """Tells of limits that a tenant no longer has because the file has dropped its organisation."""
        for name in names:
            tenant = self.known.tenants.get(name)
            if tenant is not None and tenant.organisation and tenant.organisation not in self.known.organisations:
                log.error("tenant %s: its organisation %s is gone, and its limits with it", name, tenant.organisation)

    def sellable(self, pool: str, tenant: str, terms: ReservationSettings) -> Sale:
        """Whether a tenant may be sold a part of a pool beside what is sold there, in the capacity measured now."""
        core, now = self._cores()[pool], self._clock.monotonic()
        return core.sellable(tenant, values.reservation(terms, core.measured(now), self._clock), now)

    def keep_reservations(self, names: Iterable[str] | None = None) -> None:
        """Tells the pools the weights and reservations of tenants (None: all) where they differ from what was told.

        A tenant that is gone holds no reservation any more.
        """
        now = self._clock.monotonic()
        tenants, cores = self.known.tenants, self._cores()
        for pool, core in cores.items():
            measured = core.measured(now)
            for name in tenants if names is None else names:
                tenant = tenants.get(name)
                if tenant is None:
                    continue
                given = tenant.reservations.get(pool)
                sold = values.reservation(given, measured, self._clock) if given is not None else None
                terms = (tenant.weight, sold)
                if self._sold.get((pool, name)) != terms:
                    self._sold[pool, name] = terms
                    core.set_tenant(name, weight=tenant.weight, reservation=sold, now=now)
        for pool, name in [key for key in self._sold if key[1] not in tenants or key[0] not in cores]:
            del self._sold[pool, name]
            if pool in cores:
                cores[pool].set_tenant(name, weight=1.0, reservation=None, now=now)
