"""Amazon's event-stream framing: bytes in, messages out, cut anywhere.

A message is, in big-endian order: its whole length, the length of its headers, a checksum of these eight bytes,
headers, payload, and a checksum of all before. Both checksums are CRC-32 and both are verified: a stream that has
slipped by one byte would otherwise be read as lengths of gigabytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MESSAGE_MAX = 24 << 20
"""Bytes of one message: what the format itself allows a payload."""
_PRELUDE = struct.Struct(">III")
_CRC = struct.Struct(">I")
_SHORT = struct.Struct(">H")
_OVERHEAD = 16

# Type of a header's value -> its bytes; booleans have none, and 6 and 7 carry their own length.
_FIXED: Mapping[int, int] = MappingProxyType({0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16})
_BYTES, _STRING = 6, 7


class BrokenMessage(ValueError):
    """The bytes are no event stream, or it has been damaged."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. Only headers that are strings are kept; no other kind is used where this is read."""

    headers: Mapping[str, str]
    payload: bytes


class MessageFramer:
    """Cuts a byte stream into messages. Once it has raised BrokenMessage it is of no more use."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = bytearray()  # the begun and not finished message

    @property
    def tail(self) -> bytes:
        """The unfinished rest."""
        return bytes(self._tail)

    def feed(self, data: bytes) -> list[Message]:
        """The messages completed by these bytes. Raises BrokenMessage."""
        tail = self._tail
        tail += data
        messages: list[Message] = []
        start = 0
        while len(tail) - start >= _PRELUDE.size:
            total, headers, checksum = _PRELUDE.unpack_from(tail, start)
            if zlib.crc32(tail[start : start + 8]) != checksum:
                raise BrokenMessage("the checksum of a message's lengths is wrong")
            if total > MESSAGE_MAX or total < headers + _OVERHEAD:
                raise BrokenMessage(f"a message says it is {total} bytes long")
            if len(tail) - start < total:
                break
            messages.append(_message(bytes(tail[start : start + total]), headers))
            start += total
        del tail[:start]
        return messages


def _message(raw: bytes, headers: int) -> Message:
    if zlib.crc32(raw[:-4]) != _CRC.unpack_from(raw, len(raw) - 4)[0]:
        raise BrokenMessage("the checksum of a message is wrong")
    end = _PRELUDE.size + headers
    return Message(_headers(raw[_PRELUDE.size : end]), raw[end:-4])


def _headers(block: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    try:
        while at < len(block):
            name = block[at + 1 : at + 1 + block[at]].decode()
            at += 1 + block[at]
            kind = block[at]
            at += 1
            if kind in (_BYTES, _STRING):
                length = _SHORT.unpack_from(block, at)[0]
                at += 2
                value = block[at : at + length]
                if len(value) != length:
                    raise BrokenMessage("a header is cut short")
                if kind == _STRING:
                    found[name] = value.decode()
                at += length
            else:
                at += _FIXED[kind]
    except (IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise BrokenMessage("a header cannot be read") from error
    return found


def encode_message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """One message with string headers: the other way, for tests and for a scripted Bedrock."""
    block = b"".join(
        b"%c%b%c%b%b" % (len(name.encode()), name.encode(), _STRING, _SHORT.pack(len(value.encode())), value.encode())
        for name, value in headers.items()
    )
    lengths = struct.pack(">II", _OVERHEAD + len(block) + len(payload), len(block))
    start = lengths + _CRC.pack(zlib.crc32(lengths)) + block + payload
    return start + _CRC.pack(zlib.crc32(start))
