"""Opens the client for a store URL: one server, a Sentinel-watched set, or a cluster.

    redis://host:6379/0   rediss://…   unix:///path          one server (or an address that follows a failover)
    redis+sentinel://host:26379,host:26379/service           the primary that Sentinel names at the time
    redis+cluster://host:7000,host:7001                      a cluster; every organisation's limits are in one slot

No retry is left to the client library: a call that fails has used its time, and the limiter knows what to do then.
Connections to a server that was demoted answer READONLY and are closed, so the next call asks for the primary again.

Writes lost in a failover. Replication is asynchronous: what a primary acknowledged within the lag λ before it died is
lost with it, so limits decided then may be admitted once more,  at most  (burst + rate * λ)  per rate limit, and
what was held or spent within λ per budget. Running requests tell the new primary what they hold with their next
renewal. A limit marked exact is confirmed by WAIT where replicas to wait for are configured: it has no such term.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from ratelimit.redis_calls import CONNECT_S, Client

SOCKET_S = 1.0
"""Longest wait in a socket call, seconds; a second net below the call budget, which is the limiter's."""


def connect(url: str) -> Client:
    """A client for the URL; nothing is sent yet. Raises ValueError for a scheme it does not know."""
    parts = urlsplit(url)
    if parts.scheme in ("redis", "rediss", "unix"):
        return Redis.from_url(
            url, retry=Retry(NoBackoff(), 0), socket_timeout=SOCKET_S, socket_connect_timeout=CONNECT_S
        )
    hosts = _hosts(parts.netloc.rpartition("@")[2], 26379 if parts.scheme == "redis+sentinel" else 6379)
    password = unquote(parts.password) if parts.password else None
    username = unquote(parts.username) if parts.username else None
    if parts.scheme == "redis+sentinel":
        service = parts.path.strip("/")
        if not service:
            raise ValueError("redis+sentinel URL needs the service name as its path")
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            hosts, sentinel_kwargs={"socket_timeout": SOCKET_S, "socket_connect_timeout": CONNECT_S}
        )
        client: Redis = sentinel.master_for(
            service,
            username=username,
            password=password,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=SOCKET_S,
            socket_connect_timeout=CONNECT_S,
        )
        return client
    if parts.scheme == "redis+cluster":
        return RedisCluster(
            startup_nodes=[ClusterNode(host, port) for host, port in hosts],
            username=username,
            password=password,
            retry=Retry(NoBackoff(), 1),
            socket_timeout=SOCKET_S,
            socket_connect_timeout=CONNECT_S,
        )
    raise ValueError(f"unknown limit store URL scheme {parts.scheme!r}")


async def disconnect(client: Client) -> None:
    """Close a client of `connect` with all it opened, also its connections to the Sentinels."""
    await client.aclose()
    if isinstance(client, Redis) and isinstance(client.connection_pool, SentinelConnectionPool):
        for sentinel in client.connection_pool.sentinel_manager.sentinels:
            await sentinel.aclose()


def _hosts(netloc: str, default_port: int) -> list[tuple[str, int]]:
    hosts = []
    for item in netloc.split(","):
        host, _, port = item.partition(":")
        if not host:
            raise ValueError(f"no host in {netloc!r}")
        hosts.append((host, int(port) if port else default_port))
    return hosts
