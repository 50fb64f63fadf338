"""How vLLM, SGLang, TGI, llama.cpp and Ollama differ: metrics, errors, extra fields, adapters.

Two tables. `FACTS` says what each kind of upstream can do, so no other file asks for a kind by name. `parse_metrics`
reads the few series that admission needs out of a Prometheus page that may hold ten thousand lines: it looks for wanted
names only and never builds the page. A series that is missing, or says "None" or NaN, is None: an engine that does not
report its queue is not an engine with an empty queue.

Data-parallel engines report once per rank. Counts add up; ratios do not, so they are averaged. SGLang repeats every
gauge per tensor rank, where the ranks say the same thing: there only the first tensor rank of each data rank counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from providers.exchange import Endpoint
from providers.route import Feature

_ALL = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS})
_MESSAGES = frozenset({Endpoint.MESSAGES, Endpoint.COUNT_TOKENS})
_NATIVE = _ALL | _MESSAGES | {Endpoint.RESPONSES}
_TOKENS = frozenset({Endpoint.TOKENIZE, Endpoint.DETOKENIZE})
_ENGINE = _NATIVE | _TOKENS | {Endpoint.RERANK}
_OVER_CHAT = frozenset({Endpoint.MESSAGES, Endpoint.RESPONSES})


@dataclass(frozen=True, slots=True)
class Facts:
    """What one kind of upstream can do. `engine` kinds are self-hosted; the others are accounts at a vendor."""

    engine: bool
    priority: int | None = None
    """Sign that turns "larger is more urgent" into the kind's own `priority`; None = it takes none."""
    salt: bool = False
    """Takes `cache_salt` and keeps prefix caches of different salts apart."""
    stream_options: bool = True
    """Knows `stream_options.include_usage`; otherwise the field is a 400 and streams carry no usage."""
    continuous_usage: bool = False
    """Knows `stream_options.continuous_usage_stats`."""
    continues: bool = False
    """Continues a partial assistant message (`continue_final_message`)."""
    adapter_paths: tuple[str, str] | None = None
    """Paths that load and unload a LoRA adapter (`lora_name`, `lora_path`); None = adapters are fixed at its start."""
    cancels: bool = False
    """Closing the connection stops the generation."""
    leaving_stops_billing: bool = False
    """What is not generated after the close is not paid for; False = drain to the usage, or charge the estimate."""
    developer_role: bool = False
    """Knows the `developer` role; elsewhere it is `system`."""
    output_cap: str | None = None
    """The only name of the output cap the kind is sure to read in chat; None = it reads both."""
    extras: bool = True
    """Takes unknown sampling fields (top_k, chat_template_kwargs...); otherwise they are refused."""
    finish_required: bool = False
    """A stream that ends without a finish_reason has failed even if its terminator came."""
    endpoints: frozenset[Endpoint] = _ALL
    """What it serves itself; conversations of other dialects are translated for it (see `serves`)."""
    features: frozenset[Feature] = frozenset(Feature)
    """What a request may need that some kinds cannot do in any model."""
    health_path: str | None = None
    metrics_path: str | None = None
    load_path: str | None = None

    def serves(self, endpoint: Endpoint) -> bool:
        """Whether it can be asked for this, itself or by translation to chat."""
        return endpoint in self.endpoints or (endpoint in _OVER_CHAT and Endpoint.CHAT in self.endpoints)


