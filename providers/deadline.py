"""A deadline that moves often and costs a timer seldom.

Each wait of an exchange moves the deadline; almost none is reached. So a deadline is a number, and the one timer sleeps
until the earliest number it has seen, looks, and sleeps on: moving the deadline back costs an assignment. With waits of
tens of seconds that is one timer in tens of seconds, however many exchanges are made in between.
"""

import asyncio
import math
from collections.abc import Callable

_NEVER = math.inf
_EARLY = 0.001  # seconds a timer may come before its time; loops count in milliseconds
_GRACE = 0.002  # seconds of the last look


class Deadline:
    """Calls `passed` once when the time last set has passed, a few milliseconds late and never early.

    A loop that was held up runs timers before it reads sockets, so what seems late may lie in the socket already. A
    passed deadline is therefore looked at once more after the loop has had a turn, and counts if nothing moved it.
    """

    __slots__ = ("_fires", "_last_look", "_loop", "_passed", "_timer", "_when")

    def __init__(self, loop: asyncio.AbstractEventLoop, passed: Callable[[], None]) -> None:
        self._loop = loop
        self._passed = passed
        self._when = _NEVER  # the deadline, in the loop's time
        self._fires = _NEVER  # when _timer looks; never later than _when
        self._timer: asyncio.TimerHandle | None = None
        self._last_look = False

    def move(self, when: float) -> None:
        """Set the deadline, earlier or later than it was; `math.inf` for none."""
        self._when = when
        self._last_look = False
        if when < self._fires:
            self._arm(when)

    def close(self) -> None:
        """Never call again, and hold on to nothing."""
        self._passed = _nothing
        self._when = self._fires = _NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires = when
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        self._fires = _NEVER
        now = self._loop.time()
        if self._when - now > _EARLY:
            if self._when < _NEVER:
                self._arm(self._when)
        elif not self._last_look:
            self._last_look = True
            self._arm(now + _GRACE)
        else:
            self._when = _NEVER
            self._passed()


def _nothing() -> None:
    pass
