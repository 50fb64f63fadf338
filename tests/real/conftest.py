"""Engines for the tests of this folder: each kind is started once for all tests that do not harm it."""

from collections.abc import Iterator

import pytest

from tests.real import backends


@pytest.fixture(scope="session")
def llama() -> Iterator[backends.Server]:
    """llama.cpp with four slots of 8,192 tokens."""
    server = backends.start_llama(slots=4, context=32768)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def vllm() -> Iterator[backends.Server]:
    """vLLM with a small KV cache: 40 blocks of 32 tokens, for at most 8 sequences of 1,024 tokens."""
    server = backends.start_vllm()
    yield server
    server.stop()
