"""The metrics page under vLLM's names, read back by a parser that is not ours, and the state page beside it."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from providers.simulated.metrics import Histogram
from providers.simulated.settings import EngineSettings, preset
from providers.simulated.text import chat_of
from tests.simulated.served import body, post, served, until


def parsed(page: str) -> dict[str, float]:
    """Every sample by its name and the labels that tell it from others."""
    out: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = [sample.labels[k] for k in ("le", "finished_reason", "reason") if k in sample.labels]
            out[" ".join([sample.name, *labels])] = sample.value
    return out


@pytest.mark.asyncio
async def test_the_page_has_the_figures_by_value() -> None:
    async with served(preset("small", d_s=0.0)) as (_, session):
        for _ in range(2):
            await post(session, body(messages=chat_of(100), max_tokens=11))
        async with session.get("/metrics") as answer:
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            page = await answer.text()
        got = parsed(page)
        assert {name: got[f"vllm:{name}"] for name in (
            "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total",
            "prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total",
            "request_success_total length", "request_success_total stop", "request_success_total abort",
            "time_to_first_token_seconds_count", "inter_token_latency_seconds_count",
            "inter_token_latency_seconds_bucket 0.01", "e2e_request_latency_seconds_count",
        )} == {
            "num_requests_running": 0, "num_requests_waiting": 0, "kv_cache_usage_perc": 0,
            "num_preemptions_total": 0, "prompt_tokens_total": 200, "generation_tokens_total": 22,
            "prefix_cache_queries_total": 200, "prefix_cache_hits_total": 96, "request_success_total length": 2,
            "request_success_total stop": 0, "request_success_total abort": 0,
            "time_to_first_token_seconds_count": 2, "inter_token_latency_seconds_count": 20,
            "inter_token_latency_seconds_bucket 0.01": 20, "e2e_request_latency_seconds_count": 2,
        }  # fmt: skip
        assert got["vllm:inter_token_latency_seconds_sum"] == pytest.approx(20 * 0.005)
        assert 'block_size="16"' in page
        assert 'num_gpu_blocks="500"' in page


@pytest.mark.asyncio
async def test_load_shows_while_it_is_there() -> None:
    async with served(EngineSettings(a_s=0.01, d_s=0.0, max_seqs=2)) as (server, session):
        tasks = [asyncio.create_task(post(session, body(messages=chat_of(800), max_tokens=100))) for _ in range(3)]
        await until(lambda: server.engine.running == 2)
        async with session.get("/metrics") as answer:
            got = parsed(await answer.text())
        assert (got["vllm:num_requests_running"], got["vllm:num_requests_waiting"]) == (2, 1)
        assert got["vllm:num_requests_waiting_by_reason capacity"] == 1
        # Two times 800 tokens of 8,000, the same prompt being shared or not.
        assert 0.1 <= got["vllm:kv_cache_usage_perc"] <= 0.22
        async with session.get("/load") as answer:
            assert (await answer.json())["server_load"] == 3
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.asyncio
async def test_adapters_are_named_by_what_they_do() -> None:
    settings = EngineSettings(a_s=0.01, d_s=0.0, lora_slots=1)
    async with served(settings, adapters=("a", "b")) as (server, session):
        tasks = [asyncio.create_task(post(session, body(model=name, max_tokens=100))) for name in ("a", "b")]
        await until(lambda: (server.engine.running, server.engine.waiting) == (1, 1))
        async with session.get("/metrics") as answer:
            line = next(x for x in (await answer.text()).splitlines() if x.startswith("vllm:lora_requests_info{"))
        labels = line.partition("{")[2].partition("}")[0]
        assert labels.startswith('max_lora="1",')
        assert {'running_lora_adapters="a"', 'waiting_lora_adapters="b"'} == set(labels.split(",")[1:])
        assert float(line.rpartition(" ")[2]) > 1.7e9
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.asyncio
async def test_state_tells_of_requests_by_id_and_hides_keys() -> None:
    async with served(record=3) as (_, session):
        for number in range(5):
            await post(session, body(cache_salt="s"), x_request_id=f"r{number}", authorization="Bearer secret")
        async with session.get("/sim/state?id=r4") as answer:
            raw = await answer.read()
        state = orjson.loads(raw)
        assert [(r["id"], r["salt"], r["fields"]["max_tokens"]) for r in state["requests"]] == [("r4", "s", 5)]
        assert "messages" not in state["requests"][0]["fields"]
        assert b"secret" not in raw
        async with session.get("/sim/state") as answer:
            state = await answer.json()
        assert ([r["id"] for r in state["requests"]], state["requests_total"]) == (["r2", "r3", "r4"], 5)
        async with session.get("/sim/state?requests=0") as answer:
            assert (await answer.json())["requests"] == []


@pytest.mark.asyncio
async def test_an_open_request_is_seen_with_its_tokens_so_far() -> None:
    async with served(preset("small", d_s=0.0)) as (server, session):
        task = asyncio.create_task(post(session, body(stream=True, max_tokens=500), x_request_id="r"))
        await until(lambda: server.engine.snapshot().generation_tokens_total >= 4)
        record = server.state("r")["requests"][0]
        assert (record["outcome"], record["output_tokens"] >= 4) == ("open", True)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_histogram_counts_what_is_at_a_bound_below_it() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.1, 0.5, 2.0):
        histogram.add(value)
    lines = list(histogram.lines("h", 'a="b"'))
    assert [line.rpartition(" ")[2] for line in lines] == ["1", "2", "3", "3", "2.6"]
