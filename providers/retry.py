"""One attempt budget over retries, credentials and tiers, and a fleet-wide ratio of retries to requests.

Retries of one layer multiply those of the next: three of the client's SDK, three of ours and three of a proxy behind us
are 27 requests where one was meant. So there is one budget for all that happens to a request, whatever the reason:

- *count*: at most `max_attempts`, less the retries the client's SDK says it has already made;
- *time*: no attempt begins that could not end before the request's deadline;
- *money*: attempts that may have been billed count against a ceiling.

And one for all requests together, a token bucket that takes care of a total outage: each first try puts in 0.1, each
second 1, at most 100 lie in it, and every further try takes 1. So upstreams see at most 1.1 times the requests, plus
one a second, plus what had been saved up.

What may be tried next follows from the kind of failure (`NEXT`), in the order in which it is worth trying; the same
replica again comes last and only after a pause. Pauses have full jitter: U(0, 1) * min(50 ms * 2^tries, 2 s). A way
around the failed part (another replica, credential or target) needs no pause. After the first byte of content nothing
is tried again: what the client has seen cannot be taken back.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from providers.exchange import FailureKind


class Step(StrEnum):
    """What to do after a failed attempt."""

    OTHER_REPLICA = "other_replica"
    OTHER_CREDENTIAL = "other_credential"
    NEXT_TARGET = "next_target"
    SAME_AGAIN = "same_again"
    """The same replica and credential, after the pause. Only when nothing else is left."""
    GIVE_UP = "give_up"


class Stop(StrEnum):
    """Why no further attempt is made."""

    NOT_RETRYABLE = "not_retryable"
    CONTENT_SENT = "content_sent"
    ATTEMPTS = "attempts"
    """The request's own count is used up."""
    RATIO = "ratio"
    """The fleet retries too much already."""
    DEADLINE = "deadline"
    MONEY = "money"
    NOTHING_LEFT = "nothing_left"
    """No replica, credential or target is left to try."""


_AROUND = (Step.OTHER_REPLICA, Step.OTHER_CREDENTIAL, Step.NEXT_TARGET, Step.SAME_AGAIN)

NEXT: dict[FailureKind, tuple[Step, ...]] = {
    FailureKind.CLIENT: (),
    FailureKind.CONTENT: (),
    FailureKind.CONTEXT: (Step.NEXT_TARGET,),
    FailureKind.AUTH: (Step.OTHER_CREDENTIAL, Step.NEXT_TARGET),
    FailureKind.CREDIT: (Step.OTHER_CREDENTIAL, Step.NEXT_TARGET),
    FailureKind.QUOTA: (Step.OTHER_CREDENTIAL, Step.NEXT_TARGET),
    FailureKind.CONFIG: (Step.NEXT_TARGET,),
    FailureKind.RATE: (Step.OTHER_CREDENTIAL, Step.OTHER_REPLICA, Step.NEXT_TARGET, Step.SAME_AGAIN),
    FailureKind.CAPACITY: _AROUND,
    FailureKind.TRANSIENT: _AROUND,
}
"""What may help, best first. CONTEXT: only a target with a longer context, which the caller must see to."""

ALARMS = frozenset({FailureKind.AUTH, FailureKind.CREDIT, FailureKind.CONFIG})
"""Kinds that an operator must be told about: our own configuration or account is at fault."""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """The numbers of the budget. Times in seconds."""

    max_attempts: int = 3
    """Of one request, the first included, over all replicas, credentials and tiers."""
    pause_base_s: float = 0.05
    pause_cap_s: float = 2.0
    useful_s: float = 0.05
    """An attempt that could not run this long before the deadline is not begun."""
    ratio: float = 0.1
    per_second: float = 1.0
    saved: float = 100.0
    """The most further tries that can be saved up."""
    begin: float = 10.0
    """What a fresh process may spend."""


DEFAULT = RetrySettings()


