"""`weighbridge demo`: the whole product on one machine, with simulated engines and nothing to install.

Two simulated replicas of one pool, a simulated third-party provider as the second tier, and three
tenants. Everything listens on loopback; keys are made anew at each start and written to
`.weighbridge/demo.json` for other tools to read.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import orjson
import uvloop

from gateway import config, keys
from gateway.app import App
from gateway.telemetry import logs
from providers.simulated.server import SimulatedServer
from providers.simulated.service import Flavour, ServiceSettings
from providers.simulated.settings import preset

FOLDER = Path(".weighbridge")
MODEL = "chat-large"
_TENANTS = {"acme": 2, "globex": 1, "initech": 1}
_ENGINE_MODEL = "sim-large"
_VENDOR_MODEL = "vendor-large"
_VENDOR_KEY = "demo-provider-key"

_CONFIG = """\
# Written by `weighbridge demo`; keys change at each start.
listen: {{host: 127.0.0.1, port: {port}}}
admin: {{host: 127.0.0.1, port: {admin_port}, key: {admin_key}}}
pools:
  local:
    kind: simulated
    replicas:
      - {{name: a, url: "{replica_a}"}}
      - {{name: b, url: "{replica_b}"}}
    capacity: {{seats: 64}}
    slo: {{ttft_ms: 2000, tpot_ms: 60}}
    failure_domain: {{vendor: self, region: local, family: sim}}
  vendor:
    kind: openai-compatible
    account:
      url: "{vendor}/v1"
      credentials: [{{name: main, key: {vendor_key}}}]
    capacity: {{seats: 16}}
    failure_domain: {{vendor: simulated-provider, region: elsewhere, family: sim}}
models:
  {model}:
    context: 32768
    aliases: [gpt-4o-mini]
    features: [tools, json_schema, embeddings, reasoning]
    tiers:
      - targets: [{{pool: local, model: {engine_model}}}]
      - targets: [{{pool: vendor, model: {vendor_model}}}]
    prices: {{input_usd_per_mtok: 0.5, output_usd_per_mtok: 1.5, cached_usd_per_mtok: 0.1}}
tenants:
{tenants}"""

_TENANT = """\
  {name}:
    weight: {weight}
    limits:
      requests_per_minute: 6000
      input_tokens_per_minute: 6000000
      output_tokens_per_minute: 1200000
      concurrency: 256
    keys: [{{id: {key_id}, hash: "{digest}"}}]
"""


class Demo:
    """The demo's engines and gateway, started together and stopped together."""

    def __init__(self, engines: list[SimulatedServer], running: App, facts: dict[str, object]) -> None:
        self.engines = engines
        self.running = running
        self.facts = facts

    async def close(self) -> None:
        """Stops the gateway first, then the engines it speaks to."""
        await self.running.close()
        for engine in self.engines:
            await engine.close()


async def start(port: int, admin_port: int, folder: Path = FOLDER) -> Demo:
    """Starts everything and writes `demo.yaml` and `demo.json` to `folder`. Raises OSError when a port is taken."""
    engine = preset("reference70b", max_seqs=64, kv_tokens=262_144)
    replicas = [SimulatedServer(ServiceSettings(engine, models=(_ENGINE_MODEL,))) for _ in range(2)]
    vendor = SimulatedServer(
        ServiceSettings(engine, models=(_VENDOR_MODEL,), flavour=Flavour.ACCOUNT, api_keys=frozenset({_VENDOR_KEY}))
    )
    engines = [*replicas, vendor]
    for server in engines:
        await server.start()
    minted = {name: keys.mint(_key_id(name), secrets.token_bytes(32)) for name in _TENANTS}
    admin_key = "wba_" + secrets.token_urlsafe(24)
    text = _CONFIG.format(
        port=port,
        admin_port=admin_port,
        admin_key=admin_key,
        replica_a=replicas[0].url,
        replica_b=replicas[1].url,
        vendor=vendor.url,
        vendor_key=_VENDOR_KEY,
        model=MODEL,
        engine_model=_ENGINE_MODEL,
        vendor_model=_VENDOR_MODEL,
        tenants="".join(
            _TENANT.format(name=name, weight=weight, key_id=_key_id(name), digest=keys.digest(minted[name]))
            for name, weight in _TENANTS.items()
        ),
    )
    path = _write(folder / "demo.yaml", text.encode())
    running = await App(config.load(path), path=path).start()
    facts: dict[str, object] = {
        "base_url": f"http://127.0.0.1:{running.port}/v1",
        "admin_url": f"http://127.0.0.1:{running.admin_port}",
        "admin_key": admin_key,
        "model": MODEL,
        "keys": minted,
    }
    _write(folder / "demo.json", orjson.dumps(facts, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return Demo(engines, running, facts)


def _write(path: Path, data: bytes) -> Path:
    """Writes a file that only its owner reads: it holds keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def _key_id(tenant: str) -> str:
    return f"{tenant}1"


def invitation(facts: dict[str, object]) -> str:
    """What is printed once the demo is ready: a request to paste and where else to look."""
    keys_by_tenant = facts["keys"]
    assert isinstance(keys_by_tenant, dict)
    key = keys_by_tenant["acme"]
    return f"""
Weighbridge is ready. Paste this into another terminal:

curl -N {facts["base_url"]}/chat/completions \\
  -H 'Authorization: Bearer {key}' \\
  -H 'Content-Type: application/json' \\
  -d '{{"model": "{facts["model"]}", "stream": true, "max_tokens": 24,
       "messages": [{{"role": "user", "content": "Weigh this, please."}}]}}'

Metrics: {facts["admin_url"]}/metrics    readiness: {facts["admin_url"]}/readyz
Keys of the three demo tenants: {FOLDER / "demo.json"}    stop with Ctrl-C
"""


def run(port: int = 8080, admin_port: int = 8081, say: Callable[[str], None] = print) -> None:
    """Serves the demo in the foreground until SIGTERM or SIGINT."""
    logs.set_up("warning")

    async def main() -> None:
        demo = await start(port, admin_port)
        demo.running.handle_signals()
        say(invitation(demo.facts))
        try:
            await demo.running.wait()
        finally:
            await demo.close()

    uvloop.run(main())
