"""Small makers for the tests of this room: items, pools, and a pool run by a simple server in virtual time."""

from __future__ import annotations

from itertools import count
from typing import Any

from fairqueue.admission import Admission, PoolSettings
from fairqueue.capacity import Capacity
from fairqueue.item import Demand, Item, RequestClass

_ids = count(1)


def item(
    tenant: str = "acme",
    *,
    prompt: int = 100,
    output: int = 50,
    cached: int = 0,
    cap: int | None = None,
    batch: bool = False,
    at: float = 0.0,
    deadline: float = 1e9,
    seats: int = 1,
    **more: Any,
) -> Item:
    """An item whose prediction is `output` tokens, exactly."""
    return Item(
        request_id=f"r{next(_ids)}",
        tenant=tenant,
        cls=RequestClass.BATCH if batch else RequestClass.INTERACTIVE,
        demand=Demand(
            prompt_tokens=prompt,
            cached_tokens=cached,
            output_tokens=output,
            output_cap=max(output, 4096) if cap is None else cap,
            seats=seats,
        ),
        arrived=at,
        deadline=deadline,
        remaining=lambda n: max(0, output - n),
        preemptible=more.pop("preemptible", batch),
        **more,
    )


def pool(seats: int | None = 4, *, kv: int | None = None, replicas: int = 1, **more: Any) -> Admission:
    """A provider-account-like pool (seats only) unless `kv` is given; then an engine with a generous chunk."""
    engine = more.pop("engine", kv is not None)
    chunk = more.pop("chunk", 1_000_000)
    rate = more.pop("rate", None)
    admission = Admission(PoolSettings(name="p", engine=engine, **more))
    for n in range(replicas):
        admission.set_replica(
            f"r{n}", Capacity(seats=seats, kv_tokens=kv, chunk_tokens=chunk, prefill_rate=rate, block_tokens=1), 0.0
        )
    return admission
