"""The usage ledger: one row a request, exactly once, written in batches while requests flow on.

Before a request is sent its intent is spooled, when it is settled its outcome; neither waits for anything. A task reads
the spool and writes rows and their daily sums in one transaction, then lets the spool forget them. A batch whose fate
is unknown (a lost connection, a dead process) is tried again with the rows that are there already left out. So each
request is in the ledger once, whatever dies in between. Requests that end before they are sent are counted by key,
reason and minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from sqlalchemy.exc import DBAPIError

from gateway.clock import Clock
from gateway.outcomes import Ending
from gateway.record import Record
from gateway.registry import entries
from gateway.registry.database import Database, Unavailable, blames_data
from gateway.registry.entries import Row
from gateway.registry.ledger_sql import Refusals, forget, write
from gateway.registry.spool import Batch, FileSpool, MemorySpool, Spool, estates
from gateway.settings import Config
from ratelimit.limit import Amounts

log = logging.getLogger("weighbridge.ledger")

FLUSH_S: Final = 0.25
"""How long a settled request may wait for its row."""

_MINUTE_US: Final = 60_000_000
_DAY_US: Final = 86_400_000_000
_RETENTION_S: Final = 3600.0
_RETENTION_MEMORY_S: Final = 15.0
_RECOVERED_ROWS: Final = 256
_MOST_REFUSALS: Final = 50_000  # counters kept while the database is away


class Ledger:
    """One instance a process. Make it inside a running loop."""

    def __init__(
        self,
        database: Database,
        spool: Spool,
        *,
        unix_us: Callable[[], int],
        keep_days: int,
        keep_refusals_days: int,
        folder: Path | None = None,
    ) -> None:
        """`folder` is where dead processes may have left something; None: nowhere."""
        self.away: str | None = None  # why rows wait in the spool; None while they do not
        self.unspooled = 0  # records that could not be spooled; they are in the log and in the metrics only
        self.last_used: dict[str, int] = {}  # Unix microseconds by key id
        self._database = database
        self._spool = spool
        self._unix_us = unix_us
        self._keep_us = keep_days * _DAY_US
        self._keep_refusals_us = keep_refusals_days * _DAY_US
        self._folder = folder
        self._refusals: Refusals = Counter()
        self._noted: dict[str, int] = {}  # last uses that are in the database, by key id
        self._open: dict[str, int] = {}  # requests under way, with the segment that announced each
        self._unsure = False  # whether rows of the next batch may be there already
        self._left = True  # whether dead processes may have left something that is not in the ledger
        self._turn = asyncio.Lock()
        self._tidying = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    # -- on the path of a request: no waiting, no system call --------------------------------------------------

    def sending(self, record: Record) -> None:
        """A request is about to be sent."""
        self._append(entries.intent(record))

    def settled(self, record: Record, ending: Ending, charged: Amounts, *, estimated: bool) -> None:
        """A request has ended. One that was never sent is counted, not recorded."""
        principal = record.principal
        if principal is None:
            return
        at = int(record.wall * 1e6)
        self.last_used[principal.key_id] = at
        if record.target is not None:
            self._append(entries.outcome(record, ending, charged, estimated=estimated))
        elif ending.status >= 400 and len(self._refusals) < _MOST_REFUSALS:
            self._refusals[at // _MINUTE_US, principal.tenant, principal.key_id, ending.label] += 1

    def _append(self, line: bytes) -> None:
        try:
            self._spool.append(line)
        except OSError as error:
            if not self.unspooled:
                log.error("usage cannot be spooled (%s): requests go on without a row", error)
            self.unspooled += 1

    def degraded(self) -> list[str]:
        """What is not as it should be, in words."""
        found = [] if self.away is None else [f"ledger away ({self.away}): usage waits in the spool"]
        if self.unspooled:
            found.append(f"usage of {self.unspooled} requests could not be written down; the log has it")
        return found

    # -- beside it -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to write."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._write_on()), loop.create_task(self._keep_house())]

    async def close(self) -> None:
        """Writes what is left, if it can be written; the rest stays in the spool for whoever comes next."""
        async with self._turn, self._tidying:  # nothing is cut in the middle of a transaction
            for task in self._tasks:
                task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []
        await self.flush()
        self._spool.close()

    async def flush(self) -> bool:
        """Writes everything that is settled by now; False when the database is away."""
        try:
            while await self._step():
                pass
        except Unavailable as error:
            if self.away is None:
                log.warning("ledger away (%s): usage waits in the spool", type(error).__name__)
            self.away = type(error).__name__
            return False
        if self.away is not None:
            log.warning("ledger is back")
            self.away = None
        return True

    async def _write_on(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            with contextlib.suppress(OSError):  # said where a request meets it
                self._spool.prepare()
            try:
                if await self.flush() and self._left:
                    await self.recover()
            except Exception:
                log.exception("the ledger failed; it tries again")

    async def _step(self) -> bool:
        """Deals with one batch of the spool; False when there was nothing."""
        async with self._turn:
            batch = self._spool.take()
            refusals, self._refusals = self._refusals, Counter()
            if batch is None and not refusals:
                return False
            rows = self._rows(batch) if batch is not None else []
            try:
                if rows or refusals:
                    used = self._used(rows)
                    await write(self._database, rows, refusals, check=self._unsure, used=used)
                    self._noted |= used
            except BaseException as error:
                # Done or not, nobody knows: the rows are tried again with a look whether they are there, the counts
                # are added again (a commit whose answer was lost counts refusals twice; it never bills twice).
                self._refusals.update(refusals)
                self._unsure = True
                if not blames_data(error):
                    raise
                await self._one_by_one(rows)
            self._unsure = False
            if batch is not None:
                self._spool.commit(batch)
                for row in rows:
                    segment = self._open.pop(row["request_id"], None)
                    if segment is not None:
                        self._spool.let_go(segment)
            return True

    def _used(self, rows: list[Row]) -> dict[str, int]:
        """Last uses worth writing down: later than what is there by a minute or more."""
        last: dict[str, int] = {}
        for row in rows:
            last[row["key"]] = max(row["at"], last.get(row["key"], 0))
        return {key: at for key, at in last.items() if at - self._noted.get(key, 0) >= _MINUTE_US}

    async def _one_by_one(self, rows: list[Row]) -> None:
        """A row that the database does not take must not hold up the others."""
        for row in rows:
            try:
                await write(self._database, [row], Counter(), check=True)
            except DBAPIError as error:
                if not blames_data(error):
                    raise
                log.exception("request %s has no row in the ledger", row["request_id"])
                self.unspooled += 1

    def _rows(self, batch: Batch) -> list[Row]:
        rows: dict[str, Row] = {}
        for line in batch.lines:
            request_id = entries.announced(line)
            if request_id is None:
                found = entries.parse(line)
                if found is not None:
                    rows[found[1]["request_id"]] = found[1]
            elif request_id not in self._open:
                self._open[request_id] = batch.segment
                self._spool.hold(batch.segment)
        return list(rows.values())

    async def recover(self) -> int:
        """Brings what dead processes have left into the ledger; returns how many requests that were."""
        if self._folder is None:
            return 0
        recovered = 0
        self._left = False
        for estate in estates(self._folder):
            try:
                rows = await asyncio.to_thread(_final, estate.lines())
                for start in range(0, len(rows), _RECOVERED_ROWS):
                    await write(self._database, rows[start : start + _RECOVERED_ROWS], Counter(), check=True)
            except Unavailable as error:
                log.warning("what instance %s has left waits (%s)", estate.instance, type(error).__name__)
                estate.leave()
                self._left = True
                continue
            estate.settle()
            recovered += len(rows)
            cut = sum(row["outcome"] == entries.LOST for row in rows)
            log.warning("recovered %d requests of instance %s, %d of them cut", len(rows), estate.instance, cut)
        return recovered

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_RETENTION_MEMORY_S if self._database.memory else _RETENTION_S)
            try:
                now = self._unix_us()
                async with self._tidying:
                    await forget(
                        self._database, before=now - self._keep_us, refusals_before=now - self._keep_refusals_us
                    )
                await self.recover()
            except Unavailable as error:
                log.warning("old rows of the ledger stay for now (%s)", type(error).__name__)


def _final(lines: Iterable[bytes]) -> list[Row]:
    """One row for each request in a spool: its outcome, or its intent where there is no outcome."""
    rows: dict[str, Row] = {}
    for line in lines:
        found = entries.parse(line)
        if found is not None and (found[0] == "o" or found[1]["request_id"] not in rows):
            rows[found[1]["request_id"]] = found[1]
    return list(rows.values())


def ledger_of(config: Config, database: Database, clock: Clock) -> Ledger:
    """The ledger that a config asks for. Raises OSError when its spool cannot be made."""
    folder: Path | None = None
    if not database.memory:
        beside = Path("weighbridge-spool") if database.path is None else Path(f"{database.path}-spool")
        folder = beside if config.ledger.spool is None else Path(config.ledger.spool)
    return Ledger(
        database,
        MemorySpool() if folder is None else FileSpool(folder, secrets.token_hex(8)),
        unix_us=clock.unix_us,
        keep_days=config.ledger.keep_days,
        keep_refusals_days=config.ledger.keep_refusals_days,
        folder=folder,
    )
