"""What a connection asks of its socket and of TLS beyond reading and writing."""

import asyncio
import socket
import ssl
from typing import Protocol, cast

_TLS_RECORD = 17 * 1024  # bytes, the largest record with its overhead


class _TlsTransport(Protocol):
    def set_read_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


def prepare(transport: asyncio.Transport, write_high: int) -> None:
    """Send at once, bound what is held, and notice within a minute that the other machine is gone.

    `write_high` is the number of unsent bytes at which the loop says "enough".
    """
    transport.set_write_buffer_limits(high=write_high)
    if transport.get_extra_info("ssl_object") is not None:
        # Held undecrypted besides the unread body; less than a record would stick with one cut in two.
        cast("_TlsTransport", transport).set_read_buffer_limits(high=2 * _TLS_RECORD)
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # not every system lets these be set
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def said_farewell(transport: asyncio.Transport | None) -> bool:
    """Whether TLS, if there is any, was ended by the upstream itself and not only the TCP connection below it.

    Loops differ in what they report here, so the TLS object is asked: a read gives the end, or wants more.
    """
    tls: ssl.SSLObject | None = None if transport is None else transport.get_extra_info("ssl_object")
    if tls is None:
        return True
    try:
        return not tls.read(1)
    except ssl.SSLZeroReturnError:
        return True
    except ssl.SSLError:
        return False
