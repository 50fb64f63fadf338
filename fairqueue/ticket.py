"""A granted admission: what it holds, where, and what was charged for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairqueue.item import Item
from fairqueue.kv import Running

if TYPE_CHECKING:
    from fairqueue.fair import Flow
    from fairqueue.replica import Replica


class Ticket(Running):
    """Given out by `Admission.dispatch`, and owed back: every ticket is released exactly once (more is harmless).

    Callers read `item`, `replica`, `granted_at` and `waited_s`; the rest belongs to the admission."""

    __slots__ = (
        "_charged",
        "_class_weight",
        "_flow",
        "_kv",
        "_last_at",
        "_paid_tokens",
        "_preempting",
        "_rate",
        "_released",
        "_replica",
        "_solid",
        "_surplus",
        "_weight",
        "first_token_at",
        "granted_at",
        "item",
    )

    item: Item
    granted_at: float
    first_token_at: float | None
    _replica: Replica
    _flow: Flow
    _weight: float  # the tenant's at dispatch: corrections use the same
    _class_weight: float  # its class's, likewise
    _charged: float  # cost units charged so far
    _paid_tokens: int  # output tokens that `_charged` covers
    _rate: float  # the reservation rate if granted by guarantee, else 0
    _released: bool
    _solid: bool  # not recallable: counts against room that is held for reservations
    _kv: int  # KV tokens predicted at grant; what counts against reserved room
    _surplus: bool  # batch granted while no interactive request waited
    _preempting: bool  # told to be cancelled upstream
    _last_at: float

    @property
    def replica(self) -> str:
        """Name of the replica it was granted on."""
        return self._replica.name

    @property
    def waited_s(self) -> float:
        return self.granted_at - self.item.arrived

    @property
    def released(self) -> bool:
        return self._released

    def __repr__(self) -> str:
        return f"Ticket({self.item.request_id} on {self.replica})"
