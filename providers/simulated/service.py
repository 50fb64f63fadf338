"""How a simulated engine is served: its names, its pace, and whether it poses as an engine or as a provider account."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from providers.simulated.settings import SMALL, EngineSettings


class Flavour(StrEnum):
    """ENGINE: open, with metrics and health. ACCOUNT: a key is required, requests and tokens a minute are limited."""

    ENGINE = "engine"
    ACCOUNT = "account"


class Lengths(StrEnum):
    """How long answers are. MAXIMUM: as long as the request allows, drawn when it names no maximum. DRAWN: always drawn
    and cut at the maximum, as real models do; `ignore_eos: true` in a request asks for the maximum all the same.
    """

    MAXIMUM = "maximum"
    DRAWN = "drawn"


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Everything about one simulated server. Raises ValueError naming the field when a value makes no sense."""

    engine: EngineSettings = SMALL
    models: tuple[str, ...] = ("sim-large",)
    """Names of the one base model."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters that are known from the start; asked for by using the name as the model."""
    speed: float = 1.0
    """2.0 runs twice as fast as the engine would."""
    seed: int = 0
    flavour: Flavour = Flavour.ENGINE
    api_keys: frozenset[str] = frozenset()
    """Keys that are accepted. Empty: an engine is open, an account takes any key but wants one."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt plus maximum output, taken when a request comes."""
    lengths: Lengths = Lengths.MAXIMUM
    output_median: float = 128.0
    """Tokens: median of the log-normal draw of output lengths."""
    output_sigma: float = 0.8
    embedding_dimensions: int = 64
    cold_start_s: float = 0.0
    """Engine seconds after the start during which health and requests are answered 503."""
    max_body_bytes: int = 64 * 1024 * 1024
    max_waiting: int | None = None
    """Sequences that may wait; more are answered 503. None: no bound, as engines come."""
    record: int = 2_000
    """Latest requests that `/sim/state` remembers."""
    extra_labels: dict[str, str] = field(default_factory=dict)
    """Further labels on `vllm:cache_config_info`."""

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("models must name at least one model")
        if self.adapters and self.engine.lora_slots == 0:
            raise ValueError("adapters are named but the engine has no lora_slots")
        for name in ("speed", "output_median", "embedding_dimensions", "max_body_bytes", "record"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above zero")
        for name in ("output_sigma", "cold_start_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} cannot be negative")
        for name in ("requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1")
