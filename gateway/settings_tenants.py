"""Settings of organisations, tenants and keys: who may use what, how much of it, and what is kept for them."""

from __future__ import annotations

import re
from datetime import date, datetime, time
from typing import Annotated, Final, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, AwareDatetime, Field

from fairqueue.reservations import LocalWindow, windows_from_local
from gateway.keys import HASH_PATTERN, ID_PATTERN
from gateway.settings_base import (
    LimitAmount,
    LimitCount,
    ModelTable,
    Name,
    NameTable,
    Positive,
    PositiveOrZero,
    Settings,
    Share,
)
from gateway.settings_pools import Isolation

ClassName = Literal["interactive", "batch"]
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: Final[tuple[Day, ...]] = get_args(Day)
_CLOCK = re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9]|24:00")


def _clock(value: str) -> str:
    if not _CLOCK.fullmatch(value):
        raise ValueError("is not a time of day, HH:MM from 00:00 to 24:00")
    return value


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError("is not a time zone known here, like UTC or Europe/Berlin") from error
    return value


def _key_id(value: str) -> str:
    if not ID_PATTERN.fullmatch(value):
        raise ValueError("is not a key id: 1 to 16 of a-z and 0-9")
    return value


def _key_hash(value: str) -> str:
    if not HASH_PATTERN.fullmatch(value):
        raise ValueError("is not a key hash: 'sha256:' or 'hmac:' and 64 hexadecimal digits (weighbridge keys mint)")
    return value


def _pattern(value: str) -> str:
    if not value or "*" in value[:-1] or not value.isprintable():
        raise ValueError("is not a model name, a prefix ending in '*', or '*'")
    return value


Clock = Annotated[str, AfterValidator(_clock)]
ModelPattern = Annotated[str, AfterValidator(_pattern)]


class Limits(Settings):
    """Limits of one subject. What is not given is not limited at this level; every level that gives one applies."""

    requests_per_minute: LimitCount | None = None
    """Requests."""
    input_tokens_per_minute: LimitCount | None = None
    """Prompt tokens."""
    output_tokens_per_minute: LimitCount | None = None
    """Output tokens, reasoning included."""
    total_tokens_per_minute: LimitCount | None = None
    """Prompt and output tokens together."""
    concurrency: LimitCount | None = None
    """Requests in flight."""
    usd_per_day: LimitAmount | None = None
    """Money in a calendar day (UTC). Needs prices on the models."""
    usd_per_month: LimitAmount | None = None
    """Money in a calendar month (UTC). Needs prices on the models."""
    burst_s: Annotated[Positive, Field(le=86_400)] | None = None
    """How many seconds' worth of a per-minute limit may be used at once after a rest (60 is the whole minute's); none:
    ten seconds' worth, and never less than one large request."""
    exact: bool = False
    """Ask the shared store for every request instead of spending leases: no over-admission at all, at a round trip."""
    shadow: bool = False
    """Count and report what would be refused, but refuse nothing."""

    def given(self) -> dict[str, float]:
        """The limits that are set, by field name."""
        return {name: value for name in LIMIT_FIELDS if (value := getattr(self, name)) is not None}


RATE_FIELDS: Final = (
    "requests_per_minute",
    "input_tokens_per_minute",
    "output_tokens_per_minute",
    "total_tokens_per_minute",
)
MONEY_FIELDS: Final = ("usd_per_day", "usd_per_month")
LIMIT_FIELDS: Final = (*RATE_FIELDS, "concurrency", *MONEY_FIELDS)


class Key(Settings):
    """A credential of a tenant. Only its hash is kept."""

    id: Annotated[str, AfterValidator(_key_id)]
    """The id inside the key (`wb_<id>_…`), unique over all tenants."""
    hash: Annotated[str, AfterValidator(_key_hash)]
    """`sha256:…` or `hmac:…` (with `key_peppers`), as `weighbridge keys mint` prints it."""
    limits: Limits = Limits()
    """Limits of this key, within those of its tenant."""
    expires: AwareDatetime | None = None
    """When it stops working (`2027-01-31T00:00:00Z`)."""
    revoked: bool = False
    """Refuse it from now on, and keep the record."""

    def expires_unix(self) -> float | None:
        """Unix time in seconds after which the key is refused."""
        expires: datetime | None = self.expires
        return None if expires is None else expires.timestamp()


