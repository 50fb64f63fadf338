"""Reads a request trace: an invented one by name, or a file in the Azure or the Mooncake schema.

- Azure: CSV with the columns TIMESTAMP (wall time), ContextTokens, GeneratedTokens; a byte order mark may stand first.
- Mooncake: one JSON object a line with timestamp (ms from the start), input_length, output_length, hash_ids (its prefix
  blocks of 512 tokens).
"""

import csv
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import orjson

from gateway.replay.shapes import NAMES, Request, invent

DEFAULT_ROWS = 500  # of an invented trace, where no number is given


class BadTrace(ValueError):
    """The trace cannot be read; the text names the file and the line."""


def read(source: str, limit: int | None = None, *, seed: int = 1) -> list[Request]:
    """The first `limit` requests (all, where None) of a named trace or a file, in order of arrival, the first at 0 s.

    Raises BadTrace.
    """
    if source in NAMES:
        return invent(source, DEFAULT_ROWS if limit is None else limit, seed)
    path = Path(source)
    if not path.is_file():
        raise BadTrace(f"{source}: no such file, and not one of {', '.join(NAMES)}")
    rows = _mooncake(path) if path.suffix in (".jsonl", ".json") else _azure(path)
    requests: list[Request] = []
    for row in rows:
        if limit is not None and len(requests) >= limit:
            break
        requests.append(row)
    if not requests:
        raise BadTrace(f"{path}: holds no requests")
    requests.sort(key=lambda request: request.at)
    start = requests[0].at
    return [Request(one.at - start, one.prompt_tokens, one.output_tokens, one.blocks) for one in requests]


def _azure(path: Path) -> Iterator[Request]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        missing = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} - set(rows.fieldnames or ())
        if missing:
            raise BadTrace(f"{path}:1: no column {', '.join(sorted(missing))}")
        for row in rows:
            try:
                # the stamp has seven digits after the point, one more than a datetime holds
                at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
                yield Request(at, int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            except (TypeError, ValueError) as problem:
                raise BadTrace(f"{path}:{rows.line_num}: {problem}") from None


def _mooncake(path: Path) -> Iterator[Request]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = orjson.loads(line)
                yield Request(
                    float(row["timestamp"]) / 1000.0,
                    int(row["input_length"]),
                    int(row["output_length"]),
                    tuple(map(int, row.get("hash_ids", ()))),
                )
            except KeyError as problem:
                raise BadTrace(f"{path}:{number}: no field {problem.args[0]}") from None
            except (TypeError, ValueError) as problem:
                raise BadTrace(f"{path}:{number}: {problem}") from None
