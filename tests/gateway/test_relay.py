"""The order in which a relay tells and sends."""

from __future__ import annotations

import pytest

from gateway.relay import relay
from providers.exchange import NO_USAGE, Relayed, Usage


class _Answer:
    """An upstream's answer in two pieces."""

    def __init__(self) -> None:
        self.idle_s = 0.0
        self._pieces = [b"one", b"two", b""]

    async def read(self) -> bytes:
        return self._pieces.pop(0)

    def close(self) -> None: ...


class _Reader:
    usage: Usage = NO_USAGE
    tokens = 0

    def feed(self, data: bytes) -> Relayed:
        return Relayed(out=data, tokens=1, content=True, done=data == b"two")

    def end(self) -> Relayed:
        raise AssertionError("the answer was complete before its end")


class _Told:
    """Client and watcher in one, so that the order of both is seen."""

    started = False

    def __init__(self) -> None:
        self.events: list[str] = []

    def first_token(self) -> None:
        self.events.append("first token")

    def tokens(self, total: int, *, last: bool) -> None: ...

    def complete(self) -> None:
        self.events.append("complete")

    async def head(self, status: int, headers: object) -> None:
        self.started = True

    async def write(self, data: bytes) -> None:
        self.events.append(f"sent {data.decode()}")

    async def end(self) -> None:
        self.events.append("end")

    async def respond(self, status: int, headers: object, body: bytes) -> None:
        self.events.append(f"sent {body.decode()}")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (True, ["first token", "sent one", "complete", "sent two", "end"]),
        (False, ["first token", "complete", "sent onetwo"]),
    ],
    ids=["stream", "whole"],
)
async def test_what_an_answer_cost_is_written_down_before_its_last_bytes_leave(stream: bool, events: list[str]) -> None:
    told = _Told()
    broken = await relay(
        told, _Answer(), _Reader(), told, stream=stream, head=lambda: (), first_token_s=1.0, stall_s=1.0
    )  # type: ignore[arg-type]
    assert broken is None
    assert told.events == events
