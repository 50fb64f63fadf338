"""Whatever happens in whatever order: counts equal a recount, items end once, room is kept, nothing stands still."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqueue.admission import Admission, PoolSettings, Ticket
from fairqueue.bounds import Bounds
from fairqueue.capacity import Capacity, Scrape
from fairqueue.item import Item, RequestClass
from fairqueue.kv import peak
from fairqueue.reservations import Reservation
from tests.fairqueue.pool import item


class Shell:
    """Does to a pool what a gateway may do, at random, and keeps its own books."""

    def __init__(self, seed: int, *, reservations: bool) -> None:
        self.rng = rng = Random(seed)
        self.now = 0.0
        self.p = Admission(
            PoolSettings(
                name="p",
                bounds=Bounds(items=60, cost=40_000.0, tenant_cost=20_000.0),
                queue_timeouts_s={RequestClass.INTERACTIVE: 15.0, RequestClass.BATCH: 60.0},
            )
        )
        self.names = [f"r{n}" for n in range(rng.randint(1, 3))]
        self.kv = {}
        for name in self.names:
            self.kv[name] = rng.choice([None, 2000, 5000])
            self.p.set_replica(
                name,
                Capacity(rng.choice([None, 3, 8]), self.kv[name], rng.choice([None, 9000.0]), rng.choice([None, 256])),
                0.0,
            )
        self.tenants = [f"t{n}" for n in range(5)]
        if reservations:
            self.p.set_tenant("t0", weight=1.0, reservation=Reservation(rate=300.0, seats=2, kv_tokens=800), now=0.0)
            self.p.set_tenant("t1", weight=2.0, reservation=Reservation(rate=50.0, burst=500.0), now=0.0)
        self.waiting: set[Item] = set()
        self.live: list[Ticket] = []
        self.ended: set[Item] = set()

    def _gone(self, x: Item) -> None:
        assert x not in self.ended
        self.ended.add(x)
        self.waiting.discard(x)

    def _granted(self, tickets: list[Ticket]) -> None:
        for t in tickets:
            assert t.item in self.waiting
            self.waiting.remove(t.item)
            self.live.append(t)

    def _release(self, t: Ticket, served: bool) -> None:
        self.live.remove(t)
        self.p.release(t, self.now, output_tokens=t.generated if served else 0, served=served)
        if self.rng.random() < 0.1:
            self.p.release(t, self.now, output_tokens=999, served=True)

    def settle(self) -> None:
        """Dispatch and preempt until nothing more happens, as a gateway does after each event."""
        for _ in range(40):
            self._granted(self.p.dispatch(self.now))
            victims = self.p.preemptions(self.now)
            for t in victims:
                assert t in self.live
                assert t.item.preemptible
                self._release(t, served=False)
                self.waiting.add(t.item)
                for refusal in self.p.enqueue(t.item, self.now):
                    self._gone(refusal.item)
            wake = self.p.next_wake(self.now)
            if not victims and (wake is None or wake > self.now):
                return
        raise AssertionError("the pool does not come to rest")

    def step(self) -> None:
        rng, p = self.rng, self.p
        self.now += rng.choice([0.0, 0.01, 0.1, 1.0])
        for refusal in p.expire(self.now):
            assert refusal.item in self.waiting
            self._gone(refusal.item)
        action = rng.random()
        if action < 0.45:
            x = item(
                rng.choice(self.tenants),
                prompt=rng.choice([10, 100, 700, 1500]),
                output=rng.choice([1, 20, 200]),
                batch=rng.random() < 0.3,
                at=self.now,
                affinity=rng.choice([None, 1, 2]),
                cached=rng.choice([0, 0, 9]),
                seats=rng.choice([1, 1, 1, 2]),
                deadline=self.now + rng.choice([5.0, 1e9]),
                gathered=rng.random() < 0.5,
                replicas=None if rng.random() < 0.8 else frozenset(rng.sample(self.names, 1)),
            )
            self.waiting.add(x)
            for refusal in p.enqueue(x, self.now):
                assert refusal.item in self.waiting
                self._gone(refusal.item)
        elif action < 0.55 and self.waiting:
            x = rng.choice(sorted(self.waiting, key=lambda y: y.seq))
            assert p.cancel(x, self.now)
            self._gone(x)
        elif action < 0.65 and self.live:
            p.first_token(rng.choice(self.live), self.now)
        elif action < 0.8 and self.live:
            t = rng.choice(self.live)
            p.progress(t, t.generated + rng.randint(1, 30), self.now)
        elif action < 0.92 and self.live:
            t = rng.choice(self.live)
            self._gone(t.item)
            self._release(t, served=rng.random() < 0.9)
        elif action < 0.96:
            running = rng.choice([None, len(self.live)])
            p.observe(
                rng.choice(self.names),
                Scrape(
                    self.now, running, rng.choice([None, 0, 0, 3]), rng.choice([None, rng.random()]), rng.choice([0, 1])
                ),
                self.now,
            )
        elif action < 0.98:
            p.set_usable(rng.choice(self.names), rng.random() < 0.7, self.now)
        else:
            p.throttled(rng.choice(self.names), self.now, rng.choice([None, 0.5]))
        self.settle()

    def check(self) -> None:
        snapshot = self.p.snapshot(self.now)
        assert snapshot.inflight == len(self.live)
        assert snapshot.seats_held == sum(t.item.demand.seats for t in self.live)
        assert snapshot.waiting == len(self.waiting)
        assert snapshot.waiting_cost == pytest.approx(sum(x.cost for x in self.waiting))
        for name, tenant in snapshot.tenants.items():
            assert tenant.waiting == sum(x.tenant == name for x in self.waiting)
            assert tenant.inflight == sum(t.item.tenant == name for t in self.live)
        held = [0.0, 0.0]
        for tenant in self.p._waiting.guarantees.tenants.values():
            mine = [t for t in self.live if t.item.tenant == tenant.name]
            assert tenant.seats_held == sum(t.item.demand.seats for t in mine)
            r = tenant.reservation
            assert r is not None
            held[0] += r.hold * max(0.0, tenant.room_seats - tenant.seats_held)
            held[1] += r.hold * max(0.0, tenant.room_kv - tenant.kv_held)
        assert [snapshot.held_seats, snapshot.held_kv_tokens] == pytest.approx(held, abs=1e-6)
        for name, replica in self.p._replicas.items():
            here = [t for t in self.live if t.replica == name]
            assert replica.inflight == len(here)
            assert replica.line.tokens == sum(
                t.item.demand.prompt_tokens - t.item.demand.cached_tokens for t in here if t.first_token_at is None
            )
            assert set(replica.preemptible) == {
                t for t in here if t.item.preemptible and (t.item.gathered or t.first_token_at is None)
            }
            assert replica.solid_kv == sum(t._kv for t in here if not t.item.recallable)
            if not replica.usable or self.now < replica._not_before or self.waiting == set():
                continue
            seen = any(r.usable and r.scraped.fresh(self.now) for r in self.p._replicas.values())
            if not here and not (seen and replica.scraped.lost(self.now)):  # the watchdog
                assert not [
                    flow.tenant.name
                    for queue in self.p._waiting.queues
                    for flow in queue.in_order()
                    if replica.serves(flow.head())
                    and self._held_free(flow.head())
                    and (replica.claimant in (None, flow.head()))
                ]

    def _held_free(self, x: Item) -> bool:
        flow = x.flow
        assert flow is not None
        return x.recallable or not self.p._dispatcher._seats_withheld(x, flow.tenant)

    def finish(self) -> None:
        for t in list(self.live):
            self._gone(t.item)
            self._release(t, served=True)
        for x in list(self.waiting):
            assert self.p.cancel(x, self.now)
        rest = self.p.snapshot(self.now)
        figures = (rest.inflight, rest.seats_held, rest.kv_tokens_held, rest.prefill_tokens, rest.waiting)
        assert figures == (0, 0, 0, 0, 0)
        assert rest.waiting_cost == 0.0
        for replica in self.p._replicas.values():
            assert (replica.ledger.total, replica.solid_kv, replica.claimant) == (0, 0, None)
            assert replica.ledger._groups == {}
        assert self.p._dispatcher.solid_seats == 0


@pytest.mark.parametrize("reservations", [False, True])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_every_count_equals_a_recount_and_every_item_ends_once(reservations: bool, seed: int) -> None:
    shell = Shell(seed, reservations=reservations)
    for _ in range(120):
        shell.step()
        shell.check()
    shell.finish()


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_with_exact_predictions_use_never_exceeds_the_limit_and_no_fitting_head_waits(seed: int) -> None:
    rng = Random(seed)
    p = Admission(PoolSettings(name="p", overtake=1e9, queue_timeouts_s=dict.fromkeys(RequestClass, 1e9)))
    p.set_replica("r0", Capacity(64, 4000, None, 10**9, 16), 0.0)
    live: list[Ticket] = []
    for step in range(150):
        now = step * 0.125  # every step is late enough for another look at what did not fit
        for _ in range(rng.randint(0, 2)):
            p.enqueue(item(rng.choice("abcd"), prompt=rng.randint(1, 900), output=rng.randint(1, 300), at=now), now)
        live += p.dispatch(now)
        while (wake := p.next_wake(now)) is not None and wake <= now:
            live += p.dispatch(now)
        use = sum(-(-(t.item.demand.prompt_tokens + t.generated) // 16) * 16 for t in live)
        assert use <= 0.95 * 4000
        state = [(t.own + t.generated, t.left) for t in live]
        assert peak(state) <= 0.95 * 4000
        for flow in p._waiting.queues[0].in_order():
            head = flow.head()
            need = (head.demand.prompt_tokens + 15, head.left)
            assert peak([*state, need]) > 0.95 * 4000  # nobody fits who waits
        ended = []
        for t in live:
            p.progress(t, t.generated + 1, now)
            if t.left == 0:
                ended.append(t)
        for t in ended:
            live.remove(t)
            p.release(t, now, output_tokens=t.generated, served=True)
