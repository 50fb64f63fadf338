"""The spool: records on their way to the ledger, in files that outlive this process however it ends.

A record is one line, written before what it announces is done. The files are mapped into memory: appending copies the
line and makes no system call, and what was copied is the kernel's to keep when the process is killed. (A power cut may
take the last seconds; the database has the rest.) Blocks are allocated when a file is made, so a full disk is met there
and not in the middle of a request.

    folder/INSTANCE.lock      held for as long as the process lives; free means that it is dead
    folder/INSTANCE.N.spool   segments; lines, then zeros

A segment is deleted when everything in it is in the database and nothing it announced is still going on.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

SEGMENT_BYTES: Final = 4 << 20
_MOST_BYTES: Final = 96 << 10  # of one batch


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines of one segment; `end` is where they end in it."""

    segment: int
    lines: list[bytes]
    end: int


class Spool(Protocol):
    """What the ledger needs of a spool. One writer and one reader, in the same loop."""

    def append(self, line: bytes) -> None:
        """Adds a line (no newline in it). Raises OSError when there is no room for it anywhere."""

    def take(self) -> Batch | None:
        """The next lines, None when there are none. The same again until they are committed."""

    def commit(self, batch: Batch) -> None:
        """These lines have been dealt with."""

    def hold(self, segment: int) -> None:
        """Something that the segment announced is going on."""

    def let_go(self, segment: int) -> None:
        """It is over, and in the database."""

    def prepare(self) -> None:
        """Makes the next segment ahead of time. Raises OSError."""

    def close(self) -> None:
        """Closes everything; files stay only where there is something in them that the database lacks."""


@dataclass(slots=True)
class _Segment:
    number: int
    path: Path
    map: mmap.mmap
    written: int = 0  # bytes of lines in it
    read: int = 0  # bytes of them that were dealt with
    held: int = 0  # announced and still going on


class FileSpool:
    """The spool of one process in a folder. Raises OSError when the folder cannot be used."""

    def __init__(self, folder: Path, instance: str, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._instance = instance
        self._bytes = segment_bytes
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock_path = folder / f"{instance}.lock"
        if self._lock_path.exists():
            raise FileExistsError(f"{self._lock_path} is there already: every process needs a name of its own")
        # Locked under another name first: whoever looks for what the dead have left never finds it unlocked.
        new = folder / f"{instance}.new"
        self._lock = _lock(new)
        new.rename(self._lock_path)
        self._segments: dict[int, _Segment] = {}  # in order; the last one is written to
        self._spare: _Segment | None = None
        self._next = 0
        self._current = self._add(self._make())

    def append(self, line: bytes) -> None:
        """Adds a line."""
        segment, size = self._current, len(line) + 1
        if segment.written + size > self._bytes:
            segment = self._turn(size)
        at = segment.written
        segment.map[at : at + size] = line + b"\n"
        segment.written = at + size

    def _turn(self, size: int) -> _Segment:
        if size > self._bytes:
            raise OSError("a record is larger than a segment of the spool")
        spare, self._spare = self._spare, None
        self._current = self._add(spare if spare is not None else self._make())
        return self._current

    def prepare(self) -> None:
        """Makes the next segment ahead of time."""
        if self._spare is None and self._current.written > self._bytes // 2:
            self._spare = self._make()

    def take(self) -> Batch | None:
        """The next lines."""
        for segment in self._segments.values():
            if segment.read < segment.written:
                until = min(segment.written, segment.read + _MOST_BYTES)
                end = segment.map.rfind(b"\n", segment.read, until) + 1
                if end <= segment.read:  # one line longer than a batch
                    end = segment.map.find(b"\n", segment.read, segment.written) + 1
                return Batch(segment.number, segment.map[segment.read : end].splitlines(), end)
        return None

    def commit(self, batch: Batch) -> None:
        """These lines have been dealt with."""
        segment = self._segments[batch.segment]
        segment.read = max(segment.read, batch.end)
        self._trim(segment)

    def hold(self, segment: int) -> None:
        """Something that the segment announced is going on."""
        self._segments[segment].held += 1

    def let_go(self, segment: int) -> None:
        """It is over."""
        found = self._segments[segment]
        found.held -= 1
        self._trim(found)

    def _trim(self, segment: _Segment) -> None:
        if segment is not self._current and not segment.held and segment.read >= segment.written:
            del self._segments[segment.number]
            _remove(segment)

    def close(self) -> None:
        """Closes everything; what the database lacks stays for whoever comes next."""
        clean = True
        for segment in [*self._segments.values(), *([self._spare] if self._spare is not None else [])]:
            if segment.held or segment.read < segment.written:
                segment.map.close()
                clean = False
            else:
                _remove(segment)
        self._segments.clear()
        self._spare = None
        if self._lock is not None:
            if clean:
                self._lock_path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def _make(self) -> _Segment:
        number = self._next
        path = self._folder / f"{self._instance}.{number}.spool"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self._bytes)
            mapped = mmap.mmap(descriptor, self._bytes)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self._next += 1
        return _Segment(number, path, mapped)

    def _add(self, segment: _Segment) -> _Segment:
        self._segments[segment.number] = segment
        return segment


def _remove(segment: _Segment) -> None:
    segment.map.close()
    with contextlib.suppress(OSError):
        segment.path.unlink(missing_ok=True)


def _lock(path: Path) -> int | None:
    """The lock file, held; None when a living process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


@dataclass(slots=True)
class Estate:
    """What a dead process has left; its lock is ours until `settle` or `leave`."""

    instance: str
    folder: Path
    _descriptor: int

    def lines(self) -> Iterator[bytes]:
        """Every whole line, in the order written. What was being written at the end is left out."""
        for path in self._paths():
            data = path.read_bytes().rstrip(b"\0")
            yield from data[: data.rfind(b"\n") + 1].splitlines()

    def _paths(self) -> list[Path]:
        found = self.folder.glob(f"{self.instance}.*.spool")
        return sorted(found, key=lambda path: int(path.name.split(".")[1]))

    def settle(self) -> None:
        """Everything is in the database: the files go."""
        for path in self._paths():
            path.unlink(missing_ok=True)
        (self.folder / f"{self.instance}.lock").unlink(missing_ok=True)
        self.leave()

    def leave(self) -> None:
        """Not now: the files stay."""
        os.close(self._descriptor)


def estates(folder: Path) -> Iterator[Estate]:
    """What dead processes have left in a folder. Living ones hold their locks and are passed over."""
    for path in sorted(folder.glob("*.lock")):
        descriptor = _lock(path)
        if descriptor is not None:
            yield Estate(path.stem, folder, descriptor)


class MemorySpool:
    """A spool for a ledger in memory: it dies with the process, as the ledger does. Past `most` lines the oldest go."""

    def __init__(self, most: int = 100_000) -> None:
        self._lines: deque[bytes] = deque(maxlen=most)

    def append(self, line: bytes) -> None:
        """Adds a line."""
        self._lines.append(line)

    def take(self) -> Batch | None:
        """The next lines, which are gone from here with that."""
        if not self._lines:
            return None
        return Batch(0, [self._lines.popleft() for _ in range(min(len(self._lines), 256))], 0)

    def commit(self, batch: Batch) -> None:
        """Nothing is kept."""

    def hold(self, segment: int) -> None:
        """Nothing is kept."""

    def let_go(self, segment: int) -> None:
        """Nothing is kept."""

    def prepare(self) -> None:
        """Nothing is needed."""

    def close(self) -> None:
        """Nothing is open."""
