"""One replica as admission sees it: what it can hold, what it holds, and whether it takes more.

Two questions, asked in this order. `is_open`: would it take *any* request now? Seats, the prefill line, the pace, the
engine's own queue, back-off: none depends on the request, so size decides nothing here. `fits`: has it room for *this*
request? KV tokens, and seats for more than one sequence.

Saturation never sticks: what an engine reports is believed while fresh only, and a replica with nothing in flight is
open whatever else is remembered of it.
"""

from __future__ import annotations

from fairqueue.capacity import Capacity, Figure, Scrape, ScrapeState, Source, resolve
from fairqueue.item import Item
from fairqueue.kv import Ledger
from fairqueue.learn import CacheLearner, SeatLearner
from fairqueue.prefill import PrefillLine
from fairqueue.reservations import Vector
from fairqueue.settings import PoolSettings
from fairqueue.snapshot import ReplicaSnapshot
from fairqueue.steering import Steering
from fairqueue.ticket import Ticket

_NEVER = float("inf")
_RECENT = 512  # prefixes remembered per replica


class Replica:
    """State of one replica. Owned by one `Admission`; tickets keep it alive after its removal."""

    __slots__ = (
        "_cache",
        "_configured",
        "_engine",
        "_fail_left",
        "_fail_need",
        "_full_at",
        "_not_before",
        "_preemptions",
        "_settings",
        "claimant",
        "inflight",
        "kv",
        "kv_tokens",
        "learner",
        "ledger",
        "line",
        "meter",
        "name",
        "pace",
        "preemptible",
        "recent",
        "scraped",
        "seat_limit",
        "seats",
        "seats_held",
        "solid_kv",
        "steering",
        "usable",
    )

    def __init__(self, name: str, settings: PoolSettings) -> None:
        self.name = name
        self._settings = settings
        self._configured = Capacity()
        self._engine = Capacity()
        self.usable = True
        self.inflight = 0  # tickets not released
        self.seats_held = 0  # sum of their seats
        self.ledger = Ledger()
        self.line = PrefillLine(settings.prefill_allowance * settings.ttft_slo_s)
        self.learner = SeatLearner()
        self.steering = Steering(settings.tpot_slo_s)
        self.meter = self.steering.meter
        self.pace = self.steering.pace
        self.scraped = ScrapeState(settings.scrape_interval_s)
        self.preemptible: dict[Ticket, None] = {}  # batch of which no caller has seen anything, oldest first
        self.solid_kv = 0  # KV tokens, predicted at grant, of tickets that are not recallable
        self.claimant: Item | None = None  # room is being gathered for it; nobody else may enter
        self.recent: dict[int, None] = {}  # prefixes served here, oldest first
        self.seats = Figure(None, Source.UNKNOWN)
        self.kv = Figure(None, Source.UNKNOWN)
        self.kv_tokens: int | None = None  # the value of `kv`; None = not tested
        self._cache = CacheLearner()
        self._preemptions: int | None = None  # the engine's count at the last scrape
        self.seat_limit = 0  # enforced now
        self._full_at: int | None = None  # seats at which the engine had requests waiting
        self._not_before = float("-inf")
        self._fail_need = _NEVER  # a newcomer at least this large in both was found not to fit,
        self._fail_left = _NEVER  # and room has only shrunk since
        self.refresh()

    def reconfigure(self, settings: PoolSettings, now: float) -> None:
        """Other settings from now on; what it holds and what was learned of it stays."""
        self._settings = settings
        self.line.allowance_s = settings.prefill_allowance * settings.ttft_slo_s
        self.scraped.interval_s = settings.scrape_interval_s
        self.steering.aim_at(settings.tpot_slo_s, now)
        self.refresh()

    # -- capacity ------------------------------------------------------------------------------------------

    def configure(self, configured: Capacity | None, engine: Capacity | None) -> None:
        """New figures from the operator or the engine; None leaves that side as it is."""
        if configured is not None:
            self._configured = configured
        if engine is not None:
            self._engine = engine
        self.refresh()

    def refresh(self) -> None:
        """Figures changed: recompute the limits that follow from them."""
        ours, theirs = self._configured, self._engine
        self.seats = resolve(ours.seats, theirs.seats)
        self.kv = resolve(ours.kv_tokens, theirs.kv_tokens)
        if self.kv.value is None and self._cache.value is not None:
            self.kv = Figure(float(int(self._cache.value)), Source.LEARNED, provisional=True)
        self.kv_tokens = None if self.kv.value is None or not self._settings.engine else int(self.kv.value)
        self.ledger.block_tokens = theirs.block_tokens if theirs.kv_tokens is not None else ours.block_tokens
        self.line.chunk = ours.chunk_tokens if theirs.chunk_tokens is None else theirs.chunk_tokens
        self.line.ceiling = resolve(ours.prefill_rate, theirs.prefill_rate).value
        self.limit_seats()
        self.room_grew()

    def limit_seats(self) -> None:
        """What limits seats changed."""
        known = self.seats.value
        limit = self.learner.limit if known is None else int(known)
        if known and self._learning:
            limit = min(limit, self.learner.limit)
        factor = self.steering.net.factor
        if self.steering.sequences is not None:
            limit = min(limit, max(1, int(self.steering.sequences), self.steering.least_seats))
        if factor < 1.0 and limit:
            limit = min(limit, max(1, int((limit if known is None else known) * factor)))
        if self._full_at is not None:
            limit = min(limit, self._full_at)
        self.seat_limit = limit

    @property
    def _learning(self) -> bool:
        """Whether concurrency is learned: seats are unknown, or an engine's KV, for which it then stands in too."""
        return self.seats.value is None or (self._settings.engine and self.kv_tokens is None)

    # -- what it holds -------------------------------------------------------------------------------------

    def enter(self, ticket: Ticket, now: float) -> None:
        item = ticket.item
        demand = item.demand
        self.inflight += 1
        self.seats_held += demand.seats
        self.ledger.add(ticket, demand.prompt_tokens, demand.cached_tokens, item.affinity, item.left)
        if ticket._solid:
            self.solid_kv += ticket._kv
        if item.preemptible:
            self.preemptible[ticket] = None
        if self._settings.engine:
            tokens = demand.prompt_tokens - demand.cached_tokens
            self.line.enter(ticket, tokens, now, silent=item.silent)
            if self.pace.rate is not None:
                self.pace.take(tokens, now)
        if item.affinity is not None:
            self._remember(item.affinity)

    def _remember(self, affinity: int) -> None:
        recent = self.recent
        recent.pop(affinity, None)
        recent[affinity] = None
        if len(recent) > _RECENT:
            del recent[next(iter(recent))]

    def first_token(self, ticket: Ticket, now: float) -> None:
        self.meter.first_token(late=now - ticket.granted_at > self._patience(ticket))
        if self._learning:
            if self._settings.engine and self.line.stalled(now):
                last = self.scraped.last
                empty = last is not None and last.waiting == 0 and self.scraped.fresh(now)
                self.learner.congested(now, self.inflight - len(self.line.waiting), certain=not empty)
            else:
                self.learner.accepted(self.inflight, now)
            self.limit_seats()
        self.line.answered(now - ticket.granted_at)
        self.line.leave(ticket, now, finished=True)
        if ticket.item.preemptible and not ticket.item.gathered:
            self.preemptible.pop(ticket, None)  # its caller has seen something

    def _patience(self, ticket: Ticket) -> float:
        """Seconds from grant to first token that are in order: the objective, or twice what a long prompt takes."""
        slo = self._settings.ttft_slo_s
        demand = ticket.item.demand
        speed = self.line.speed
        return max(slo, 2.0 * (demand.prompt_tokens - demand.cached_tokens) / speed) if speed else slo

    def progress(self, ticket: Ticket, generated: int, now: float) -> bool:
        """Whether predicted use fell although nothing ended."""
        ledger = self.ledger
        self.meter.tokens(generated - ticket.generated, now - ticket._last_at, ledger.now_used)
        ticket._last_at = now
        before = ledger.total
        ledger.progress(ticket, generated, max(0, ticket.item.remaining(generated)))
        if ledger.total < before:
            self.room_grew()
            return True
        return False

    def leave(self, ticket: Ticket, output_tokens: int, now: float, *, served: bool) -> None:
        if output_tokens > ticket.generated and ticket.first_token_at is not None:
            self.meter.tokens(output_tokens - max(1, ticket.generated), now - ticket._last_at, self.ledger.now_used)
        self.inflight -= 1
        self.seats_held -= ticket.item.demand.seats
        self.ledger.remove(ticket, self.kv_tokens or 0)
        if ticket._solid:
            self.solid_kv -= ticket._kv
        if ticket.item.preemptible:
            self.preemptible.pop(ticket, None)
        # One that ends without a first token but served did nothing but prefill (embeddings, one token).
        self.line.leave(ticket, now, finished=served and output_tokens <= 1)
        self._fail_need = self._fail_left = _NEVER

    def close_window(self, now: float) -> None:
        """Draw the conclusions of a window: pace, seats, capacity."""
        kv = self.kv_tokens
        seats = self.seats_held / self.seat_limit if self.seat_limit else 1.0
        cache = self.ledger.total / kv if kv else 0.0
        slow = self.steering.close_window(
            now,
            self.line,
            engine=self._settings.engine,
            kv_used=self.ledger.now_used,
            kv_tokens=kv,
            seats=self.seats.value,
            used=max(seats, cache),
            kv_used_part=cache,
            seats_held=self.seats_held,
        )
        self.learner.good, self.learner.least = self.steering.good_seats, self.steering.least_seats
        if slow and self._learning:
            self.learner.congested(now, None)
        self.limit_seats()

    def vector(self, now: float) -> Vector:
        """What was measured of it, for selling reservations; what is still being learned counts as unknown."""
        return Vector(
            self.meter.capacity(now).value, None if self.seats.value is None else int(self.seats.value), self.kv_tokens
        )

    def room_grew(self) -> None:
        self._fail_need = self._fail_left = _NEVER

    # -- what it is told -----------------------------------------------------------------------------------

    def observe(self, scrape: Scrape, now: float) -> None:
        if not self.scraped.take(scrape, self.seats_held, self.ledger.now_used):
            return
        if scrape.preemptions_total is not None:
            before = self._preemptions
            self.steering.preempted |= before is not None and scrape.preemptions_total > before
            self._preemptions = scrape.preemptions_total
        if scrape.kv_used_ratio is not None:
            self._cache.seen(self.ledger.now_used - self.line.unfinished(now), scrape.kv_used_ratio)
            if self.kv.source in (Source.UNKNOWN, Source.LEARNED):
                self.refresh()
        waiting = scrape.waiting
        if waiting is not None:
            # What was just let in is in prefill, not waiting for room.
            explained = 0 if self.line.stalled(now) else len(self.line.waiting)
            if waiting > explained:
                self.learner.congested(now, scrape.running)
                self._full_at = max(1, scrape.running if scrape.running is not None else self.seats_held - waiting)
            else:
                self._full_at = None
            self.limit_seats()
        self.room_grew()

    def throttled(self, now: float, retry_after_s: float | None) -> None:
        """It refused work for want of capacity (429): fewer seats, and nothing new before it said."""
        self.learner.congested(now, None)
        if retry_after_s is not None:
            self._not_before = max(self._not_before, now + retry_after_s)
        self.limit_seats()

    # -- whether it takes more -----------------------------------------------------------------------------

    def is_open(self, now: float) -> bool:
        """Whether it takes a request for which it has room."""
        if not self.usable or now < self._not_before:
            return False
        if not self.inflight:
            return self.seats.value != 0  # the watchdog: an empty replica takes what it is given
        if self.seats_held >= self.seat_limit if self.scraped.last is None else self._seats_full(now):
            return False
        if not self._settings.engine:
            return True
        return (not self.line.waiting or self.line.is_open(now)) and (self.pace.rate is None or self.pace.is_open(now))

    def _seats_full(self, now: float) -> bool:
        """Whether its sequences, others' included while a scrape tells of them, use up the limit."""
        held = self.seats_held
        scraped = self.scraped
        if scraped.last is not None:
            held = scraped.seats(held, now)
            if self._full_at is not None and not scraped.fresh(now):
                self._full_at = None
                self.limit_seats()
        return held >= self.seat_limit

    def opens_at(self, now: float) -> float | None:
        """When time alone may open it; None = only an event can."""
        if not self.usable:
            return None
        if now < self._not_before:
            return self._not_before
        if self.inflight and self._seats_full(now):
            return None
        at = self.line.opens_at(now)
        return None if at is None else max(at, self.pace.opens_at(now))

    def kv_limit(self, now: float) -> float | None:
        """KV tokens that the predicted peak may reach; None = unknown."""
        kv = self.kv_tokens
        if kv is None:
            return None
        stale = self.scraped.last is not None and not self.scraped.fresh(now)
        fraction = self._settings.stale_kv_fraction if stale else self._settings.kv_fraction
        return kv * fraction * self.steering.kv_net.factor

    def serves(self, item: Item) -> bool:
        """Whether the request may go here at all, now or later."""
        name = self.name
        if (item.replicas is not None and name not in item.replicas) or name in item.excluded:
            return False
        return self.kv_tokens is None or item.demand.prompt_tokens + 1 <= self.kv_tokens

    def fits(self, item: Item, now: float, withheld: float = 0.0) -> bool:
        """Whether there is room for this request, with `withheld` KV tokens left free."""
        demand = item.demand
        kv = self.kv_tokens
        if not self.inflight:
            return kv is None or demand.prompt_tokens + 1 <= kv
        if demand.seats > 1 and self.seats_held + demand.seats > self.seat_limit:
            return False
        if kv is None:
            return True
        ledger = self.ledger
        if item.affinity is None:
            need = demand.prompt_tokens + ledger.block_tokens - 1
        else:
            need = ledger.need(demand.prompt_tokens, demand.cached_tokens, item.affinity)
        left = item.left
        if need >= self._fail_need and left >= self._fail_left:
            return False
        limit = self.kv_limit(now)
        assert limit is not None
        if withheld:
            return ledger.fits(need, left, limit - withheld)
        if (self.scraped.last is not None and self.scraped.kv(ledger.now_used, kv, now) + need > kv) or not ledger.fits(
            need, left, limit
        ):
            if need <= self._fail_need and left <= self._fail_left:
                self._fail_need = need
                self._fail_left = left
            return False
        return True

    def load(self) -> float:
        """How full it is, about 0 to 1: the fuller of KV and seats, and prefill in units of the TTFT objective."""
        kv = self.kv_tokens
        fill = self.seats_held / self.seat_limit if self.seat_limit else 1.0
        if kv:
            fill = max(fill, self.ledger.total / kv)
        if self.line.tokens and (speed := self.line.speed):
            fill += self.line.tokens / (speed * self._settings.ttft_slo_s)
        return fill

    # -- what others may look at ---------------------------------------------------------------------------

    @property
    def seats_free(self) -> int:
        return max(0, self.seat_limit - self.seats_held)

    @property
    def kv_capacity(self) -> int | None:
        return self.kv_tokens

    @property
    def kv_free(self) -> int | None:
        return None if self.kv_tokens is None else max(0, self.kv_tokens - self.ledger.total)

    @property
    def prefill_waiting(self) -> int:
        return self.line.tokens

    def snapshot(self, now: float) -> ReplicaSnapshot:
        ours, theirs = self._configured, self._engine
        learned = self.line.learned
        rate = resolve(ours.prefill_rate, theirs.prefill_rate)
        if learned is not None and (rate.value is None or learned < rate.value):
            rate = Figure(learned, Source.LEARNED, provisional=True)
        seats = self.seats
        if seats.value is None:
            seats = Figure(self.learner.limit, Source.LEARNED, provisional=True)
        return ReplicaSnapshot(
            name=self.name,
            usable=self.usable,
            open=self.is_open(now),
            inflight=self.inflight,
            seats_held=self.seats_held,
            seats=seats,
            seat_limit=self.seat_limit,
            kv_tokens_held=self.ledger.now_used,
            kv_tokens_peak=self.ledger.peak(),
            kv_tokens=self.kv,
            prefill_tokens=self.line.tokens,
            prefill_rate=rate,
            pace=self.pace.rate,
            capacity=self.meter.capacity(now),
            step_s=None if self.meter.fit.speed is None else self.meter.fit.speed.a,
            safety=self.steering.net.factor,
            chunk_tokens=resolve(ours.chunk_tokens, theirs.chunk_tokens),
            scrape_age_s=self.scraped.age(now),
            full=self._full_at is not None and self.scraped.fresh(now),
            claimed_by=None if self.claimant is None else self.claimant.request_id,
        )
