"""The scenarios: what is played, on which engine, and the figures that must come out.

Each function plays one row and returns its findings. `gate` makes the gate to play it with, so that the same row can
be played with the simpler policies for comparison; goals only bind the real admission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from random import Random

from bench.scenario import measure as m
from bench.scenario.policies import PlainGate
from bench.scenario.predict import Exact, Learned, Wrong
from bench.scenario.traffic import Ask, azure, even, from_rows, poisson, zipf_names
from bench.scenario.world import Gate, Outcome, Record, World
from fairqueue.admission import Admission, PoolSettings
from fairqueue.item import Costs, RequestClass
from fairqueue.reservations import Reservation
from providers.simulated.settings import NOISY, REFERENCE_70B, AdmissionMode, EngineSettings

MakeGate = Callable[[PoolSettings], Gate]


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure of a row and what it should be."""

    row: str
    what: str
    figure: float
    goal: str
    ok: bool


def at_least(row: str, what: str, figure: float, goal: float) -> Finding:
    return Finding(row, what, figure, f">= {goal:g}", figure >= goal)


def at_most(row: str, what: str, figure: float, goal: float) -> Finding:
    return Finding(row, what, figure, f"<= {goal:g}", figure <= goal)


WEIGHTS = {"w1": 1.0, "v1": 1.0, "w2": 2.0, "w5": 5.0, "w10": 10.0}


def admission(settings: PoolSettings) -> Gate:
    return Admission(settings)


def _sizes(rng: Random, prompt: float = 600.0, output: float = 150.0) -> tuple[int, int]:
    """Log-normal prompt and output of these medians, tails cut."""
    return (
        min(4000, max(16, int(rng.lognormvariate(log(prompt), 0.7)))),
        min(1000, max(1, int(rng.lognormvariate(log(output), 0.8)))),
    )


def overload(
    gate: MakeGate = admission,
    *,
    factor: float = 2.0,
    wrong: float = 3.0,
    seconds: float = 640.0,
    window: tuple[float, float] = (40.0, 640.0),
    seed: int = 1,
    engine: EngineSettings = REFERENCE_70B,
    capacity_rps: float = 17.0,
    medians: tuple[float, float] = (600.0, 150.0),
    alike: bool = False,
) -> tuple[list[Finding], Outcome]:
    """Five tenants of weights 1:1:2:5:10, each offering `factor` times its share, estimates wrong by up to `wrong`.

    `alike`: all offer as much as the largest, so order of arrival cannot look fair by chance."""
    rng = Random(seed)
    total = sum(WEIGHTS.values())
    asks: list[Ask] = []
    for name, weight in WEIGHTS.items():
        rate = factor * capacity_rps * (10.0 if alike else weight) / total
        for ask in poisson(rng, rate, seconds, tenant=name, prompt=1, output=1, cap=1):
            prompt, output = _sizes(rng, *medians)
            asks.append(replace(ask, prompt=prompt, output=output, cap=4096))
    g = gate(
        PoolSettings(name="overload", queue_timeouts_s={RequestClass.INTERACTIVE: 30.0, RequestClass.BATCH: 600.0})
    )
    if isinstance(g, Admission):
        for name, weight in WEIGHTS.items():
            g.set_tenant(name, weight=weight, now=0.0)
    outcome = World(g, {"r0": engine}, asks, Wrong(seed, wrong), until=seconds).run()
    done = m.service(outcome, *window)
    largest = max(Costs().of(ask.prompt, 0, ask.output) for ask in asks)
    due = sum(done.values()) * min(WEIGHTS.values()) / total / largest
    errors = m.share_errors(done, WEIGHTS)
    row = f"overload {factor:g}x, estimates off by up to {wrong:g}x, least due {due:.0f} largest"
    return [
        at_most(row, "worst share error", max(map(abs, errors.values())), 0.02),
        at_least(row, "Jain index of service / weight", m.jain(done, WEIGHTS), 0.99),
    ], outcome


def noisy_neighbour(
    gate: MakeGate = admission,
    *,
    mode: AdmissionMode = AdmissionMode.RESERVED,
    quiet: bool = True,
    noisy: bool = True,
    seed: int = 1,
    replicas: int = 1,
) -> Outcome:
    """Per replica 1 request/s of a quiet tenant beside 23/s of a noisy one, of which an engine serves 2.2."""
    rng = Random(seed)
    asks: list[Ask] = []
    if quiet:
        asks += even(1.0 * replicas, 40, tenant="quiet", prompt=300, output=50, cap=50)
    if noisy:
        asks += poisson(rng, 23.0 * replicas, 40, tenant="noisy", prompt=2000, output=300, cap=300)
    g = gate(PoolSettings(name="noisy"))
    engines = {f"r{n}": replace(NOISY, admission=mode) for n in range(replicas)}
    return World(g, engines, asks, Exact(), until=52.0).run()


