"""Prefix affinity on published conversation blocks, for whoever has the file: WEIGHBRIDGE_TRACES names its folder."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

from providers.balance import BalanceSettings, Chooser, View
from providers.prefix import Affinity, PrefixIndex
from tests.routing.fleet import BLOCK, Request, Server, Sized, block_affinity, drive

FOLDER = os.environ.get("WEIGHBRIDGE_TRACES")
FILES = sorted(Path(FOLDER).glob("mooncake*.jsonl")) if FOLDER else []
CACHE = 2_400  # blocks a replica holds

pytestmark = pytest.mark.skipif(not FILES, reason="WEIGHBRIDGE_TRACES names no folder with block traces")


def requests(path: Path) -> list[Request]:
    made = []
    for line in path.read_bytes().splitlines():
        row = orjson.loads(line)
        blocks = tuple(row["hash_ids"][: max(1, row["input_length"] // BLOCK)])
        affinity = block_affinity(blocks, hash(blocks[:2]) & ((1 << 64) - 1))
        size = Sized(max(1, row["input_length"]))
        at = row["timestamp"] / 1000
        made.append(Request(size, affinity, at=at, output_tokens=row["output_length"], blocks=blocks))
    return made


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@pytest.mark.parametrize(("count", "rate"), [(4, 12_000.0), (8, 6_000.0), (8, 9_000.0)])
def test_nine_tenths_of_the_hits_at_a_shorter_wait(path: Path, count: int, rate: float) -> None:
    names = [f"r{n}" for n in range(count)]

    def index() -> PrefixIndex:
        made = PrefixIndex()
        for name in names:
            made.set_replica(name, CACHE * BLOCK)
        return made

    def servers() -> list[Server]:
        return [Server(name, rate, cache=CACHE) for name in names]

    known = index()

    def longest(one: Request, views: Sequence[View], now: float) -> str:
        assert isinstance(one.affinity, Affinity)
        tokens, mask = known.match(one.affinity, known.all)
        holders = [view for view in views if known.bits[view.name] & mask and tokens > 1024] or views
        return min(holders, key=lambda view: view.prefill_waiting).name

    def learn(name: str, one: Request) -> None:
        assert isinstance(one.affinity, Affinity)
        known.sent(name, one.affinity, one.demand.prompt_tokens)

    chooser = Chooser(random.Random(3).random, BalanceSettings(), index=index())
    rows = requests(path)
    ours = drive(rows, servers(), chooser, chooser.sent)
    free = drive(rows, servers(), longest, learn)
    assert ours.busiest < 0.75
    assert ours.hit_share >= 0.9 * free.hit_share
    assert sum(ours.waits) < sum(free.waits)
    assert sorted(ours.waits)[len(rows) * 99 // 100] < sorted(free.waits)[len(rows) * 99 // 100]
