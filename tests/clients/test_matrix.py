"""Every dialect to every kind of upstream by the official SDKs, as a table that is kept in docs/clients.md."""

from __future__ import annotations

from pathlib import Path

import anthropic
import openai
import pytest

from tests.clients.checks import CHECKS, Check
from tests.clients.stack import KINDS, Clients, clients

DOCS = Path(__file__).parents[2] / "docs" / "clients.md"
OWN = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}


async def _cell(c: Clients, dialect: str, kind: str, run: Check) -> str:
    """How one feature is served: `as it is`, `translated`, or refused with the name of a field."""
    before = len(c.upstreams.seen.get(kind, ()))
    try:
        await run(c, kind)
    except openai.BadRequestError as error:
        return f"refused: {error.param}" if error.param else "refused"
    except anthropic.BadRequestError:
        return "refused"
    if len(c.upstreams.seen.get(kind, ())) == before:
        return "estimated"
    return "as it is" if c.upstreams.last(kind).path.partition("?")[0].find(OWN[dialect]) >= 0 else "translated"


def _table(dialect: str, cells: dict[tuple[str, str], str]) -> str:
    features = list(CHECKS[dialect])
    rows = ["| | " + " | ".join(features) + " |", "| --- |" + " --- |" * len(features)]
    rows += ["| " + " | ".join([f"`{kind}`", *(cells[kind, name] for name in features)]) + " |" for kind in KINDS]
    return "\n".join(rows)


@pytest.mark.asyncio
@pytest.mark.parametrize("dialect", sorted(CHECKS))
async def test_every_feature_of_a_dialect_on_every_kind(dialect: str) -> None:
    cells: dict[tuple[str, str], str] = {}
    async with clients() as c:
        for kind in KINDS:
            for feature, run in CHECKS[dialect].items():
                try:
                    cells[kind, feature] = await _cell(c, dialect, kind, run)
                except BaseException as error:
                    error.add_note(f"{dialect} to {kind}: {feature}")
                    raise
        lines = c.lines()
    table = _table(dialect, cells)
    print(f"\n{dialect}\n{table}")  # noqa: T201
    assert table in DOCS.read_text(), "docs/clients.md is out of date: put the table printed above into it"
    # Whatever the dialects on both sides, what was used is known: an answer that ended well has its tokens.
    served = [line for line in lines if line["outcome"] == "finished" and "count_tokens" not in line["path"]]
    assert served
    assert all(line["output_tokens"] == 7 and line["prompt_tokens"] > 0 for line in served)