def neighbours(
    gate: MakeGate = admission, *, mode: AdmissionMode = AdmissionMode.RESERVED, replicas: int = 1
) -> list[Finding]:
    """The noisy row against both tenants alone."""
    both = noisy_neighbour(gate, mode=mode, replicas=replicas)
    alone = noisy_neighbour(gate, mode=mode, quiet=False, replicas=replicas)
    bare = max(
        m.output_rate(noisy_neighbour(gate_, mode=mode, quiet=False, replicas=replicas), 5, 40)
        for gate_ in (lambda s: PlainGate(None), lambda s: PlainGate(26))
    )
    quiet = m.of_tenant(both, "quiet")
    row = f"noisy neighbour 10x, {mode} engine" + (f", {replicas} replicas" if replicas > 1 else "")
    inside = sum(m.within_slo(r, 1.0, 0.06) for r in quiet) / len(quiet)
    shared = m.output_rate(both, 5, 40) - 50.0 * replicas
    return [
        at_least(row, "quiet tenant within SLO", inside, 1.0),
        at_most(row, "quiet TTFT p95, s", m.percentile([r.ttft or 99.0 for r in quiet], 0.95), 0.5),
        at_least(row, "noisy output, share of the engine alone", shared / bare, 0.90),
        at_least(row, "one active tenant, share of the engine alone", m.output_rate(alone, 5, 40) / bare, 0.98),
    ]


def floor_kept(*, seed: int = 1, seconds: float = 240.0) -> list[Finding]:
    """A tenant with 40 % of capacity reserved and a tiny weight, backlogged, against a flood."""
    rng = Random(seed)
    rate = 0.4 * 30_000.0
    asks: list[Ask] = []
    for name, rps in (("gold", 20.0), ("flood", 40.0)):
        for ask in poisson(rng, rps, seconds, tenant=name, prompt=1, output=1, cap=1):
            prompt, output = _sizes(rng)
            asks.append(replace(ask, prompt=prompt, output=output, cap=4096))
    g = Admission(PoolSettings(name="floor", queue_timeouts_s=dict.fromkeys(RequestClass, 30.0)))
    g.set_tenant("gold", weight=0.01, reservation=Reservation(rate=rate), now=0.0)
    g.set_tenant("flood", weight=10.0, now=0.0)
    outcome = World(g, {"r0": REFERENCE_70B}, asks, Wrong(seed), until=seconds).run()
    done = m.service(outcome, 30.0, seconds)
    row = "reservation of 40 % against a flood"
    return [at_least(row, "service / floor", done["gold"] / (seconds - 30.0) / rate, 0.98)]


def reclaim(*, seed: int = 1, seconds: float = 120.0, interactive_flood: bool = False) -> list[Finding]:
    """Room reserved for a tenant that comes in bursts, lent to batch meanwhile: how long it waits for its room."""
    rng = Random(seed)
    asks: list[Ask] = list(
        poisson(rng, 6.0, seconds, tenant="jobs", prompt=800, output=400, cap=400, batch=not interactive_flood)
    )
    for burst in range(6):
        start = 15.0 + 18.0 * burst
        asks += poisson(rng, 8.0, 1.5, start=start, tenant="gold", prompt=300, output=60, cap=60)
    g = Admission(PoolSettings(name="reclaim"))
    g.set_tenant("gold", weight=1.0, reservation=Reservation(seats=12, kv_tokens=12_000, hold=0.0), now=0.0)
    engine = replace(NOISY, admission=AdmissionMode.PAGED)
    outcome = World(g, {"r0": engine}, asks, Exact(), until=seconds).run()
    waits = [r.wait if r.wait is not None else 99.0 for r in m.of_tenant(outcome, "gold")]
    row = "reserved room lent to batch"
    return [
        at_most(row, "reclaim p99, s", m.percentile(waits, 0.99), 1.0),
        at_least(row, "batch requests taken back", float(outcome.preempted), 1.0),
    ]


# One engine of 64 seats, and half of it: every step takes as long, and does half as much.
_WHOLE = replace(REFERENCE_70B, max_seqs=64, kv_tokens=80_000)
_HALF = replace(_WHOLE, max_seqs=32, kv_tokens=40_000, chunk_tokens=1024, b_s=6e-5, c_s=4.2e-8, d_s=8e-5)
_SHARE = Reservation(rate=6_500.0, burst=16_000.0, seats=26, kv_tokens=32_000, hold=1.0)


