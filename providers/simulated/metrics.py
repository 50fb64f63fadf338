"""The metrics page of a simulated engine, under the names and with the buckets that vLLM uses."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from providers.simulated.sequence import EngineSnapshot
from providers.simulated.settings import EngineSettings

_FIRST = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_GAP = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_SPAN = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0,
    30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_SIZES = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))


class Histogram:
    """Counts by bucket, their number and their sum."""

    __slots__ = ("bounds", "count", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        # One more than bounds: the last counts what is above them all. Not cumulative.
        self.counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.total += value

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """The exposition lines, cumulative as the format wants."""
        running = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            running += count
            yield f'{name}_bucket{{le="{bound:g}",{labels}}} {running}'
        yield f'{name}_bucket{{le="+Inf",{labels}}} {self.count}'
        yield f"{name}_count{{{labels}}} {self.count}"
        yield f"{name}_sum{{{labels}}} {self.total}"


class ServingMetrics:
    """What the server counts beyond what the engine itself does. Times are engine seconds."""

    def __init__(self) -> None:
        self.first_token = Histogram(_FIRST)
        self.token_gap = Histogram(_GAP)
        self.per_output_token = Histogram(_GAP)
        self.whole = Histogram(_SPAN)
        self.queue = Histogram(_SPAN)
        self.prefill = Histogram(_SPAN)
        self.decode = Histogram(_SPAN)
        self.prompt_sizes = Histogram(_SIZES)
        self.output_sizes = Histogram(_SIZES)
        self.finished: dict[str, int] = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self.rejected = 0

    def page(
        self,
        settings: EngineSettings,
        snapshot: EngineSnapshot,
        model: str,
        adapters: tuple[tuple[str, ...], tuple[str, ...]],
        now: float,
        extra: Mapping[str, str],
    ) -> str:
        """The whole page. `adapters` are those running and those waiting, `now` is Unix time in seconds."""
        labels = f'engine="0",model_name="{_escaped(model)}"'
        out: list[str] = []
        gauges = {
            "num_requests_running": snapshot.running,
            "num_requests_waiting": snapshot.waiting,
            "kv_cache_usage_perc": snapshot.kv_usage,
        }
        for name, value in gauges.items():
            out += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{labels}}} {value}"]
        counters = {
            "num_preemptions": snapshot.preemptions_total,
            "prefix_cache_queries": snapshot.prefix_queries_total,
            "prefix_cache_hits": snapshot.prefix_hits_total,
            "prompt_tokens": snapshot.prompt_tokens_total,
            "prompt_tokens_cached": snapshot.prefix_hits_total,
            "generation_tokens": snapshot.generation_tokens_total,
            "spec_decode_num_drafts": snapshot.drafts_total,
            "spec_decode_num_draft_tokens": snapshot.draft_tokens_total,
            "spec_decode_num_accepted_tokens": snapshot.accepted_tokens_total,
        }
        for name, value in counters.items():
            out += [f"# TYPE vllm:{name} counter", f"vllm:{name}_total{{{labels}}} {value}"]
        out.append("# TYPE vllm:num_requests_waiting_by_reason gauge")
        out.append(f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} {snapshot.waiting}')
        out.append(f'vllm:num_requests_waiting_by_reason{{{labels},reason="deferred"}} 0')
        out.append("# TYPE vllm:request_success counter")
        for reason, count in self.finished.items():
            out.append(f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {count}')
        out.append("# TYPE vllm:admission_rejections counter")
        rejected = f'model_name="{_escaped(model)}",reason="max_num_queued_reqs"'
        out.append(f"vllm:admission_rejections_total{{{rejected}}} {self.rejected}")
        out += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{_cache(settings, extra)}}} 1.0"]
        if settings.lora_slots:
            running, waiting = (",".join(_escaped(name) for name in names) for names in adapters)
            lora = f'max_lora="{settings.lora_slots}",running_lora_adapters="{running}"'
            out.append("# TYPE vllm:lora_requests_info gauge")
            out.append(f'vllm:lora_requests_info{{{lora},waiting_lora_adapters="{waiting}"}} {now}')
        histograms = {
            "time_to_first_token_seconds": self.first_token,
            "inter_token_latency_seconds": self.token_gap,
            "request_time_per_output_token_seconds": self.per_output_token,
            "e2e_request_latency_seconds": self.whole,
            "request_queue_time_seconds": self.queue,
            "request_prefill_time_seconds": self.prefill,
            "request_decode_time_seconds": self.decode,
            "request_prompt_tokens": self.prompt_sizes,
            "request_generation_tokens": self.output_sizes,
        }
        for name, histogram in histograms.items():
            out.append(f"# TYPE vllm:{name} histogram")
            out.extend(histogram.lines(f"vllm:{name}", labels))
        out.append("")
        return "\n".join(out)


def _cache(settings: EngineSettings, extra: Mapping[str, str]) -> str:
    fields: dict[str, str] = {
        "block_size": str(settings.block_tokens),
        "cache_dtype": "auto",
        "enable_prefix_caching": str(settings.prefix_cache),
        "engine": "0",
        "kv_cache_size_tokens": str(settings.blocks * settings.block_tokens),
        "num_gpu_blocks": str(settings.blocks),
        "sliding_window": "None",
        **extra,
    }
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in fields.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
