"""The versioned cache in front of the registry: everything that is known, as the data plane and the admin API read it.

Two layers. The config file's objects come first: a name that it declares hides one of the same name in the database,
and an id or a hash of a key likewise. Over them lie the database's objects as of `version`. A reader of the database
hands in what a version touched; nothing older than what is here is ever taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from gateway.registry import rows
from gateway.registry.rows import AdminKeyRow, KeyRow, OrganisationRow, TenantRow
from gateway.settings import Config
from gateway.settings_tenants import Organisation, Tenant


@dataclass(frozen=True, slots=True)
class Contents:
    """What was read from the database at one version: everything, or what the changes since then touched.

    Names in `gone_…` were touched and are not there any more. `whole`: what is not named does not exist.
    """

    version: int
    whole: bool
    organisations: tuple[OrganisationRow, ...] = ()
    tenants: tuple[TenantRow, ...] = ()
    keys: tuple[KeyRow, ...] = ()
    admin_keys: tuple[AdminKeyRow, ...] = ()
    touched_organisations: frozenset[str] = frozenset()
    touched_tenants: frozenset[str] = frozenset()
    """Their keys were read as well."""


@dataclass(slots=True)
class _Layer:
    organisations: dict[str, OrganisationRow] = field(default_factory=dict)
    tenants: dict[str, TenantRow] = field(default_factory=dict)
    keys: dict[str, dict[str, KeyRow]] = field(default_factory=dict)  # by tenant, then by id


class Book:
    """One instance a process. `version` never falls."""

    def __init__(self, base: Config) -> None:
        self.version = -1  # of the database; -1: it has not been read
        self.base = base
        self.admin_keys: dict[str, AdminKeyRow] = {}
        self._file = _Layer()
        self._stored = _Layer()
        self.declare(base)

    def declare(self, config: Config) -> None:
        """Takes another config file's objects instead of the last one's."""
        self.base = config
        organisations, tenants, keys = rows.declared(config)
        by_tenant: dict[str, dict[str, KeyRow]] = {}
        for row in keys.values():
            by_tenant.setdefault(row.tenant, {})[row.id] = row
        self._file = _Layer(organisations, tenants, by_tenant)
        self._file_ids = frozenset(keys)
        self._file_hashes = frozenset(row.hash for row in keys.values())

    def take(self, contents: Contents) -> frozenset[str] | None:
        """Takes what was read; returns the tenants whose data plane must follow, None for all of them.

        What is not newer than what is here changes nothing.
        """
        if contents.version <= self.version:
            return frozenset()
        self.version = contents.version
        self.admin_keys = {row.id: row for row in contents.admin_keys}
        by_tenant: dict[str, dict[str, KeyRow]] = {}
        for row in contents.keys:
            by_tenant.setdefault(row.tenant, {})[row.id] = row
        if contents.whole:
            self._stored = _Layer(
                {one.name: one for one in contents.organisations},
                {one.name: one for one in contents.tenants},
                by_tenant,
            )
            return None
        stored = self._stored
        for name in contents.touched_organisations:
            stored.organisations.pop(name, None)
        stored.organisations.update({one.name: one for one in contents.organisations})
        for name in contents.touched_tenants:
            stored.tenants.pop(name, None)
            stored.keys.pop(name, None)
        stored.tenants.update({one.name: one for one in contents.tenants})
        stored.keys.update(by_tenant)
        members = {
            name for name, row in self.tenants().items() if row.settings.organisation in contents.touched_organisations
        }
        return contents.touched_tenants | members

    # -- reading -----------------------------------------------------------------------------------------

    def organisations(self) -> Mapping[str, OrganisationRow]:
        """Every organisation by name."""
        return {**self._stored.organisations, **self._file.organisations}

    def organisation(self, name: str) -> OrganisationRow | None:
        """One organisation."""
        return self._file.organisations.get(name) or self._stored.organisations.get(name)

    def tenants(self) -> Mapping[str, TenantRow]:
        """Every tenant by name. Anchors of tenants that the file no longer declares are left out."""
        stored = {name: row for name, row in self._stored.tenants.items() if not row.declared}
        return {**stored, **self._file.tenants}

    def tenant(self, name: str) -> TenantRow | None:
        """One tenant."""
        found = self._file.tenants.get(name)
        if found is None:
            found = self._stored.tenants.get(name)
            if found is not None and found.declared:
                return None
        return found

    def keys(self, tenant: str) -> Mapping[str, KeyRow]:
        """The keys of a tenant by id, the config file's among them."""
        stored = {
            key_id: row
            for key_id, row in self._stored.keys.get(tenant, {}).items()
            if key_id not in self._file_ids and row.hash not in self._file_hashes
        }
        return {**stored, **self._file.keys.get(tenant, {})}

    def settings(self, name: str) -> Tenant | None:
        """A tenant as the config file would have it, with its keys."""
        row = self.tenant(name)
        if row is None:
            return None
        return row.settings.model_copy(update={"keys": tuple(key.settings() for key in self.keys(name).values())})

    def config(self) -> Config:
        """The config with everything that is known in it."""
        tenants: dict[str, Tenant] = {}
        for name in self.tenants():
            found = self.settings(name)
            if found is not None:
                tenants[name] = found
        return self._with(tenants)

    def config_after(self, before: Config, changed: Iterable[str]) -> Config:
        """Like `config`, where only the tenants named differ from `before`."""
        tenants = dict(before.tenants)
        for name in changed:
            tenants.pop(name, None)
            found = self.settings(name)
            if found is not None:
                tenants[name] = found
        return self._with(tenants)

    def _with(self, tenants: Mapping[str, Tenant]) -> Config:
        organisations: dict[str, Organisation] = {name: row.settings for name, row in self.organisations().items()}
        return self.base.model_copy(
            update={"tenants": MappingProxyType(tenants), "organisations": MappingProxyType(organisations)}
        )

    def shadowed(self) -> list[str]:
        """Tenants in the database that the file hides, by name."""
        return sorted(
            name for name, row in self._stored.tenants.items() if not row.declared and name in self._file.tenants
        )


def anchor(name: str, now: int) -> TenantRow:
    """The row that keys of a declared tenant hang on; `now` in Unix microseconds."""
    return replace(TenantRow(name, Tenant(), declared=True), created_at=now, updated_at=now)