def beside_a_flood(
    *, reserved: bool, rate: float = 7.0, seeds: Iterable[int] = (1, 2, 3), seconds: float = 300.0
) -> list[Finding]:
    """A tenant of half the weight that uses most of its share, beside 10 times the other half; and alone on a half.

    `reserved`: four fifths of its share are reserved, and held free while it does not use them. Waits are taken over
    all seeds together."""

    def asks(tenant: str, rps: float, seed: int) -> list[Ask]:
        rng = Random(seed)
        return [
            replace(
                ask,
                prompt=min(3000, max(16, int(rng.lognormvariate(log(400), 0.6)))),
                output=min(600, max(2, int(rng.lognormvariate(log(120), 0.6)))),
            )
            for ask in poisson(rng, rps, seconds - 20.0, tenant=tenant, prompt=1, output=1, cap=1024)
        ]

    def play(engine: EngineSettings, traffic: list[Ask], reservation: Reservation | None) -> list[Record]:
        g = Admission(PoolSettings(name="flood"))
        g.set_tenant("quiet", weight=1.0, reservation=reservation, now=0.0)
        outcome = World(g, {"r0": engine}, traffic, Exact(), until=seconds).run()
        return [r for r in m.of_tenant(outcome, "quiet") if r.ask.at > 20.0]

    def figures(records: list[Record]) -> tuple[float, float]:
        inside = sum(m.within_slo(r, 1.0, 0.06) for r in records) / len(records)
        return m.percentile([99.0 if r.wait is None else r.wait for r in records], 0.99), inside

    by_itself: list[Record] = []
    beside: list[Record] = []
    for seed in seeds:
        quiet = asks("quiet", rate, seed)
        by_itself += play(_HALF, quiet, None)
        beside += play(_WHOLE, quiet + asks("noisy", 110.0, seed + 10), _SHARE if reserved else None)
    (alone_wait, alone_inside), (wait, inside) = figures(by_itself), figures(beside)
    row = "quiet tenant beside a flood of 10x, " + ("share reserved and held" if reserved else "weights alone")
    return [
        at_least(row, "SLO attainment, part of alone on half", inside / alone_inside, 0.99),
        at_most(row, "queue wait p99 beyond alone on half, s", wait - alone_wait, 0.2 if reserved else 1.0),
        at_most(row, "queue wait p99, part of alone on half", wait / alone_wait, 1.2),
    ]


def trickle(*, seed: int = 1, seconds: float = 120.0) -> list[Finding]:
    """Batch work that waits all the time, behind interactive work of twice the capacity."""
    rng = Random(seed)
    asks = [
        *poisson(rng, 30.0, seconds, tenant="people", prompt=600, output=150, cap=150),
        *poisson(rng, 2.0, seconds, tenant="jobs", prompt=600, output=150, cap=150, batch=True),
    ]
    outcome = World(admission(PoolSettings(name="trickle")), {"r0": _WHOLE}, asks, Exact(), until=seconds).run()
    done = m.service(outcome, 20.0, seconds)
    halves = [m.service(outcome, at, at + 50.0).get("jobs", 0.0) for at in (20.0, 70.0)]
    row = "batch behind interactive work of twice the capacity"
    share = done.get("jobs", 0.0) / sum(done.values())
    return [
        at_least(row, "its part of the work (weights 100 to 1)", share, 0.005),
        at_least(row, "work in the half with less, cost units", min(halves), 1200.0),
    ]


def kv_policies(*, seed: int = 1, seconds: float = 240.0) -> list[Finding]:
    """Long outputs on a small cache: the future peak against no limit and against the sure reservation."""
    rng = Random(seed)
    asks: list[Ask] = []
    for ask in poisson(rng, 8.0, seconds, tenant="t", prompt=1, output=1, cap=8000):
        prompt = min(4000, max(16, int(rng.lognormvariate(5.8, 0.6))))
        asks.append(replace(ask, prompt=prompt, output=min(8000, max(8, int(rng.lognormvariate(6.6, 0.6))))))
    engine = replace(REFERENCE_70B, kv_tokens=120_000)

    def play(gate: Gate) -> Outcome:
        return World(gate, {"r0": engine}, asks, Learned(0.5), until=seconds).run()

    timeouts = dict.fromkeys(RequestClass, 1e9)
    ours = play(Admission(PoolSettings(name="kv", queue_timeouts_s=timeouts)))
    bare = play(PlainGate(None))
    row = "long outputs, KV for 120,000 tokens"
    made = m.output_rate(ours, 60, seconds) / m.output_rate(bare, 60, seconds)
    last, lost = ours.samples[-1].preemptions, bare.samples[-1].preemptions
    return [
        at_least(row, "output, share of no limit", made, 0.95),
        at_most(row, "engine preemptions, share of no limit", last / max(lost, 1), 0.05),
    ]


