"""Tenants kept apart in engines that they share: the salts that part their prefix caches, and the proof that they do.

A salt is `HMAC-SHA-256(secret, frame(tenant) + frame(namespace))` in URL-safe base64 without padding: 43 characters,
none of which an engine refuses. A frame is the length in four bytes and then the text, so no tenant can write another's
salt by where it puts a border. The namespace is what a client itself asked to be parted by (`cache_salt` in its
request): it parts a tenant's own requests and never reaches the engine as it is.

The salt is not trusted: some engines drop it on some of their paths. So a synthetic tenant sends a prompt nobody else
has, twice, and another one sends it once. The second time the first tenant must find its own prefix in the cache, or
nothing is proved; the other tenant must not find it, or the engine does not keep them apart.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

_MOST_KNOWN = 10_000
_LONGEST_NAMESPACE = 1024


class Salts:
    """The cache salts of tenants; the same for the same secret, on every instance and after every restart."""

    __slots__ = ("_known", "_secret")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._known: dict[str, str] = {}  # of tenants without a namespace, at most _MOST_KNOWN

    def of(self, tenant: str, namespace: object = None) -> str:
        """The salt of a tenant's requests, or of those it has set apart by `namespace` (ignored unless a text)."""
        if isinstance(namespace, str) and 0 < len(namespace) <= _LONGEST_NAMESPACE:
            return self._made(tenant, namespace)
        known = self._known.get(tenant)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[tenant] = self._made(tenant, "")
        return known

    def _made(self, tenant: str, namespace: str) -> str:
        digest = hmac.digest(self._secret, _frame(tenant) + _frame(namespace), "sha256")
        return urlsafe_b64encode(digest).decode().rstrip("=")


def _frame(text: str) -> bytes:
    data = text.encode(errors="replace")
    return len(data).to_bytes(4, "big") + data


class Verdict(StrEnum):
    """What is known of one replica."""

    PENDING = "pending"  # not probed yet
    SEPARATE = "separate"  # the salt parts the caches
    LEAKING = "leaking"  # a tenant found another's prefix
    UNPROVED = "unproved"  # no prefix was found at all: no cache, or none that is told of


@dataclass(frozen=True, slots=True)
class Trial:
    """Prompt tokens found in the cache by the three requests of one trial; None where the engine does not say."""

    path: str  # the endpoint
    first: int | None
    again: int | None
    other: int | None
    sure: bool  # told of the request itself; not sure: read off a counter that other requests move too


def judge(trials: Sequence[Trial]) -> tuple[Verdict, str]:
    """The verdict over all trials of one replica, and what it rests on.

    A leak that is sure is one; one that is not sure must show in every trial of its path, for a counter that moved may
    have been moved by somebody else. A counter that stood still is proof that nothing was found.
    """
    proved: list[str] = []
    for path in dict.fromkeys(trial.path for trial in trials):
        of_path = [trial for trial in trials if trial.path == path]
        found = [trial for trial in of_path if trial.other]
        sure = next((trial for trial in found if trial.sure), None)
        if sure is not None or (found and len(found) == len(of_path)):
            worst = sure or found[0]
            return (
                Verdict.LEAKING,
                f"{path}: another tenant found {worst.other} tokens of a prompt that was not its own",
            )
        if any(trial.again and trial.other == 0 for trial in of_path):
            proved.append(path)
    if proved:
        return Verdict.SEPARATE, f"shown on {' and '.join(proved)}"
    return Verdict.UNPROVED, "the engine tells of no prefix found in its cache, not even of a tenant's own"


@dataclass(slots=True)
class Separation:
    """Whether one pool keeps tenants apart, by replica."""

    pool: str
    salts: bool  # its kind takes a salt
    shares: bool  # our own servers without a salt: their cache is everybody's
    verdicts: dict[str, tuple[Verdict, str]] = field(default_factory=dict)
    wanted: bool = False
    """Somebody needs the proof: the pool promises it, or a tenant that asks for it came."""

    def hindrance(self) -> str | None:
        """Why a tenant that requires salted isolation may not be served here; None if it may."""
        if self.shares:
            return f"pool {self.pool} keeps no caches apart"
        if not self.salts:
            return None  # a provider's; what it shares between accounts is not ours to part
        self.wanted = True
        leaking = self.leaking()
        if leaking is not None:
            return f"pool {self.pool} does not keep tenants' caches apart: {leaking}"
        if not any(verdict is not Verdict.PENDING for verdict, _ in self.verdicts.values()):
            return f"pool {self.pool} has not shown yet that it keeps tenants' caches apart"
        return None

    def leaking(self) -> str | None:
        """The replica that leaks and how it showed; None while none does."""
        for replica, (verdict, detail) in self.verdicts.items():
            if verdict is Verdict.LEAKING:
                return f"{replica}: {detail}"
        return None

    def problems(self) -> list[str]:
        """What an operator should know, for the readiness page."""
        if not self.wanted:
            return []
        leaking = self.leaking()
        if leaking is not None:
            why = "salted tenants are refused there"
            return [f"pool {self.pool} does not keep tenants' prefix caches apart ({leaking}); {why}"]
        return [
            f"pool {self.pool}: isolation of {replica} is not proved: {detail}"
            for replica, (verdict, detail) in self.verdicts.items()
            if verdict is Verdict.UNPROVED
        ]
