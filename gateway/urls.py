"""Addresses a config may name: an http(s) base without user name or query, and never a cloud's metadata service.

The targets of requests come from the config alone, never from a request; this check keeps a config from handing a
credential to the address every cloud uses for its own secrets.
"""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import SplitResult, urlsplit

_METADATA_NAMES: Final = frozenset(
    {"metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal"}
)
_METADATA_ADDRESSES: Final = frozenset({"fd00:ec2::254", "100.100.100.200"})


def parse_url(text: str) -> SplitResult:
    """Split a base URL. Raises ValueError, whose text never holds the URL, when it cannot be used as one."""
    if any(character.isspace() or not character.isprintable() for character in text):
        raise ValueError("holds white space or control characters")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError("is not a URL with a port from 1 to 65535") from error
    if parts.scheme not in ("http", "https"):
        raise ValueError("must begin with http:// or https://")
    if not parts.hostname:
        raise ValueError("names no host")
    if "@" in parts.netloc:
        raise ValueError("must not hold a user name or password; use the key field")
    if "?" in text or "#" in text:
        raise ValueError("must not have a query or a fragment")
    if port == 0:
        raise ValueError("is not a URL with a port from 1 to 65535")
    if is_metadata_host(parts.hostname):
        raise ValueError("points at a link-local or cloud metadata address, which is never an upstream")
    return parts


def address_key(text: str) -> tuple[str, str, int, str]:
    """What makes two URLs the same server: scheme, host, port, path."""
    parts = parse_url(text)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, parts.hostname or "", port, parts.path.rstrip("/")


def is_metadata_host(host: str) -> bool:
    """True for link-local addresses in any notation and for the names clouds give their metadata service."""
    host = host.rstrip(".").lower()
    if host in _METADATA_NAMES:
        return True
    address = _address(host)
    if address is None:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    return address.is_link_local or str(address) in _METADATA_ADDRESSES


def is_loopback_host(host: str) -> bool:
    """True when only this machine can reach a listener on `host`."""
    if host.lower() == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address a resolver would make of `host`, with the old spellings (`0xa9fea9fe`, `2852039166`) it accepts."""
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        pass
    parts = host.split(".")
    if len(parts) > 4:
        return None
    try:
        numbers = [_number(part) for part in parts]
    except ValueError:
        return None
    *head, last = numbers
    if any(number > 255 for number in head) or last >= 256 ** (4 - len(head)):
        return None
    value = last
    for index, number in enumerate(head):
        value += number << (8 * (3 - index))
    return ipaddress.IPv4Address(value)


def _number(text: str) -> int:
    if text.startswith("0x"):
        return int(text[2:] or "0", 16)
    if not text.isascii() or not text.isdigit():
        raise ValueError(text)
    return int(text, 8) if text.startswith("0") and len(text) > 1 else int(text)
