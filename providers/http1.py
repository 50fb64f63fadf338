"""One HTTP/1.1 connection to an upstream: a request out, an answer in, deadlines, back-pressure.

A connection is idle or carries exactly one exchange. Everything that changes an exchange is in this file; which
connection carries it is decided in `pool.py`.

Idea. The event loop calls the connection, never the other way round: no task and no stream reader per request. The
caller waits on one future per wait, made only when there is nothing to hand over yet, and each wait has one deadline.

Back-pressure. Unread body bytes stop the reading of the socket at `Limits.high_water`; what is held is then at most
`high_water` plus one read of the loop (256 KiB), whatever the upstream sends. The request body leaves in slices as
the socket takes them.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol, cast

import httptools

from providers.answer import Answer, Cut, HeadTimeout, Malformed, Phase, Silence, TransportError
from providers.deadline import Deadline
from providers.sockets import prepare, said_farewell

SLICE = 64 * 1024  # bytes of a request body handed to the loop at once; smaller requests leave in a single write


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection accepts and holds. Sizes in bytes."""

    head_bytes: int = 64 * 1024  # status line and headers, interim answers included; also framing without body bytes
    headers: int = 200  # header lines of one answer
    interim: int = 8  # 1xx answers before the real one
    high_water: int = 64 * 1024  # unread body bytes at which the socket is no longer read


class Keeper(Protocol):
    """Who owns connections. Both calls are synchronous and must not raise."""

    def done(self, connection: "Connection") -> None:
        """The exchange is over and the connection can carry another: the keeper owns it again."""

    def gone(self, connection: "Connection") -> None:
        """The connection is closed; called exactly once for each connection."""


