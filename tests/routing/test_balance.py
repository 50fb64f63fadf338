"""The replica choice: bounds, affinity, herds, adapters, speculation, failures."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.adapters import Adapters
from providers.balance import BalanceSettings, Chooser, View
from providers.ejection import Replicas
from providers.health import Event
from providers.prefix import Affinity, PrefixIndex, affinity
from tests.routing.fleet import Request, Seen, Server, conversations, drive, request

NAMES = [f"r{n}" for n in range(8)]
PLAIN = BalanceSettings(explore=0.0)


def rng(seed: int = 1) -> random.Random:
    return random.Random(seed)


def idle(count: int = 8) -> list[Seen]:
    return [Seen(name) for name in NAMES[:count]]


def index_of(names: Sequence[str], cache_tokens: int | None = None) -> PrefixIndex:
    index = PrefixIndex()
    for name in names:
        index.set_replica(name, cache_tokens)
    return index


def ring_chooser(names: Sequence[str], seed: int = 1, **kwargs: float) -> Chooser:
    """One of several gateways, without an index: homes come from the ring alone."""
    chooser = Chooser(rng(seed).random, replace(PLAIN, instances=2, **kwargs))  # type: ignore[arg-type]
    chooser.set_replicas(names)
    return chooser


def test_one_gateway_takes_the_least_loaded() -> None:
    views = idle(4)
    for view, waiting in zip(views, (500, 300, 100, 400), strict=True):
        view.prefill_waiting = waiting
    assert Chooser(rng().random, PLAIN)(request(), views, 0.0) == "r2"


def test_held_kv_counts_as_load_and_unknown_kv_by_requests() -> None:
    full, empty = Seen("r0", kv_free=10_000), Seen("r1", kv_free=90_000)
    assert Chooser(rng().random, PLAIN)(request(), [full, empty], 0.0) == "r1"
    blind = [Seen("r0", inflight=3, kv_capacity=None, kv_free=None), Seen("r1", 2, kv_capacity=None, kv_free=None)]
    assert Chooser(rng().random, PLAIN)(request(), blind, 0.0) == "r1"


def test_equal_replicas_share_alike() -> None:
    chooser = Chooser(rng().random, PLAIN)
    chosen = [chooser(request(), idle(4), 0.0) for _ in range(4000)]
    assert min(chosen.count(name) for name in NAMES[:4]) > 900


def test_a_prompt_goes_where_its_beginning_is_held() -> None:
    chooser = Chooser(rng().random, PLAIN, index=index_of(NAMES))
    prompt = affinity("salt", None, ["user", "x" * 8_000])
    first = chooser(request(2000, prompt), idle(), 0.0)
    chooser.sent(first, request(2000, prompt))
    longer = affinity("salt", None, ["user", "x" * 8_000, "assistant", "y" * 500])
    assert {chooser(request(2100, longer), idle(), 0.0) for _ in range(50)} == {first}


def test_another_tenants_same_prompt_finds_nothing() -> None:
    index = index_of(NAMES)
    chooser = Chooser(rng().random, PLAIN, index=index)
    ours, theirs = (affinity(salt, None, ["user", "x" * 8_000]) for salt in ("salt-a", "salt-b"))
    assert ours is not None
    assert theirs is not None
    chooser.sent("r3", request(2000, ours))
    assert index.match(ours, index.all)[0] == 1792
    assert index.match(theirs, index.all) == (0, 0)


def test_a_session_is_a_hint_where_no_prompt_is_known() -> None:
    chooser = Chooser(rng().random, PLAIN, index=index_of(NAMES))
    said = affinity("salt", None, ["hi"], session="conversation-7")
    assert said is not None
    chooser.sent("r5", request(10, said))
    again = affinity("salt", None, ["something else"], session="conversation-7")
    assert {chooser(request(10, again), idle(), 0.0) for _ in range(20)} == {"r5"}
    other = affinity("other salt", None, ["hi"], session="conversation-7")
    assert len({chooser(request(10, other), idle(), 0.0) for _ in range(50)}) > 2


def test_a_hot_home_yields() -> None:
    chooser = Chooser(rng().random, PLAIN, index=index_of(NAMES))
    prompt = affinity("salt", None, ["user", "x" * 8_000])
    chooser.sent("r0", request(2000, prompt))
    views = idle()
    views[0].prefill_waiting = 50_000
    assert chooser(request(2000, prompt), views, 0.0) != "r0"


def test_in_a_quiet_pool_a_home_is_worth_a_short_wait() -> None:
    chooser = Chooser(rng().random, PLAIN, index=index_of(NAMES))
    chooser.sent("r7", request(4000))
    prompt = affinity("salt", None, ["user", "x" * 8_000])
    chooser.sent("r0", request(2000, prompt))
    views = idle()
    views[0].prefill_waiting = 1_500
    assert chooser(request(2000, prompt), views, 0.0) == "r0"
    views[0].prefill_waiting = 3_600  # more than one request beyond the bound
    assert chooser(request(2000, prompt), views, 0.0) != "r0"


def test_several_gateways_send_an_unknown_prompt_to_the_same_home() -> None:
    prompts = [affinity("salt", None, ["user", f"{n}" * 4_000]) for n in range(200)]
    choosers = [ring_chooser(NAMES, seed) for seed in (1, 2, 3)]
    for prompt in prompts:
        assert len({chooser(request(1000, prompt), idle(), 0.0) for chooser in choosers}) == 1
    assert {choosers[0](request(1000, prompt), idle(), 0.0) for prompt in prompts} == set(NAMES)


def test_one_request_in_a_hundred_explores() -> None:
    chooser = Chooser(rng().random, BalanceSettings(), index=index_of(NAMES))
    prompt = affinity("salt", None, ["user", "x" * 8_000])
    chooser.sent("r0", request(2000, prompt))
    away = sum(chooser(request(2000, prompt), idle(), 0.0) != "r0" for _ in range(20_000))
    assert 100 <= away <= 260


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 8),
    st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 3), st.booleans()), min_size=1, max_size=120),
    st.booleans(),
    st.integers(0, 99),
)
def test_no_replica_is_loaded_beyond_the_bound_by_more_than_one_request(
    size: int, steps: list[tuple[int, int, bool]], ringed: bool, seed: int
) -> None:
    """Prompts of four hot prefixes come and go at random. Load is exactly what the views say, in prompt tokens."""
    names = NAMES[:size]
    bare = replace(PLAIN, kv_weight=0.0)
    chooser = Chooser(rng(seed).random, replace(bare, instances=1 + ringed), index=None if ringed else index_of(names))
    chooser.set_replicas(names)
    prompts = [affinity(f"s{n}", None, ["x" * 4_096]) for n in range(4)]
    loads = dict.fromkeys(names, 0)
    running: list[tuple[str, int]] = []
    largest = 0
    for tokens, hot, ends in steps:
        if ends and running:
            name, weight = running.pop(seed % len(running))
            loads[name] -= weight
        largest = max(largest, tokens)
        views = [Seen(name, kv_capacity=None, kv_free=None, prefill_waiting=loads[name]) for name in names]
        one = request(tokens, prompts[hot])
        name = chooser(one, views, 0.0)
        chooser.sent(name, one)
        loads[name] += tokens
        running.append((name, tokens))
        average = sum(loads.values()) / size
        assert loads[name] <= 1.25 * average + largest + 1e-6


@pytest.mark.parametrize("load", [0.3, 0.65])
def test_affinity_keeps_nine_tenths_of_the_hits_it_could_have_and_shortens_the_wait(load: float) -> None:
    """Against a choice that follows the longest beginning whatever the load, on the same replicas and caches."""
    talks = conversations(1200, 6.0)
    span = talks[-1].at - talks[0].at
    rate = sum(one.demand.prompt_tokens for one in talks) * 0.45 / span / 8 / load

    def servers() -> list[Server]:
        return [Server(name, rate, cache=600) for name in NAMES]

    def free() -> tuple[float, list[float]]:
        index = index_of(NAMES, 600 * 512)

        def choose(one: Request, views: Sequence[View], now: float) -> str:
            assert isinstance(one.affinity, Affinity)
            tokens, mask = index.match(one.affinity, index.all)
            holders = [view for view in views if index.bits[view.name] & mask and tokens > 1024] or views
            return min(holders, key=lambda view: view.prefill_waiting).name

        def sent(name: str, one: Request) -> None:
            assert isinstance(one.affinity, Affinity)
            index.sent(name, one.affinity, one.demand.prompt_tokens)

        out = drive(talks, servers(), choose, sent)
        return out.hit_share, out.waits

    chooser = Chooser(rng().random, BalanceSettings(), index=index_of(NAMES, 600 * 512))
    ours = drive(talks, servers(), chooser, chooser.sent)
    bare = Chooser(rng().random, BalanceSettings())
    none = drive([replace(one, affinity=None) for one in talks], servers(), bare)
    hits, waits = free()
    assert ours.busiest < 0.8
    assert ours.hit_share >= 0.9 * hits
    assert ours.hit_share > 1.5 * none.hit_share
    assert statistics.mean(ours.waits) <= statistics.mean(waits)
    assert statistics.mean(ours.waits) <= statistics.mean(none.waits)


def herd(seed: int, instances: int, choose: str, scrape: float = 10.0) -> float:
    """Four gateways, eight replicas, a tail of long requests. Each gateway knows its own dispatches at once and the
    others' only from a scrape every ten seconds. The mean wait in seconds, of work that takes one on average.
    """
    world = rng(seed)
    busy = dict.fromkeys(NAMES, 0.0)
    gateways = [Chooser(rng(seed + n).random, replace(PLAIN, instances=instances)) for n in range(4)]
    scraped = [dict.fromkeys(NAMES, 0.0) for _ in gateways]
    own: list[list[tuple[float, str, float]]] = [[] for _ in gateways]
    next_scrape = [scrape * n / 4 for n in range(4)]
    now = 0.0
    waits = []
    for _ in range(6000):
        now += world.expovariate(8 * 0.7)
        g = world.randrange(4)
        if now >= next_scrape[g]:
            scraped[g] = {name: max(0.0, busy[name] - now) for name in NAMES}
            own[g] = []
            next_scrape[g] = now + scrape
        views = []
        for name in NAMES:
            guess = scraped[g][name] + sum(work for _, where, work in own[g] if where == name)
            age = now - (next_scrape[g] - scrape)
            views.append(Seen(name, prefill_waiting=int(1000 * max(0.0, guess - age))))
        name = world.choice(NAMES) if choose == "random" else gateways[g](request(), views, now)
        work = min(world.lognormvariate(-0.5, 1.0), 20.0)
        own[g].append((now, name, work))
        waits.append(max(0.0, busy[name] - now))
        busy[name] = max(busy[name], now) + work
    return statistics.mean(waits)


def test_old_scrapes_do_not_herd_several_gateways() -> None:
    two = herd(3, 4, "ours")
    assert two < 0.6 * herd(3, 4, "random")
    assert two < 1.2 * herd(3, 1, "ours")


def test_a_replica_that_just_failed_is_the_last_choice() -> None:
    replicas = Replicas(rng().random)
    for name in NAMES[:3]:
        replicas.add(name, 0.0)
    chooser = Chooser(rng().random, PLAIN, replicas=replicas)
    replicas.enter("r1", "interactive", 1.0).end(Event.CONNECT, 1.0)
    views = idle(3)
    for view in (views[0], views[2]):
        view.prefill_waiting = 50_000
    assert chooser(request(), views, 1.1) != "r1"
    assert chooser(request(), [views[1]], 1.1) == "r1"
    assert chooser(request(), views, 2.0) == "r1"


def test_an_ejected_replica_gets_its_probes_and_no_more() -> None:
    replicas = Replicas(lambda: 0.5)
    for name in NAMES[:3]:
        replicas.add(name, 0.0)
    chooser = Chooser(rng().random, PLAIN, replicas=replicas)
    for _ in range(5):
        replicas.enter("r1", "batch", 0.0).end(Event.FAILURE, 0.0)
    views = idle(3)
    for view in (views[0], views[2]):
        view.prefill_waiting = 50_000
    assert "r1" not in {chooser(request(cls="batch"), views, 3.0) for _ in range(50)}
    chosen = [chooser(request(cls="batch"), views, 6.0) for _ in range(50)]
    assert chosen.count("r1") == 1
    replicas.enter("r1", "batch", 6.0).end(Event.OK, 6.1)
    chosen = [chooser(request(cls="batch"), views, 6.2) for _ in range(50)]
    assert chosen.count("r1") == 2


def test_a_home_that_answers_late_is_passed_by_until_it_recovers() -> None:
    timed = replace(PLAIN, prefill_tokens_per_s=10_000.0)
    chooser = Chooser(rng().random, timed, index=index_of(NAMES))
    prompt = affinity("salt", None, ["user", "x" * 8_000])
    chooser.sent("r0", request(2000, prompt))
    for _ in range(10):
        chooser.answered("r0", 1.0, 5.0, 200)
    assert "r0" not in {chooser(request(2000, prompt), idle(), 1.0) for _ in range(30)}
    assert {chooser(request(2000, prompt), idle(), 90.0) for _ in range(30)} == {"r0"}


def test_a_request_goes_where_its_adapter_is_and_never_where_it_cannot_be() -> None:
    adapters = Adapters()
    adapters.set_replica("r0", 0)
    adapters.set_replica("r1", 2, ["fr"])
    adapters.set_replica("r2", 2)
    chooser = Chooser(rng().random, PLAIN, adapters=adapters)
    views = idle(3)
    views[1].prefill_waiting = views[2].prefill_waiting = 10_000
    assert {chooser(request(adapter="fr"), views, 0.0) for _ in range(30)} == {"r1"}
    assert "r0" not in {chooser(request(adapter="de"), views, 0.0) for _ in range(30)}
    assert chooser(request(), views, 0.0) == "r0"


def test_speculating_replicas_are_preferred_while_they_win() -> None:
    chooser = Chooser(rng().random, PLAIN)
    views = idle(3)
    views[0].prefill_waiting = 2_000
    chooser.speculates("r0", 1.4, running=4)
    assert {chooser(request(), views, 0.0) for _ in range(20)} == {"r0"}
    assert "r0" not in {chooser(request(cls="batch"), views, 0.0) for _ in range(20)}
    chooser.speculates("r0", 1.4, running=16)
    assert "r0" not in {chooser(request(), views, 0.0) for _ in range(20)}
    chooser.speculates("r0", 1.4, running=13)  # not yet: it comes back below three quarters
    assert "r0" not in {chooser(request(), views, 0.0) for _ in range(20)}
    chooser.speculates("r0", 1.4, running=11)
    assert {chooser(request(), views, 0.0) for _ in range(20)} == {"r0"}
    chooser.speculates("r0", 0.1, running=2)
    assert "r0" not in {chooser(request(), views, 0.0) for _ in range(20)}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 7), min_size=1), st.integers(0, 5), st.booleans(), st.integers(0, 9)),
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 3),
)
def test_whatever_comes_and_goes_only_replicas_with_room_are_chosen(
    steps: list[tuple[set[int], int, bool, int]], instances: int
) -> None:
    """Replicas join, leave, fail and fill while requests with and without a prefix arrive."""
    source = rng(4)
    replicas = Replicas(source.random)
    index = PrefixIndex()
    timed = BalanceSettings(instances=instances, prefill_tokens_per_s=1_000.0)
    chooser = Chooser(source.random, timed, index=index, replicas=replicas)
    prompts = [affinity("s", None, [f"{n}" * 6_000], session=f"{n}") for n in range(4)]
    now = 0.0
    for fits, which, leaves, fault in steps:
        now += 0.5
        names = [NAMES[n] for n in sorted(fits)]
        if leaves:
            gone = names[0]
            replicas.remove(gone, now)
            index.forget(gone)
            chooser.set_replicas([name for name in NAMES if name != gone])
        else:
            for name in names:
                replicas.add(name, now)
                index.set_replica(name)
            chooser.set_replicas(NAMES)
        views = [Seen(name, prefill_waiting=source.randrange(9_000)) for name in names]
        one = request(1_500, prompts[which] if which < 4 else None)
        name = chooser(one, views, now)
        assert name in names
        chooser.sent(name, one)
        chooser.answered(name, now, source.random() * 5.0, 500)
        if not leaves:
            ends = Event.FAILURE if fault < 4 else Event.CONNECT if fault < 6 else Event.OK
            replicas.enter(name, "interactive", now).end(ends, now)


def test_nothing_fitting_is_the_callers_error() -> None:
    with pytest.raises(IndexError):
        Chooser(rng().random, PLAIN)(request(), [], 0.0)


def test_what_a_replica_is_believed_to_hold_of_a_prompt() -> None:
    index = PrefixIndex()
    for name in ("a", "b"):
        index.set_replica(name)
    chooser = Chooser(lambda: 0.5, index=index)
    first = request(2000, affinity("", None, ["x" * 8000]))
    assert chooser.held("a", first) == 0
    chooser.sent("a", first)
    longer = request(3000, affinity("", None, ["x" * 8000 + "y" * 4000]))
    assert (chooser.held("a", longer), chooser.held("b", longer)) == (1792, 0)
    assert chooser.held("a", request(100, longer.affinity)) == 100  # never more than there is
    assert chooser.held("a", request(100)) == 0
