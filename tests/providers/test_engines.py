"""Metrics pages of every engine, as they come: labels, ranks, words where numbers should be, and size."""

from __future__ import annotations

import time

import pytest

from providers.engines import FACTS, EngineFigures, parse_metrics

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta/llama"} 3.0
vllm:num_requests_running{engine="1",model_name="meta/llama"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta/llama"} 0.0
vllm:num_requests_waiting{engine="1",model_name="meta/llama"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="meta/llama",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="meta/llama"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="meta/llama"} 0.75
vllm:num_preemptions_total{engine="0",model_name="meta/llama"} 5.0
vllm:num_preemptions_total{engine="1",model_name="meta/llama"} 1.0
vllm:num_preemptions_created{engine="0",model_name="meta/llama"} 1.7e+09
vllm:prefix_cache_queries_total{engine="0",model_name="meta/llama"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="meta/llama"} 250.0
vllm:prompt_tokens_total{engine="0",model_name="meta/llama"} 1.5e+06
vllm:generation_tokens_total{engine="0",model_name="meta/llama"} 20000.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="1000",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="1",num_gpu_blocks="1000",sliding_window="None"} 1.0
"""

SGLANG = """\
sglang:num_running_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"} 6.0
sglang:num_running_reqs{engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="1"} 6.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="",tp_rank="0"} 5.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="1",tp_rank="0"} 2.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="0",tp_rank="0"} 3.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.5
sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 65536.0
sglang:max_total_num_tokens{model_name="m",tp_rank="1"} 65536.0
sglang:page_size{model_name="m",tp_rank="0"} 1.0
sglang:num_pages{model_name="m",tp_rank="0"} 65536.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 40.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 2.0
sglang:prompt_tokens_total{model_name="m"} 100.0
"""

TGI = """\
# TYPE tgi_queue_size gauge
tgi_queue_size 4
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 8
tgi_batch_current_max_tokens 9000
tgi_request_count 12
"""

LLAMACPP = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 120
llamacpp:tokens_predicted_total 30
llamacpp:requests_processing 4
llamacpp:requests_deferred 8
"""

TRTLLM = """\
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 2.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 1.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.125
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 512.0
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 32.0
trtllm_max_num_active_requests{engine_type="trtllm",model_name="m"} 64.0
"""


def test_vllm_ranks_add_up_and_their_ratios_are_averaged() -> None:
    assert parse_metrics("vllm", VLLM) == EngineFigures(
        running=7,
        waiting=2,
        kv_used_ratio=0.5,
        kv_tokens_total=32000,
        block_tokens=16,
        preemptions_total=6,
        prefix_queries_total=1000,
        prefix_hits_total=250,
        prompt_tokens_total=1_500_000,
        generation_tokens_total=20_000,
    )
    assert parse_metrics("simulated", VLLM) == parse_metrics("vllm", VLLM)


def test_vllms_own_size_of_its_cache_is_preferred() -> None:
    line = 'vllm:cache_config_info{block_size="32",engine="0",kv_cache_size_tokens="1280",num_gpu_blocks="50"} 1.0\n'
    found = parse_metrics("vllm", line)
    assert (found.kv_tokens_total, found.block_tokens) == (1280, 32)


@pytest.mark.parametrize("blocks", ['num_gpu_blocks="None"', 'num_gpu_blocks="0"', 'other="1"', 'num_gpu_blocks="nan"'])
def test_a_cache_size_that_is_not_said_is_unknown(blocks: str) -> None:
    line = 'vllm:cache_config_info{block_size="16",engine="0",%s} 1.0\n'
    both = VLLM + line.replace("%s", blocks).replace('engine="0"', 'engine="2"')
    assert parse_metrics("vllm", both).kv_tokens_total is None
    found = parse_metrics("vllm", line % blocks)
    assert (found.kv_tokens_total, found.block_tokens) == (None, 16)


def test_old_names_still_count() -> None:
    assert parse_metrics("vllm", 'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n').kv_used_ratio == 0.5


