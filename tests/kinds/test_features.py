"""Every feature of every kind, seen through the gateway, is what the table in the docs says of it."""

from __future__ import annotations

import pytest

from tests.kinds import page
from tests.kinds.cases import BY_NAME, CASES, Case
from tests.kinds.observe import FEATURES
from tests.kinds.stand import Stand

pytestmark = pytest.mark.asyncio(loop_scope="module")

CELLS = page.read(page.PAGE.read_text())
# Where a case without a row of its own differs from the others of its kind.
OTHERWISE = {
    ("azure-old", "usage"): "whole answers",
    ("compatible-servers", "when a client leaves"): "closed at once",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("feature", FEATURES)
async def test_it_is_as_the_table_says(stand: Stand, case: Case, feature: str) -> None:
    expected = OTHERWISE.get((case.name, feature)) or page.for_case(CELLS, case)[feature]
    assert await FEATURES[feature](stand, case) == expected


@pytest.mark.asyncio(loop_scope="function")
async def test_the_page_is_up_to_date() -> None:
    assert page.PAGE.read_text() == page.render(CELLS), "run: python -m tests.kinds.page > docs/providers.md"
    assert set(CELLS) <= set(BY_NAME)
