"""One engine in real or scaled time: sleeps through each step by an absolute schedule and tells owners what came out.

Engine time is `speed` times the time since the start. A step that was planned to end at some moment ends there even if
the timer was late, so lateness does not add up; when the process falls further behind than `_MOST_LATE_S`, the lost
time is given up and counted. Nothing runs while the engine is empty.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from providers.simulated.engine import Engine
from providers.simulated.sequence import Phase, Request, Sequence

_MOST_LATE_S = 1.0


class Owner(Protocol):
    """Who waits for a sequence; called from the event loop, in the order of the step."""

    def produced(self, sequence: Sequence, now: float) -> None:
        """`sequence.fresh` tokens came out."""

    def finished(self, sequence: Sequence, now: float) -> None:
        """The sequence is complete; called after `produced` of the same step."""


class RealTime:
    """Runs one engine in the running event loop. Owners given to `submit` must be `Owner`s."""

    def __init__(self, engine: Engine, speed: float) -> None:
        self.engine = engine
        self._speed = speed
        self._loop = asyncio.get_running_loop()
        self._origin = time.monotonic()
        self._timer: asyncio.Handle | None = None
        # End of the step under way, in engine seconds.
        self._due: float | None = None
        self.late_s = 0.0
        """Real seconds of schedule given up because the process could not keep pace."""

    @property
    def now(self) -> float:
        """Engine seconds since the start; never past the end of the step under way, which comes first."""
        now = (time.monotonic() - self._origin) * self._speed
        return now if self._due is None else min(now, self._due)

    @property
    def idle(self) -> bool:
        """Whether no step is under way and none will begin before the next `submit`."""
        return self._timer is None

    def submit(self, request: Request, owner: Owner) -> Sequence:
        """Put a request in line. Raises what `Engine.submit` raises."""
        sequence = self.engine.submit(request, self.now, owner)
        if self._timer is None:
            # Not at once: requests that come in the same turn of the loop share the first step.
            self._timer = self._loop.call_soon(self._begin, None)
        return sequence

    def cancel(self, request_id: str) -> bool:
        """Take a request out at once; its owner is not called any more."""
        return self.engine.cancel(request_id, self.now)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call after so many engine seconds."""
        return self._loop.call_later(seconds / self._speed, callback)

    def close(self) -> None:
        """Stop. Sequences in the engine stay where they are."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self, at: float | None) -> None:
        step = self.engine.begin(self.now if at is None else at)
        if step is None:
            self._timer = None
            return
        self._due = step.ends_at
        delay = self._origin + step.ends_at / self._speed - time.monotonic()
        if delay < -_MOST_LATE_S:
            self._origin -= delay
            self.late_s -= delay
        if delay <= 0:
            self._timer = self._loop.call_soon(self._end)
        else:
            self._timer = self._loop.call_later(delay, self._end)

    def _end(self) -> None:
        step = self.engine.finish()
        self._due = None
        now = step.ends_at
        for sequence in step.produced:
            # An owner may cancel others while it is told (a fault that cuts a connection).
            if sequence.phase is not Phase.CANCELLED:
                try:
                    sequence.owner.produced(sequence, now)
                except Exception as error:
                    self._report(error)
        for sequence in step.finished:
            try:
                sequence.owner.finished(sequence, now)
            except Exception as error:
                self._report(error)
        self._begin(now)

    def _report(self, error: Exception) -> None:
        """One owner's failure must not keep the others from their tokens; the event loop's handler tells of it."""
        self._loop.call_exception_handler({"message": "a simulated answer failed", "exception": error})
