"""The frame that most streams consist of, known again without being parsed.

Two ways, the cheaper first. A *mould* is everything of one plain frame but the text: a frame with the same bytes before
and behind, and no quote between, differs from it in nothing but what the model said. *Marks* are the byte strings that
make a frame interesting, written as the server writes them; inside a JSON string every quote is escaped, so generated
text cannot bear a mark except as a whole value, and a frame that bears none is plain. What is not proved plain is
parsed by the caller.

An id or a second that changes breaks the mould and a new one is taken, as long as moulds keep paying for themselves.
"""

from __future__ import annotations

_TEXTS = (b"content", b"reasoning_content", b"reasoning", b"text")
_PAYS = 4
"""Frames a mould must have served before another is taken, beyond the first few."""
_FREE = 4


class Plain:
    """Knows plain frames of one stream: one data line each, one choice, some text, and nothing else to be seen to."""

    __slots__ = (
        "_body", "_clean", "_empty", "_finish", "_hits", "_moulds", "_no_usage", "_prefix", "_quote", "_role",
        "_role_and_comma", "_start", "_suffix", "_tools", "_width",
    )  # fmt: skip

    def __init__(self, space: bytes, *, chat: bool) -> None:
        """`space` is what the server writes between a name's colon and its value: one blank or nothing."""
        self._no_usage = b'"usage":%bnull' % space
        self._finish = b'"finish_reason":%b"' % space
        self._tools = b'"tool_calls":%b[' % space
        self._role = b'"role":%b"assistant"' % space
        self._role_and_comma = b"%b,%b" % (self._role, space)
        self._empty = (b'"content":%b""' if chat else b'"text":%b""') % space
        self._body = b'"delta"' if chat else b'"text"'
        self._quote = b'":%b"' % space
        self._moulds = 0
        self._hits = 0
        self._prefix = b"\n"  # no frame begins so: there is no mould yet
        self._suffix = b""
        self._start = 0
        self._width = 0
        """Bytes of prefix and suffix together."""
        self._clean: bytes | None = None
        """The prefix without the role it repeats; None when it repeats none."""

    def take(self, data: bytes) -> tuple[int, bytes] | None:
        """(frames, bytes to pass on) when `data` is plain frames and nothing else; None when it has to be parsed.

        Of the frames only a repeated role is removed. The role must have been said by then.
        """
        prefix, suffix = self._prefix, self._suffix
        if data.startswith(prefix) and data.endswith(suffix) and len(data) > self._width:
            clean = self._clean
            if data.find(b'"', self._start, -len(suffix)) < 0:
                self._hits += 1
                return 1, data if clean is None else clean + data[self._start :]
            frames = self._several(data)
            if frames:
                self._hits += frames
                return frames, data if clean is None else data.replace(prefix, clean)
        return self._unmarked(data)

    def _several(self, data: bytes) -> int:
        """How many frames of the mould `data` is; 0 when there is anything else in it."""
        prefix, start = self._prefix, self._start
        parts = data.split(self._suffix)
        parts.pop()
        for part in parts:
            if not part.startswith(prefix) or len(part) == start or part.find(b'"', start) >= 0:
                return 0
        return len(parts)

    def _unmarked(self, data: bytes) -> tuple[int, bytes] | None:
        if not data.startswith(b"data:") or not data.endswith(b"\n\n"):
            return None
        frames = data.count(b"\n\n")
        if (
            data.count(b"\n") != frames + frames
            or (frames > 1 and data.count(b"\n\ndata:") != frames - 1)
            or data.count(self._body) != frames
            or b"\r" in data
            or b'"error"' in data
            or self._finish in data
            or self._tools in data
            or self._empty in data
            or b"[DONE]" in data
            or (b'"usage"' in data and data.count(b'"usage"') != data.count(self._no_usage))
        ):
            return None
        if self._role in data:
            cleaned = data.replace(self._role_and_comma, b"")
            if self._role in cleaned:
                return None
            self._learn(data, frames)
            return frames, cleaned
        self._learn(data, frames)
        return frames, data

    def _learn(self, data: bytes, frames: int) -> None:
        """Take the first frame of plain `data` as the mould."""
        if self._moulds >= _FREE and self._hits < _PAYS:
            return
        frame = data if frames == 1 else data[: data.index(b"\n\n") + 2]
        for name in _TEXTS:
            key = b'"%b%b' % (name, self._quote)
            start = frame.find(key) + len(key)
            end = frame.find(b'"', start)
            if start >= len(key) and end >= 0 and b"\\" not in frame[start:end] and self._role not in frame[end:]:
                break
        else:
            return
        self._moulds += 1
        self._hits = 0
        self._prefix, self._suffix = frame[:start], frame[end:]
        self._start, self._width = start, start + len(self._suffix)
        clean = self._prefix.replace(self._role_and_comma, b"")
        self._clean = None if clean == self._prefix else clean


def plain_like(text: bytes, *, chat: bool) -> Plain | None:
    """What knows the plain frames of a server that wrote `text`, a chunk's JSON; None when its spacing is neither
    way.
    """
    if b'"choices":[' in text:
        return Plain(b"", chat=chat)
    if b'"choices": [' in text:
        return Plain(b" ", chat=chat)
    return None
