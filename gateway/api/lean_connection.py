"""One client connection of the lean listener: requests in order, one handler at a time, ends without doubt.

A connection reads one request, runs the handler in a task of its own, and reads the next when that is done. What a
client sends ahead waits as bytes, bounded, so a client that leaves is noticed at once even behind a pipelined request:
the loop reports the end of the connection, and the running task is cancelled.

Refused here and not by the handler, because no request can be told from the bytes: anything malformed or ambiguous
(400), a target (414) or headers (431) beyond the limits, another HTTP version (505), an expectation other than
100-continue (417), a head that does not come in time (408). Each ends the connection.

A connection that ends while the client may still be sending is ended slowly: our side stops, what comes is thrown away
for a while. Closing at once would reset the connection, and a reset may destroy an answer that is not read yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import httptools

from gateway.api.lean_exchange import LeanExchange, Rejected, date_line, error_answer
from gateway.api.seam import ClientGone, Handler
from providers.deadline import Deadline
from providers.sockets import prepare

log = logging.getLogger("weighbridge.listener")

_SLICE = 8192  # bytes of heads parsed at once: bounds how many requests one read can become


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection accepts and holds."""

    target_bytes: int = 16_384
    field_bytes: int = 16_384  # name and value of one header
    head_bytes: int = 65_536  # request line and headers; also framing of a body without any body bytes
    fields: int = 128  # header lines
    ahead_bytes: int = 262_144  # of later requests before their turn; beyond it the socket is not read
    unread_bytes: int = 262_144  # of a body nobody has asked for; beyond it the socket is not read
    unsent_bytes: int = 65_536  # of answers, at which the handler has to wait
    head_s: float = 30.0  # first byte of a request to the end of its head
    idle_s: float = 75.0  # between requests
    linger_s: float = 10.0  # for what a client still sends when its answer is out


class Owner(Protocol):
    """The server, as its connections need it."""

    loop: asyncio.AbstractEventLoop
    limits: Limits
    handler: Handler
    closing: bool
    connections: set[Connection]
    tasks: set[asyncio.Task[None]]  # of requests, also those whose client has left


class Dates:
    """The Date header, made once a second for all connections."""

    __slots__ = ("_line", "_second")

    def __init__(self) -> None:
        self._second = 0
        self._line = ""

    def line(self) -> str:
        """The header line of this second."""
        second = int(time.time())
        if second != self._second:
            self._second, self._line = second, date_line(second)
        return self._line


