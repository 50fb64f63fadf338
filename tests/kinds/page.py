"""Writes `docs/providers.md` from what the tests see: `python -m tests.kinds.page > docs/providers.md`.

The table holds what each observer in `observe.py` said of each case; a test asks every observer again and compares its
word with the cell in the docs, so neither can fall behind the other. What follows the table is read from the facts of
the code.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from providers.engines import FACTS
from providers.exchange import Endpoint
from providers.fields import HINTS, READS, STEERING
from tests.kinds.cases import CASES, Case
from tests.kinds.observe import FEATURES
from tests.kinds.stand import standing

PAGE = Path(__file__).parents[2] / "docs" / "providers.md"
ROWS = tuple(case for case in CASES if case.note)
Cells = Mapping[str, Mapping[str, str]]
"""By case and feature."""

_HEAD = """\
# Providers

What every kind of upstream can do through the gateway. This page is made by the tests, which ask a scripted upstream of
each kind over real sockets with the official `openai` SDK: `python -m tests.kinds.page > docs/providers.md`.

"""
_WORDS = """
- **images**: `data` is a base64 data URI, `URL` a link the provider fetches.
- **JSON**: `schema` is `response_format: json_schema`, `any` is `json_object`.
- **reasoning**: `text` is shown to the client as `reasoning_content` or `reasoning`; `passed on` means that the effort
  reaches the model, which shows nothing of it.
- **usage**: `whole answers` means that a stream of that API cannot tell its usage: a client that asks for it
  (`stream_options.include_usage`) is refused, and other streams are settled by what was counted.
- **parts of usage**: what is told of cached, written and reasoning tokens; what is not told stays away and is never 0.
  vLLM tells of cached tokens with `--enable-prompt-tokens-details`, SGLang with `--enable-cache-report`.
- **when a client leaves**: `closed at once` stops the engine. A provider goes on and bills it, so the answer is read on
  to its usage and the request is settled with that; meanwhile it holds its seat at the account and its tenant's
  concurrency. At most 100 answers are read so, none for more than two minutes, none past a shutdown; one that is not
  read to its end is settled with the larger of what was estimated and what was counted, and marked as estimated
  (`weighbridge_left_answers_total`, `weighbridge_left_answers_running`). An answer the gateway itself has to end
  (deadline, silence, shutdown) is settled with what was counted.
- **hints**: where the kind says when to come back; the client is told the same.
- **health**: `by its answers` means that nothing is polled, and breakers judge by the answers alone.
"""
_REFUSED = """
## What a kind cannot do

It is refused by name and never dropped in silence: before a request is sent the gateway looks for the next target that
can do it, and where there is none the client gets 400 `unsupported_parameter` with the field in `param`. A target that
is said to have a feature its kind lacks is an error of the configuration.

- Anthropic, Gemini and Bedrock are asked in their own words. Fields without a place there are refused: `n` above 1,
  `logprobs`, `logit_bias`, `prediction`, `audio`, sampling fields that only engines know, and for Anthropic and Bedrock
  `seed` and the penalties. A temperature above 1 is 1 for Anthropic. An image link is refused by Gemini and Bedrock,
  which take bytes.
- Fields that only engines know (`top_k`, `guided_json`, `chat_template_kwargs`, ...) are refused by OpenAI and Azure.
- These read a known set of fields, and any other is refused:
"""
_LEFT_OUT = """
What asks nothing of the answer is left out where it is not known: a field at its default, and hints ({hints}).

## What is never passed on

Fields by which a client would steer an engine past the gateway, whoever sends them: {steering}.

Of a client's headers only `traceparent` and `tracestate` go upstream, beside the gateway's own `x-request-id`.
"""


async def observe() -> dict[str, dict[str, str]]:
    """Every cell of the table, as seen now."""
    found: dict[str, dict[str, str]] = {}
    async with standing(ROWS) as stand:
        for case in ROWS:
            for name, observer in FEATURES.items():
                stand.reset()
                found.setdefault(case.name, {})[name] = await observer(stand, case)
    return found


def render(cells: Cells) -> str:
    """The page with these cells."""
    names = [name for name in FEATURES if name != "hints"]
    lines = [f"| | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    lines += [f"| {case.note} | {' | '.join(cells[case.name][name] for name in names)} |" for case in ROWS]
    hints = ["\n## When to come back\n", "| | where it is said |", "| --- | --- |"]
    hints += [f"| {case.note} | {cells[case.name]['hints']} |" for case in ROWS]
    reads = [f"  - {kind}, chat: {_listed(READS[kind][Endpoint.CHAT])}" for kind in READS]
    left_out = _LEFT_OUT.format(hints=_listed(HINTS), steering=_listed(STEERING))
    return "\n".join([_HEAD + "\n".join(lines), _WORDS, *_facts(), *hints, _REFUSED + "\n".join(reads), left_out])


def _listed(names: frozenset[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _facts() -> list[str]:
    """What the code knows of each kind."""
    lines = [
        "## What is asked of them\n",
        "| kind | endpoints of its own | output cap | priority | cache salt | metrics |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for kind, facts in FACTS.items():
        if kind == "simulated":
            continue
        served = ", ".join(endpoint.value for endpoint in Endpoint if endpoint in facts.endpoints)
        order = {None: "-", 1: "higher is sooner", -1: "lower is sooner"}[facts.priority]
        cap = f"`{facts.output_cap}`" if facts.output_cap else "as the client wrote it"
        metrics = f"`{facts.metrics_path}`" if facts.metrics_path else "-"
        lines.append(f"| {kind} | {served} | {cap} | {order} | {'yes' if facts.salt else '-'} | {metrics} |")
    lines.append("\nChat requests, Messages and Responses are translated for a kind that serves only chat itself.")
    return lines


def read(page: str) -> dict[str, dict[str, str]]:
    """The cells of a page."""
    by_note = {case.note: case.name for case in ROWS}
    cells: dict[str, dict[str, str]] = {}
    names: list[str] = []
    for line in page.splitlines():
        first, *rest = (
            [part.strip() for part in line.strip().strip("|").split(" | ")] if line.startswith("| ") else [""]
        )
        if line.startswith("| | "):
            names = ["hints"] if rest == ["where it is said"] else rest
        elif first in by_note:
            cells.setdefault(by_note[first], {}).update(zip(names, rest, strict=True))
    return cells


def for_case(cells: Cells, case: Case) -> Mapping[str, str]:
    """The cells of a case; one without a row of its own is like the first of its kind."""
    return cells.get(case.name) or cells[next(row.name for row in ROWS if row.kind == case.kind)]


if __name__ == "__main__":
    sys.stdout.write(render(asyncio.run(observe())))
