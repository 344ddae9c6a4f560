"""Saturation panels: queues, KV cache and its cascade, prefix cache, adapters, speculation.

Limits come from the catalogue. Values that exported sums cannot give (acceptance per token, DESIGN 3.7) come from
verdicts. A new panel is a function here and a place in a dashboard.
"""

from __future__ import annotations

from exporters.grafana import queries as q
from exporters.grafana.queries import SeriesScope
from exporters.grafana.records import (
    AMBER,
    RATIO,
    RED,
    STAGES,
    STATE,
    LineStyle,
    Panel,
    PanelType,
    Query,
    ThresholdStep,
    falling_thresholds,
    falling_twice,
    rising_thresholds,
    signal_text,
    signal_unit,
)
from exporters.metrics import names

KV_STEPS = rising_thresholds(("KvCacheCascade", "filling_level", "yellow"), ("KvCacheNearCeiling", "above", RED))
"""Threshold colours of the KV cache utilisation."""


def queue(where: SeriesScope) -> Panel:
    """Return running and waiting requests, and the planned requests in the system."""
    planned = q.multiply(q.replicas_up(where, q.BY_POOL), q.metric_by_tier(where, names.PLAN_C_MAX), q.POOLS_TO_TIER)
    return Panel(
        title="Requests in the system",
        description="Dashed: as many as all running replicas hold at the planned operating point.",
        unit=signal_unit("requests_running"),
        queries=(
            Query(expr=q.aggregate("sum", q.BY_POOL, q.level(where, "requests_running")), legend="running {{pool}}"),
            Query(expr=q.aggregate("sum", q.BY_POOL, q.level(where, "requests_waiting")), legend="waiting {{pool}}"),
            Query(expr=planned, legend="planned at most {{pool}}", line=LineStyle.PLAN),
        ),
    )


def kv_level(where: SeriesScope) -> Panel:
    level = q.level(where, "kv_utilization")
    return Panel(
        title="KV cache in use",
        description="Mean over the replicas, and the fullest of them.",
        unit=signal_unit("kv_utilization"),
        queries=(
            Query(expr=q.aggregate("avg", q.BY_POOL, level), legend="mean {{pool}}"),
            Query(expr=q.aggregate("max", q.BY_POOL, level), legend="fullest {{pool}}"),
        ),
        steps=KV_STEPS,
        top=1.0,
    )


def evictions(
    where: SeriesScope,
    labels: tuple[str, ...] = q.BY_POOL,
    *,
    legend: str = "evictions {{pool}}",
    description: str = signal_text("eviction_rate"),
    width: int = 8,
) -> Panel:
    """Return preemptions by finished requests, a ratio of two counters (DESIGN 3.8)."""
    ratio = q.divide(q.total(where, "preemptions", labels), q.total(where, "requests_finished", labels))
    return Panel(
        title="Evictions per request",
        description=description,
        unit=signal_unit("eviction_rate"),
        queries=(Query(expr=ratio, legend=legend),),
        steps=rising_thresholds(("KvEviction", "warning", AMBER), ("KvEviction", "critical", RED)),
        width=width,
    )


def cascade(where: SeriesScope, width: int = 24, height: int = 4) -> Panel:
    return Panel(
        title="KV cache cascade",
        description=f"{names.CASCADE_STAGE.text}. A page is sent from the third stage on.",
        kind=PanelType.STATES,
        unit=STATE,
        queries=(Query(expr=q.metric(where, names.CASCADE_STAGE), legend="{{replica}}"),),
        states=STAGES,
        steps=tuple(ThresholdStep(value=state.value or None, colour=state.colour) for state in STAGES),
        width=width,
        height=height,
    )


def residency(where: SeriesScope) -> Panel:
    """Return the lifetime of a KV block and its transfer time, for engines that expose them."""
    return Panel(
        title="Life and moves of KV blocks",
        description=f"{signal_text('kv_residency_p50_seconds')} Moves: {names.metric('kv_transfer_seconds').text.lower()}.",
        unit="s",
        queries=(
            Query(expr=q.quantile(where, 0.5, "kv_residency_seconds"), legend="life P50 {{pool}} {{engine_version}}"),
            Query(expr=q.quantile(where, 0.99, "kv_transfer_seconds"), legend="move P99 {{pool}} {{engine_version}}"),
        ),
    )


