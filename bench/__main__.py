"""Every measurement by its name: `python -m bench NAME [options]`; without a name, all of them one after the other.

Each is a module of this package that runs alone and prints its own tables; `python -m bench --list` says what there is.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

# In the order in which they are run. A module that is not in this checkout is passed over.
NAMES = (
    "overhead", "noisy", "replay", "scenario", "fairqueue", "limits", "transport", "routing",
)  # fmt: skip


def _caption(name: str) -> str | None:
    """The first line of a module's docstring; None when there is no such module."""
    spec = find_spec(f"bench.{name}")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin)
    if path.name == "__init__.py":
        path = path.with_name("__main__.py")
        if not path.exists():
            return None
    line = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
    return line.partition(": `")[0].rstrip(".")


def main() -> int:
    """Runs what is asked for; returns the first exit status that is not zero."""
    found = {name: caption for name in NAMES if (caption := _caption(name)) is not None}
    name, *options = sys.argv[1:] or [""]
    if name in ("-h", "--help", "--list") or (name and name not in found):
        for known, caption in found.items():
            print(f"{known:10} {caption}")
        return 0 if name.startswith("-") else 2
    status = 0
    for chosen in [name] if name else found:
        print(f"== {chosen}: {found[chosen]}", flush=True)
        status = subprocess.run([sys.executable, "-m", f"bench.{chosen}", *options], check=False).returncode or status
    return status


if __name__ == "__main__":
    raise SystemExit(main())
