"""Tests that look from outside run on both HTTP servers of the data listener."""

from __future__ import annotations

import pytest

from gateway.api.seam import Handler
from gateway.api.server import DataServer


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of a module that uses the stack is run once on each server."""
    if hasattr(metafunc.module, "running"):
        metafunc.fixturenames.append("data_server")
        metafunc.parametrize("data_server", ["lean", "aiohttp"], indirect=True)


@pytest.fixture
def data_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data listener of every gateway a test starts is the one named by the parameter."""

    def make(handler: Handler, *_: object) -> DataServer:
        return DataServer(handler, request.param)

    monkeypatch.setattr("gateway.app.DataServer", make)