_VLLM = Facts(
    engine=True, priority=-1, salt=True, continuous_usage=True, continues=True, cancels=True,
    leaving_stops_billing=True, health_path="/health", metrics_path="/metrics", load_path="/load",
    adapter_paths=("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
)  # fmt: skip
_VENDOR = Facts(engine=False)
_CHAT_ONLY = frozenset({Endpoint.CHAT})
_TRANSLATED = frozenset({Feature.TOOLS, Feature.IMAGES, Feature.JSON_SCHEMA, Feature.REASONING})

FACTS: Mapping[str, Facts] = MappingProxyType(
    {
        "vllm": replace(_VLLM, endpoints=_ENGINE),
        "simulated": _VLLM,
        "sglang": Facts(
            engine=True, priority=1, salt=True, continuous_usage=True, continues=True, cancels=True,
            leaving_stops_billing=True, endpoints=_ENGINE, health_path="/health",
            metrics_path="/metrics", load_path="/v1/loads",
            adapter_paths=("/load_lora_adapter", "/unload_lora_adapter"),
        ),
        "tgi": Facts(
            engine=True, cancels=True, leaving_stops_billing=True,
            endpoints=(_ALL - {Endpoint.EMBEDDINGS}) | {Endpoint.TOKENIZE},
            features=frozenset({Feature.TOOLS, Feature.IMAGES, Feature.JSON_SCHEMA, Feature.LOGPROBS}),
            health_path="/health", metrics_path="/metrics",
        ),
        "llamacpp": Facts(
            # Cancelling was broken and repaired there more than once, so it is not relied on.
            engine=True, leaving_stops_billing=True, output_cap="max_tokens", endpoints=_ENGINE,
            health_path="/health", metrics_path="/metrics", load_path="/slots",
        ),
        "trtllm": Facts(
            engine=True, cancels=True, leaving_stops_billing=True, output_cap="max_tokens", health_path="/health",
            metrics_path="/prometheus/metrics",
        ),
        "ollama": Facts(
            engine=True, cancels=True, leaving_stops_billing=True, output_cap="max_tokens", finish_required=True,
            endpoints=_ALL | {Endpoint.MESSAGES, Endpoint.RESPONSES}, health_path="/api/version", load_path="/api/ps",
        ),
        "openai": Facts(
            engine=False, developer_role=True, output_cap="max_completion_tokens", extras=False,
            endpoints=_ALL | {Endpoint.RESPONSES, Endpoint.MODERATIONS, Endpoint.IMAGES},
        ),
        "azure": Facts(
            engine=False, developer_role=True, output_cap="max_completion_tokens", extras=False,
            endpoints=_ALL | {Endpoint.RESPONSES},
        ),
        "openai-compatible": Facts(
            engine=False, output_cap="max_tokens",
            endpoints=_ALL | {Endpoint.RERANK, Endpoint.MODERATIONS, Endpoint.IMAGES}),
        "gemini-openai": Facts(
            engine=False, extras=False, output_cap="max_tokens", endpoints=frozenset({Endpoint.CHAT,
            Endpoint.EMBEDDINGS})
        ),
        "anthropic": Facts(engine=False, extras=False, endpoints=_CHAT_ONLY | _MESSAGES, features=_TRANSLATED),
        "gemini": Facts(engine=False, extras=False, endpoints=_CHAT_ONLY, features=_TRANSLATED),
        "bedrock": Facts(engine=False, extras=False, endpoints=_CHAT_ONLY, features=_TRANSLATED),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What an engine says about itself at one scrape. None = it does not say."""

    running: int | None = None
    waiting: int | None = None
    kv_used_ratio: float | None = None
    """0 to 1."""
    kv_tokens_total: int | None = None
    """Tokens the KV cache can hold, all ranks together."""
    block_tokens: int | None = None
    max_seqs: int | None = None
    """Sequences it runs at once, all ranks together."""
    preemptions_total: int | None = None
    prefix_queries_total: int | None = None
    """Tokens looked up in the prefix cache."""
    prefix_hits_total: int | None = None
    prompt_tokens_total: int | None = None
    generation_tokens_total: int | None = None
    drafts_total: int | None = None
    """Speculative decoding: steps for which tokens were drafted."""
    accepted_total: int | None = None
    """Drafted tokens that were right."""
    lora_slots: int | None = None
    """LoRA adapters it runs at once; None also when it runs none."""


# Field of EngineFigures, or a part of one -> names of the series, the newest first: the first that is present counts.
_NAMES: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "vllm": {
            "running": ("vllm:num_requests_running",),
            "waiting": ("vllm:num_requests_waiting",),
            "kv_used_ratio": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            "preemptions_total": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
            "prefix_queries_total": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
            "prefix_hits_total": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
            "prompt_tokens_total": ("vllm:prompt_tokens_total",),
            "generation_tokens_total": ("vllm:generation_tokens_total",),
            "drafts_total": ("vllm:spec_decode_num_drafts_total",),
            "accepted_total": ("vllm:spec_decode_num_accepted_tokens_total",),
            "info": ("vllm:cache_config_info",),
            "lora": ("vllm:lora_requests_info",),
        },
        "sglang": {
            "running": ("sglang:num_running_reqs",),
            "waiting": ("sglang:num_queue_reqs",),
            "kv_used_ratio": ("sglang:token_usage",),
            "kv_tokens_total": ("sglang:max_total_num_tokens",),
            "block_tokens": ("sglang:page_size",),
            "pages": ("sglang:num_pages",),
            "preemptions_total": ("sglang:num_retracted_requests_total",),
            "prefix_hits_total": ("sglang:cached_tokens_total",),
            "prompt_tokens_total": ("sglang:prompt_tokens_total",),
            "generation_tokens_total": ("sglang:generation_tokens_total",),
        },
        "tgi": {
            "running": ("tgi_batch_current_size",),
            "waiting": ("tgi_queue_size",),
        },
        "llamacpp": {
            "running": ("llamacpp:requests_processing",),
            "waiting": ("llamacpp:requests_deferred",),
            "kv_used_ratio": ("llamacpp:kv_cache_usage_ratio",),
            "prompt_tokens_total": ("llamacpp:prompt_tokens_total",),
            "generation_tokens_total": ("llamacpp:tokens_predicted_total",),
        },
        "trtllm": {
            "running": ("trtllm_num_requests_running",),
            "waiting": ("trtllm_num_requests_waiting",),
            "kv_used_ratio": ("trtllm_kv_cache_utilization",),
            "block_tokens": ("trtllm_kv_cache_tokens_per_block",),
            "pages": ("trtllm_kv_cache_max_blocks",),
            "max_seqs": ("trtllm_max_num_active_requests",),
            "prompt_tokens_total": ("trtllm_prompt_tokens_total",),
            "generation_tokens_total": ("trtllm_generation_tokens_total",),
        },
    }
)  # fmt: skip
_ALIASES = MappingProxyType({"simulated": "vllm"})
_MEAN = frozenset({"kv_used_ratio"})
_SAME = frozenset({"block_tokens"})

_LABELS = re.compile(r'\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\}')
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


def parse_metrics(kind: str, text: str) -> EngineFigures:
    """The figures of a metrics page of an engine of `kind`; all None for a kind that has no such page."""
    names = _NAMES.get(_ALIASES.get(kind, kind))
    if names is None:
        return EngineFigures()
    found: dict[str, float] = {}
    for figure, series in names.items():
        if figure in ("info", "lora"):
            continue
        for name in series:
            values = [value for labels, value in _samples(text, name) if _counts(kind, labels)]
            if values:
                total = math.fsum(values)
                found[figure] = total / len(values) if figure in _MEAN else values[0] if figure in _SAME else total
                break
    if "info" in names:
        found.update(_cache_config(text, names["info"][0]))
    if "lora" in names:
        found.update(_lora(text, names["lora"][0]))
    if "pages" in found and "block_tokens" in found and "kv_tokens_total" not in found:
        found["kv_tokens_total"] = found["pages"] * found["block_tokens"]
    found.pop("pages", None)
    ratio = found.pop("kv_used_ratio", None)
    return EngineFigures(kv_used_ratio=ratio, **{figure: int(value) for figure, value in found.items()})


def _counts(kind: str, labels: str) -> bool:
    """Whether a sample adds to its figure: SGLang's other tensor, pipeline and expert ranks and its parts by priority
    do not.
    """
    if kind != "sglang":
        return True
    for name, value in _LABEL.findall(labels):
        if name in ("tp_rank", "pp_rank", "moe_ep_rank") and value not in ("0", ""):
            return False
        if name == "priority" and value:
            return False
    return True


def _samples(text: str, name: str) -> list[tuple[str, float]]:
    """(labels, value) of every sample of exactly `name`. Lines of other names are skipped without being split."""
    samples: list[tuple[str, float]] = []
    at = text.find(name)
    while at >= 0:
        after = at + len(name)
        if (at == 0 or text[at - 1] == "\n") and text[after : after + 1] in ("{", " ", "\t"):
            end = text.find("\n", after)
            line = text[after:] if end < 0 else text[after:end]
            block = _LABELS.match(line)
            labels = block[0] if block else ""
            value = _value(line[len(labels) :])
            if value is not None:
                samples.append((labels, value))
            after = at + len(name) + len(line)
        at = text.find(name, after)
    return samples


def _value(rest: str) -> float | None:
    """The number of a sample, whatever timestamp or exemplar follows it; None for NaN, infinities and words."""
    fields = rest.split(None, 1)
    if not fields:
        return None
    try:
        value = float(fields[0])
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _cache_config(text: str, name: str) -> dict[str, float]:
    """KV size and block size from the labels of vLLM's info gauge, summed over ranks; the set of labels varies by
    version.
    """
    tokens = 0.0
    ranks = 0
    known = True
    seats: float | None = None
    block: float | None = None
    for labels, _ in _samples(text, name):
        fields = dict(_LABEL.findall(labels))
        size = _positive(fields.get("block_size"))
        blocks = _positive(fields.get("num_gpu_blocks"))
        held = _positive(fields.get("kv_cache_size_tokens"))
        if held is None and size is not None and blocks is not None:
            held = size * blocks
        block = size if block is None else block
        ranks += 1
        known = known and held is not None
        tokens += held or 0.0
        rank_seats = _positive(fields.get("max_num_seqs"))
        seats = (seats or 0.0) + rank_seats if rank_seats is not None else seats
    found: dict[str, float] = {}
    if ranks and known:
        found["kv_tokens_total"] = tokens
    if block is not None:
        found["block_tokens"] = block
    if seats is not None:
        found["max_seqs"] = seats
    return found


def _lora(text: str, name: str) -> dict[str, float]:
    """Adapter slots from the labels of vLLM's info gauge. Its value is when it was set; label sets of the past linger,
    so the newest counts.
    """
    samples = _samples(text, name)
    if not samples:
        return {}
    labels, _ = max(samples, key=lambda sample: sample[1])
    slots = _positive(dict(_LABEL.findall(labels)).get("max_lora"))
    return {} if slots is None else {"lora_slots": slots}


def _positive(text: str | None) -> float | None:
    value = _value(text) if text else None
    return value if value is not None and value > 0 else None
