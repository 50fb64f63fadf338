"""What one admission operation costs: alone in an empty pool, among 100,000 waiting of 10,000 tenants, and the KV test.

Prints microseconds of CPU time per operation. Run with `python -m bench.fairqueue`. What was built before the clock
starts is frozen out of the garbage collector, as a long-running gateway's state is.
"""

from __future__ import annotations

import gc
from random import Random
from time import process_time

from fairqueue.admission import Admission, PoolSettings, Ticket
from fairqueue.bounds import Bounds
from fairqueue.capacity import Capacity
from fairqueue.item import Demand, Item, RequestClass
from fairqueue.kv import Ledger, Running


def make(tenant: str, n: int, rng: Random, now: float) -> Item:
    output = rng.randint(20, 400)
    return Item(
        request_id=str(n),
        tenant=tenant,
        cls=RequestClass.BATCH if n % 10 == 0 else RequestClass.INTERACTIVE,
        demand=Demand(prompt_tokens=rng.randint(50, 2000), output_tokens=output, output_cap=4096),
        arrived=now,
        deadline=1e9,
        remaining=lambda done: output - done if output > done else 0,
        preemptible=n % 10 == 0,
    )


def settings() -> PoolSettings:
    return PoolSettings(name="bench", bounds=Bounds(items=200_000), queue_timeouts_s=dict.fromkeys(RequestClass, 1e9))


def uncontended(count: int = 50_000) -> float:
    """enqueue + dispatch + first_token + release of one request in an idle pool, microseconds."""
    rng = Random(1)
    pool = Admission(settings())
    pool.set_replica("a", Capacity(256, 1_000_000, 20_000.0, 2048), 0.0)
    pool.set_replica("b", Capacity(256, 1_000_000, 20_000.0, 2048), 0.0)
    items = [make(f"t{n % 100}", n, rng, n * 1e-3) for n in range(count)]
    start = process_time()
    for n, item in enumerate(items):
        now = n * 1e-3
        pool.enqueue(item, now)
        (ticket,) = pool.dispatch(now)
        pool.first_token(ticket, now + 2e-4)
        pool.release(ticket, now + 5e-4, output_tokens=50, served=True)
    return (process_time() - start) / count * 1e6


def backlog(tenants: int = 10_000, waiting: int = 100_000, rounds: int = 20_000) -> dict[str, float]:
    """Operations with `waiting` requests of `tenants` tenants in the queue and a full engine, microseconds each."""
    rng = Random(2)
    pool = Admission(settings())
    pool.set_replica("a", Capacity(256, 400_000, 1e9, 1_000_000), 0.0)
    items = [make(f"t{rng.randrange(tenants)}", n, rng, 0.0) for n in range(waiting + rounds)]
    spent = dict.fromkeys(("enqueue", "dispatch", "first_token", "progress", "release", "cancel", "next_wake"), 0.0)
    for item in items[:waiting]:
        pool.enqueue(item, 0.0)
    running: list[Ticket] = list(pool.dispatch(0.0))
    cancelled = 0
    gc.collect()
    gc.freeze()
    calls = dict.fromkeys(spent, 0)

    def timed(name: str, start: float) -> None:
        spent[name] += process_time() - start
        calls[name] += 1

    for n, item in enumerate(items[waiting:]):
        now = 1.0 + n * 1e-2
        start = process_time()
        pool.enqueue(item, now)
        timed("enqueue", start)
        start = process_time()
        fresh = pool.dispatch(now)  # nothing has ended, so as a rule nothing is granted
        timed("dispatch", start)
        running += fresh
        start = process_time()
        pool.next_wake(now)
        timed("next_wake", start)
        if n % 4 == 0:
            victim = items[rng.randrange(waiting)]
            start = process_time()
            cancelled += pool.cancel(victim, now)
            timed("cancel", start)
        ticket = running.pop(rng.randrange(len(running)))
        start = process_time()
        pool.progress(ticket, 20, now)
        timed("progress", start)
        start = process_time()
        pool.release(ticket, now, output_tokens=20, served=True)
        timed("release", start)
        start = process_time()
        fresh = pool.dispatch(now)
        timed("dispatch", start)
        running += fresh
        for t in fresh:
            start = process_time()
            pool.first_token(t, now + 1e-3)
            timed("first_token", start)
    out = {name: seconds / max(calls[name], 1) * 1e6 for name, seconds in spent.items()}
    out["mean"] = sum(spent.values()) / sum(calls.values()) * 1e6
    return out


def kv_test(running: int = 256, rounds: int = 4000) -> tuple[float, float]:
    """The full future-peak test near the limit while sequences come, grow and go: per test, per change."""
    rng = Random(3)
    ledger = Ledger(16)
    live: list[Running] = []

    def sizes() -> tuple[int, int]:
        return rng.randint(200, 3000), int(rng.lognormvariate(5.5, 0.8)) + 1

    for _ in range(running):
        x = Running()
        prompt, left = sizes()
        ledger.add(x, prompt, 0, None, left)
        live.append(x)
    limit = ledger.peak() * 1.005
    tests = changes = 0
    testing = changing = 0.0
    for step in range(rounds):
        start = process_time()
        for x in [x for x in live if x.left <= 0]:
            ledger.remove(x, 0.0)
            live.remove(x)
            changes += 1
        if step % 8 == 0:
            for x in live:
                ledger.progress(x, x.generated + 8, max(0, x.left - 8))
            changes += len(live)
        changing += process_time() - start
        for _ in range(4):
            prompt, left = sizes()
            if ledger.total + prompt + 15 + left <= limit:
                continue
            start = process_time()
            fits = ledger.fits(prompt + 15, left, limit)
            testing += process_time() - start
            tests += 1
            if fits:
                x = Running()
                start = process_time()
                ledger.add(x, prompt, 0, None, left)
                changing += process_time() - start
                changes += 1
                live.append(x)
    return testing / tests * 1e6, changing / changes * 1e6


def main() -> None:
    print(f"uncontended request, all four calls  {uncontended():6.2f} us")
    for name, cost in backlog().items():
        print(f"100,000 waiting, {name:<20}{cost:6.2f} us")
    test, change = kv_test()
    print(f"future-peak test at 256 running      {test:6.2f} us  (a change {change:.2f} us)")


if __name__ == "__main__":
    main()
