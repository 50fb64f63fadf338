"""A handle on a request's own task, for the reasons the gateway itself has to stop it.

Cancellation of the task is the one signal there is; the reason kept here tells our own cancellations
from a client that left.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum


class Reason(StrEnum):
    """Why the gateway stopped a request's task."""

    DEADLINE = "deadline"
    PREEMPTED = "preempted"
    SHUTDOWN = "shutdown"


class Interrupt:
    """Stops one request's task, once at a time: the first reason wins until it is taken."""

    __slots__ = ("_reason", "_task", "_timer")

    def __init__(self, task: asyncio.Task[object] | None) -> None:
        assert task is not None, "a request runs in a task"
        self._task = task
        self._reason: Reason | None = None
        self._timer: asyncio.TimerHandle | None = None

    def fire(self, reason: Reason) -> None:
        """Cancels the task unless a reason is pending already."""
        if self._reason is None:
            self._reason = reason
            self._task.cancel()

    def deadline(self, seconds: float) -> None:
        """Fires DEADLINE after `seconds`, unless disarmed; replaces an earlier deadline."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.fire, Reason.DEADLINE)

    def take(self) -> Reason | None:
        """In a handler of CancelledError: our reason, after which the task lives on; None if it was not us."""
        reason = self._reason
        if reason is not None:
            self._reason = None
            self._task.uncancel()
        return reason

    def is_pending(self, reason: Reason) -> bool:
        """Whether the task was cancelled by us for `reason` and nobody has taken it yet."""
        return self._reason is reason

    def disarm(self) -> None:
        """No deadline any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
