"""Who calls the admin API: the operator's key of the config file, or a credential of the registry with a role.

Wrong, unknown, revoked and expired credentials get one answer after the same work. Guessing is limited by address; an
address that has guessed too often still gets in with a credential that is right.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Final

from gateway import keys
from gateway.api.admin_call import Role, Who
from gateway.api.problems import Problem
from gateway.registry.book import Book
from gateway.strangers import Strangers

CONFIG_OPERATOR: Final = "config"
"""Name of the operator whose key is in the config file, as the audit log shows it."""

_DECOY: Final = "sha256:" + "0" * 64
_MOST_LENGTH: Final = 512


class Guard:
    """Tells who a bearer token stands for. `now` is monotonic seconds, `unix_us` Unix microseconds."""

    def __init__(
        self, book: Book, strangers: Strangers, *, now: Callable[[], float], unix_us: Callable[[], int]
    ) -> None:
        self._book = book
        self._strangers = strangers
        self._now = now
        self._unix_us = unix_us

    def admit(self, authorization: str | None, address: str) -> Who:
        """Raises Problem 401, or 429 for an address that keeps guessing."""
        scheme, _, token = (authorization or "").partition(" ")
        who = self._find(token.strip()) if scheme.lower() == "bearer" else None
        if who is not None:
            return who
        wait = self._strangers.refuse(address, self._now())
        if wait is not None:
            raise Problem(
                429,
                "guessing",
                "Too many requests without a valid admin key from this address.",
                headers={"retry-after": str(int(wait) + 1)},
            )
        raise Problem(
            401,
            "unauthenticated",
            "Send a valid admin key as 'Authorization: Bearer ...'.",
            headers={"www-authenticate": "Bearer"},
        )

    def _find(self, token: str) -> Who | None:
        if not token or len(token) > _MOST_LENGTH or not token.isascii():
            return None
        config = self._book.base
        given = config.admin.key
        if given is not None:
            digests = (hashlib.sha256(text.encode()).digest() for text in (token, given.get_secret_value()))
            if hmac.compare_digest(*digests):
                return Who(CONFIG_OPERATOR, Role.OPERATOR)
        parsed = keys.parse(token, keys.ADMIN_PREFIX)
        if parsed is None:
            return None
        row = self._book.admin_keys.get(parsed.id)
        right = keys.matches(token, _DECOY if row is None else row.hash, config.peppers())
        if row is None or not right or not row.valid(self._unix_us()):
            return None
        return Who(f"key:{row.id}", Role(row.role), row.tenant)
