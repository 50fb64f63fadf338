"""AWS Signature Version 4 of one request, for Bedrock.

The request is brought to a canonical text, the hash of that text is put into a string to sign, and the string is signed
with a key made from the secret by a chain of HMACs over the date, the region and the service. Every service but S3
encodes the path a second time in the canonical text, so the path that is signed is not the path that is sent.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class Keys:
    """Credentials of AWS; the session token comes with temporary ones."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None

    @classmethod
    def parse(cls, credential: str) -> Keys | None:
        """`id:secret[:session token]`, or None for a credential that is a bearer token."""
        parts = credential.split(":", 2)
        if len(parts) < 2 or not all(parts):
            return None
        return cls(*parts)


def sign(
    keys: Keys,
    *,
    method: str,
    host: str,
    path: str,
    headers: tuple[tuple[str, str], ...],
    body: bytes,
    region: str,
    service: str,
    at: int,
) -> tuple[tuple[str, str], ...]:
    """`headers` and those that authenticate the request at Unix second `at`.

    `path` is as it is sent, encoded once, without a query. All of `headers` (names in lower case) and the host are
    signed.
    """
    moment = datetime.fromtimestamp(at, UTC)
    stamp, day = moment.strftime("%Y%m%dT%H%M%SZ"), moment.strftime("%Y%m%d")
    sent = (*headers, ("x-amz-date", stamp))
    if keys.session_token is not None:
        sent += (("x-amz-security-token", keys.session_token),)
    signed = sorted((("host", host), *sent))
    names = ";".join(name for name, _ in signed)
    canonical = "\n".join(
        (
            method,
            quote(path, safe="/-_.~"),
            "",  # no query
            *(f"{name}:{' '.join(value.split())}" for name, value in signed),
            "",
            names,
            hashlib.sha256(body).hexdigest(),
        )
    )
    scope = f"{day}/{region}/{service}/aws4_request"
    text = "\n".join((ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{keys.secret_access_key}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    authorization = f"{ALGORITHM} Credential={keys.access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    return (*sent, ("authorization", authorization))
