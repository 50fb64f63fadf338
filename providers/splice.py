"""Top-level fields of a JSON object changed in its bytes, so that all other bytes stay as they came.

A history that a vendor checks against what it said before may not be written anew: numbers, escapes and spaces would
come out differently. So only the value of a named field is exchanged, found by walking the tokens of the outermost
object; strings are skipped whole by one regular expression, which is what most bytes of a request are in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]', re.DOTALL)
_QUOTE, _COMMA, _COLON = b'",:'
_OPEN, _CLOSE = b"{[", b"}]"


def spans(raw: bytes) -> dict[bytes, tuple[int, int]] | None:
    """Where the value of each top-level field stands; `raw` is known to be a JSON object.

    None when a name comes twice or is written with escapes: whoever reads such an object may read another one.
    """
    found: dict[bytes, tuple[int, int]] = {}
    depth = 0
    name: bytes | None = None
    start = 0
    for match in _TOKEN.finditer(raw):
        at = match.start()
        token = raw[at]
        if token == _QUOTE:
            if depth == 1 and name is None:
                name = raw[at + 1 : match.end() - 1]
                if b"\\" in name or name in found:
                    return None
        elif token in _OPEN:
            depth += 1
        elif depth != 1:
            if token in _CLOSE:
                depth -= 1
        elif token == _COLON:
            start = match.end()
        else:  # a comma between fields or the end of the object
            if name is not None:
                found[name] = (start, at)
            name = None
            if token != _COMMA:
                depth = 0
    return found


def replaced(raw: bytes, changes: Mapping[str, bytes]) -> bytes | None:
    """`raw` with the JSON values of `changes` in their fields' places; fields it lacks come first. None when the
    object cannot be changed that way (see `spans`).
    """
    known = spans(raw)
    if known is None:
        return None
    pieces: list[bytes] = []
    last = raw.index(b"{") + 1
    head = raw[:last]
    new = [b'"%b":%b' % (name.encode(), value) for name, value in changes.items() if name.encode() not in known]
    places = sorted((known[name.encode()], value) for name, value in changes.items() if name.encode() in known)
    for (start, end), value in places:
        pieces += (raw[last:start], value)
        last = end
    pieces.append(raw[last:])
    begun = b",".join(new) + (b"," if new and known else b"")
    return head + begun + b"".join(pieces)
