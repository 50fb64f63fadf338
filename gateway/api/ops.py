"""What operators call on the admin listener: health, readiness with its reasons, and the metrics page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import orjson
from aiohttp import web

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether new requests may come, and what stands against it or is degraded.

    `reasons` make the instance not ready; `degraded` is what it goes on without.
    """

    reasons: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """No reason against it."""
        return not self.reasons

    def code_only(self) -> tuple[int, bytes]:
        """Status and body for a listener that strangers reach: no reasons."""
        return (200, b'{"status":"ready"}') if self.ready else (503, b'{"status":"not ready"}')

    def full(self) -> tuple[int, bytes]:
        """Status and body for operators."""
        body = {"status": "ready" if self.ready else "not ready", "reasons": self.reasons, "degraded": self.degraded}
        return (200 if self.ready else 503), orjson.dumps(body)


def add_routes(app: web.Application, readiness: Callable[[], Readiness], metrics: Callable[[], bytes]) -> None:
    """Adds /healthz, /readyz and /metrics."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(body=b'{"status":"alive"}', content_type="application/json")

    async def readyz(_: web.Request) -> web.Response:
        status, body = readiness().full()
        return web.Response(status=status, body=body, content_type="application/json")

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"content-type": METRICS_TYPE})

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", page)
