"""What the shared store is still to be told: settlements and progress, in batches, each counted once.

A settlement waits here until the store has answered for it, so while the store is away this is the journal. It says the
whole charge of a request, not a difference, and the store keeps a mark of what it has settled; so an entry sent twice,
or sent by a request whose reserve may or may not have arrived, is charged once.

Progress is read from the reservation when a batch is made: the last word of a second is sent, not every one.

When more than `MOST` settlements wait of which the store has never heard, they are added up per principal: the charge
is the same, and memory stays bounded however long the store is away (twice a sum per principal, or `MOST`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import orjson

from ratelimit.limit import Amounts
from ratelimit.reservation import Decider
from ratelimit.shared import SharedGroup, SharedReservation
from ratelimit.tag import Tag

BATCH = 64
MOST = 20_000


class Entry(NamedTuple):
    """A settlement (`s`), progress (`p`) or sweep (`w`) of one reservation, as the script reads it."""

    op: str
    store_id: str
    keys: Sequence[str]  # of the limits, in the description's order
    description: str
    charges: Sequence[int]
    abandoned: Sequence[int]
    foreign: bool  # the store has not heard of it before: it was admitted while the store was away
    sent: bool = False  # the store may have heard of it by now


class Batch(NamedTuple):
    """One call: entries of one tag, and the reservations whose progress they carry."""

    tag: Tag
    entries: list[Entry]
    moved: Sequence[SharedReservation] = ()

    def keys(self) -> list[str]:
        keys = [self.tag.key("sweep")]
        for entry in self.entries:
            keys.append(self.tag.key(f"r:{entry.store_id}"))
            keys += entry.keys
        return keys

    def text(self) -> str:
        """The entries as the script reads them."""
        return orjson.dumps([[e.op, e.store_id, e.description, e.charges, e.abandoned] for e in self.entries]).decode()


class Outbox:
    """Settlements not yet answered for, and reservations with something new to tell."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._settled: dict[Tag, dict[str, Entry]] = {}  # by tag and store id, oldest first
        self._moved: dict[Tag, dict[str, SharedReservation]] = {}
        self._sums = 0
        self.waiting = 0  # settlements in _settled
        self._unsent = 0  # of these, foreign and not sent: such may be added up
        self._most = MOST

    def settle(self, reservation: SharedReservation, actual: Amounts) -> None:
        """The reservation is over; its progress needs no telling any more."""
        self.close(reservation.shared, reservation.store_id, reservation.shared.charges(actual), _foreign(reservation))

    def close(self, group: SharedGroup, store_id: str, charges: list[int], foreign: bool = False) -> None:
        """Settle an id with these charges; also one whose reserve may never have arrived."""
        tag = group.own_tag
        if tag is None:
            return
        self._moved.get(tag, {}).pop(store_id, None)
        settled = self._settled.setdefault(tag, {})
        self._drop(settled, store_id)
        settled[store_id] = Entry("s", store_id, group.keys, group.description, charges, (), foreign)
        self.waiting += 1
        self._unsent += foreign
        if self._unsent > self._most:
            self._add_up()
            self._most = max(MOST, 2 * self._unsent)

    def _drop(self, settled: dict[str, Entry], store_id: str) -> None:
        entry = settled.pop(store_id, None)
        if entry is not None:
            self.waiting -= 1
            self._unsent -= entry.foreign and not entry.sent

    def move(self, reservation: SharedReservation) -> None:
        """The reservation has used more, costs something else, or must be kept alive."""
        tag = reservation.shared.own_tag
        if tag is not None:
            self._moved.setdefault(tag, {})[reservation.store_id] = reservation

    def batches(self, now: int, *, progress: bool) -> Iterator[Batch]:
        """What to send now: at most one call per tag for every 64 entries."""
        for tag, settled in list(self._settled.items()):
            for store_id, entry in settled.items():
                if not entry.sent:
                    settled[store_id] = entry._replace(sent=True)
                    self._unsent -= entry.foreign
            entries = list(settled.values())
            for start in range(0, len(entries), BATCH):
                yield Batch(tag, entries[start : start + BATCH])
        if not progress:
            return
        moved, self._moved = self._moved, {}
        for tag, reservations in moved.items():
            running = [reservation for reservation in reservations.values() if not reservation.settled]
            for start in range(0, len(running), BATCH):
                part = running[start : start + BATCH]
                yield Batch(tag, [_progress(reservation) for reservation in part], part)
                for reservation in part:
                    reservation.told = now

    def answered(self, batch: Batch) -> None:
        """The store has answered for the batch."""
        settled = self._settled.get(batch.tag)
        if settled is None:
            return
        for entry in batch.entries:
            if settled.get(entry.store_id) is entry:
                self._drop(settled, entry.store_id)
        if not settled:
            del self._settled[batch.tag]

    def _add_up(self) -> None:
        for settled in self._settled.values():
            sums: dict[int, Entry] = {}
            for store_id, entry in list(settled.items()):
                if entry.sent or not entry.foreign:
                    continue
                self._drop(settled, store_id)
                first = sums.get(id(entry.keys))
                charges = entry.charges
                if first is not None:
                    charges = [a + b for a, b in zip(first.charges, charges, strict=True)]
                sums[id(entry.keys)] = entry._replace(charges=charges)
            for entry in sums.values():
                self._sums += 1
                store_id = f"{self._instance}/sum/{self._sums}"
                settled[store_id] = entry._replace(store_id=store_id)
                self.waiting += 1
                self._unsent += 1


def _progress(reservation: SharedReservation) -> Entry:
    group = reservation.shared
    foreign = _foreign(reservation)
    return Entry("p", reservation.store_id, group.keys, group.description, reservation.charged(),
                 reservation.if_abandoned(), foreign)  # fmt: skip


def _foreign(reservation: SharedReservation) -> bool:
    return reservation.by in (Decider.LOCAL, Decider.OPEN) and reservation.told == 0


def parse_record(value: bytes) -> tuple[str, list[int], str] | None:
    """(description, charges if abandoned, state) of a reservation's record in the store; None if it is settled."""
    parts = value.decode().split("|", 5)
    if len(parts) < 6:
        return None
    return parts[5], [int(n) for n in parts[4].split(",") if n], parts[0]


def sweep_entry(tag: Tag, store_id: str, record: bytes) -> Entry | None:
    """Settle a reservation that nobody keeps alive, as its record says; None if there is nothing to settle."""
    parsed = parse_record(record)
    if parsed is None or parsed[2] != "o":
        return None
    description, charges, _ = parsed
    keys = [tag.key(limit[1]) for limit in orjson.loads(description)]
    return Entry("w", store_id, keys, description, charges, charges, foreign=False)