def trouble(*, seed: int = 1, seconds: float = 240.0) -> list[Finding]:
    """Scrapes 15 s apart, a fifth of the clients leave, and at 100 s outputs become three times as long as learned."""
    rng = Random(seed)
    asks: list[Ask] = []
    for ask in poisson(rng, 12.0, seconds, tenant="t", prompt=1, output=1, cap=8000):
        prompt, output = _sizes(rng)
        output = min(8000, output * (3 if ask.at > 100.0 else 1))
        leaves = rng.uniform(0.1, 8.0) if rng.random() < 0.2 else None
        asks.append(replace(ask, prompt=prompt, output=output, leaves_after=leaves))
    g = Admission(PoolSettings(name="trouble", scrape_interval_s=15.0))
    engine = replace(REFERENCE_70B, kv_tokens=60_000)
    world = World(g, {"r0": engine}, asks, Learned(0.5), until=seconds, scrape_s=15.0)
    outcome = world.run()
    late = m.at(outcome, seconds).preemptions - m.at(outcome, seconds - 60.0).preemptions
    served = sum(1 for r in outcome.records if r.outcome == "served" and (r.last or 0.0) > seconds - 60.0)
    rest = g.snapshot(seconds)
    row = "scrapes 15 s apart, clients leaving, outputs 3x longer"
    inflight = sum(1 for e in world.engines.values() for _ in e.live)
    return [
        at_most(row, "preemptions per request, last minute", late / max(served, 1), 0.01),
        at_most(row, "tickets without a request in an engine", float(abs(rest.inflight - inflight)), 2.0),
    ]


def traces(folder: Path, gate: MakeGate = admission, *, seconds: float = 240.0, seed: int = 1) -> list[Finding]:
    """Conversation sizes over 50 tenants by Zipf, with the code trace as one bursty tenant, at about 1.5x overload."""
    rng = Random(seed)
    conv, code = azure(folder / "azure_llm_2023_conv.csv"), azure(folder / "azure_llm_2023_code.csv")
    asks = list(from_rows(conv, zipf_names(rng, 50), rate=17.0, seconds=seconds, cap=4096))
    asks += from_rows(code, iter(lambda: "code", ""), rate=2.0, seconds=seconds, cap=4096)
    outcome = World(gate(PoolSettings(name="traces")), {"r0": REFERENCE_70B}, asks, Learned(), until=seconds).run()
    row = "published traces, 51 tenants"
    names = {f"t{n:02}" for n in range(20, 50)}
    light = [r for r in outcome.records if r.ask.tenant in names and r.ask.at < seconds - 20]
    inside = sum(m.within_slo(r, 1.0, 0.06) for r in light) / len(light)
    return [at_least(row, "the 30 lightest within TTFT 1 s, TPOT 60 ms", inside, 0.85)]


POLICIES: dict[str, MakeGate] = {
    "no limit": lambda _: PlainGate(None),
    "fixed 24, by arrival": lambda _: PlainGate(24),
    "fixed 24, turns by tenant": lambda _: PlainGate(24, turns=True),
    "admission": admission,
}


@dataclass(frozen=True, slots=True)
class Compared:
    """One policy on the noisy row and on the overload row."""

    policy: str
    quiet_within_slo: float
    quiet_ttft_p95_s: float
    noisy_output_per_s: float
    alone_output_per_s: float
    jain: float
    worst_share_error: float


def compare() -> Iterable[Compared]:
    """The same traffic through every policy."""
    for name, make in POLICIES.items():
        both, alone = noisy_neighbour(make), noisy_neighbour(make, quiet=False)
        quiet = m.of_tenant(both, "quiet")
        shares = overload(
            make, seconds=110.0, window=(20.0, 110.0), capacity_rps=60.0, medians=(200.0, 20.0), alike=True
        )[0]
        yield Compared(
            name,
            sum(m.within_slo(r, 1.0, 0.06) for r in quiet) / len(quiet),
            m.percentile([r.ttft if r.ttft is not None else float("inf") for r in quiet], 0.95),
            m.output_rate(both, 5, 40) - m.service(both, 5, 40)["quiet"] / 35 * 50 / 500,
            m.output_rate(alone, 5, 40),
            shares[1].figure,
            shares[0].figure,
        )


def everything(folder: Path | None = None) -> Iterable[Finding]:
    """All rows with the real admission."""
    yield from overload(factor=1.5)[0]
    # Long enough for the least tenant to be due 200 of the largest requests; the shorter windows are the harder ones.
    yield from overload(seconds=1240.0, window=(40.0, 1240.0))[0]
    for mode in AdmissionMode:
        yield from neighbours(mode=mode)
    yield from neighbours(replicas=2)
    for reserved in (False, True):
        yield from beside_a_flood(reserved=reserved)
    yield from floor_kept()
    yield from reclaim()
    yield from trickle()
    yield from kv_policies()
    yield from trouble()
    if folder is not None:
        yield from traces(folder)
