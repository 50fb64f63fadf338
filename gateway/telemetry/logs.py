"""JSON log lines: one a request without prompts or keys, written in batches, and the process' own messages."""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import UTC, datetime
from typing import IO, Any

import orjson

_FLUSH_S = 0.1
_FLUSH_BYTES = 64 * 1024


class RequestLog:
    """Collects request lines and writes them a few times a second, never one system call a request.

    `sink` is a binary file; None drops the lines. Flushed by `close` at the latest.
    """

    def __init__(self, sink: IO[bytes] | None) -> None:
        self._sink = sink
        self._pending: list[bytes] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def write(self, entry: dict[str, Any]) -> None:
        """Queues one line."""
        if self._sink is None:
            return
        line = orjson.dumps(entry, default=str, option=orjson.OPT_APPEND_NEWLINE)
        self._pending.append(line)
        self._size += len(line)
        if self._size >= _FLUSH_BYTES:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_S, self.flush)

    def flush(self) -> None:
        """Writes what is queued."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pending and self._sink is not None:
            data = b"".join(self._pending)
            self._pending.clear()
            self._size = 0
            try:
                self._sink.write(data)
                self._sink.flush()
            except (OSError, ValueError):
                # A log that cannot be written (a closed pipe, a full disk) must not stop requests.
                self._sink = None
                logging.getLogger("weighbridge").error("request log cannot be written; it is off from here on")

    def close(self) -> None:
        """Writes what is left."""
        self.flush()


class JsonFormatter(logging.Formatter):
    """The process' own messages as JSON lines, so that one collector reads both."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            entry["error"] = self.formatException(record.exc_info)
        return orjson.dumps(entry).decode()


def set_up(level: str) -> None:
    """Sends the process' own messages to standard error as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