class RetryRatio:
    """The bucket of further tries, shared by all requests of this process.

    `instances` divides the part that grows with time, so that a fleet together earns `per_second`.
    """

    __slots__ = ("_at", "_instances", "_level", "_settings", "refused", "spent")

    def __init__(self, settings: RetrySettings = DEFAULT, now: float = 0.0) -> None:
        self._settings = settings
        self._instances = 1
        self._at = now
        self._level = settings.begin
        """Further tries that may be made, at `_at`; within 0 and `saved`."""
        self.spent = 0
        """Further tries made, ever."""
        self.refused = 0

    def first(self) -> None:
        """A request began."""
        self._level = min(self._level + self._settings.ratio, self._settings.saved)

    def take(self, now: float) -> bool:
        """One further try; False if the fleet retries too much."""
        level = self.level(now)
        self._at = max(self._at, now)
        if level < 1.0:
            self._level = level
            self.refused += 1
            return False
        self._level = level - 1.0
        self.spent += 1
        return True

    def give_back(self) -> None:
        """A try that was taken and not made."""
        self._level = min(self._level + 1.0, self._settings.saved)
        self.spent -= 1

    def set_instances(self, count: int, now: float) -> None:
        """How many processes share the allowance that grows with time."""
        self._level = self.level(now)
        self._at = max(self._at, now)
        self._instances = max(1, count)

    def level(self, now: float) -> float:
        """Further tries that may be made now."""
        earned = max(0.0, now - self._at) * self._settings.per_second / self._instances
        return min(self._level + earned, self._settings.saved)


class RetryRatios:
    """The fleet's bucket, and one for each tenant, so that one tenant's failing target does not use up everybody's.

    A tenant's bucket has the same ratio, a tenth of the time's allowance and a fifth of the savings. While the fleet's
    bucket is more than half full, anybody may take; below, only a tenant with a try of its own left. At most `tenants`
    are remembered, the longest silent ones are forgotten.
    """

    __slots__ = ("_most", "_part", "_plenty", "_tenants", "fleet")

    def __init__(self, settings: RetrySettings = DEFAULT, now: float = 0.0, tenants: int = 10_000) -> None:
        self.fleet = RetryRatio(settings, now)
        self._most = tenants
        self._plenty = settings.saved / 2.0
        self._part = RetrySettings(
            ratio=settings.ratio,
            per_second=settings.per_second / 10.0,
            saved=settings.saved / 5.0,
            begin=min(settings.begin, settings.saved / 5.0),
        )
        self._tenants: OrderedDict[str, RetryRatio] = OrderedDict()

    def first(self, tenant: str, now: float) -> None:
        """A request of `tenant` began."""
        self.fleet.first()
        self._of(tenant, now).first()

    def take(self, tenant: str, now: float) -> bool:
        """One further try for `tenant`; all or nothing over both buckets."""
        if self.fleet.level(now) > self._plenty:
            return self.fleet.take(now)
        own = self._of(tenant, now)
        if not own.take(now):
            return False
        if self.fleet.take(now):
            return True
        own.give_back()
        return False

    def _of(self, tenant: str, now: float) -> RetryRatio:
        ratio = self._tenants.get(tenant)
        if ratio is None:
            ratio = self._tenants[tenant] = RetryRatio(self._part, now)
            if len(self._tenants) > self._most:
                self._tenants.popitem(last=False)
        else:
            self._tenants.move_to_end(tenant)
        return ratio


@dataclass(frozen=True, slots=True)
class Around:
    """What is left to try, as the caller knows it."""

    replicas: bool = False
    credentials: bool = False
    targets: bool = False
    same: bool = True
    """The failed replica may be asked again (it is not known to be dead)."""


class Decision(NamedTuple):
    """What to do now. `wait_s` is the pause before it; `stop` says why it ends."""

    step: Step
    wait_s: float = 0.0
    stop: Stop | None = None
    alarm: bool = False
    """An operator must be told."""
    again: bool = True
    """On GIVE_UP: whether the client's own retry is welcome. When False, answer `x-should-retry: false`."""


