"""Plays the scenario matrix: `python -m bench.scenario [--traces FOLDER]`. Exit code 1 if a goal is missed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.scenario.matrix import compare, everything


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, help="folder with the Azure LLM inference traces of 2023")
    folder = parser.parse_args().traces
    missed = 0
    for f in everything(folder):
        missed += not f.ok
        print(f"{f.row:<64} {f.what:<46}{f.figure:>9.4f}  {f.goal:<9}{'' if f.ok else 'MISSED'}", flush=True)
    print()
    heads = ("quiet in SLO", "TTFT p95 s", "noisy tok/s", "alone tok/s", "Jain", "share error")
    print(f"{'policy':<28}" + "".join(f"{head:>13}" for head in heads))
    for c in compare():
        print(
            f"{c.policy:<28}{c.quiet_within_slo:>13.0%}{c.quiet_ttft_p95_s:>13.2f}{c.noisy_output_per_s:>13.0f}"
            f"{c.alone_output_per_s:>13.0f}{c.jain:>13.3f}{c.worst_share_error:>13.1%}",
            flush=True,
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
