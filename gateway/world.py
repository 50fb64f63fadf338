"""What one configuration means to the data plane: a frozen picture that a request reads once.

A reload builds a new World and swaps it in; requests under way keep the one they began with. Gates
and limiters outlive a World, so a reload never loses a queue or a count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.gate import Gate
from gateway.isolation import Separation
from gateway.lora import Loras
from gateway.principals import Directory, Principal
from gateway.spillway import Spillway
from providers.balance import Chooser
from providers.breaker import Breaker
from providers.ejection import Replicas
from providers.exchange import Upstream
from providers.kinds import Kind
from providers.route import Route
from providers.transport import Origin, Timers
from ratelimit.group import Group
from ratelimit.limit import Limit
from ratelimit.prices import Prices
from ratelimit.usage import TokenUse


@dataclass(frozen=True, slots=True)
class Credential:
    """A secret of ours at a provider; `name` is what logs and metrics show."""

    name: str
    secret: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """Where one replica (or one provider account) is reached."""

    name: str
    base_url: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """One pool: how to speak to it and the gate that admits to it."""

    name: str
    kind: Kind
    gate: Gate
    members: Replicas  # which replicas are alive and no outliers
    chooser: Chooser
    replicas: Mapping[str, ReplicaAddress]
    credentials: Sequence[Credential]  # at least one; an engine without a key has one without a secret
    region: str
    timers: Timers
    first_token_s: float
    stall_s: float
    total_s: float
    ttft_slo_s: float
    isolation: str
    separation: Separation  # whether its salts have been shown to part tenants
    gather: bool
    priorities: bool  # its engine serves by priority
    bills_on: bool  # what is still generated after a client has left is paid for
    adapters: Mapping[str, frozenset[str] | None]  # LoRA adapters and the replicas that hold them; None is all
    extra: Mapping[str, str]
    loras: Loras | None = None  # None where the pool has no adapters
    spillway: Spillway | None = None  # None where nothing ever spills to the pool
    # What follows from the above and is found on first use.
    breakers: dict[tuple[str, str], Breaker] = field(default_factory=dict)  # by upstream model and credential
    # By replica, model, credential and priority.
    upstreams: dict[tuple[str, str, str, int | None], Upstream] = field(default_factory=dict)


class ModelPrices:
    """What a model costs: the dearest of its targets until one is chosen, then that one's."""

    __slots__ = ("_every", "by_target", "differ")

    def __init__(self, by_target: Mapping[tuple[str, str], Prices]) -> None:
        self.by_target = by_target  # by (pool, upstream model); empty when the model has no price
        self._every = tuple(set(by_target.values()))
        self.differ = len(self._every) > 1  # whether it matters which target serves

    def cost(self, use: TokenUse) -> int:
        """Micro-USD of `use` at the dearest target."""
        return max([prices.cost(use) for prices in self._every], default=0)

    def worst(self, prompt: int, output_cap: int) -> int:
        """Micro-USD that so many prompt tokens and at most so many output tokens can come to at the dearest target."""
        return max([prices.worst(prompt, output_cap) for prices in self._every], default=0)

    def at(self, target: tuple[str, str] | None, use: TokenUse) -> int:
        """Micro-USD of what was used at `target`; at the dearest when none was chosen."""
        prices = self.by_target.get(target) if target is not None else None
        return prices.cost(use) if prices is not None else self.cost(use)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One public model name."""

    name: str
    context: int | None  # tokens, prompt and output together
    max_output: int | None  # tokens of one answer, whatever the context leaves
    route: Route
    prices: ModelPrices
    owned_by: str
    created: int  # Unix seconds
    continuation: str = "auto"  # whether a stream may go on from another replica: auto, always, never


@dataclass(frozen=True, slots=True)
class World:
    """Everything a request needs to know that a configuration decides."""

    digest: str
    directory: Directory
    models: Mapping[str, ModelEntry]  # by public name and by alias
    pools: Mapping[str, PoolEntry]
    limits: Callable[[Principal, str], Sequence[Limit]]
    compile: Callable[[Sequence[Limit]], Group]
    max_body_bytes: int  # of one request
    body_timeout_s: float
    # At most keys x models. An entry is good for the principal it was made for: limits may have changed since.
    _groups: dict[tuple[str, str], tuple[Principal, Group]] = field(default_factory=dict)

    def model(self, name: str) -> ModelEntry | None:
        """The model a client asks for, by name or alias."""
        return self.models.get(name)

    def group_of(self, principal: Principal, model: ModelEntry) -> Group:
        """The limits of a principal on a model, compiled on first use."""
        key = (principal.key_id, model.name)
        found = self._groups.get(key)
        if found is None or found[0] is not principal:
            found = self._groups[key] = (principal, self.compile(self.limits(principal, model.name)))
        return found[1]
