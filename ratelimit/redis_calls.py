"""Calls to the shared store: scripts, a time budget for each, and a breaker.

A call has 50 ms. Whoever waits for it goes on after that, whatever the server does. Three failures in a row open the
breaker: no request calls any more, until a probe in the background (`beat`, once a second) is answered.

On one server, calls made at the same time share a round trip: while one batch is on its way the next gathers. A
connection whose answer did not come in time is closed, so that no late answer can be taken for another call's. On a
cluster every call goes to the node that owns its hash tag.

A call that needs it is followed on its connection by WAIT, which says on how many replicas the write has arrived.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import MovedError, NoScriptError, ReadOnlyError, RedisError, ResponseError

CALL_BUDGET_S = 0.05
FAILURES_TO_OPEN = 3
LANES = 4
"""Batches on their way at once; each has a connection of its own."""
BATCH = 64
CONNECT_S = 1.0
"""A connection that is not made by then is given up; no caller waits for it longer than for a call."""
WAIT_SHARE = 0.6
"""The part of a call's budget that WAIT may use."""

Client = Redis | RedisCluster


class StoreAwayError(Exception):
    """The store did not answer within the budget, or the breaker is open. Nothing is known about the call."""


class StoreUnusableError(StoreAwayError):
    """The store answers, but cannot do what is needed: no scripting, wrong permissions, a script error."""


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua script with what all of them share."""

    name: str
    source: str
    sha: str


def load_script(name: str) -> Script:
    folder = resources.files("ratelimit")
    source = (folder / "common.lua").read_text("utf-8") + (folder / f"{name}.lua").read_text("utf-8")
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


class _Job(NamedTuple):
    script: Script
    keys: Sequence[str]
    args: Sequence[Any]
    confirm: int  # replicas that WAIT asks for; 0: no WAIT
    answer: asyncio.Future[Any]


class Calls:
    """Runs scripts on a client it is given and does not own. `confirmed` of an answer is the replicas WAIT counted."""

    def __init__(self, client: Client, budget_s: float = CALL_BUDGET_S) -> None:
        self._client = client
        self._budget_s = budget_s
        self._waiting: deque[_Job] = deque()
        self._lanes: set[asyncio.Task[None]] = set()  # at most LANES; each ends when nothing waits
        self._failures = 0  # in a row
        self.count = 0  # script calls made, for figures
        self.open = False  # the breaker: no call is made, except a probe

    async def call(
        self, script: Script, keys: Sequence[str], args: Sequence[Any], *, confirm: int = 0, probe: bool = False
    ) -> tuple[Any, int]:
        """(the script's answer, replicas that confirmed it). Raises StoreAwayError or StoreUnusableError."""
        if self.open and not probe:
            raise StoreAwayError("breaker is open")
        self.count += 1
        try:
            async with asyncio.timeout(self._budget_s):
                answer = await self._send(script, keys, args, confirm)
        except ResponseError as error:
            self.failed()
            raise StoreUnusableError(str(error)) from error
        except (RedisError, OSError, TimeoutError) as error:
            self.failed()
            raise StoreAwayError(str(error) or type(error).__name__) from error
        self._failures = 0
        self.open = False
        return answer

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of some keys of one hash tag. Raises StoreAwayError."""
        try:
            async with asyncio.timeout(self._budget_s):
                values = await self._client.mget(list(keys))
                return [value.encode() if isinstance(value, str) else value for value in values]
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreAwayError(str(error) or type(error).__name__) from error

    async def remove(self, key: str, members: Sequence[str]) -> None:
        """Take members out of a sorted set. Raises StoreAwayError."""
        try:
            async with asyncio.timeout(self._budget_s):
                await self._client.zrem(key, *members)
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreAwayError(str(error) or type(error).__name__) from error

    async def load(self, scripts: Sequence[Script]) -> None:
        """Make the scripts known to the server. Raises StoreAwayError or StoreUnusableError."""
        try:
            async with asyncio.timeout(max(1.0, self._budget_s)):
                for script in scripts:
                    await self._client.script_load(script.source)
        except ResponseError as error:
            raise StoreUnusableError(str(error)) from error
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreAwayError(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Stop what is on its way. The client stays its owner's to close."""
        for lane in list(self._lanes):
            lane.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)

    def failed(self) -> None:
        """A call did not succeed in time."""
        self._failures += 1
        if self._failures >= FAILURES_TO_OPEN:
            self.open = True

    async def _send(self, script: Script, keys: Sequence[str], args: Sequence[Any], confirm: int) -> tuple[Any, int]:
        if isinstance(self._client, RedisCluster):
            return await self._to_cluster(self._client, script, keys, args, confirm)
        answer: asyncio.Future[tuple[Any, int]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Job(script, keys, args, confirm, answer))
        if len(self._lanes) < LANES:
            self._open_lane(self._client)
        return await answer

    def _open_lane(self, client: Redis) -> None:
        lane = asyncio.get_running_loop().create_task(self._lane(client))
        self._lanes.add(lane)
        lane.add_done_callback(self._lanes.discard)

    async def _lane(self, client: Redis) -> None:
        """Take a connection and send what waits over it, a batch at a time, until nothing does.

        Connecting may take longer than a call: its callers give up in time, the next ones find it open.
        """
        pool = client.connection_pool
        try:
            async with asyncio.timeout(CONNECT_S):
                connection = await pool.get_connection()  # type: ignore[no-untyped-call]
        except (RedisError, OSError, TimeoutError) as error:
            while self._waiting:
                _fail(self._waiting.popleft(), error)
            return
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                batch = [job for job in batch if not job.answer.done()]
                try:
                    async with asyncio.timeout(self._budget_s):
                        await self._batch(connection, batch)
                except (RedisError, OSError, TimeoutError) as error:
                    await connection.disconnect(nowait=True)
                    for job in batch:
                        _fail(job, error)
                    if self._waiting:
                        self._open_lane(client)
                    return
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)

    async def _batch(self, connection: Any, batch: Sequence[_Job]) -> None:
        """Send scripts by their names, and once more, with their sources before, those the server does not know."""
        unknown = await self._exchange(connection, batch)
        if unknown:
            sources = {job.script.sha: job.script.source for job in unknown}
            loads = [("SCRIPT", "LOAD", source) for source in sources.values()]
            await connection.send_packed_command(connection.pack_commands(loads))
            for _ in loads:
                await _read(connection)
            for job in await self._exchange(connection, unknown):
                _fail(job, OSError("the server forgets scripts at once"))

    async def _exchange(self, connection: Any, batch: Sequence[_Job]) -> list[_Job]:
        """One round trip; gives the jobs whose script the server did not know."""
        commands: list[tuple[Any, ...]] = []
        for job in batch:
            commands.append(("EVALSHA", job.script.sha, len(job.keys), *job.keys, *job.args))
            if job.confirm:
                commands.append(self._wait(job.confirm))
        await connection.send_packed_command(connection.pack_commands(commands))
        unknown, demoted = [], False
        for job in batch:
            result = await _read(connection)
            confirmed = await _read(connection) if job.confirm else 0
            demoted = demoted or isinstance(result, ReadOnlyError)
            if isinstance(result, NoScriptError):
                unknown.append(job)
            else:
                _resolve(job.answer, result, confirmed)
        if demoted:  # the address may lead to the new primary, this connection never will
            raise OSError("the server was demoted")
        return unknown

    def _wait(self, replicas: int) -> tuple[Any, ...]:
        return ("WAIT", replicas, max(1, int(min(self._budget_s, CONNECT_S / 2) * 1_000 * WAIT_SHARE)))

    async def _to_cluster(
        self, cluster: RedisCluster, script: Script, keys: Sequence[str], args: Sequence[Any], confirm: int
    ) -> tuple[Any, int]:
        if not confirm:
            try:
                return await cluster.evalsha(script.sha, len(keys), *keys, *args), 0
            except NoScriptError:
                return await cluster.eval(script.source, len(keys), *keys, *args), 0
        await cluster.initialize()
        node = cluster.get_node_from_key(keys[0])
        if node is None:
            raise OSError("no node owns the key")
        connection = node.acquire_connection()
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            commands = [("EVAL", script.source, len(keys), *keys, *args), self._wait(confirm)]
            await connection.send_packed_command(connection.pack_commands(commands))
            result = await _read(connection)
            confirmed = await _read(connection)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            node.release(connection)
        if isinstance(result, MovedError):
            await cluster.aclose()  # learn the slots anew with the next call
            raise OSError("slot moved")
        if isinstance(result, Exception):
            raise result
        return result, int(confirmed) if not isinstance(confirmed, Exception) else 0


async def _read(connection: Any) -> Any:
    """One answer; an error answer is a value here, for the next answer is still to be read."""
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _fail(job: _Job, error: Exception) -> None:
    if not job.answer.done():
        job.answer.set_exception(error)
        job.answer.exception()  # its caller may have stopped waiting


def _resolve(answer: asyncio.Future[Any], result: Any, confirmed: Any) -> None:
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
        answer.exception()
    else:
        answer.set_result((result, confirmed if isinstance(confirmed, int) else 0))
