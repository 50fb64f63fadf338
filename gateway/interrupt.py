"""A handle on a request's own task, for the reasons the gateway itself has to stop it.

Cancellation of the task is the one signal there is; the reason kept here tells our own cancellations
from a client that left.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum

_EARLY_S = 0.001  # a timer may come this much before its time: loops count in milliseconds


class Reason(StrEnum):
    """Why the gateway stopped a request's task."""

    DEADLINE = "deadline"
    PREEMPTED = "preempted"
    SHUTDOWN = "shutdown"


class Deadlines:
    """The deadlines of all running requests: a dictionary entry for each, a timer for all that are allowed as long.

    Requests that are allowed the same time pass their deadlines in the order in which they began, and almost none
    does. So each such time has one queue, and its timer sleeps until the first entry is due, looks, and sleeps on.
    """

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[float, dict[Interrupt, float]] = {}  # by seconds allowed: when each is due, soonest first

    def put(self, interrupt: Interrupt, seconds: float) -> dict[Interrupt, float]:
        """Fires DEADLINE after `seconds`, unless it has been taken out of the queue returned."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        queue = self._queues.get(seconds)
        if queue is None:
            queue = self._queues[seconds] = {}
            loop.call_at(due, self._look, seconds)
        queue[interrupt] = due
        return queue

    def _look(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time() + _EARLY_S
        queue = self._queues[seconds]
        while queue:
            interrupt = next(iter(queue))
            due = queue[interrupt]
            if due > now:
                loop.call_at(due, self._look, seconds)
                return
            del queue[interrupt]
            interrupt.fire(Reason.DEADLINE)
        del self._queues[seconds]


class Interrupt:
    """Stops one request's task, once at a time: the first reason wins until it is taken."""

    __slots__ = ("_deadlines", "_queue", "_reason", "_task")

    def __init__(self, task: asyncio.Task[object] | None, deadlines: Deadlines) -> None:
        assert task is not None, "a request runs in a task"
        self._task = task
        self._deadlines = deadlines
        self._reason: Reason | None = None
        self._queue: dict[Interrupt, float] | None = None  # where its deadline stands

    def fire(self, reason: Reason) -> None:
        """Cancels the task unless a reason is pending already."""
        if self._reason is None:
            self._reason = reason
            self._task.cancel()

    def deadline(self, seconds: float) -> None:
        """Fires DEADLINE after `seconds`, unless disarmed; replaces an earlier deadline."""
        self.disarm()
        self._queue = self._deadlines.put(self, seconds)

    def take(self) -> Reason | None:
        """In a handler of CancelledError: our reason, after which the task lives on; None if it was not us."""
        reason = self._reason
        if reason is not None:
            self._reason = None
            self._task.uncancel()
        return reason

    @property
    def pending(self) -> bool:
        """Whether the task was cancelled by us and nobody has taken the reason yet."""
        return self._reason is not None

    def is_pending(self, reason: Reason) -> bool:
        """Whether the task was cancelled by us for `reason` and nobody has taken it yet."""
        return self._reason is reason

    def disarm(self) -> None:
        """No deadline any more."""
        if self._queue is not None:
            self._queue.pop(self, None)
            self._queue = None
