"""A gateway process in front of real engines, and what it says of itself."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway import keys
from tests.real.backends import Server, free_port

TENANTS = ("acme", "globex")
MODELS = ("tiny", "ad")
GAUGES = (
    "weighbridge_inflight_requests",
    "weighbridge_queue_depth",
    "weighbridge_seats_held",
    "weighbridge_kv_tokens_held",
)


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where it is reached, and its tenants' keys."""

    server: Server
    url: str
    admin_url: str
    keys: dict[str, str]

    async def gauges(self, session: aiohttp.ClientSession) -> dict[str, float]:
        """The four gauges that are zero at rest, summed over their labels."""
        page = await self.metrics(session)
        return {name: sum(value for _, value in page[name]) for name in GAUGES}

    async def metrics(self, session: aiohttp.ClientSession) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Every sample of the metrics page, by name: labels and value."""
        async with session.get(self.admin_url + "/metrics") as response:
            page = await response.text()
        samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((sample.labels, sample.value))
        return samples

    async def tokens(self, session: aiohttp.ClientSession) -> dict[str, float]:
        """Tokens settled so far, by type."""
        found: dict[str, float] = {}
        for labels, value in (await self.metrics(session)).get("weighbridge_tokens_total", []):
            found[labels["type"]] = found.get(labels["type"], 0.0) + value
        return found


@contextmanager
def gateway(
    kind: str,
    urls: Sequence[str],
    *,
    capacity: object = "auto",
    timeouts: dict[str, int] | None = None,
    context: int = 8192,
    expected: str | None = None,
    **pool: object,
) -> Iterator[Gateway]:
    """A running gateway with one pool of these servers, which serves the models `tiny`, `ad` and `tiny-embeddings`.

    `expected` stands in the errors that its log may hold.
    """
    port, admin_port = free_port(), free_port()
    made = {tenant: keys.mint(f"{tenant}1", tenant.encode().ljust(32, b".")) for tenant in TENANTS}
    config = {
        "listen": {"host": "127.0.0.1", "port": port},
        "admin": {"host": "127.0.0.1", "port": admin_port, "key": "wba_" + "a" * 40},
        "pools": {
            "local": {
                "kind": kind,
                "replicas": [{"name": f"r{index}", "url": url} for index, url in enumerate(urls)],
                "capacity": capacity,
                "timeouts": {"connect_ms": 2000, "first_token_ms": 60000, "stall_ms": 30000, **(timeouts or {})},
                "slo": {"ttft_ms": 2000, "tpot_ms": 200},
                **pool,
            }
        },
        "models": {
            name: {"context": context, "tiers": [{"targets": [{"pool": "local", "model": name}]}]} for name in MODELS
        },
        "tenants": {
            tenant: {"models": ["*"], "keys": [{"id": f"{tenant}1", "hash": keys.digest(key)}]}
            for tenant, key in made.items()
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weighbridge.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(path)]
        server = Server("gateway", command, port, "ready: ", {})
        try:
            yield Gateway(server, server.url, f"http://127.0.0.1:{admin_port}", made)
        finally:
            server.stop()
        faults = [line for line in server.lines if '"level":"error"' in line]
        faults = [line for line in faults if expected is None or expected not in line]
        assert not faults, "\n".join(faults[-3:]).replace("\\n", "\n")
