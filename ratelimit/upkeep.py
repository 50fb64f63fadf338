"""What time makes due at a shared store: settlements, progress, leases, heartbeat, abandoned reservations.

`tick` does all of it once; the limiter runs it in the background every refresh, and at once when something waits.
Per refresh there is one batch of progress per instance (one call per organisation touched, in one round trip), one
heartbeat, and lease calls only for tags that spend from their leases or want some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ratelimit.fleet import Fleet
from ratelimit.outbox import Batch, sweep_entry
from ratelimit.redis_calls import Calls, StoreAwayError, StoreUnusableError, load_script
from ratelimit.reservation import Decider
from ratelimit.running import abandon
from ratelimit.shared import describe
from ratelimit.tag import PREFIX, Tag

SILENT_AFTER = 5
"""An instance not heard of for this many refreshes is not counted."""
SWEEPS_AT_ONCE = 64


class Upkeep:
    """The background work of one instance. All times in Unix microseconds."""

    def __init__(self, fleet: Fleet, calls: Calls, hold_ms: int, refresh_us: int, *, server_time: bool) -> None:
        self._fleet = fleet
        self._calls = calls
        self._hold_ms = hold_ms
        self._refresh_us = refresh_us
        self._server_time = server_time
        self._settle, self._lease, self._due, self._beat = map(load_script, ("settle", "lease", "due", "beat"))
        self._flushing = asyncio.Lock()
        self._rounds: dict[Tag, asyncio.Task[None]] = {}  # lease rounds on their way, one per tag
        self._beat_at = 0
        self._told_at = 0
        self.ready = False
        self.reason = "limit_store_not_checked"

    def now(self, now: int) -> str:
        """The time as a script gets it: the server's own unless a simulation gives its."""
        return "" if self._server_time else str(now)

    async def tick(self, now: int) -> None:
        """Do what is due. Never raises for a store that is away; it is tried again by the next."""
        if now - self._beat_at >= self._refresh_us or now < self._beat_at:
            self._beat_at = now
            await self.beat(now)
        if self._calls.open:
            return
        progress = now - self._told_at >= self._refresh_us or now < self._told_at
        if progress:
            self._told_at = now
            abandon(self._fleet, now)
            self._keep_alive(now)
        await self.flush(now, progress=progress)
        due = self._fleet.urgent
        self._fleet.urgent = set()
        if progress:
            due.update(tag for tag in self._fleet.tags.values() if tag.due(now))
        for result in await asyncio.gather(*(self.lease_round(tag, now) for tag in due), return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, StoreAwayError):
                raise result
        if progress:
            await self._sweep(now)
            self._fleet.tidy(now)

    async def beat(self, now: int) -> bool:
        """Say that this instance is alive and learn how many are; also the probe that ends an outage."""
        silent_ms = SILENT_AFTER * self._refresh_us // 1_000
        try:
            answer, _ = await self._calls.call(
                self._beat, [f"{PREFIX}instances"], [self.now(now), self._fleet.instance, silent_ms], probe=True
            )
        except StoreUnusableError as error:
            self.reason = f"limit_store_unusable: {error}"
            return False
        except StoreAwayError:
            self.reason = "limit_store_unreachable"
            return False
        self._fleet.instances = max(1, int(answer[0]))
        self._fleet.back()
        self.ready, self.reason = True, ""
        return True

    async def leave(self, now: int) -> None:
        """An orderly end: tell everything, give every lease back, be counted no more."""
        await self.flush(now, progress=True)
        for tag in list(self._fleet.tags.values()):
            try:
                await self.lease_round(tag, now)  # what was under way
                await self.lease_round(tag, now, give_all=True)
            except StoreAwayError:
                return
        try:
            await self._calls.remove(f"{PREFIX}instances", [self._fleet.instance])
        except StoreAwayError:
            return

    async def flush(self, now: int, *, progress: bool) -> None:
        """Send the outbox. What is not answered stays in it."""
        async with self._flushing:
            batches = list(self._fleet.outbox.batches(now, progress=progress))
            await asyncio.gather(*(self._send(batch, now) for batch in batches))

    async def lease_round(self, tag: Tag, now: int, *, give_all: bool = False) -> None:
        """One round of lease calls; joins the one under way. Raises StoreAwayError."""
        task = self._rounds.get(tag)
        if task is None:
            task = asyncio.ensure_future(self._round(tag, now, give_all=give_all))
            self._rounds[tag] = task
            task.add_done_callback(lambda done: self._round_done(tag, done))
        await asyncio.shield(task)

    def _round_done(self, tag: Tag, task: asyncio.Task[None]) -> None:
        del self._rounds[tag]
        if not task.cancelled():
            task.exception()  # whoever waits for it sees it; nobody may

    async def _round(self, tag: Tag, now: int, *, give_all: bool) -> None:
        fleet = self._fleet
        call = tag.prepare(fleet.instance, fleet.instances, now, describe, self.now(now), give_all=give_all)
        while call is not None:
            answer, _ = await self._calls.call(self._lease, call.keys, call.args)
            for key, ticks in tag.answered(answer, now).items():
                lease = tag.leases.get(key)
                fleet.cut[key] += -(-ticks // getattr(lease, "unit", 1))
            call = tag.pending[0] if tag.pending else None

    async def _send(self, batch: Batch, now: int) -> None:
        try:
            answer, _ = await self._calls.call(self._settle, batch.keys(), [self.now(now), self._hold_ms, batch.text()])
        except StoreAwayError:
            for reservation in batch.moved:  # told again later, with what it is by then
                if not reservation.settled:
                    self._fleet.outbox.move(reservation)
            return
        codes, cut = answer
        self._fleet.outbox.answered(batch)
        counts = self._fleet.counts
        for entry, code in zip(batch.entries, codes, strict=True):
            if code == 0 and not entry.foreign:
                counts["records_lost"] += 1
            elif code == 1 and entry.op == "w":
                counts["swept"] += 1
        self._count_cut(batch, cut)

    def _count_cut(self, batch: Batch, cut: Sequence[int]) -> None:
        for entry_at, limit_at, ticks in zip(cut[::3], cut[1::3], cut[2::3], strict=True):
            key = batch.entries[entry_at - 1].keys[limit_at - 1]
            name = key.split("}:", 1)[1]
            lease = batch.tag.leases.get(name)
            self._fleet.cut[name] += -(-ticks // getattr(lease, "unit", 1))

    def _keep_alive(self, now: int) -> None:
        """Tell the store of reservations before it takes them for abandoned, and of those made while it was away."""
        soon = self._hold_ms * 1_000 // 3
        for reservation in self._fleet.open.values():
            if reservation.by is not Decider.LEASE and not 0 <= now - reservation.told < soon:
                self._fleet.outbox.move(reservation)

    async def _sweep(self, now: int) -> None:
        """Settle what instances that are no more had reserved.

        A tag is looked at four times a hold by the fleet together, not by each of its instances.
        """
        every = self._hold_ms * 250 * self._fleet.instances
        due = [tag for tag in self._fleet.tags.values() if not 0 <= now - tag.swept < every][:SWEEPS_AT_ONCE]
        results = await asyncio.gather(*(self._sweep_tag(tag, now) for tag in due), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, StoreAwayError):
                raise result

    async def _sweep_tag(self, tag: Tag, now: int) -> None:
        tag.swept = now
        ids, _ = await self._calls.call(self._due, [tag.key("sweep")], [self.now(now)])
        if not ids:
            return
        names = [name.decode() for name in ids]
        records = await self._calls.read([tag.key(f"r:{name}") for name in names])
        entries = []
        for name, record in zip(names, records, strict=True):
            entry = sweep_entry(tag, name, record) if record is not None else None
            if entry is not None:
                entries.append(entry)
            elif record is None:
                await self._calls.remove(tag.key("sweep"), [name])
        if entries:
            await self._send(Batch(tag, entries), now)
