"""Every test with sockets runs on asyncio's own loop and on uvloop."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops under test."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