class Connection(asyncio.Protocol):
    """One client. Owns its parser, its running task and the order of answers.

    `_active` is the request whose handler runs. `_waiting` are later ones whose heads are complete. `_reading` is the
    one whose message is not complete: the active one, the last of the waiting ones, or one whose head is not complete.
    While a complete request stands before them, further bytes are not parsed but kept in `_ahead`.
    """

    __slots__ = (
        "_active",
        "_ahead",
        "_deadline",
        "_drained",
        "_fields",
        "_head_begun",
        "_in_head",
        "_lingering",
        "_overhead",
        "_owner",
        "_parser",
        "_paused",
        "_reading",
        "_rejected",
        "_said_so",
        "_target",
        "_told",
        "_waiting",
        "date",
        "full",
        "limits",
        "loop",
        "lost",
        "peer",
        "task",
        "transport",
    )

    def __init__(self, owner: Owner, dates: Dates) -> None:
        self._owner = owner
        self.date = dates.line
        self.loop = owner.loop
        self.limits = owner.limits
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        self.lost = False  # the client has left; set once
        self.full = False  # the client reads slower than we write
        self._drained: asyncio.Future[None] | None = None  # for the handler that waits for it
        self._parser = httptools.HttpRequestParser(self)
        self._deadline = Deadline(owner.loop, self._waited_too_long)
        self._active: LeanExchange | None = None
        self.task: asyncio.Task[None] | None = None  # of the active one
        self._waiting: deque[LeanExchange] = deque()
        self._reading: LeanExchange | None = None
        self._target = b""
        self._fields = 0  # header lines of the message that is read
        self._in_head = False  # header lines belong to a head, not behind a body
        self._head_begun = False  # the deadline is that of a head
        self._overhead = 0  # bytes since the last complete head or body bytes
        self._ahead = bytearray()
        self._rejected: Rejected | None = None  # ends the connection once all before it is answered
        self._paused = False  # the socket is not read
        self._told = False  # the parser is told of a head that has been read already
        self._said_so = False  # the client has left or is to, and the running task has been told
        self._lingering = False  # everything is answered; what comes is thrown away

    # -- what the loop calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        with contextlib.suppress(OSError):  # a client that is gone already: the loop will say so
            prepare(self.transport, self.limits.unsent_bytes)
        name = transport.get_extra_info("peername")
        self.peer = name[0] if isinstance(name, Sequence) and name and isinstance(name[0], str) else ""
        self._owner.connections.add(self)
        self._deadline.move(self.loop.time() + self.limits.head_s)
        if self._owner.closing:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._deadline.close()
        self._owner.connections.discard(self)
        self._ahead.clear()
        self._waiting.clear()
        self._left()

    def eof_received(self) -> bool:
        """A client that ends its side has left: nothing tells it from one that only has stopped sending."""
        if self.task is not None:
            self.abort()
        return False

    def _left(self) -> None:
        """The client is gone: says so to the request under way, once, for it may be settling by the second time."""
        if not self._said_so:
            self._said_so = True
            if self.task is not None:
                self.task.cancel()

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._lingering or self._rejected is not None:
            return
        if self._ahead or self._behind_complete():
            self._ahead += data
            if len(self._ahead) > self.limits.ahead_bytes:
                self._pause()
        else:
            self._feed(data)

    # -- what the exchange calls -----------------------------------------------------------------------------

    async def drain(self) -> None:
        """Waits until the client has read enough for more to be written."""
        while self.full and not self.lost:
            self._drained = self.loop.create_future()
            await self._drained

    def wanted(self) -> None:
        """The body of the active request is asked for: read on."""
        self._resume()

    @property
    def closing(self) -> bool:
        """No further request will be read: answers say so."""
        return self._owner.closing or self._rejected is not None

    # -- requests in order -----------------------------------------------------------------------------------

    def _behind_complete(self) -> bool:
        """Whether what comes now belongs behind a request that is complete and not answered."""
        first = self._active or (self._waiting[0] if self._waiting else None)
        return first is not None and first is not self._reading

    def _feed(self, data: bytes) -> None:
        """Parses until a complete request stands before the rest."""
        try:
            while data:
                size = _SLICE if self._reading is None else max(_SLICE, self._reading.missing)
                piece = data[:size]
                data = data[size:]
                self._overhead += len(piece)
                try:
                    self._parser.feed_data(piece)
                except httptools.HttpParserUpgrade as upgrade:
                    data = piece[upgrade.args[0] :] + data
                    self._stay()
                if self._overhead > self.limits.head_bytes:
                    raise Rejected(
                        431, f"More than {self.limits.head_bytes} bytes came without a whole head or a body."
                    )
                if data and self._behind_complete():
                    self._ahead += data
                    break
        except (Rejected, httptools.HttpParserError) as error:
            self._reject(error)
        if self._active is None:
            self._next()

    def _stay(self) -> None:
        """Nobody is upgraded here. Some clients offer it with every request, so what they ask is served as it is.

        The parser has stopped behind the head; another one is told what kind of body follows, if any does.
        """
        self._parser = httptools.HttpRequestParser(self)
        if self._reading is not None:
            self._told = True
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % self._reading.framing)
            self._told = False

    def _reject(self, error: Exception) -> None:
        """What comes from here on cannot be read. What was read is answered first."""
        cause = error if isinstance(error, Rejected) else error.__context__
        if not isinstance(cause, Rejected):
            cause = Rejected(400, f"The bytes sent are not an HTTP/1.1 request: {error}.")
        self._rejected = cause
        unfinished, self._reading = self._reading, None
        if unfinished is not None:
            unfinished.broke()  # its handler, if it has one, hears of it when it asks for the body
            if unfinished in self._waiting:
                self._waiting.remove(unfinished)

    def _next(self) -> None:
        """Starts the next request, or says how long to wait for one."""
        if self._waiting:
            self._deadline.move(math.inf)
            self._active = exchange = self._waiting.popleft()
            self.task = self.loop.create_task(self._serve(exchange))
            self._owner.tasks.add(self.task)
            if exchange is self._reading:
                self._read_on()
        elif self._rejected is not None:
            if self.transport is not None:
                self.transport.write(error_answer(self._rejected.status, str(self._rejected)))
            self._close()
        elif self._ahead:
            self._read_on()
        else:
            self._resume()  # a large body may have come whole before anybody asked for it, which paused the socket
            if self._reading is None and not self._overhead:
                self._deadline.move(self.loop.time() + self.limits.idle_s)
            elif not self._head_begun:  # once: bytes that trickle in do not buy time
                self._head_begun = True
                self._deadline.move(self.loop.time() + self.limits.head_s)

    def _read_on(self) -> None:
        """What was sent ahead has its turn."""
        if self._ahead:
            data = bytes(self._ahead)
            self._ahead.clear()
            self._resume()
            self._feed(data)

    async def _serve(self, exchange: LeanExchange) -> None:
        """The task of one request."""
        task = self.task
        assert task is not None, "it is set before it runs"
        try:
            await self._owner.handler(exchange)
        except (asyncio.CancelledError, ClientGone):
            pass  # the client left, or the server closes; the handler has settled what it had to
        except Exception:
            log.exception("a request failed in its handler")
        finally:
            self._owner.tasks.discard(task)
            self._active = self.task = None
            if not self._said_so:  # nothing more is started for a client that has left
                self._served(exchange)

    def _served(self, exchange: LeanExchange) -> None:
        if exchange.broken and not exchange.started:
            self._next()  # nothing has been said yet: say what was wrong
        elif not exchange.ended:
            exchange.abort()  # the client must not take what it has for a whole answer
        elif exchange.kept_alive and not self._owner.closing:
            self._next()
        else:
            self._close()

    def _close(self) -> None:
        """Ends the connection, slowly where the client may still be sending."""
        transport = self.transport
        if transport is None:
            return
        sending = self._reading is not None or self._rejected is not None or self._paused or bool(self._ahead)
        self._lingering = True
        self._waiting.clear()
        self._ahead.clear()
        if sending and not self._owner.closing:
            self._deadline.move(self.loop.time() + self.limits.linger_s)
            self._resume()
            if transport.can_write_eof():
                transport.write_eof()
        else:
            self._deadline.move(self.loop.time() + self.limits.idle_s)  # for what the client has not read yet
            transport.close()

    def shut(self) -> None:
        """The server closes: this connection does so now if it is idle, else with the answer under way."""
        if self._active is None and self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Ends the connection now; its task, which is cancelled, is still to be waited for."""
        self._left()
        if self.transport is not None:
            self.transport.abort()

    def _pause(self) -> None:
        if not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self.transport is not None and not self.lost:
            self._paused = False
            self.transport.resume_reading()

    def _waited_too_long(self) -> None:
        transport = self.transport
        if transport is None or self._active is not None:
            return
        if self._head_begun and not self._lingering:
            transport.write(error_answer(408, "The request's head did not arrive in time."))
            transport.close()
        else:
            transport.abort()

    # -- what the parser calls -------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._told:
            return
        self._reading = LeanExchange(self)
        self._target = b""
        self._fields = 0
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        self._target += url
        if len(self._target) > self.limits.target_bytes:
            raise Rejected(414, f"The request's target is longer than {self.limits.target_bytes} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        if self._fields > self.limits.fields:
            raise Rejected(431, f"The request has more than {self.limits.fields} header lines.")
        if len(name) + len(value) > self.limits.field_bytes:
            raise Rejected(431, f"A header line is longer than {self.limits.field_bytes} bytes.")
        if self._in_head and self._reading is not None:  # what stands behind a body is only counted
            self._reading.take_header(name, value)

    def on_headers_complete(self) -> None:
        reading, parser = self._reading, self._parser
        if reading is None or self._told:
            return
        self._in_head = self._head_begun = False
        self._overhead = 0
        reading.begin(parser.get_method(), self._target, parser.get_http_version(), parser.should_keep_alive())
        self._waiting.append(reading)

    def on_body(self, data: bytes) -> None:
        reading = self._reading
        if reading is not None:
            self._overhead = 0
            if reading.take(data) > self.limits.unread_bytes and not reading.asked:
                self._pause()

    def on_message_complete(self) -> None:
        reading = self._reading
        if reading is not None and not (self._parser.should_upgrade() and reading.framing):
            self._reading = None
            self._overhead = 0
            reading.finish()
