"""The spool keeps every line until it is dealt with, whatever ends the process, and nothing longer than that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.registry.spool import FileSpool, estates


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def everything(spool: FileSpool) -> list[bytes]:
    found: list[bytes] = []
    while (batch := spool.take()) is not None:
        assert spool.take() == batch  # the same until it is committed
        found += batch.lines
        spool.commit(batch)
    return found


@given(lines=st.lists(st.binary(min_size=1, max_size=300).map(lambda data: data.hex().encode()), max_size=40))
@settings(max_examples=40)
def test_lines_come_out_as_they_went_in_over_any_number_of_segments(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    spool = FileSpool(folder, "me", segment_bytes=1024)
    for line in lines:
        spool.append(line)
        spool.prepare()
    assert everything(spool) == lines
    spool.close()
    assert files(folder) == []


def test_a_segment_stays_while_what_it_announced_goes_on(tmp_path: Path) -> None:
    spool = FileSpool(tmp_path, "me", segment_bytes=64)
    spool.append(b"announced")
    spool.hold(0)
    for n in range(20):
        spool.append(b"line %020d" % n)
    assert everything(spool)[0] == b"announced"
    assert "me.0.spool" in files(tmp_path)
    assert len(files(tmp_path)) == 3  # the lock, the held one, the current one: the rest are gone
    spool.let_go(0)
    assert "me.0.spool" not in files(tmp_path)
    spool.close()


def test_what_is_too_large_is_refused_and_the_spool_goes_on(tmp_path: Path) -> None:
    spool = FileSpool(tmp_path, "me", segment_bytes=64)
    with pytest.raises(OSError, match="larger than a segment"):
        spool.append(b"x" * 64)
    spool.append(b"small")
    assert everything(spool) == [b"small"]
    spool.close()


def test_two_processes_cannot_share_an_instance(tmp_path: Path) -> None:
    spool = FileSpool(tmp_path, "me")
    with pytest.raises(FileExistsError):
        FileSpool(tmp_path, "me")
    assert list(estates(tmp_path)) == []  # the living one's is nobody's to take
    spool.close()


def test_a_killed_process_leaves_every_line_it_appended(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom gateway.registry.spool import FileSpool\n"
        "spool = FileSpool(Path(sys.argv[1]), 'dead', segment_bytes=4096)\n"
        "for n in range(1000): spool.append(b'%d' % n)\n"
        "print('done', flush=True)\nsys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"done\n"
    assert list(estates(tmp_path)) == []
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert process.stdin is not None
    process.stdin.close()
    with next(path for path in tmp_path.iterdir() if path.name.endswith(".0.spool")).open("r+b") as torn:
        data = torn.read().rstrip(b"\0")
        torn.seek(len(data) - 1)
        torn.write(b"\0")  # the last line of this segment was not whole yet
    [estate] = estates(tmp_path)
    lines = list(estate.lines())
    missing = set(range(1000)) - {int(line) for line in lines}
    assert len(missing) == 1
    estate.settle()
    assert files(tmp_path) == []
