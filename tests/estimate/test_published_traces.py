"""The same claims on published traces, for whoever has the files: WEIGHBRIDGE_TRACES names their folder."""

import os
from pathlib import Path

import orjson
import pytest

from gateway.estimate import Estimator
from gateway.measure import measure
from gateway.replay.prompts import Prompts
from gateway.replay.traces import read

FOLDER = os.environ.get("WEIGHBRIDGE_TRACES")
FILES = sorted(path for path in Path(FOLDER or ".").iterdir() if path.suffix in (".csv", ".jsonl")) if FOLDER else []

pytestmark = pytest.mark.skipif(not FILES, reason="WEIGHBRIDGE_TRACES names no folder with traces")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_prompts_within_5_percent_and_p90_between_88_and_92_percent(path: Path) -> None:
    estimator, prompts = Estimator(), Prompts(3.7)
    near = covered = asked = 0
    for index, row in enumerate(read(str(path), 5000)):
        body = {"model": "m", "messages": [{"role": "user", "content": prompts.text(index, row)}], "stream": True}
        measured = measure(body, len(orjson.dumps(body)))
        estimate = estimator.estimate("t", "m", measured)
        tokens = row.prompt_tokens + 8  # the chat template
        if index >= 200:
            asked += 1
            near += abs(estimate.prompt_tokens / tokens - 1) <= 0.05
            covered += row.output_tokens <= estimate.output_tokens
        estimator.observe("t", "m", measured, prompt_tokens=tokens, output_tokens=row.output_tokens, finished=True)
    assert near / asked >= 0.99
    assert 0.88 <= covered / asked <= 0.92
