"""The places of probes: how many real requests may test a target that is being tried again, and who takes them.

Steps of 1, 2, 4 and 8 requests at a time; a step is over when all of its requests went well. Places go to the lowest
class first: each higher class may take a free place only after it has stood free a while longer. A request that is told
it may probe holds a place for a second, so that not everybody who asks before the first has entered comes and is turned
away. A probe whose end is never reported loses its place in the end.
"""

from __future__ import annotations

import math
from typing import Protocol

from providers.health import BreakerSettings
from providers.route import Skip, SkipReason

CLAIM_S = 1.0
"""How long a request that was told it may probe has to come."""


class Running(Protocol):
    """A probe under way; `at` is when it began."""

    at: float


class Probes:
    """The places of one breaker. The breaker decides what a result means; this file only counts."""

    __slots__ = ("_claimed_at", "_claims", "_free_at", "_running", "_settings", "_started", "_step")

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._step = 0
        self._started = 0
        """Probes of this step, running or gone well: never above the step's number."""
        self._running: list[Running] = []
        """Oldest first; a part of `_started`."""
        self._free_at = 0.0
        """Since when a place has been free."""
        self._claims = 0
        """Requests that were told since `_claimed_at` that they may probe, and have not entered yet."""
        self._claimed_at = -math.inf

    def __len__(self) -> int:
        """Probes under way."""
        return len(self._running)

    def restart(self, now: float) -> None:
        """From the first step, with nobody under way."""
        self._running = []
        self._step = self._started = self._claims = 0
        self._free_at = now

    def hindrance(self, cls: str, now: float, *, single: bool, claim: bool) -> Skip | None:
        """Why a request of class `cls` may not probe now. `single`: one at a time, of any class. With `claim` a None
        holds a place.
        """
        settings = self._settings
        limit = 1 if single else settings.probe_steps[self._step]
        if self._running and now - self._running[0].at > settings.probe_lifetime_s:
            lived = [probe for probe in self._running if now - probe.at <= settings.probe_lifetime_s]
            self._started -= len(self._running) - len(lived)
            self._running = lived
        if self._started >= limit:
            return Skip(SkipReason.PROBE_LIMIT, f"{len(self._running)} of {limit} probes are running")
        if not single and now < self._free_at + settings.class_patience_s * self._rank(cls):
            return Skip(SkipReason.PROBE_LIMIT, "the next probe waits for a lower class")
        if claim:
            if now >= self._claimed_at + CLAIM_S:
                self._claims, self._claimed_at = 0, now
            if self._started + self._claims >= limit:
                return Skip(SkipReason.PROBE_LIMIT, f"all {limit} probes are spoken for")
            self._claims += 1
        return None

    def begin(self, probe: Running) -> None:
        """A probe entered; `hindrance` was None just now."""
        self._started += 1
        self._claims = max(0, self._claims - 1)
        self._running.append(probe)

    def take_out(self, probe: Running) -> bool:
        """The probe's result is known. False if it was not under way (decided before, or lapsed)."""
        if probe not in self._running:
            return False
        self._running.remove(probe)
        return True

    def give_back(self, now: float) -> None:
        """A probe that was taken out said nothing: its place is free again."""
        self._started -= 1
        self._free_at = now

    def went_well(self, now: float) -> bool:
        """A probe that was taken out went well. True if it was the last of the last step."""
        if self._running or self._started < self._settings.probe_steps[self._step]:
            return False
        self._started = self._claims = 0
        self._free_at = now
        if self._step + 1 == len(self._settings.probe_steps):
            return True
        self._step += 1
        return False

    def _rank(self, cls: str) -> int:
        classes = self._settings.classes
        return classes.index(cls) if cls in classes else len(classes) - 1
