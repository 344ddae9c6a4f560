"""Request panels of several dashboards: rate, errors and latencies against the plan.

`where` selects tiers or replicas, `labels` stay apart. Latencies are quantiles of the engines' buckets and as coarse.
The plan's line is the benchmark's P99 at the present load. A new latency is a row of LATENCIES.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporters.grafana import queries as q
from exporters.grafana.queries import SeriesScope
from exporters.grafana.records import RATIO, LineStyle, Panel, Query, limit, signal_text, signal_unit
from exporters.metrics import names
from exporters.metrics.names import ExportedMetric

LATENCIES: Mapping[str, tuple[str, str, ExportedMetric, str]] = {
    "ttft": ("TTFT", "ttft_seconds", names.PLAN_TTFT, "TtftDivergence"),
    "tpot": ("TPOT", "tpot_seconds", names.PLAN_TPOT, "TpotDivergence"),
    "itl": ("ITL", "itl_seconds", names.PLAN_ITL, "ItlDivergence"),
}
"""Title, family, objective and benchmark comparison rule (at equal load) by latency."""


UNSERVED = (
    ("error of the engine", "requests_failed"),
    ("5xx", "http_requests_failed"),
    ("refused, no room", "admission_rejections"),
    ("4xx", "http_requests_refused"),
    ("KV transfer failed", "kv_transfer_failures"),
)
"""Legends and families of unserved requests."""


def label_legend(labels: tuple[str, ...]) -> str:
    """Return the legend of series by their grouping labels within a tier."""
    return " ".join(f"{{{{{label}}}}}" for label in labels if label not in (q.CLUSTER, names.TIER))


def series_legend(labels: tuple[str, ...]) -> str:
    """Return the legend of series by their grouping labels and the engine's release."""
    return label_legend((*labels, "engine_version"))


def latency(where: SeriesScope, which: str, labels: tuple[str, ...] = q.BY_POOL, width: int = 12) -> Panel:
    """Return P50 and P99 of a latency, its objective, and the benchmark's P99 at this load with its tolerance."""
    title, family, promised, rule = LATENCIES[which]
    expected = q.aggregate("max", q.BY_TIER, where.selector(names.EXPECTED.name, f'rule="{rule}"', 'bound=""'))
    factor, benchmark = limit(rule, "factor"), "benchmark P99 at this load"
    comparison: tuple[Query, ...] = ()
    if names.REPLICA not in labels:
        comparison = (
            Query(expr=expected, legend=benchmark, line=LineStyle.PLAN),
            Query(
                expr=f"{factor:g} * {expected}",
                legend=f"up to {factor:g} x that",
                line=LineStyle.BAND,
                down_to=benchmark,
            ),
        )
    return Panel(
        title=f"{title}: P50 and P99",
        description=f"{names.metric(family).text}. Red is what is promised for P99; dashed, what the benchmark measured at this "
        f"load, and above it the {factor:g} x from which {rule} speaks.",
        unit="s",
        queries=(
            *_quantiles(where, family, labels),
            Query(expr=q.metric_by_tier(where, promised), legend="promised P99", line=LineStyle.LIMIT),
            *comparison,
        ),
        width=width,
    )


def _quantiles(
    where: SeriesScope, family: str, labels: tuple[str, ...] = q.BY_POOL, quantiles: tuple[float, ...] = (0.5, 0.99)
) -> tuple[Query, ...]:
    return tuple(
        Query(expr=q.quantile(where, quantile, family, labels), legend=f"P{quantile * 100:.0f} {series_legend(labels)}")
        for quantile in quantiles
    )


def times_of_requests(where: SeriesScope) -> Panel:
    """Return the time of a request by phase."""
    return Panel(
        title="Whole request and queue: P50 and P99",
        description=f"{signal_text('e2e_p99_seconds')} Queue: {names.metric('queue_seconds').text.lower()}. "
        "Red is what is promised for P99 of whole requests.",
        unit="s",
        queries=(
            *_quantiles(where, "e2e_seconds"),
            Query(expr=q.metric_by_tier(where, names.PLAN_E2E), legend="promised P99", line=LineStyle.LIMIT),
            Query(
                expr=q.quantile(where, 0.99, "queue_seconds"),
                legend=f"queue P99 {series_legend(q.BY_POOL)}",
                line=LineStyle.FAINT,
            ),
        ),
        width=12,
    )


