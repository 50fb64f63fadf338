"""Which connection carries a request: kept ones last in first out, one retry where it is safe, bounds, ends."""

import asyncio

import pytest

from providers.http1 import Connection
from providers.transport import ConnectFailed, Cut, HeadTimeout, Malformed, Origin, Timers, Transport
from tests.transport.scripted import OK, Peer, Script, Upstream, always, only, post, silent, until

BEGUN = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"


@pytest.mark.asyncio
async def test_the_connection_used_last_is_used_first() -> None:
    turn = [asyncio.Event() for _ in range(3)]

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await turn[peer.number].wait()
            await peer.send(b"HTTP/1.1 200 OK\r\nx-peer: %d\r\ncontent-length: 0\r\n\r\n" % peer.number)

    async with Upstream(script) as upstream, Transport() as transport:
        tasks = [asyncio.create_task(post(transport, upstream.origin)) for _ in range(3)]
        await until(lambda: sum(len(peer.requests) for peer in upstream.peers) == 3)
        for number in (1, 0, 2):
            turn[number].set()
            idle = only(transport).idle
            await until(lambda idle=idle: only(transport).idle == idle + 1)  # type: ignore[misc]
        await asyncio.gather(*tasks)
        for _ in range(4):
            assert dict((await post(transport, upstream.origin)).headers)["x-peer"] == "2"
        assert [len(peer.requests) for peer in upstream.peers] == [1, 1, 5]


