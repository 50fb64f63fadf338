"""The answer to one request as its reader sees it, and the ways an exchange fails."""

import asyncio
from enum import StrEnum
from typing import Protocol, Self


class Phase(StrEnum):
    """Where an exchange stood when it failed."""

    CONNECT = "connect"
    SEND = "send"
    HEAD = "head"
    BODY = "body"


class TransportError(Exception):
    """An exchange that failed.

    `phase` says where. `sent` says whether any byte of the request may have reached the upstream: False means the
    request has certainly not been worked on.
    """

    def __init__(self, message: str, *, phase: Phase, sent: bool) -> None:
        super().__init__(message)
        self.phase = phase
        self.sent = sent


class ConnectFailed(TransportError):
    """No connection: name not found, refused, TLS failed, no free place, or not in time. Nothing was sent."""

    def __init__(self, message: str) -> None:
        super().__init__(message, phase=Phase.CONNECT, sent=False)


class HeadTimeout(TransportError):
    """The request is sent and the head of the answer did not come in time."""


class Silence(TransportError):
    """Nothing moved for the idle time: no request bytes were taken, or no body bytes came to a waiting reader."""


class Cut(TransportError):
    """The connection ended before the answer did."""


class Malformed(TransportError):
    """The upstream sent something that is not an HTTP/1.1 answer, or is past a limit."""


class Carrier(Protocol):
    """The connection under an answer, as the answer needs it."""

    def expect(self, answer: "Answer") -> "asyncio.Future[None]":
        """A future that is done when body bytes, the end or an error have come."""

    def resume(self) -> None:
        """The unread bytes have been taken."""

    def fail(self, error: TransportError) -> None:
        """End the exchange with an error and close the connection at once."""


class Answer:
    """The answer to one request: head at once, body as it comes.

    The caller owns it and must read it to the end or close it (`with answer:` does), or the connection stays taken.
    A connection goes back to its pool by itself as soon as the answer is complete, read or not.
    """

    __slots__ = (
        "_chunks",
        "_connection",
        "_error",
        "_unread",
        "_waiter",
        "abides",
        "complete",
        "connect_s",
        "headers",
        "idle_s",
        "is_head",
        "reused",
        "status",
        "touched",
    )

    def __init__(self, *, idle_s: float, reused: bool, connect_s: float, is_head: bool) -> None:
        self.status = 0  # 100..199 while only interim answers have come, then final
        self.headers: list[tuple[str, str]] = []  # names in lower case, in the order received
        self.reused = reused  # whether the connection had carried an exchange before
        self.connect_s = connect_s  # seconds spent on a connection for this request; 0 when one was at hand
        self.complete = False  # the whole answer has arrived (it may still wait to be read)
        self.idle_s = idle_s
        self.is_head = is_head  # an answer to HEAD has no body whatever its headers say
        self.touched = False  # any byte of the answer has come
        self.abides = False  # a cancelled read leaves the connection open, for whoever reads on or closes it
        self._chunks: list[bytes] = []  # body bytes not read yet, oldest first
        self._unread = 0  # sum of the lengths of _chunks
        self._error: TransportError | None = None  # set at most once; told after the chunks have been read
        self._waiter: asyncio.Future[None] | None = None  # the one who waits for the head or for body bytes
        self._connection: Carrier | None = None  # set while the exchange runs

    @property
    def unread(self) -> int:
        """Body bytes held and not read yet."""
        return self._unread

    def header(self, name: str) -> str | None:
        """The first value of a header, by its lower-case name."""
        for known, value in self.headers:
            if known == name:
                return value
        return None

    def begun(self) -> TransportError | None:
        """The first wait is over: None if the head has come, else why not."""
        self._waiter = None
        return None if self.status >= 200 else self._error

    async def read(self) -> bytes:
        """Give the body bytes that have come since the last call, waiting for some; b"" at the proper end.

        Raises Silence, Cut or Malformed, after all bytes that came before the failure. Cancelling it closes the
        connection, unless the answer abides. One reader at a time.
        """
        while not self._unread:
            if self._error is not None:
                raise self._error
            connection = self._connection
            if connection is None:
                return b""
            if self._waiter is not None:
                raise RuntimeError("an answer has one reader at a time")
            try:
                await connection.expect(self)
            except BaseException:
                if not self.abides:
                    self.close()
                raise
            finally:
                self._waiter = None
        return self.take()

    def take(self) -> bytes:
        """Give the body bytes at hand without waiting; b"" says nothing about the end (see `complete`)."""
        chunks = self._chunks
        if not chunks:
            return b""
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._unread = 0
        if self._connection is not None:
            self._connection.resume()
        return data

    async def read_all(self, limit: int) -> bytes:
        """Read the rest of the body, at most `limit` bytes; a longer one is Malformed and closes the connection."""
        if self.complete and self._unread <= limit:
            return self.take()
        parts: list[bytes] = []
        size = 0
        while data := await self.read():
            size += len(data)
            if size > limit:
                self.close()
                raise Malformed(f"the body is longer than {limit} bytes", phase=Phase.BODY, sent=True)
            parts.append(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Drop what is unread, and abort the connection unless the answer is complete. May be called again."""
        self._chunks.clear()
        self._unread = 0
        if self._connection is not None:
            self._connection.fail(Cut("closed by the caller", phase=Phase.BODY, sent=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