class Window(Settings):
    """A weekly window. One that ends before it begins runs over midnight."""

    days: tuple[Day, ...] = Field(default=DAYS, min_length=1)
    """Days on which it begins."""
    start: Clock = Field(default="00:00", alias="from")
    """Time of day it begins."""
    end: Clock = Field(default="24:00", alias="to")
    """Time of day it ends."""

    def local(self) -> LocalWindow:
        """The window as the core takes it."""
        return LocalWindow(frozenset(DAYS.index(day) for day in self.days), _time(self.start), _time(self.end))


def _time(clock: str) -> time:
    hours, minutes = clock.split(":")
    return time(int(hours) % 24, int(minutes))


class Reservation(Settings):
    """A guaranteed part of one pool's capacity."""

    rate_share: Share = 0.0
    """Part of the pool's measured rate of work that this tenant gets before anybody's weight counts."""
    burst_s: PositiveOrZero = 1.0
    """How many seconds of its rate it may run ahead after a rest."""
    room_share: Share = 0.0
    """Part of the pool's seats and KV tokens."""
    hold: Share = 0.5
    """Part of the unused room that is kept free of work which cannot be preempted; the rest is lent. 1 makes the
    whole guarantee instant."""
    schedule: tuple[Window, ...] = ()
    """When it holds; none given: always."""
    timezone: Annotated[str, AfterValidator(_zone)] = "UTC"
    """Time zone of the schedule, like `Europe/Berlin`."""

    def windows(self, first_day: date, days: int, to_monotonic: float = 0.0) -> tuple[tuple[float, float], ...] | None:
        """When it holds in the `days` days from `first_day`, as seconds from and to; None is always.

        `to_monotonic` is added to Unix times.
        """
        if not self.schedule:
            return None
        local = [window.local() for window in self.schedule]
        return windows_from_local(local, ZoneInfo(self.timezone), first_day, days, to_monotonic)


class Organisation(Settings):
    """Tenants that share limits."""

    limits: Limits = Limits()
    """Limits over all its tenants together."""


class Policy(Settings):
    """Where a tenant's requests may go."""

    pools: tuple[Name, ...] | None = None
    """Only these pools; none: all that are not dedicated to others."""
    regions: tuple[Name, ...] | None = None
    """Only pools whose failure domain (or account) is in these regions; none: all."""
    spill: bool = True
    """Whether later tiers of a model may serve it."""
    ceiling_usd: Positive | None = None
    """Highest estimated price of one request on a later tier; none: any."""


class Tenant(Settings):
    """Who pays. Tenants in the file are the seed; the admin API adds others."""

    organisation: Name | None = None
    """The organisation it belongs to; none: it stands alone."""
    weight: Annotated[Positive, Field(le=1000)] = 1.0
    """Share of a contended pool relative to the other tenants."""
    request_class: ClassName = Field(default="interactive", alias="class")
    """Class of requests that do not say."""
    models: tuple[ModelPattern, ...] = ("*",)
    """Models it may use: names or aliases, prefixes ending in `*`, or `*`; an empty list allows none."""
    limits: Limits = Limits()
    """Limits over all its keys together."""
    model_limits: ModelTable[Limits] = Field(default={}, validate_default=True)
    """Limits of this tenant on single models."""
    keys: tuple[Key, ...] = ()
    """Its keys."""
    isolation: Isolation = "shared"
    """The least isolation it accepts: `salted` salts its prompts in every pool, `dedicated` keeps it to pools that are
    dedicated to it."""
    policy: Policy = Policy()
    """Where its requests may go."""
    reservations: NameTable[Reservation] = Field(default={}, validate_default=True)
    """Guaranteed capacity by pool."""
