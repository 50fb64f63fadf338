"""Settings as the values that the rooms take: one function a value, no state, nothing built."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from fairqueue.admission import PoolSettings
from fairqueue.bounds import Bounds
from fairqueue.capacity import Capacity
from fairqueue.item import Costs, RequestClass
from fairqueue.reservations import Reservation, Vector
from gateway import limit_rules
from gateway.clock import Clock
from gateway.limits import compiled_all
from gateway.lora import Loras, Source
from gateway.principals import Principal
from gateway.settings import Config, Failover, Tls
from gateway.settings_models import Model
from gateway.settings_models import Prices as PriceSettings
from gateway.settings_pools import Pool
from gateway.settings_tenants import Reservation as ReservationSettings
from gateway.world import Credential, ModelPrices, ReplicaAddress
from providers.engines import FACTS
from providers.health import BreakerSettings
from providers.retry import RetrySettings
from providers.route import FailureDomain, Feature, Route, Target, Tier
from providers.transport import Origin, Timers
from providers.watch import Watched
from ratelimit.limit import Limit, Mode
from ratelimit.prices import PriceBook, Prices, Unpriced, prices_from

_SCHEDULE_DAYS = 9  # days of a weekly schedule laid out ahead; renewed long before they run out


def pool_settings(name: str, pool: Pool, config: Config) -> PoolSettings:
    """How a pool admits."""
    classes = {RequestClass.INTERACTIVE: config.classes.interactive, RequestClass.BATCH: config.classes.batch}
    return PoolSettings(
        name=name,
        ttft_slo_s=pool.slo.ttft_ms / 1000,
        tpot_slo_s=pool.slo.tpot_ms / 1000,
        engine=bool(pool.replicas),
        costs=Costs(pool.cost.prompt, pool.cost.cached, pool.cost.output),
        class_weights={cls: settings.weight for cls, settings in classes.items()},
        queue_timeouts_s={cls: settings.queue_timeout_ms / 1000 for cls, settings in classes.items()},
        bounds=Bounds(items=pool.queue.requests, cost=pool.queue.cost, tenant_cost=pool.queue.tenant_cost),
        kv_fraction=pool.kv_fraction,
        stale_kv_fraction=min(0.85, pool.kv_fraction),
        scrape_interval_s=pool.poll_ms / 1000,
        headroom=pool.headroom,
    )


def places(pool: Pool) -> dict[str, ReplicaAddress]:
    """Where a pool is reached, by the name of the replica (or of the account)."""
    return {name: ReplicaAddress(name, url, Origin.parse(url)[0]) for name, url in pool.addresses()}


def credentials(pool: Pool) -> tuple[Credential, ...]:
    """What may be presented there; one without a secret where nothing is asked for."""
    return tuple(Credential(name, secret) for name, secret in pool.secrets()) or (Credential("none", None),)


def bills_on(pool: Pool) -> bool:
    """Whether a provider bills what it generates after the connection is closed; our own servers stop."""
    return not pool.replicas and not FACTS[pool.kind].leaving_stops_billing


def watched(pool: Pool) -> list[Watched]:
    """What to poll of a pool's replicas."""
    facts = FACTS[pool.kind]
    found = []
    for replica in pool.replicas:
        origin, _ = Origin.parse(replica.url)
        # Engines keep health and metrics at the root, whatever the prefix of their API.
        health = f"{origin}{facts.health_path}" if facts.health_path else None
        metrics = f"{origin}{facts.metrics_path}" if facts.metrics_path else None
        models = f"{origin}/v1/models" if pool.adapters else None
        found.append(Watched(replica.name, pool.kind, health, metrics, models))
    return found


def _domain(pool: Pool) -> FailureDomain:
    return FailureDomain(*pool.domain())


def prices(config: Config) -> dict[str, ModelPrices]:
    """What each model costs at each of its targets; what has no price of its own follows the config's policy."""
    given = {
        (name, (target.pool, target.model)): target.prices or model.prices
        for name, model in config.models.items()
        for tier in model.tiers
        for target in tier.targets
    }
    book = PriceBook(
        {repr(key): prices_from(price.given()) for key, price in given.items() if price is not None},
        unpriced=Unpriced(config.unpriced),
    )
    found: dict[str, dict[tuple[str, str], Prices]] = {name: {} for name in config.models}
    for name, target in given:
        price = book.of(repr((name, target)))
        if price is not None:
            found[name][target] = price
    return {name: ModelPrices(by_target) for name, by_target in found.items()}


def reservation(given: ReservationSettings, measured: Vector, clock: Clock) -> Reservation:
    """A share of a pool as what it is worth in the capacity measured now; the unmeasured guarantees nothing yet."""
    offset = clock.monotonic() - clock.unix()
    today = datetime.fromtimestamp(clock.unix(), ZoneInfo(given.timezone)).date()
    rate = given.rate_share * (measured.rate or 0.0)
    return Reservation(
        rate=rate,
        burst=rate * given.burst_s,
        seats=int(given.room_share * (measured.seats or 0)),
        kv_tokens=int(given.room_share * (measured.kv_tokens or 0)),
        hold=given.hold,
        windows=given.windows(today - timedelta(days=1), _SCHEDULE_DAYS, offset),
    )