@pytest.mark.asyncio
async def test_an_idle_connection_the_upstream_closes_is_dropped_in_silence() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        peer.close()

    async with Upstream(script) as upstream, Transport() as transport:
        for _ in range(3):
            answer = await post(transport, upstream.origin)
            assert not answer.reused
            await until(lambda: only(transport).open == 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("extra", [b"\r\n", b"x", OK])
async def test_bytes_nobody_asked_for_drop_an_idle_connection(extra: bytes) -> None:
    more = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        if peer.number == 0:
            await more.wait()
            await peer.send(extra)
        await peer.wait_closed()

    async with Upstream(script) as upstream, Transport() as transport:
        await post(transport, upstream.origin)
        assert only(transport).idle == 1
        more.set()
        await upstream.peers[0].gone.wait()
        assert only(transport).open == 0
        assert not (await post(transport, upstream.origin)).reused


def _second_request(end: str, before: bytes = b"") -> Script:
    """The first connection answers once, then ends in the given way on its second request; later ones answer."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            if peer.number == 0 and len(peer.requests) == 2:
                await peer.send(before)
                if end == "close":
                    peer.close()
                elif end == "reset":
                    peer.reset()
                await peer.wait_closed()
                return
            await peer.send(OK)

    return script


@pytest.mark.asyncio
@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("size", [2, 10_000_000])
async def test_a_kept_connection_that_dies_before_any_answer_is_replaced_once(end: str, size: int) -> None:
    async with Upstream(_second_request(end)) as upstream, Transport() as transport:
        await post(transport, upstream.origin)
        answer = await post(transport, upstream.origin, body=b"x" * size)
        assert await answer.read_all(10) == b"ok"
        assert not answer.reused
        assert [len(peer.requests) for peer in upstream.peers] == [2, 1]
        assert upstream.peers[1].requests[0][1] == b"x" * size
        assert (only(transport).opened, only(transport).retried) == (2, 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("before", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", BEGUN[:30]])
async def test_no_second_try_once_an_answer_has_begun(before: bytes) -> None:
    async with Upstream(_second_request("close", before)) as upstream, Transport() as transport:
        await post(transport, upstream.origin)
        with pytest.raises(Cut) as cut:
            await post(transport, upstream.origin)
        assert (cut.value.phase, cut.value.sent) == ("head", True)
        assert len(upstream.peers) == 1


@pytest.mark.asyncio
async def test_no_second_try_after_silence_or_nonsense() -> None:
    async with Upstream(_second_request("say nothing")) as upstream, Transport() as transport:
        await post(transport, upstream.origin)
        with pytest.raises(HeadTimeout):
            await post(transport, upstream.origin, timers=Timers(1, 0.02, 1))
        assert len(upstream.peers) == 1
    async with Upstream(_second_request("close", b"nonsense\r\n")) as upstream, Transport() as transport:
        await post(transport, upstream.origin)
        with pytest.raises(Malformed):
            await post(transport, upstream.origin)
        assert len(upstream.peers) == 1


@pytest.mark.asyncio
async def test_no_second_try_on_a_fresh_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.close()

    async with Upstream(script) as upstream, Transport() as transport:
        with pytest.raises(Cut) as cut:
            await post(transport, upstream.origin)
        assert cut.value.sent
        assert len(upstream.peers) == 1


@pytest.mark.asyncio
async def test_no_third_try() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number == 0:
            await peer.send(OK)
            await peer.request()
        peer.close()

    async with Upstream(script) as upstream, Transport() as transport:
        await post(transport, upstream.origin)
        with pytest.raises(Cut):
            await post(transport, upstream.origin)
        assert [len(peer.requests) for peer in upstream.peers] == [2, 1]
        assert only(transport).open == 0


@pytest.mark.asyncio
async def test_the_second_try_is_on_a_fresh_connection_even_if_a_kept_one_is_at_hand() -> None:
    async with Upstream(_second_request("close")) as upstream, Transport(max_connections=1) as transport:
        await post(transport, upstream.origin)
        first = asyncio.create_task(post(transport, upstream.origin))
        second = asyncio.create_task(post(transport, upstream.origin))
        assert await (await first).read_all(10) == b"ok"
        assert await (await second).read_all(10) == b"ok"
        assert not (await first).reused


@pytest.mark.asyncio
async def test_never_more_connections_than_allowed_and_first_come_first_served() -> None:
    release = asyncio.Semaphore(0)
    order: list[bytes] = []

    async def script(peer: Peer) -> None:
        while True:
            head, _ = await peer.request()
            order.append(head.split(b" ")[1])
            await release.acquire()
            await peer.send(OK)

    async with Upstream(script) as upstream, Transport(max_connections=2) as transport:
        tasks = [asyncio.create_task(post(transport, upstream.origin, path=f"/{number}")) for number in range(8)]
        await until(lambda: len(order) == 2)
        assert only(transport).waiting == 6
        for _ in range(8):
            release.release()
        for task in tasks:
            assert await (await task).read_all(2) == b"ok"
        assert len(upstream.peers) == 2
        assert set(order[:2]) == {b"/0", b"/1"}
        assert order[2:] == sorted(order[2:])
        assert only(transport).idle == 2


@pytest.mark.asyncio
async def test_a_place_given_up_passes_to_whoever_waits() -> None:
    async with Upstream(silent) as upstream, Transport(max_connections=1) as transport:
        first = asyncio.create_task(post(transport, upstream.origin))
        await until(lambda: len(upstream.peers) == 1)
        second = asyncio.create_task(post(transport, upstream.origin))
        third = asyncio.create_task(post(transport, upstream.origin))
        await until(lambda: only(transport).waiting == 2)
        second.cancel()
        first.cancel()
        await until(lambda: len(upstream.peers) == 2 and bool(upstream.peers[1].requests))
        assert only(transport).waiting == 0
        assert only(transport).open == 1
        third.cancel()
        await asyncio.wait([first, second, third])
        assert only(transport).open == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("moment", ["connection handed over", "place handed over"])
async def test_cancelled_in_the_moment_of_handing_over_passes_it_on(moment: str) -> None:
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await go.wait()
            await peer.send(OK)

    async with Upstream(script) as upstream, Transport(max_connections=1) as transport:
        first = asyncio.create_task(post(transport, upstream.origin))
        await until(lambda: bool(upstream.peers and upstream.peers[0].requests))
        second = asyncio.create_task(post(transport, upstream.origin))
        third = asyncio.create_task(post(transport, upstream.origin))
        await until(lambda: only(transport).waiting == 2)
        pool = transport._pools[upstream.origin]
        done, gone = pool.done, pool.gone

        def done_and_cancel(connection: Connection) -> None:
            done(connection)
            second.cancel()

        def gone_and_cancel(connection: Connection) -> None:
            gone(connection)
            second.cancel()

        pool.done, pool.gone = done_and_cancel, gone_and_cancel  # type: ignore[method-assign]
        if moment == "place handed over":
            first.cancel()
        go.set()
        assert await (await third).read_all(2) == b"ok"
        await asyncio.wait([first, second])
        assert second.cancelled()
        assert (only(transport).open, only(transport).waiting, only(transport).connecting) == (1, 0, 0)


@pytest.mark.asyncio
async def test_waiting_for_a_place_is_bounded_by_the_connect_time() -> None:
    async with Upstream(silent) as upstream, Transport(max_connections=1) as transport:
        first = asyncio.create_task(post(transport, upstream.origin))
        await until(lambda: len(upstream.peers) == 1)
        with pytest.raises(ConnectFailed, match=r"within 0\.01 s"):
            await post(transport, upstream.origin, timers=Timers(0.01, 5, 5))
        assert only(transport).waiting == 0
        first.cancel()


@pytest.mark.asyncio
async def test_refused_and_unknown_hosts_are_failed_connects() -> None:
    async with Upstream(silent) as upstream:
        free = upstream.origin
    async with Transport() as transport:
        for origin in (free, Origin("http", "no-such-host.invalid", 80), Origin("http", "a" * 70 + ".example", 80)):
            with pytest.raises(ConnectFailed) as failed:
                await post(transport, origin)
            assert (failed.value.phase, failed.value.sent) == ("connect", False)
        assert all(stats.open == stats.connecting == 0 for stats in transport.stats().values())


@pytest.mark.asyncio
async def test_a_place_that_could_not_be_connected_passes_on() -> None:
    async with Upstream(silent) as upstream:
        free = upstream.origin
    async with Transport(max_connections=1) as transport:
        tasks = [asyncio.create_task(post(transport, free)) for _ in range(3)]
        for failed in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(failed, ConnectFailed)
            assert "within" not in str(failed)  # refused each in its turn, none left waiting
        assert (only(transport).connecting, only(transport).waiting) == (0, 0)


@pytest.mark.asyncio
async def test_an_old_connection_is_not_used_again() -> None:
    async with Upstream(always(OK)) as upstream, Transport(age_s=-1) as transport:
        for _ in range(2):
            assert not (await post(transport, upstream.origin)).reused
            assert only(transport).open == 0


@pytest.mark.asyncio
async def test_close_ends_everything_under_way() -> None:
    async with Upstream(silent) as upstream, Transport(max_connections=1) as transport:
        running = asyncio.create_task(post(transport, upstream.origin))
        await until(lambda: bool(upstream.peers and upstream.peers[0].requests))
        waiting = asyncio.create_task(post(transport, upstream.origin))
        await until(lambda: only(transport).waiting == 1)
        await transport.close()
        with pytest.raises(Cut, match="closed here"):
            await running
        with pytest.raises(ConnectFailed, match="transport is closed"):
            await waiting
        with pytest.raises(ConnectFailed, match="transport is closed"):
            await post(transport, upstream.origin)
        with pytest.raises(ConnectFailed, match="transport is closed"):
            await post(transport, Origin("http", "elsewhere", 80))
        await upstream.peers[0].gone.wait()
        assert only(transport).open == only(transport).connecting == 0


@pytest.mark.asyncio
async def test_close_while_connecting_leaves_no_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.wait_closed()

    async with Upstream(script) as upstream:
        transport = Transport()
        task = asyncio.create_task(post(transport, upstream.origin))
        await until(lambda: bool(transport.stats()))
        await transport.close()
        with pytest.raises((ConnectFailed, Cut)):
            await task
        assert only(transport).open == only(transport).connecting == 0
        await until(lambda: bool(upstream.peers))
        async with asyncio.timeout(1):
            await upstream.peers[0].gone.wait()


@pytest.mark.asyncio
async def test_the_figures_add_up() -> None:
    async with Upstream(silent) as upstream, Upstream(always(OK)) as other, Transport() as transport:
        tasks = [asyncio.create_task(post(transport, upstream.origin)) for _ in range(3)]
        await until(lambda: len([peer for peer in upstream.peers if peer.requests]) == 3)
        await post(transport, other.origin)
        busy, rest = transport.stats()[upstream.origin], transport.stats()[other.origin]
        assert (busy.open, busy.idle, busy.in_use) == (3, 0, 3)
        assert (rest.open, rest.idle, rest.in_use) == (1, 1, 0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert transport.stats()[upstream.origin].open == 0