def test_sglang_counts_one_tensor_rank_and_the_total_over_priorities() -> None:
    assert parse_metrics("sglang", SGLANG) == EngineFigures(
        running=6,
        waiting=5,
        kv_used_ratio=0.5,
        kv_tokens_total=65536,
        block_tokens=1,
        prefix_hits_total=42,
        prompt_tokens_total=100,
    )


def test_sglang_data_ranks_add_up() -> None:
    page = 'sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 2\nsglang:num_running_reqs{dp_rank="1",tp_rank="0"} 3\n'
    assert parse_metrics("sglang", page).running == 5


def test_tgi() -> None:
    assert parse_metrics("tgi", TGI) == EngineFigures(running=8, waiting=4)


def test_llamacpp() -> None:
    found = parse_metrics("llamacpp", LLAMACPP)
    assert found == EngineFigures(running=4, waiting=8, prompt_tokens_total=120, generation_tokens_total=30)


def test_trtllm() -> None:
    assert parse_metrics("trtllm", TRTLLM) == EngineFigures(
        running=2, waiting=1, kv_used_ratio=0.125, kv_tokens_total=16384, block_tokens=32, max_seqs=64
    )


@pytest.mark.parametrize("kind", sorted(FACTS))
def test_what_is_missing_is_unknown_and_never_zero(kind: str) -> None:
    assert parse_metrics(kind, "") == EngineFigures()
    assert parse_metrics(kind, "<html>not found</html>") == EngineFigures()


@pytest.mark.parametrize("value", ["NaN", "+Inf", "None", "", "{}"])
def test_a_value_that_is_no_number_is_unknown(value: str) -> None:
    assert parse_metrics("tgi", f"tgi_queue_size {value}\ntgi_batch_current_size 2").waiting is None
    assert parse_metrics("tgi", f"tgi_queue_size {value}\ntgi_batch_current_size 2").running == 2


def test_timestamps_exemplars_and_braces_in_labels_do_no_harm() -> None:
    page = 'vllm:num_requests_running{model_name="a} \\"b\\" {c"} 3 1700000000000 # {trace="1"} 5\n'
    assert parse_metrics("vllm", page).running == 3
    assert parse_metrics("vllm", "vllm:num_requests_running 3 1700000000000").running == 3


def test_a_name_that_only_begins_the_same_does_not_count() -> None:
    page = "tgi_queue_size_bucket 7\nother_tgi_queue_size 9\n# tgi_queue_size 5\n"
    assert parse_metrics("tgi", page).waiting is None


def test_a_page_of_ten_thousand_lines_is_read_in_less_than_five_milliseconds() -> None:
    buckets = "".join(
        f'vllm:time_to_first_token_seconds_bucket{{engine="{n % 8}",le="{n}",model_name="meta/llama"}} {n}\n'
        for n in range(10_000)
    )
    page = buckets + VLLM
    best = min(_seconds(page) for _ in range(10))
    assert parse_metrics("vllm", page) == parse_metrics("vllm", VLLM)
    assert best < 0.005, f"{best * 1e3:.1f} ms"


def _seconds(page: str) -> float:
    start = time.process_time()
    parse_metrics("vllm", page)
    return time.process_time() - start


def test_facts_agree_with_each_other() -> None:
    for name, facts in FACTS.items():
        assert facts.engine or facts.priority is None, name
        assert facts.engine or not facts.salt, name
        assert not facts.leaving_stops_billing or facts.engine, name
        assert facts.output_cap in (None, "max_tokens", "max_completion_tokens"), name
    assert (FACTS["vllm"].priority, FACTS["sglang"].priority) == (-1, 1)


def test_vllm_tells_its_speculation_and_the_newest_count_of_adapter_slots() -> None:
    page = VLLM + (
        'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0\n'
        'vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 130.0\n'
        'vllm:lora_requests_info{max_lora="2",running_lora_adapters="a",waiting_lora_adapters=""} 1.7e+09\n'
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.8e+09\n'
    )
    figures = parse_metrics("vllm", page)
    assert (figures.drafts_total, figures.accepted_total, figures.lora_slots) == (100, 130, 4)
    assert parse_metrics("vllm", VLLM).lora_slots is None