def adapters(pool: Pool) -> dict[str, frozenset[str] | None]:
    """The LoRA adapters of a pool and the replicas that hold them; None is all."""
    return {name: frozenset(adapter.replicas) or None for name, adapter in pool.adapters.items()}


def equip(loras: Loras, pool: Pool) -> None:
    """Tells `loras` the pool's adapters, where its replicas are, and how they are asked to load one."""
    loras.configure(
        {
            name: Source(adapter.source, adapter.base or pool.lora.base, frozenset(adapter.replicas) or None)
            for name, adapter in pool.adapters.items()
        },
        {replica.name: str(Origin.parse(replica.url)[0]) for replica in pool.replicas},
        FACTS[pool.kind].adapter_paths,
        pool.lora.slots,
    )


def line(settings: PoolSettings) -> PoolSettings:
    """How those wait who may not spill to a pool yet: as they would in its own queue, one of them being next."""
    return replace(settings, name=f"spill to {settings.name}", engine=False, preempt_for_interactive=False)


def spilled_to(config: Config) -> frozenset[str]:
    """The pools in later tiers of some model."""
    return frozenset(
        target.pool for model in config.models.values() for tier in model.tiers[1:] for target in tier.targets
    )


def server_tls(tls: Tls | None) -> ssl.SSLContext | None:
    """What a listener serves HTTPS with. Raises OSError when a file cannot be read, ssl.SSLError when it is no PEM."""
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls.certificate, tls.private_key)
    return context


def limits_of(config: Config) -> Callable[[Principal, str], Sequence[Limit]]:
    """The limits of a principal on a model under this config."""
    when_away = Mode(config.limits_when_store_is_away)
    by_model = limit_rules.model_rules(config)
    largest = max((model.context for model in config.models.values()), default=1)

    def limits(principal: Principal, model: str) -> Sequence[Limit]:
        rules = (*principal.limits, *principal.model_limits.get(model, ()), *by_model.get(model, ()))
        return compiled_all(
            rules,
            organisation=principal.organisation or principal.tenant,
            largest_tokens=largest,
            when_away=when_away,
        )

    return limits


def capacity(pool: Pool) -> Capacity:
    """What a replica may take at most, as configured."""
    given = pool.capacity
    return Capacity(
        seats=given.seats,
        kv_tokens=given.kv_tokens,
        prefill_rate=given.prefill_tokens_per_s,
        chunk_tokens=given.chunk_tokens,
    )


def timers(pool: Pool) -> Timers:
    """The timers of one attempt; silence before the first token is the relay's to judge."""
    return Timers(
        connect_s=pool.timeouts.connect_ms / 1000,
        head_s=pool.timeouts.first_token_ms / 1000,
        idle_s=pool.timeouts.stall_ms / 1000,
    )


def route(name: str, model: Model, config: Config) -> Route:
    """A model's tiers."""
    return Route(
        name,
        tuple(
            Tier(
                targets=tuple(
                    Target(
                        pool=target.pool,
                        model=target.model,
                        failure_domain=_domain(config.pools[target.pool]),
                        weight=target.weight,
                        context=target.context or model.context,
                        features=_features(target.features or model.features, config.pools[target.pool].kind),
                        input_usd_per_mtok=_usd(target.prices or model.prices, "input"),
                        output_usd_per_mtok=_usd(target.prices or model.prices, "output"),
                    )
                    for target in tier.targets
                ),
                after_s=None if tier.after_ms is None else tier.after_ms / 1000,
            )
            for tier in model.tiers
        ),
    )


def _features(names: Sequence[str] | None, kind: str) -> frozenset[Feature]:
    """What a target can do: what is said of it, and never more than its kind can."""
    can = FACTS[kind].features
    return can if names is None else can & {Feature(name) for name in names}


def _usd(given: PriceSettings | None, which: str) -> float | None:
    if given is None:
        return None
    return float(given.input_usd_per_mtok if which == "input" else given.output_usd_per_mtok)


def retry(failover: Failover) -> RetrySettings:
    """The attempt budget."""
    return RetrySettings(
        max_attempts=failover.max_attempts,
        ratio=failover.retry_ratio,
        per_second=failover.retries_per_s,
        pause_base_s=failover.backoff_ms / 1000,
        pause_cap_s=failover.backoff_max_ms / 1000,
    )


def breaker(failover: Failover) -> BreakerSettings:
    """The circuit breakers of targets."""
    given = failover.breaker
    return BreakerSettings(
        window_s=given.window_s,
        min_samples=given.min_requests,
        failure_ratio=given.failure_ratio,
        slow_ratio=given.slow_ratio,
        connect_errors=given.connect_errors,
        open_base_s=given.open_ms / 1000,
        open_cap_s=given.open_max_ms / 1000,
    )
