"""The processes whose overhead is measured: the mock, nginx and a gateway with every feature on, and their CPU time.

Where there are two cores the process under test is alone on the first; mock and load share the second, or have one each
from three on.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import stack
from gateway import keys

KEY = keys.mint("app1", b"overhead".ljust(32, b"-"))
CORES = os.cpu_count() or 1
GATEWAY_CPU, LOAD_CPU, MOCK_CPU = ("0", "1", "2" if CORES > 2 else "1")
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its living children."""
    total = _ticks(pid)
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += sum(_ticks(int(child)) for child in (task / "children").read_text().split())
    return total * _TICK_S


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@contextmanager
def mock() -> Iterator[str]:
    """The mock upstream; yields its base URL."""
    with stack.process(["-m", "bench.mock"], r"ready (http://\S+)", MOCK_CPU) as (_, match):
        yield match[1]


@contextmanager
def gateway(mock_url: str, *, gather: bool, **listen: object) -> Iterator[tuple[str, int]]:
    """Weighbridge with every feature on; yields its base URL and pid. `listen` are more settings of the listener."""

    def limits(of: int, more: str = "") -> str:
        return (
            f"{{requests_per_minute: {of * 10**7}, input_tokens_per_minute: {of * 10**10}, "
            f"output_tokens_per_minute: {of * 10**10}, concurrency: {of * 1000}{more}}}"
        )

    text = f"""
listen: {{port: 0, drain_s: 1{"".join(f", {name}: {value}" for name, value in listen.items())}}}
admin: {{port: 0}}
pools:
  engines:
    kind: vllm
    replicas: [{{name: mock, url: "{mock_url}"}}]
    capacity: {{seats: 4096, kv_tokens: 40000000, prefill_tokens_per_s: 1000000000, chunk_tokens: 1000000}}
    gather: {str(gather).lower()}
models:
  chat-large:
    context: 131072
    prices: {{input_usd_per_mtok: 0.5, output_usd_per_mtok: 1.5}}
    tiers: [{{targets: [{{pool: engines, model: mock-model}}]}}]
organisations:
  acme-corp: {{limits: {limits(4, ", usd_per_month: 10000000")}}}
tenants:
  acme:
    organisation: acme-corp
    limits: {limits(3)}
    model_limits: {{chat-large: {limits(2)}}}
    keys: [{{id: app1, hash: "{keys.digest(KEY)}", limits: {limits(1)}}}]
"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "overhead.yaml"
        path.write_text(text)
        command = ["-m", "gateway", "serve", "--config", str(path)]
        with stack.process(command, r"data on port (\d+)", GATEWAY_CPU) as (run, match):
            yield f"http://127.0.0.1:{match[1]}", run.pid


_NGINX = """
worker_processes 1;
daemon off;
pid {folder}/pid;
error_log {folder}/error.log crit;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_body_buffer_size 1m;
  keepalive_requests 1000000000;
  upstream mock {{ server {host}; keepalive 512; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://mock;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


@contextmanager
def nginx(binary: str, mock_url: str) -> Iterator[tuple[str, int]]:
    """nginx with one worker, kept connections to the mock and no access log; yields its base URL and pid."""
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nginx.conf"
        path.write_text(_NGINX.format(folder=folder, port=port, host=mock_url.removeprefix("http://")))
        os.chmod(folder, 0o755)  # the worker may run as another user
        command = [*stack.pin(GATEWAY_CPU), binary, "-c", str(path), "-e", f"{folder}/error.log"]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(port)
            yield f"http://127.0.0.1:{port}", run.pid
        finally:
            run.terminate()
            run.wait(10)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _wait_for(port: int) -> None:
    """Until something listens there. Raises OSError when nothing does within five seconds."""
    until = time.monotonic() + 5.0
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