class AttemptBudget:
    """What one request may still try. Ask `after` for each failed attempt; the first attempt needs no asking."""

    __slots__ = ("_before", "_ceiling", "_deadline", "_ratios", "_settings", "_tenant", "attempts", "billed", "waited")

    def __init__(
        self,
        ratios: RetryRatios,
        tenant: str,
        now: float,
        deadline: float,
        *,
        settings: RetrySettings = DEFAULT,
        sdk_retries: int = 0,
        ceiling_usd_micro: int | None = None,
    ) -> None:
        """`deadline` is absolute; `sdk_retries` is what the client's SDK says it has tried before (the header
        `x-stainless-retry-count`): such a request is not a first try and earns nothing.
        """
        self._ratios = ratios
        self._tenant = tenant
        self._deadline = deadline
        self._settings = settings
        self._before = max(0, sdk_retries)
        self._ceiling = ceiling_usd_micro
        self.attempts = 1
        """Made or decided, the first included: at most `max_attempts`."""
        self.billed = 0
        """Micro-dollars that failed attempts may have cost."""
        self.waited = 0.0
        """Seconds of pauses so far."""
        if not self._before:
            ratios.first(tenant, now)

    @property
    def left(self) -> int:
        """Attempts that may still be made."""
        return max(0, self._settings.max_attempts - self.attempts - self._before)

    def after(
        self,
        kind: FailureKind,
        now: float,
        around: Around,
        uniform: float,
        *,
        content_sent: bool = False,
        free: bool = False,
        retry_after_s: float | None = None,
        billed_usd_micro: int = 0,
        next_usd_micro: int = 0,
    ) -> Decision:
        """Decide what follows a failed attempt. A step other than GIVE_UP is already paid for.

        `uniform` in [0, 1) is the jitter. `billed_usd_micro` is what the failed attempt may have cost (a time-out after
        sending is often billed), `next_usd_micro` what the next one is expected to cost at most. `free` asks nothing of
        the fleet's ratio: what goes on where a failed attempt stopped repeats nothing of it.
        """
        self.billed += billed_usd_micro
        alarm = kind in ALARMS
        if content_sent:
            return self._stop(Stop.CONTENT_SENT, alarm, kind)
        steps = NEXT[kind]
        if not steps:
            return self._stop(Stop.NOT_RETRYABLE, alarm, kind)
        if self.attempts + self._before >= self._settings.max_attempts:
            return self._stop(Stop.ATTEMPTS, alarm, kind)
        if self._ceiling is not None and self.billed + next_usd_micro > self._ceiling:
            return self._stop(Stop.MONEY, alarm, kind)
        step = next((step for step in steps if _open(step, around)), None)
        if step is None:
            return self._stop(Stop.NOTHING_LEFT, alarm, kind)
        wait = self._pause(step, uniform, retry_after_s)
        if now + wait + self._settings.useful_s > self._deadline:
            return self._stop(Stop.DEADLINE, alarm, kind)
        if not free and not self._ratios.take(self._tenant, now):
            return self._stop(Stop.RATIO, alarm, kind)
        self.attempts += 1
        self.waited += wait
        return Decision(step, wait, None, alarm)

    def _pause(self, step: Step, uniform: float, retry_after_s: float | None) -> float:
        if step is not Step.SAME_AGAIN:
            return 0.0
        most = min(self._settings.pause_base_s * 2.0 ** (self.attempts - 1), self._settings.pause_cap_s)
        return max(uniform * most, retry_after_s or 0.0)

    def _stop(self, stop: Stop, alarm: bool, kind: FailureKind) -> Decision:
        """The client may try again only if that is no multiplication: we have tried once and the fleet is well."""
        again = (
            self.attempts == 1
            and stop in (Stop.NOTHING_LEFT, Stop.DEADLINE)
            and kind in (FailureKind.RATE, FailureKind.CAPACITY, FailureKind.TRANSIENT)
        )
        return Decision(Step.GIVE_UP, 0.0, stop, alarm, again)


def _open(step: Step, around: Around) -> bool:
    if step is Step.OTHER_REPLICA:
        return around.replicas
    if step is Step.OTHER_CREDENTIAL:
        return around.credentials
    return around.targets if step is Step.NEXT_TARGET else around.same
