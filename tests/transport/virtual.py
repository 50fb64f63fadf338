"""A loop whose clock jumps when everything waits, and a connection without a socket on it."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from providers.answer import Answer, TransportError
from providers.http1 import Connection, Limits


class _Jumping(selectors.SelectSelector):
    """Never waits: time that would be waited is told to the loop instead."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise AssertionError("everything waits and no timer is set")
            self._jump(max(timeout, 0))
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Hours in milliseconds. `armed` counts the timers that were set."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.armed = 0
        super().__init__(_Jumping(self._jump))

    def _jump(self, seconds: float) -> None:
        self.now += seconds

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        self.armed += 1
        return super().call_at(when, callback, *args, context=context)


def run(main: Callable[["VirtualLoop"], Coroutine[Any, Any, None]]) -> None:
    """Run a test on a virtual loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        runner.run(main(loop))


class NoSocket(asyncio.Transport):
    """Takes what is written and remembers what was asked of it; takes nothing more while `full`."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.aborted = False
        self.reading = True
        self.full: Callable[[], None] | None = None  # called at each write, to refuse more

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.aborted
        self.written.append(bytes(data))
        if self.full is not None:
            self.full()

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class Bench:
    """One connection, its keeper and its missing socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits | None = None, keep_s: float = 30.0) -> None:
        self.loop = loop
        self.kept = 0  # times the connection came back
        self.closed = 0  # times it was told gone
        self.socket = NoSocket()
        self.connection = Connection(loop, self, limits or Limits(), {}, keep_s)
        self.connection.connection_made(self.socket)

    def done(self, connection: Connection) -> None:
        """The keeper's part."""
        self.kept += 1
        connection.rest()

    def gone(self, connection: Connection) -> None:
        """The keeper's part."""
        self.closed += 1

    async def exchange(
        self, *pieces: bytes, body: bytes = b"{}", head_s: float = 120.0, idle_s: float = 30.0, is_head: bool = False
    ) -> Answer:
        """Send a request, deliver the pieces, and give the answer, or raise."""
        answer = Answer(idle_s=idle_s, reused=False, connect_s=0.0, is_head=is_head)
        waiter = self.connection.begin(answer, b"POST / HTTP/1.1\r\n\r\n", body, head_s)
        for piece in pieces:
            if not self.socket.aborted:
                self.connection.data_received(piece)
        await waiter
        error = answer.begun()
        if error is not None:
            raise error
        return answer

    def later(self, seconds: float, data: bytes) -> None:
        """Deliver bytes after so many seconds, if the connection is still there."""

        def deliver() -> None:
            if not self.socket.aborted:
                self.connection.data_received(data)

        self.loop.call_later(seconds, deliver)


async def outcome(answer: Answer) -> tuple[bytes, type[TransportError] | None]:
    """What a reader gets: all bytes, and the kind of error after them."""
    received = b""
    try:
        while data := await answer.read():
            received += data
    except TransportError as error:
        return received, type(error)
    return received, None
