"""Tenants, organisations and keys as they are kept: the settings of the config file with who made them, and when.

`declared` objects are the config file's own: the API shows them and changes nothing of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from gateway.settings import Config
from gateway.settings_tenants import Key, Limits, Organisation, Reservation, Tenant

MICRO: Final = 1_000_000
NO_LIMITS: Final = Limits()
Row = Mapping[Any, Any]  # as SQLAlchemy hands rows out: by column name


@dataclass(frozen=True, slots=True)
class OrganisationRow:
    """Tenants that share limits. Times in Unix microseconds."""

    name: str
    settings: Organisation
    declared: bool = False
    revision: int = 1
    created_at: int = 0
    updated_at: int = 0


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant with its reservations and without its keys."""

    name: str
    settings: Tenant
    declared: bool = False
    revision: int = 1
    created_at: int = 0
    updated_at: int = 0


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key of a tenant; of the key itself only the hash and its last characters are known."""

    id: str
    tenant: str
    hash: str = field(repr=False)
    hint: str = ""
    label: str = ""
    limits: Limits = NO_LIMITS
    declared: bool = False
    created_at: int = 0
    created_by: str = ""
    expires_at: int | None = None
    revoked_at: int | None = None
    blocked: bool = False
    replaced_by: str | None = None
    last_used_at: int | None = None
    revision: int = 1

    def settings(self) -> Key:
        """The key as the data plane takes it."""
        expires = None if self.expires_at is None else datetime.fromtimestamp(self.expires_at / MICRO, UTC)
        return Key(
            id=self.id,
            hash=self.hash,
            limits=self.limits,
            expires=expires,
            revoked=self.blocked or self.revoked_at is not None,
        )

    def state(self, now: int) -> str:
        """active, blocked, expired or revoked at `now` (Unix microseconds)."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and now >= self.expires_at:
            return "expired"
        return "blocked" if self.blocked else "active"


@dataclass(frozen=True, slots=True)
class AdminKeyRow:
    """A credential of the admin API: its role, and the tenant it is confined to."""

    id: str
    role: str
    tenant: str | None
    hash: str = field(repr=False)
    hint: str = ""
    label: str = ""
    created_at: int = 0
    created_by: str = ""
    expires_at: int | None = None
    revoked_at: int | None = None

    def valid(self, now: int) -> bool:
        """Whether it may be used at `now` (Unix microseconds)."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def plain(settings: Any) -> Any:
    """A settings model as JSON, only what was given, under the names of the config file."""
    return settings.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def organisation(row: Row) -> OrganisationRow:
    """An organisation from its row."""
    settings = Organisation(limits=Limits.model_validate(row["limits"]))
    return OrganisationRow(row["name"], settings, False, row["revision"], row["created_at"], row["updated_at"])


def organisation_values(row: OrganisationRow) -> dict[str, Any]:
    """The row of an organisation."""
    return {
        "name": row.name,
        "limits": plain(row.settings.limits),
        "revision": row.revision,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


_TENANT_FIELDS: Final = ("organisation", "weight", "class", "models", "limits", "model_limits", "isolation", "policy")


def tenant(row: Row, reservations: Mapping[str, Any]) -> TenantRow:
    """A tenant from its row and its reservations by pool."""
    given = {name: row[name] for name in _TENANT_FIELDS}
    settings = Tenant.model_validate({**given, "reservations": reservations})
    return TenantRow(row["name"], settings, row["declared"], row["revision"], row["created_at"], row["updated_at"])


def tenant_values(row: TenantRow) -> dict[str, Any]:
    """The row of a tenant; its reservations are rows of their own."""
    whole = row.settings.model_dump(mode="json", by_alias=True)
    return {
        "name": row.name,
        "declared": row.declared,
        **{name: whole[name] for name in _TENANT_FIELDS},
        "limits": plain(row.settings.limits),
        "model_limits": {model: plain(limits) for model, limits in row.settings.model_limits.items()},
        "revision": row.revision,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }


def reservation_values(name: str, reservations: Mapping[str, Reservation]) -> list[dict[str, Any]]:
    """The rows of a tenant's reservations."""
    return [{"tenant": name, "pool": pool, "terms": plain(terms)} for pool, terms in reservations.items()]


def key(row: Row) -> KeyRow:
    """A key from its row."""
    return KeyRow(**{**row, "limits": Limits.model_validate(row["limits"])})


def key_values(row: KeyRow) -> dict[str, Any]:
    """The row of a key."""
    return {
        name: plain(row.limits) if name == "limits" else getattr(row, name)
        for name in KeyRow.__slots__
        if name != "declared"
    }


def declared(config: Config) -> tuple[dict[str, OrganisationRow], dict[str, TenantRow], dict[str, KeyRow]]:
    """What the config file says, as rows."""
    organisations = {
        name: OrganisationRow(name, settings, declared=True) for name, settings in config.organisations.items()
    }
    tenants, keys = {}, {}
    for name, settings in config.tenants.items():
        tenants[name] = TenantRow(name, settings.model_copy(update={"keys": ()}), declared=True)
        for one in settings.keys:
            expires = one.expires_unix()
            keys[one.id] = KeyRow(
                id=one.id,
                tenant=name,
                hash=one.hash,
                limits=one.limits,
                declared=True,
                expires_at=None if expires is None else int(expires * MICRO),
                revoked_at=0 if one.revoked else None,
            )
    return organisations, tenants, keys