def traffic(where: SeriesScope) -> Panel:
    """Return finished requests against the capacity of running replicas and the plan's peak."""
    return Panel(
        title="Requests per second",
        description="Finished requests, by pool. Dashed: what the replicas that are up can take at the planned operating "
        "point; red: the planned peak.",
        unit=signal_unit("completed_rps"),
        queries=(
            Query(expr=q.total(where, "requests_finished"), legend="finished {{pool}}"),
            Query(expr=q.capacity_rps(where), legend="usable {{pool}}", line=LineStyle.PLAN),
            Query(expr=q.metric_by_tier(where, names.PLAN_PEAK), legend="planned peak", line=LineStyle.LIMIT),
        ),
        width=12,
    )


def errors(where: SeriesScope, labels: tuple[str, ...] = q.BY_POOL, width: int = 12) -> Panel:
    """Return the share of finished requests that did not end normally."""
    finished = q.total(where, "requests_finished", labels)
    rows = (("aborted", "requests_aborted"), ("token limit", "requests_ended_by_length"))
    legend = label_legend(labels)
    return Panel(
        title="Requests that did not end by themselves",
        description="As a share of finished requests. An aborted one was left by its client; one at its token limit is no "
        "error and still cut off.",
        unit=RATIO,
        queries=tuple(
            Query(expr=q.divide(q.total(where, family, labels), finished), legend=f"{word} {legend}")
            for word, family in rows
        ),
        width=width,
    )


def unserved(where: SeriesScope, labels: tuple[str, ...] = q.BY_POOL, width: int = 12) -> Panel:
    legend = label_legend(labels)
    return Panel(
        title="Requests that were not served",
        description="Failed: errors of the engine and HTTP answers 5xx; one request can be in both, and 5xx holds those refused "
        "for want of room (503). Refused: for want of room, and answered 4xx. KV transfers that failed fail a request or "
        "have its prompt computed anew. Series appear where the engine counts them.",
        unit=signal_unit("completed_rps"),
        queries=tuple(
            Query(expr=q.total(where, family, labels), legend=f"{word} {legend}") for word, family in UNSERVED
        ),
        width=width,
    )


def unserved_shares(where: SeriesScope) -> Panel:
    """Return the shares of failed and refused requests from verdicts, and the allowed share of failures."""

    def of(metric: ExportedMetric, rule: str, bound: str) -> str:
        return q.aggregate("max", q.BY_TIER, where.selector(metric.name, f'rule="{rule}"', f'bound="{bound}"'))

    return Panel(
        title="Share of requests that failed or were refused",
        description="As AvailabilityBurn and RequestsRefused see them; red is what the promised availability allows to fail.",
        unit=RATIO,
        queries=(
            Query(expr=of(names.OBSERVED, "AvailabilityBurn", ""), legend="failed"),
            Query(expr=of(names.OBSERVED, "RequestsRefused", ""), legend="refused"),
            Query(expr=of(names.EXPECTED, "AvailabilityBurn", "upper"), legend="may fail", line=LineStyle.LIMIT),
        ),
        width=12,
    )


def tokens(where: SeriesScope, labels: tuple[str, ...] = q.BY_POOL, width: int = 12) -> Panel:
    legend = label_legend(labels)
    return Panel(
        title="Tokens per second",
        description="Prompt tokens, cached ones included, and generated ones.",
        unit=signal_unit("generation_tokens_per_second"),
        queries=(
            Query(expr=q.total(where, "prompt_tokens", labels), legend=f"prompt {legend}"),
            Query(expr=q.total(where, "generation_tokens", labels), legend=f"generated {legend}"),
        ),
        width=width,
    )


def lengths(where: SeriesScope, family: str, title: str, width: int = 12) -> Panel:
    """Return P50, P95 and P99 of prompt or output lengths, which qualify all other numbers."""
    return Panel(
        title=title,
        description=f"{names.metric(family).text}. Every other number here holds for these lengths only.",
        unit="si:tok",
        queries=_quantiles(where, family, quantiles=(0.5, 0.95, 0.99)),
        width=width,
    )


def both_lengths(where: SeriesScope) -> tuple[Panel, ...]:
    return (
        lengths(where, "prompt_tokens_per_request", "Prompt length"),
        lengths(where, "generation_tokens_per_request", "Output length"),
    )
