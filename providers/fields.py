"""What the fields of a request ask for: which would steer an engine, which only hint, which a kind does not read.

Three ways to treat a field that an upstream does not take. One by which a client would steer an engine past the gateway
is removed, whoever sends it. One that asks nothing of the answer (an end user's id, a cache key, a value that is the
default) is removed too. Any other is refused by name: an answer that silently ignores half of the request helps nobody,
and another target may be able to do it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from providers.exchange import Endpoint, Unsupported

STEERING = frozenset(
    {
        # order of work and cache separation: the gateway's to set
        "priority", "cache_salt", "extra_key", "session_id", "session_params",
        # identities and transfers between replicas
        "request_id", "rid", "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "bootstrap_host",
        "bootstrap_port", "bootstrap_room", "bootstrap_pair_key", "routed_dp_rank", "data_parallel_rank",
        "disagg_prefill_dp_rank",
        # what is loaded, where, and for how long
        "lora", "lora_path", "lora_request", "id_slot", "keep_alive", "options", "_debug_render_only",
        # code of the caller's that would run inside the engine
        "custom_logit_processor", "logits_processors",
    }
)  # fmt: skip
"""Fields by which a client would steer an engine past the gateway: never passed on."""

HINTS = frozenset(
    {
        "user", "safety_identifier", "metadata", "store", "service_tier", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention", "stream_options",
        # of engines: how they go about it and what they tell besides the answer
        "cache_prompt", "timings_per_token", "stream_reasoning", "separate_reasoning", "include_reasoning",
        "return_tokens_as_token_ids", "return_token_ids", "return_hidden_states", "n_probs",
    }
)  # fmt: skip
"""Fields without which the answer is the same."""

ENGINE_FIELDS = frozenset(
    {
        "top_k", "min_p", "top_a", "typical_p", "repetition_penalty", "length_penalty", "early_stopping",
        "use_beam_search", "best_of_sequences", "ignore_eos", "min_tokens", "stop_token_ids",
        "include_stop_str_in_output", "no_stop_trim", "skip_special_tokens", "spaces_between_special_tokens",
        "truncate_prompt_tokens", "prompt_logprobs", "echo_tokens", "add_generation_prompt",
        "continue_final_message", "add_special_tokens", "chat_template", "chat_template_kwargs", "documents",
        "mm_processor_kwargs", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
        "guided_grammar", "guided_decoding_backend", "regex", "ebnf", "grammar", "json_schema",
        "allowed_token_ids", "bad_words", "return_tokens_as_token_ids", "return_token_ids", "include_reasoning",
        "separate_reasoning", "stream_reasoning", "return_hidden_states", "thinking_token_budget",
        "cache_prompt", "n_probs", "mirostat", "mirostat_tau", "mirostat_eta", "dry_multiplier",
        "xtc_probability", "samplers", "timings_per_token", "n_predict", "repeat_penalty", "repeat_last_n",
        "think", "raw", "format",
    }
)  # fmt: skip
"""Fields engines know and OpenAI's own API refuses as unknown."""

# Field -> values that ask for nothing. None never does, an empty list or object hardly ever.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "n": (1,), "best_of": (1,), "echo": (False,), "logprobs": (False,), "top_logprobs": (0,),
        "modalities": (["text"],), "tool_choice": ("auto",), "function_call": ("auto",), "parallel_tool_calls": (True,),
        "presence_penalty": (0,), "frequency_penalty": (0,), "top_k": (0, -1), "min_p": (0,), "top_a": (0,),
        "typical_p": (1,), "repetition_penalty": (1,), "repeat_penalty": (1,), "length_penalty": (1,),
        "early_stopping": (False,), "use_beam_search": (False,), "ignore_eos": (False,), "min_tokens": (0,),
        "include_stop_str_in_output": (False,), "no_stop_trim": (False,), "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,), "add_generation_prompt": (True,),
        "continue_final_message": (False,), "add_special_tokens": (False,), "mirostat": (0,),
        "dry_multiplier": (0,), "xtc_probability": (0,), "n_predict": (-1,), "raw": (False,),
    }
)  # fmt: skip

