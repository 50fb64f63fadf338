"""The one place where the gateway reads a clock."""

from __future__ import annotations

import time


class Clock:
    """Monotonic seconds for durations; Unix time for calendars and limits.

    Unix time is anchored once to the monotonic clock and follows the system clock only in slow
    steps, so that a clock that jumps cannot hand out or take away a window of limits at once.
    """

    _SLEW = 0.05  # of the elapsed time: an hour's jump is followed over twenty hours
    _JUMP_S = 1.0  # smaller differences are taken over at once

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._checked = time.monotonic()

    # Seconds that never go back; no relation to any calendar.
    monotonic = staticmethod(time.monotonic)

    def unix(self) -> float:
        """Seconds since 1970."""
        return time.monotonic() + self._offset

    def unix_us(self) -> int:
        """Microseconds since 1970."""
        return int(self.unix() * 1_000_000)

    def resync(self) -> float:
        """Follows the system clock; call every few seconds. Returns how far it is ahead, in seconds."""
        now = time.monotonic()
        behind = time.time() - now - self._offset
        most = (now - self._checked) * self._SLEW
        self._checked = now
        if abs(behind) <= self._JUMP_S:
            self._offset += behind
        else:
            self._offset += max(-most, min(most, behind))
        return behind
