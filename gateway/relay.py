"""Bytes from upstream to client: back-pressure, first token, usage, silence, a client that left.

The relay commits the client's status only when the first bytes are ready to go, so an upstream that
fails before that can still be replaced. After that, a failure becomes an error event and the stream
ends without its terminator: a cut is never a clean end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.api.seam import Exchange, Headers
from providers.exchange import Failure, FailureKind, Reader
from providers.transport import Answer, Cut, HeadTimeout, Malformed, Silence, TransportError

# After the last event an upstream has this long to end the body properly and so keep its connection.
_TAIL_S = 1.0


class Watcher(Protocol):
    """Told what passes by, as it passes."""

    def first_token(self) -> None:
        """The first generated token has arrived."""

    def tokens(self, total: int, *, last: bool) -> None:
        """`total` output tokens have arrived so far; `last` says that no more will come."""

    def complete(self) -> None:
        """The answer is whole and its last bytes are about to leave: what it cost is written down before they do."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The upstream's answer came to nothing, or stopped in the middle.

    `how` names the kind of end for the log: "cut", "silent", "garbage", "error". `sent` says that the
    client has already received bytes, so that nothing can be tried again.
    """

    how: str
    failure: Failure
    sent: bool


def describe(error: TransportError) -> Broken:
    """A transport's error in the terms of failures, before anything was sent to the client."""
    how = "cut"
    if isinstance(error, (Silence, HeadTimeout)):
        how = "silent"
    elif isinstance(error, Malformed):
        how = "garbage"
    elif not isinstance(error, Cut):
        how = "connect"
    return Broken(how, Failure(FailureKind.TRANSIENT, None, str(error)), sent=False)


async def relay(
    http: Exchange,
    answer: Answer,
    reader: Reader,
    watcher: Watcher,
    *,
    stream: bool,
    head: Callable[[], Headers],
    first_token_s: float,
    stall_s: float,
    keep: Callable[[bytes], None] | None = None,
) -> Broken | None:
    """Relays one upstream answer; None when the client has all of it.

    `head` is called once, when the headers are about to leave; `keep` is given every piece that was
    written. Raises ClientGone when the client leaves. The answer is closed by the caller.
    """
    seen = 0
    first = False
    whole: list[bytes] = []
    held = b""
    begun = http.started  # the rest of a stream that broke elsewhere
    # Headers followed by silence are no sign of life: the first-token limit holds until a token comes.
    answer.idle_s = first_token_s
    while True:
        try:
            data = await answer.read()
        except TransportError as error:
            broken = describe(error)
            return Broken(broken.how, broken.failure, begun)
        part = reader.feed(data) if data else reader.end()
        if part.tokens:
            seen += part.tokens
        if part.content and not first:
            first = True
            answer.idle_s = stall_s
            watcher.first_token()
        if part.tokens:
            watcher.tokens(seen, last=part.done)
        if part.done and part.failure is None:
            watcher.complete()
        if part.out:
            if not stream:
                whole.append(part.out)
            elif begun or first or part.done:
                if not begun:
                    begun = True
                    await http.head(200, head())
                out = held + part.out if held else part.out
                held = b""
                await http.write(out)
                if keep is not None:
                    keep(out)
            else:
                held += part.out  # a beginning without a token commits to nobody yet
        if part.failure is not None:
            how = "error" if data and part.failure.status is not None else "cut" if not data else "garbage"
            return Broken(how, part.failure, begun)
        if part.done:
            break
    if stream:
        if not begun:
            await http.head(200, head())
            if held:
                await http.write(held)
        await http.end()
    else:
        await http.respond(200, head(), whole[0] if len(whole) == 1 else b"".join(whole))
    if data:
        await _drain(answer)
    return None


async def _drain(answer: Answer) -> None:
    """Reads the proper end of a body whose last event has passed, so that its connection can be used again."""
    answer.idle_s = _TAIL_S
    try:
        if await answer.read():
            answer.close()  # more than an end: this connection is not worth keeping
    except TransportError:
        pass  # the client has everything; only the connection is lost
