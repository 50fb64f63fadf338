"""A real Valkey for the session, emptied before each test that asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ratelimit.servers import Server, cluster


@pytest.fixture(scope="session")
def _server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def valkey(_server: Server) -> Server:
    _server.sync().flushall()
    return _server


@pytest.fixture(scope="session")
def cluster_url() -> Iterator[str]:
    with cluster() as url:
        yield url
