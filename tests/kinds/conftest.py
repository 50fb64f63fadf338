"""One stand for all tests of a file; each test begins with a clean slate."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.kinds.stand import Stand, standing


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def everything() -> AsyncIterator[Stand]:
    """The gateway over every case."""
    async with standing() as stand:
        yield stand


@pytest_asyncio.fixture(loop_scope="module")
async def stand(everything: Stand) -> AsyncIterator[Stand]:
    """The same with a clean slate; afterwards nothing may be held."""
    everything.reset()
    yield everything
    await everything.at_rest()