_ASK_EMPTY = frozenset({"web_search_options"})
# Fields that mean nothing without tools, at these values (None: at any).
_OF_TOOLS: Mapping[str, tuple[Any, ...] | None] = MappingProxyType(
    {"parallel_tool_calls": None, "tool_choice": ("auto", "none"), "function_call": ("auto", "none")}
)

_OLLAMA_COMPLETIONS = frozenset(
    {
        "model", "prompt", "frequency_penalty", "max_tokens", "presence_penalty", "seed", "stop", "stream",
        "stream_options", "temperature", "top_p", "suffix", "logprobs",
    }
)  # fmt: skip
_TGI_COMPLETIONS = frozenset(
    {
        "model", "prompt", "max_tokens", "temperature", "top_p", "stream", "stream_options", "seed", "suffix",
        "repetition_penalty", "frequency_penalty", "stop",
    }
)  # fmt: skip

READS: Mapping[str, Mapping[Endpoint, frozenset[str]]] = MappingProxyType(
    {
        # It refuses a request with any other field.
        "gemini-openai": MappingProxyType(
            dict.fromkeys(
                (Endpoint.CHAT, Endpoint.EMBEDDINGS),
                frozenset(
                    {
                        "model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens",
                        "temperature", "top_p", "n", "stop", "tools", "tool_choice", "parallel_tool_calls",
                        "response_format", "reasoning_effort", "presence_penalty", "frequency_penalty", "seed",
                        "logprobs", "top_logprobs", "modalities", "audio", "extra_body", "input",
                        "encoding_format", "dimensions", "user",
                    }
                ),
            )
        ),
        # These two overlook any other field.
        "ollama": MappingProxyType(
            {
                Endpoint.CHAT: frozenset(
                    {
                        "model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens",
                        "seed", "stop", "temperature", "frequency_penalty", "presence_penalty", "top_p",
                        "response_format", "tools", "reasoning", "reasoning_effort", "logprobs", "top_logprobs",
                    }
                ),
                Endpoint.COMPLETIONS: _OLLAMA_COMPLETIONS,
                Endpoint.EMBEDDINGS: frozenset({"model", "input", "encoding_format", "dimensions"}),
            }
        ),
        "tgi": MappingProxyType(
            {
                Endpoint.CHAT: frozenset(
                    {
                        "model", "messages", "frequency_penalty", "logprobs", "top_logprobs", "max_tokens",
                        "max_completion_tokens", "presence_penalty", "stop", "stream", "stream_options", "seed",
                        "temperature", "top_p", "tools", "tool_prompt", "tool_choice", "response_format",
                    }
                ),
                Endpoint.COMPLETIONS: _TGI_COMPLETIONS,
            }
        ),
    }
)  # fmt: skip
"""Kinds that read a known set of fields and no other, by endpoint."""


def asks(name: str, value: Any) -> bool:
    """Whether a field at this value asks anything of the answer."""
    if value is None or name in HINTS or name in STEERING:
        return False
    if value in ([], {}) and name not in _ASK_EMPTY:
        return False
    return not any(
        value == neutral and isinstance(value, bool) is isinstance(neutral, bool) for neutral in _NEUTRAL.get(name, ())
    )


def refuse(body: Mapping[str, Any], names: Collection[str]) -> None:
    """Raises Unsupported naming the first field of `body` among `names` that asks something of the answer."""
    for name, value in body.items():
        if name not in names or not asks(name, value):
            continue
        if name in _OF_TOOLS and not body.get("tools") and not body.get("functions"):
            harmless = _OF_TOOLS[name]
            if harmless is None or value in harmless:
                continue
        raise Unsupported(name)


def unread(body: Mapping[str, Any], reads: Collection[str]) -> set[str]:
    """The fields of `body` that an upstream which reads `reads` overlooks or refuses. Raises Unsupported naming the
    first of them that asks something of the answer.
    """
    found = {name for name in body if name not in reads}
    refuse(body, found)
    return found
