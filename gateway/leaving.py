"""What is still to come of an answer whose client has left, where the provider bills it anyway.

An engine of our own stops when its connection is closed, so that is done at once. A provider goes on generating and
bills all of it; closing the connection would only lose the figure. So the rest is read, up to the usage at its end, and
the request is settled with that. It holds what it held, its seat at the account and its tenant's limits, for that is
what it takes. At most `MOST` answers are read so, none longer than `LONGEST_S`; what is over that is closed, and
settled with the larger of what was estimated and what was counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from gateway.interrupt import Interrupt
from gateway.relay import Watcher
from providers.exchange import Reader
from providers.transport import Answer, TransportError

MOST = 100
LONGEST_S = 120.0


class Rest(Watcher, Protocol):
    """An attempt whose client has left: how to go on with it."""

    async def head(self) -> Answer | None:
        """The answer, once its head has come; None when there is none that could tell a usage."""

    def reader(self, answer: Answer) -> Reader:
        """The reader that has read the answer so far."""


@dataclass(slots=True)
class Leaving:
    """Reads such answers to their end, in the task of the request each belongs to."""

    most: int = MOST
    longest_s: float = LONGEST_S
    running: int = 0
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By (pool, result): `closed` at once, `read` to its usage, `unread` where that was not to be had."""

    async def see_out(self, rest: Rest, pool: str, stall_s: float, interrupt: Interrupt) -> bool:
        """Whether the usage of the whole answer is known now. Raises CancelledError when the server itself ends."""
        known = False
        if self.running < self.most:
            self.running += 1
            try:
                async with asyncio.timeout(self.longest_s):
                    known = await _read(rest, stall_s)
            except (TimeoutError, TransportError):
                known = False
            except asyncio.CancelledError:
                if interrupt.take() is None:
                    raise
            finally:
                self.running -= 1
        self.ends[pool, "read" if known else "unread"] += 1
        return known


async def _read(rest: Rest, stall_s: float) -> bool:
    """Reads to the end; True when the upstream said what the whole answer took."""
    answer = await rest.head()
    if answer is None:
        return False
    answer.idle_s = stall_s
    reader = rest.reader(answer)
    while True:
        data = await answer.read()
        part = reader.feed(data) if data else reader.end()
        if part.tokens:
            rest.tokens(reader.tokens, last=part.done)
        if part.failure is not None:
            return False
        if part.done or not data:
            return reader.usage.output_tokens is not None
