"""The direction of imports, the purity of the core and the form of every file, read from the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("gateway", "ratelimit", "fairqueue", "providers")

# Shells: files that may await, connect and read clocks. Every other file of the three lower rooms is core.
SHELLS = {
    "ratelimit/redis_calls.py",
    "ratelimit/redis_connect.py",
    "ratelimit/redis_store.py",
    "ratelimit/upkeep.py",
    "providers/answer.py",
    "providers/deadline.py",
    "providers/http1.py",
    "providers/pool.py",
    "providers/sockets.py",
    "providers/transport.py",
    "providers/watch.py",
    "providers/simulated/httpd.py",
    "providers/simulated/realtime.py",
    "providers/simulated/server.py",
}
# The core of the gateway, which is otherwise a shell.
GATEWAY_CORE = {
    "gateway/outcomes.py",
    "gateway/estimate.py",
    "gateway/measure.py",
    "gateway/quantile.py",
    "gateway/keys.py",
    "gateway/principals.py",
    "gateway/limits.py",
    "gateway/limit_rules.py",
    "gateway/strangers.py",
    "gateway/endings.py",
    "gateway/record.py",
}
IMPURE = {"asyncio", "aiohttp", "httptools", "redis", "time", "random", "logging", "socket", "ssl", "os", "uvloop"}
# Who may read files and the environment: settings, what a command is given as an argument, and files of the package.
READERS = {
    "gateway/config.py",
    "gateway/cli.py",
    "gateway/demo.py",
}


def _files(*rooms: str) -> Iterator[tuple[str, ast.Module, str]]:
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*.py")):
            text = path.read_text()
            yield path.relative_to(ROOT).as_posix(), ast.parse(text), text


def _imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Imported modules, and whether only type checkers see the import."""
    for_types: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for_types.update(id(inner) for inner in ast.walk(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module, id(node) in for_types


def test_the_three_rooms_know_neither_each_other_nor_the_gateway() -> None:
    wrong = [
        f"{name}: {module}"
        for name, tree, _ in _files("ratelimit", "fairqueue", "providers")
        for module, _ in _imports(tree)
        if (room := module.split(".")[0]) in {*ROOMS, "tests", "bench"} and room != name.split("/")[0]
    ]
    assert wrong == []


def test_the_gateway_imports_no_test_and_no_benchmark() -> None:
    wrong = [
        f"{name}: {module}"
        for name, tree, _ in _files("gateway")
        for module, _ in _imports(tree)
        if module.split(".")[0] in {"tests", "bench"}
    ]
    assert wrong == []


def test_core_files_await_nothing_and_read_no_clock() -> None:
    wrong = [
        f"{name}: {module}"
        for name, tree, _ in _files(*ROOMS)
        if (name in GATEWAY_CORE if name.startswith("gateway/") else name not in SHELLS)
        for module, for_types in _imports(tree)
        if module.split(".")[0] in IMPURE and not for_types
    ]
    assert wrong == []
    assert all((ROOT / name).exists() for name in SHELLS | GATEWAY_CORE)


def test_only_the_config_reads_the_environment() -> None:
    wrong = [
        name for name, _, text in _files(*ROOMS) if re.search(r"\bos\.(environ|getenv)\b", text) and name not in READERS
    ]
    assert wrong == []


def test_every_file_says_what_it_is_and_is_short_enough_to_enter() -> None:
    wrong = []
    for name, tree, text in _files(*ROOMS):
        if not ast.get_docstring(tree):
            wrong.append(f"{name}: no caption")
        if text.count("\n") > 500:
            wrong.append(f"{name}: {text.count(chr(10))} lines")
    assert wrong == []


def test_no_module_holds_mutable_state() -> None:
    """Empty containers at module level are there to be filled; tables written out are not."""
    wrong = []
    for name, tree, _ in _files(*ROOMS):
        for node in tree.body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if isinstance(value, ast.Dict) and not value.keys:
                wrong.append(f"{name}:{node.lineno}")
            if isinstance(value, ast.List) and not value.elts:
                wrong.append(f"{name}:{node.lineno}")
            made = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
            if made in {"dict", "list", "set", "Counter", "defaultdict", "deque"} and not value.args:
                wrong.append(f"{name}:{node.lineno}")
    assert wrong == []