def offloading(where: SeriesScope) -> tuple[Panel, Panel]:
    """Return hits and use of the offloaded KV cache, and the mean time of its transfers beside the failed ones."""
    hits = q.divide(q.total(where, "external_prefix_hit_tokens"), q.total(where, "prefix_queried_tokens"))
    used, fits = (
        q.aggregate("sum", q.BY_POOL, q.level(where, f"kv_offload_{word}_tokens")) for word in ("used", "total")
    )
    times = (
        (way, q.divide(*(q.total(where, f"kv_offload_{way}_{part}") for part in ("seconds", "transfers"))))
        for way in ("load", "store")
    )
    return (
        Panel(
            title="Offloaded KV cache",
            description="Prompt tokens found outside the GPU's own cache, of all looked up, and how full that cache is.",
            unit=RATIO,
            queries=(
                Query(expr=hits, legend="hits {{pool}}"),
                Query(expr=q.divide(used, fits), legend="in use {{pool}}"),
            ),
            top=1.0,
        ),
        Panel(
            title="Offloaded KV cache: time of a transfer",
            description=f"{signal_text('kv_offload_load_mean_seconds')} Store: the other way.",
            unit="s",
            queries=tuple(Query(expr=expr, legend=f"{way} {{{{pool}}}}") for way, expr in times),
        ),
    )


def prefix_hits(where: SeriesScope) -> Panel:
    """Return the share of prompt tokens found in the prefix cache, and the planned share."""
    hits = q.divide(q.total(where, "prefix_hit_tokens"), q.total(where, "prefix_queried_tokens"))
    return Panel(
        title="Prefix cache hits",
        description=signal_text("prefix_hit_ratio"),
        unit=signal_unit("prefix_hit_ratio"),
        queries=(
            Query(expr=hits, legend="hits {{pool}}"),
            Query(expr=q.metric_by_tier(where, names.PLAN_PREFIX_HITS), legend="planned", line=LineStyle.PLAN),
        ),
        steps=falling_thresholds("PrefixHitLow", "below"),
        top=1.0,
    )


def adapters(where: SeriesScope) -> Panel:
    return Panel(
        title="Adapters",
        description="LoRA adapters with running requests, and with requests that wait for one.",
        unit="short",
        queries=tuple(
            Query(expr=q.aggregate("sum", q.BY_POOL, q.level(where, f"adapters_{word}")), legend=f"{word} {{{{pool}}}}")
            for word in ("running", "waiting")
        ),
    )


def tokens_a_round(where: SeriesScope) -> Panel:
    """Return the tokens per speculation round: the verified token and the accepted tokens."""
    accepted = q.divide(q.total(where, "spec_accepted_tokens"), q.total(where, "spec_drafts"))
    even = f"max by (cluster, tier) ({q.total(where, 'spec_drafts')}) * 0 + 1"
    return Panel(
        title="Speculation: tokens a round",
        description=f"{signal_text('tokens_per_round')} At 1 nothing is gained.",
        unit="short",
        queries=(
            Query(expr=f"1 + {accepted}", legend="tokens a round {{pool}}"),
            Query(expr=even, legend="nothing gained", line=LineStyle.LIMIT),
        ),
    )


def acceptance(where: SeriesScope) -> Panel:
    """Return acceptance per token from the agent's verdict. Two exported counters cannot give it."""
    rule = "SpeculationAcceptanceLow"
    seen = q.aggregate("max", q.BY_TIER, where.selector(names.OBSERVED.name, f'rule="{rule}"', 'bound=""'))
    return Panel(
        title="Speculation: acceptance per token",
        description=signal_text("speculative_acceptance"),
        unit=RATIO,
        queries=(Query(expr=seen, legend="acceptance"),),
        steps=falling_twice((rule, "critical_below"), (rule, "below")),
        top=1.0,
    )