class Connection(asyncio.Protocol):
    """One socket. Made by the keeper, which also hands it each exchange."""

    __slots__ = (
        "_answer",
        "_body",
        "_closed",
        "_deadline",
        "_head_s",
        "_headers",
        "_interim",
        "_keep",
        "_keep_s",
        "_keeper",
        "_limits",
        "_loop",
        "_names",
        "_overhead",
        "_parser",
        "_paused",
        "_phase",
        "_transport",
        "_writable",
        "born",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, keeper: Keeper, limits: Limits, names: dict[bytes, str], keep_s: float
    ) -> None:
        self._loop = loop
        self._keeper = keeper
        self._limits = limits
        self._names = names  # header names seen, shared by all connections of a transport
        self._keep_s = keep_s  # seconds it may be idle; an upstream that names a shorter time lowers it
        self.born = loop.time()
        self._transport: asyncio.Transport | None = None
        self._closed = False  # set once, by abort() or by the loop
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None  # the exchange under way; None = idle
        self._phase = Phase.CONNECT
        self._headers: list[tuple[str, str]] = []  # where the parser puts header lines (trailers go to a spare list)
        self._keep = False  # whether the upstream lets the connection be used again after this answer
        self._interim = 0  # 1xx answers of this exchange
        self._overhead = 0  # bytes received since the last progress (head complete, body bytes)
        self._body: memoryview | None = None  # rest of the request body not handed to the loop yet
        self._head_s = 0.0
        self._paused = False  # whether reading of the socket is stopped
        self._writable = True  # False between the loop's "enough" and its "more"
        self._deadline = Deadline(loop, self._waited_too_long)  # of the wait under way, or of being idle

    # What the keeper calls.

    @property
    def usable(self) -> bool:
        """Whether it can be given an exchange now."""
        return not self._closed and self._transport is not None and not self._transport.is_closing()

    def begin(self, answer: Answer, head: bytes, body: bytes, head_s: float) -> asyncio.Future[None]:
        """Send a request; the future is done when `answer` has its head or its error. Wait for it exactly once."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        answer._waiter = waiter
        transport = self._transport
        if transport is None or self._closed or self._answer is not None:
            answer._error = Cut("the connection closed before the request", phase=Phase.SEND, sent=False)
            waiter.set_result(None)
            return waiter
        answer._connection = self
        self._answer = answer
        self._headers = answer.headers
        self._keep = False
        self._interim = self._overhead = 0
        if len(body) <= SLICE:
            self._phase = Phase.HEAD
            self._deadline.move(self._loop.time() + head_s)
            transport.write(head + body if body else head)
        else:
            self._phase = Phase.SEND
            self._head_s = head_s
            self._body = memoryview(body)
            transport.write(head)
            self._pump()
        return waiter

    def rest(self) -> None:
        """Be idle, for at most `keep_s` seconds, then close."""
        self._deadline.move(self._loop.time() + self._keep_s)

    def fail(self, error: TransportError) -> None:
        """End the exchange with an error, if one is under way, and close at once."""
        answer = self._answer
        self._answer = None
        self.abort()
        if answer is not None:
            answer._connection = None
            answer._error = error
            _wake(answer)

    def abort(self) -> None:
        """Close the socket at once, unsent bytes included."""
        if self._closed:
            return
        self._closed = True
        self._parser = None  # it refers back to this object
        self._body = None
        self._deadline.close()
        if self._transport is not None:
            self._transport.abort()
        self._keeper.gone(self)
        if self._answer is not None:
            self.fail(Cut("the connection was closed here", phase=self._phase, sent=True))

    # What the answer calls.

    def expect(self, answer: Answer) -> asyncio.Future[None]:
        """A future that is done when body bytes, the end or an error have come; the idle time begins now."""
        self._deadline.move(self._loop.time() + answer.idle_s)
        waiter: asyncio.Future[None] = self._loop.create_future()
        answer._waiter = waiter
        return waiter

    def resume(self) -> None:
        """The unread bytes have been taken."""
        if self._paused and not self._closed and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        if self._closed:
            stream.abort()
        else:
            self._transport = stream
            prepare(stream, SLICE)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        parser = self._parser
        if answer is None or parser is None:
            self.abort()  # nobody asked: whatever it is, the next answer could not be told from it
            return
        answer.touched = True
        headless = answer.status < 200
        before = answer._unread
        room = self._limits.head_bytes - self._overhead
        try:
            if headless and len(data) > room:
                parser.feed_data(data[:room])
                if answer.status < 200:
                    raise httptools.HttpParserError(f"the head is longer than {self._limits.head_bytes} bytes")
                data = data[room:]
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not answer.complete:
                self.fail(Malformed(_why(error), phase=self._phase, sent=True))
                return
            self._keep = False
        if answer.complete:
            self._finish(answer)
            return
        if answer.status < 200:
            self._overhead += len(data)
            return
        if answer._unread != before:
            self._overhead = 0
            if answer._unread > self._limits.high_water and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()
        elif not headless:
            self._overhead += len(data)
            if self._overhead > self._limits.head_bytes:
                self.fail(Malformed(f"{self._overhead} bytes of framing around no body", phase=Phase.BODY, sent=True))
            return  # a reader is woken by body bytes only, so that framing does not buy time
        _wake(answer)

    def eof_received(self) -> None:
        answer = self._answer
        if answer is None:
            self.abort()
        elif self._phase is Phase.BODY and _ends_with_connection(answer) and said_farewell(self._transport):
            answer.complete = True
            self._keep = False
            self._finish(answer)
        else:
            self.fail(Cut("the upstream closed the connection", phase=self._phase, sent=True))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed:
            self.fail(Cut(f"the connection was lost: {exc or 'closed'}", phase=self._phase, sent=True))
        self._transport = None

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if self._body is not None:
            self._pump()

    # What the parser calls.

    def on_message_begin(self) -> None:
        answer = self._answer
        if answer is None or answer.complete:
            raise _Refused("bytes after the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        known = self._names.get(name)
        if known is None:
            known = self._meet(name, value)
        self._headers.append((known, value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        answer = self._answer
        parser = self._parser
        assert answer is not None
        assert parser is not None
        headers = answer.headers
        if len(headers) > self._limits.headers:
            raise _Refused(f"more than {self._limits.headers} header lines")
        status = parser.get_status_code()
        if not 100 <= status <= 599 or status == 101:
            raise _Refused(f"status {status}")
        answer.status = status
        if status < 200:
            return
        self._keep = parser.should_keep_alive()
        self._headers = []
        self._overhead = 0
        if self._phase is Phase.HEAD or self._phase is Phase.SEND:
            self._phase = Phase.BODY
        if answer.is_head:
            answer.complete = True

    def on_body(self, data: bytes) -> None:
        answer = self._answer
        if answer is None or answer.complete:
            raise _Refused("bytes after the answer")
        answer._chunks.append(data)
        answer._unread += len(data)

    def on_message_complete(self) -> None:
        answer = self._answer
        assert answer is not None
        if answer.status >= 200:
            answer.complete = True
            return
        self._interim += 1
        answer.headers.clear()
        if self._interim > self._limits.interim:
            raise _Refused(f"more than {self._limits.interim} interim answers")

    # Inside.

    def _pump(self) -> None:
        """Hand the loop the next slice; it calls back when it wants more. Sending ends where the answer ends."""
        transport, body = self._transport, self._body
        assert transport is not None
        assert body is not None
        answer = self._answer
        now = self._loop.time()
        while body and self._writable:
            transport.write(body[:SLICE])
            body = body[SLICE:]
        if body:
            self._body = body
            if self._phase is Phase.SEND and answer is not None:
                self._deadline.move(now + answer.idle_s)
            return
        self._body = None
        if self._phase is Phase.SEND:
            self._phase = Phase.HEAD
            self._deadline.move(now + self._head_s)

    def _meet(self, name: bytes, value: bytes) -> str:
        """A header name not seen before, or one whose value matters here: those are never remembered."""
        known = name.lower().decode("latin-1")
        if known == "transfer-encoding":
            if value.lower() != b"chunked":
                raise _Refused("a transfer coding other than chunked")
        elif known == "keep-alive":
            self._shorten(value)
        elif len(self._names) < 512 and len(name) < 64:
            self._names[name] = known
        return known

    def _shorten(self, value: bytes) -> None:
        """`Keep-Alive: timeout=5` says when the upstream will close; be a second earlier."""
        for part in value.split(b","):
            name, _, seconds = part.strip().partition(b"=")
            if name.lower() == b"timeout" and seconds.isdigit():
                self._keep_s = min(self._keep_s, max(int(seconds[:9]) - 1.0, 0.5))

    def _finish(self, answer: Answer) -> None:
        """The answer is complete: give the connection back, or close it, then tell the reader."""
        self._answer = None
        answer._connection = None
        self.resume()
        if self._keep and self._body is None and self.usable:
            if answer.is_head:
                self._parser = httptools.HttpResponseParser(self)  # the old one waits for a body
            self._phase = Phase.CONNECT
            self._keeper.done(self)
        else:
            self.abort()
        _wake(answer)

    def _waited_too_long(self) -> None:
        answer = self._answer
        if answer is None:
            self.abort()
        elif answer._waiter is None or answer._waiter.done():
            pass  # nobody is kept waiting; the next wait sets its own deadline
        elif self._phase is Phase.HEAD:
            self.fail(HeadTimeout("no answer in time", phase=Phase.HEAD, sent=True))
        elif self._phase is Phase.SEND:
            self.fail(Silence("the upstream takes no request bytes", phase=Phase.SEND, sent=True))
        else:
            self.fail(Silence(f"no body bytes for {answer.idle_s} s", phase=Phase.BODY, sent=True))


class _Refused(Exception):
    """Raised inside the parser's calls: the answer is not acceptable."""


def _why(error: Exception) -> str:
    cause = error.__context__
    return str(cause) if isinstance(cause, _Refused) else str(error) or type(error).__name__


def _ends_with_connection(answer: Answer) -> bool:
    """Whether the head announced neither a length nor chunks, so that the end of the connection is the proper end."""
    return not any(name in ("content-length", "transfer-encoding") for name, _ in answer.headers)


def _wake(answer: Answer) -> None:
    waiter = answer._waiter
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
