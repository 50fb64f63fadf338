"""The shapes of the admin API: bodies are checked by them, and the OpenAPI document describes them.

Settings are those of the config file under the same names, so that what is shown can be put into the file.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from gateway.settings_base import ModelTable, Name, NameTable, Positive, Settings
from gateway.settings_pools import Isolation
from gateway.settings_tenants import ClassName, Limits, ModelPattern, Policy, Reservation

T = TypeVar("T")
Source = Literal["file", "registry"]
RoleName = Literal["operator", "auditor", "tenant_admin"]


Label = Annotated[str, Field(max_length=200)]


class Body(Settings):
    """A body: closed to unknown members."""

    model_config = ConfigDict(populate_by_name=False)


class TenantSettings(Body):
    """What decides what a tenant may do; its keys and reservations are resources of their own."""

    organisation: Name | None = None
    weight: Annotated[Positive, Field(le=1000)] = 1.0
    request_class: ClassName = Field(default="interactive", alias="class")
    models: tuple[ModelPattern, ...] = ("*",)
    limits: Limits = Limits()
    model_limits: ModelTable[Limits] = Field(default={}, validate_default=True)
    isolation: Isolation = "shared"
    policy: Policy = Policy()


class NewTenant(TenantSettings):
    """A tenant to create."""

    name: Name


class OrganisationSettings(Body):
    """What tenants of an organisation share."""

    limits: Limits = Limits()


class NewOrganisation(OrganisationSettings):
    """An organisation to create."""

    name: Name


class KeySettings(Body):
    """What may be changed of a key."""

    label: Label = ""
    limits: Limits = Limits()
    expires: AwareDatetime | None = None
    blocked: bool = False


class NewKey(Body):
    """A key to create."""

    label: Label = ""
    limits: Limits = Limits()
    expires: AwareDatetime | None = None


class Rotation(Body):
    """How a key is replaced."""

    overlap_s: Annotated[int, Field(ge=0, le=90 * 86_400)] = 86_400
    """How long the old key goes on working, seconds."""


class NewAdminKey(Body):
    """A credential of the admin API to create."""

    role: RoleName
    tenant: Name | None = None
    label: Label = ""
    expires: AwareDatetime | None = None


class View(BaseModel):
    """An answer."""


class TenantView(View):
    """A tenant. `source: file` is owned by the config file and read-only here."""

    name: str
    source: Source
    organisation: str | None
    weight: float
    request_class: ClassName = Field(alias="class")
    models: list[str]
    limits: Limits
    model_limits: dict[str, Limits]
    isolation: Isolation
    policy: Policy
    reservations: NameTable[Reservation]
    keys: int
    """Keys that work now."""
    created_at: AwareDatetime | None
    updated_at: AwareDatetime | None


class OrganisationView(View):
    """An organisation."""

    name: str
    source: Source
    limits: Limits
    tenants: list[str]
    created_at: AwareDatetime | None
    updated_at: AwareDatetime | None


class KeyView(View):
    """A key, without the key."""

    id: str
    tenant: str
    source: Source
    state: Literal["active", "blocked", "expired", "revoked"]
    label: str
    hint: str
    """Its last characters."""
    limits: Limits
    expires: AwareDatetime | None
    created_at: AwareDatetime | None
    created_by: str
    revoked_at: AwareDatetime | None
    replaced_by: str | None
    last_used_at: AwareDatetime | None


class CreatedKeyView(KeyView):
    """A key just made. `key` is shown this once."""

    key: str | None = None
    """The key itself; absent when an answer is repeated for an idempotency key."""


class AdminKeyView(View):
    """A credential of the admin API, without the credential."""

    id: str
    role: RoleName
    tenant: str | None
    label: str
    hint: str
    state: Literal["active", "expired", "revoked"]
    expires: AwareDatetime | None
    created_at: AwareDatetime
    created_by: str


class CreatedAdminKeyView(AdminKeyView):
    """A credential just made. `key` is shown this once."""

    key: str | None = None


class ReservationsView(View):
    """The reservations of a tenant by pool."""

    tenant: str
    reservations: NameTable[Reservation]


class PageView(View, Generic[T]):
    """A page of a list."""

    data: list[T]
    has_more: bool
    next: str | None
    """Give it as `after` for the next page."""


class BoundaryView(View):
    """Which boundary stands between a tenant and the others in one pool."""

    pool: str
    kind: str
    used: bool
    """Whether a model of the tenant is served there."""
    process: str
    device: str
    batch: str
    prefix_cache: str
    adapter: str
    logs: str
    problem: str | None
    """Why the salt does not part the prefix cache there, as the isolation probe saw it; null when it does."""


class BoundariesView(View):
    """Boundaries of a tenant by pool."""

    tenant: str
    isolation: Isolation
    pools: list[BoundaryView]


class PoolView(View):
    """A pool as it stands; the members are those of its snapshot."""

    model_config = ConfigDict(extra="allow")
    name: str
    kind: str
    isolation: Isolation
    waiting: int
    inflight: int
    replicas: list[dict[str, Any]]
    tenants: dict[str, dict[str, Any]]
    breakers: list[dict[str, Any]]


class AuditView(View):
    """One change, by whom, from where, and what it made of what."""

    seq: int
    at: AwareDatetime
    actor: str
    role: str
    address: str
    request_id: str
    action: str
    kind: str
    name: str
    tenant: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class UsageView(View):
    """Sums over requests; tokens and micro-dollars. The members named by `by` tell which."""

    model_config = ConfigDict(extra="allow")
    requests: int
    failed: int
    estimated: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    micro_usd: int


class UsageListView(View):
    """Sums over the days from `from` up to and without `to`."""

    first: date = Field(alias="from")
    to: date
    by: list[str]
    data: list[UsageView]


class RequestView(View):
    """One request as it was settled."""

    model_config = ConfigDict(extra="allow")
    request_id: str
    at: AwareDatetime
    tenant: str
    key: str
    model: str
    outcome: str
    prompt_tokens: int
    output_tokens: int
    micro_usd: int
    estimated: bool


class RefusalView(View):
    """Requests of a key that ended before anything was sent, in one minute."""

    minute: AwareDatetime
    tenant: str
    key: str
    reason: str
    requests: int
