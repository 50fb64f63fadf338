"""A noisy tenant beside a quiet one: `python -m bench.noisy`.

One engine (32 sequences, 60,000 KV tokens, 256-token chunks, first come first served). The quiet tenant
sends 1 request/s (300 tokens in, 50 out), the noisy one 23/s (2,000 in, 300 out), ten times what the
engine can serve, both from the same moment on. Equal weights, no class set by hand. A quiet request is
inside its objective when it has all its tokens, TTFT <= 1 s and mean TPOT <= 60 ms.

Five cases: noisy alone and both, each straight at the engine and through the gateway, and quiet alone
through it. Tokens/s and engine work (prompt and output tokens
processed) are of the seconds 5 to the end.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from dataclasses import dataclass, field

import aiohttp
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from bench import stack
from providers.simulated.text import chat_of

TTFT_S, TPOT_S = 1.0, 0.060
_WARM_S = 5.0
_PATIENCE_S = 12.0  # what is left after the last request is cut then


@dataclass(slots=True)
class Sent:
    """One request as its client saw it; times are seconds from the start of the case."""

    at: float
    wanted: int
    status: int = 0
    tokens: list[float] = field(default_factory=list)

    @property
    def inside(self) -> bool:
        """Whether the objective was met."""
        if self.status != 200 or len(self.tokens) < self.wanted:
            return False
        tpot = (self.tokens[-1] - self.tokens[0]) / max(1, self.wanted - 1)
        return self.tokens[0] - self.at <= TTFT_S and tpot <= TPOT_S


@dataclass(slots=True)
class Case:
    """What one case gave."""

    name: str
    quiet: list[Sent]
    noisy: list[Sent]
    seconds: float
    work: float  # prompt and output tokens the engine processed, a second, seconds 5 to the end

    def rate(self) -> float:
        """Output tokens a second of the noisy tenant, seconds 5 to the end."""
        seen = sum(1 for sent in self.noisy for at in sent.tokens if _WARM_S <= at < self.seconds)
        return seen / (self.seconds - _WARM_S)

    def attained(self, since: float = 0.0) -> float:
        """Share of the quiet tenant's requests inside the objective, of those sent from `since` on."""
        counted = [sent for sent in self.quiet if sent.at >= since]
        return sum(sent.inside for sent in counted) / len(counted) if counted else float("nan")


async def _ask(
    session: aiohttp.ClientSession, base: str, key: str, model: str, sent: Sent, prompt: int, start: float
) -> None:
    body = {
        "model": model,
        "messages": chat_of(prompt, seed=int(sent.at * 1e6)),
        "max_tokens": sent.wanted,
        "stream": True,
    }
    await asyncio.sleep(max(0.0, start + sent.at - time.monotonic()))
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    try:
        async with session.post(base + "/v1/chat/completions", data=orjson.dumps(body), headers=headers) as answer:
            sent.status = answer.status
            async for line in answer.content:
                if line.startswith(b"data: {") and b'"content":"' in line and b'"content":""' not in line:
                    sent.tokens.append(time.monotonic() - start)
    except (aiohttp.ClientError, TimeoutError):
        pass


async def _work(session: aiohttp.ClientSession, engine: str) -> int:
    async with session.get(engine + "/sim/state?requests=0") as answer:
        state = orjson.loads(await answer.read())
    return int(state["prompt_tokens_total"] + state["generation_tokens_total"])


async def _case(name: str, base: str, model: str, engine: str, *, quiet: bool, noisy: bool, seconds: float) -> Case:
    rng = random.Random(7)
    quiets = [Sent(float(n), 50) for n in range(int(seconds))] if quiet else []
    noisies: list[Sent] = []
    at = 0.0
    while noisy and (at := at + rng.expovariate(23.0)) < seconds:
        noisies.append(Sent(at, 300))
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        start = time.monotonic() + 0.5
        tasks = [
            asyncio.create_task(_ask(session, base, stack.KEYS[tenant], model, sent, prompt, start))
            for tenant, prompt, group in (("quiet", 300, quiets), ("noisy", 2000, noisies))
            for sent in group
        ]
        await asyncio.sleep(max(0.0, start + _WARM_S - time.monotonic()))
        before = await _work(session, engine)
        await asyncio.sleep(max(0.0, start + seconds - time.monotonic()))
        work = (await _work(session, engine) - before) / (seconds - _WARM_S)
        await asyncio.wait(tasks, timeout=_PATIENCE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Case(name, quiets, noisies, seconds, work)


def _run(name: str, *, through: bool, quiet: bool, noisy: bool, seconds: float, capacity: str) -> Case:
    with stack.engine("noisy") as url:
        if not through:
            return uvloop.run(_case(name, url, "sim-large", url, quiet=quiet, noisy=noisy, seconds=seconds))
        with stack.gateway(url, capacity) as (base, _):
            return uvloop.run(_case(name, base, stack.MODEL, url, quiet=quiet, noisy=noisy, seconds=seconds))


def _quantile(values: list[float], q: float) -> str:
    return f"{sorted(values)[min(len(values) - 1, int(q * len(values)))]:.2f}" if values else "never"


def report(cases: list[Case]) -> Table:
    """The table of the README."""
    alone = next(case.rate() for case in cases if case.name == "engine alone, noisy only")
    full = next(case.work for case in cases if case.name == "engine alone, noisy only")
    table = Table(title="A noisy tenant beside a quiet one")
    for title in ("case", "quiet in SLO", "sent after 15 s", "quiet TTFT p50 / p95 / max s", "quiet refused",
                  "noisy tokens/s", "of alone", "noisy refused", "engine work"):  # fmt: skip
        table.add_column(title, justify="left" if title == "case" else "right")
    for case in cases:
        ttft = [sent.tokens[0] - sent.at for sent in case.quiet if sent.tokens]
        refused = sum(sent.status not in {0, 200} for sent in case.noisy)
        table.add_row(
            case.name,
            f"{case.attained():.0%}" if case.quiet else "-",
            f"{case.attained(15.0):.0%}" if case.quiet else "-",
            f"{_quantile(ttft, 0.5)} / {_quantile(ttft, 0.95)} / {_quantile(ttft, 1.0)}" if case.quiet else "-",
            str(sum(sent.status not in {0, 200} for sent in case.quiet)) if case.quiet else "-",
            f"{case.rate():.0f}" if case.noisy else "-",
            f"{case.rate() / alone:.1%}" if case.noisy else "-",
            f"{refused / len(case.noisy):.0%}" if case.noisy else "-",
            f"{case.work / full:.1%}",
        )
    return table


def main() -> None:
    """Runs the cases and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--capacity", default="auto", help="auto, or a mapping such as '{seats: 32}'")
    given = parser.parse_args()
    plan = [
        ("engine alone, noisy only", False, False, True),
        ("engine alone, both", False, True, True),
        ("Weighbridge, noisy only", True, False, True),
        ("Weighbridge, both", True, True, True),
        ("Weighbridge, quiet only", True, True, False),
    ]
    cases = []
    for name, through, quiet, noisy in plan:
        cases.append(
            _run(name, through=through, quiet=quiet, noisy=noisy, seconds=given.seconds, capacity=given.capacity)
        )
    Console(width=150).print(report(cases))


if __name__ == "__main__":
    main()
