"""PromQL, variables and annotations of panels: deduplicated agent metrics per tier over Grafana's rate window.

Two agents may export the same replica, so each series counts once. Sums never span tiers, and pools stay apart if a
request passes through both. Replicas of different releases stay apart in quantiles, as bucket edges may differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from exporters.grafana.records import AMBER, BLUE, RED, Annotation, Variable
from exporters.metrics import names
from exporters.metrics.names import ExportedMetric
from rules.catalogue.registry import RULES
from rules.verdicts.rule import Severity

CLUSTER = "cluster"
"""External label of some installations. Grouping by an absent label is harmless."""

WINDOW = "$__rate_interval"
"""Grafana's rate window: at least four scrapes at any zoom."""

BY_TIER = (CLUSTER, names.TIER)
BY_POOL = (CLUSTER, names.TIER, names.POOL)
BY_REPLICA = (CLUSTER, names.TIER, names.POOL, names.REPLICA)
BY_ENGINE = (CLUSTER, *names.OF_ENGINE)
BY_GPU = (CLUSTER, *names.OF_GPU)
RELEASE = ("engine", "engine_version")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesScope:
    """Series of a dashboard: matchers with Grafana's variables."""

    matchers: tuple[str, ...]

    def selector(self, name: str, *more: str) -> str:
        return f"{name}{{{', '.join((*self.matchers, *more))}}}"


WITHOUT_NOTES = f'rule!~"{"|".join(rule.name for rule in RULES if rule.loudness is Severity.REPORT)}"'
"""Matcher of rules that page or make tickets. Findings for the report are notes: they colour no tier and are not counted."""

LOUD_INCIDENTS = f'{names.LOUDNESS}!="{Severity.REPORT}"'
"""Matcher of incidents that page or make tickets."""

_CLUSTERS = f'{CLUSTER}=~"$cluster"'
TIERS = SeriesScope(matchers=(_CLUSTERS, 'tier=~"$tier"'))
"""Scope of a dashboard with several selectable tiers, a line each."""
TIER = SeriesScope(matchers=(_CLUSTERS, 'tier="$tier"'))
"""Scope of a dashboard for a single tier."""
REPLICAS = SeriesScope(matchers=(*TIER.matchers, 'replica=~"$replica"'))
AGENTS = SeriesScope(matchers=('instance=~"$instance"',))
"""Scope of the agent's own metrics. `instance` is the label of Prometheus."""


def aggregate(operation: str, labels: Iterable[str], inner: str) -> str:
    """Return an aggregation, without a `by` clause if `labels` is empty."""
    return f"{operation} by ({', '.join(labels)}) ({inner})"


def metric(where: SeriesScope, metric: ExportedMetric, *more: str) -> str:
    """Return a metric of the agent, once for each of its label sets."""
    return aggregate("max", (CLUSTER, *metric.labels), where.selector(metric.name, *more))


def metric_by_tier(where: SeriesScope, metric: ExportedMetric) -> str:
    """Return a metric of a tier's plan or forecast, without informative labels (`currency`)."""
    return aggregate("max", BY_TIER, _of_tier(where).selector(metric.name))


def _of_tier(where: SeriesScope) -> SeriesScope:
    """Return the scope of a tier's own series. A matcher of replicas would hide them."""
    return SeriesScope(matchers=tuple(matcher for matcher in where.matchers if not matcher.startswith(names.REPLICA)))


def level(where: SeriesScope, family: str) -> str:
    """Return a gauge family, once for each replica or GPU."""
    return metric(where, names.metric(family))


def rate(where: SeriesScope, family: str) -> str:
    """Return a counter family per second, once for each replica or GPU. Codes and positions of parts stay apart."""
    return metric_rate(where, names.metric(family))


def metric_rate(where: SeriesScope, metric: ExportedMetric) -> str:
    """Return a counter of the agent per second, once for each of its label sets."""
    return aggregate("max", (CLUSTER, *metric.labels), f"rate({where.selector(metric.name)}[{WINDOW}])")


def histogram_rate(where: SeriesScope, family: str, part: str) -> str:
    """Return `_sum` or `_count` of a histogram family per second, once for each replica.

    Raise KeyError if it is not a histogram.
    """
    name = {"sum": names.total, "count": names.count}[part](family)
    return aggregate("max", BY_ENGINE, f"rate({where.selector(name)}[{WINDOW}])")


def total(where: SeriesScope, family: str, labels: Iterable[str] = BY_POOL) -> str:
    """Return a counter family per second, summed by `labels`."""
    return aggregate("sum", labels, rate(where, family))


def quantile(where: SeriesScope, q: float, family: str, labels: tuple[str, ...] = BY_POOL) -> str:
    """Return a quantile (0-1) by `labels` and release. Releases may have different bucket edges."""
    buckets = aggregate("max", (*BY_ENGINE, "le"), f"rate({where.selector(names.bucket(family))}[{WINDOW}])")
    # Of several agents' series only the first counts: two would fail the whole query.
    release = f"topk by ({', '.join(BY_ENGINE)}) (1, {where.selector(names.REPLICA_INFO.name)})"
    joined = f"{buckets}\n* on ({', '.join(BY_ENGINE)}) group_left ({', '.join(RELEASE)})\n{release}"
    # A quantile without requests is NaN, which draws no line and spoils the axis.
    return f"(histogram_quantile({q:g}, {aggregate('sum', (*labels, *RELEASE, 'le'), joined)}) >= 0)"


def divide(above: str, below: str, matching: str = "") -> str:
    """Return a quotient without a result for a zero divisor."""
    return f"{above}\n/{f' {matching}' if matching else ''}\n({below} > 0)"


def multiply(left: str, right: str, matching: str = "") -> str:
    return f"{left}\n*{f' {matching}' if matching else ''}\n{right}"


POOLS_TO_TIER = f"on ({', '.join(BY_TIER)}) group_left ()"
"""Matching of pool series with a number of their tier."""


def replicas_up(where: SeriesScope, labels: Iterable[str] = BY_TIER) -> str:
    """Return the replicas whose last scrape succeeded."""
    return aggregate("sum", labels, metric(where, names.TARGET_UP))


def gpus_up(where: SeriesScope) -> str:
    """Return the GPUs of running replicas by tier, with the planned GPUs of each."""
    return multiply(replicas_up(where), metric_by_tier(where, names.PLAN_GPUS))


def capacity_rps(where: SeriesScope) -> str:
    """Return the requests per second that a pool's running replicas can serve within the SLO now."""
    usable = metric_by_tier(where, names.CAPACITY_RPS)
    return multiply(replicas_up(where, BY_POOL), usable, POOLS_TO_TIER)


def load(where: SeriesScope) -> str:
    """Return fleet utilisation: completed work by the capacity of the ready replicas (DESIGN 3.12)."""
    return metric_by_tier(where, names.FLEET_UTILIZATION)


def aggregate_tier(expression: str, operation: str = "max") -> str:
    """Return a number per tier from its pools and releases, the maximum by default."""
    return aggregate(operation, BY_TIER, expression)


def price_of(where: SeriesScope, gpus: str) -> str:
    """Return the hourly cost of a tier's GPUs. The plan's currency stays a label."""
    price = aggregate("max", (CLUSTER, *names.PLAN_PRICE.labels), where.selector(names.PLAN_PRICE.name))
    return f"{price}\n* on ({', '.join(BY_TIER)}) group_left ()\n(\n{gpus}\n)"


def money_per_hour(where: SeriesScope) -> str:
    """Return the hourly cost of the tier's running GPUs."""
    return price_of(where, gpus_up(where))


def cost_per_million_tokens(where: SeriesScope) -> str:
    """Return money by generated tokens, divided once (DESIGN 3.14)."""
    tokens = total(where, "generation_tokens", BY_TIER)
    return f"1e6 / 3600 * ({money_per_hour(where)} > 0)\n/ on ({', '.join(BY_TIER)}) group_left ()\n({tokens} > 0)"


FLEET_UID, TIER_UID, REPLICA_UID = "sizewatch-fleet", "sizewatch-tier", "sizewatch-replica"
COST_UID, FORECAST_UID, ITSELF_UID = "sizewatch-cost", "sizewatch-forecast", "sizewatch-itself"

_UP, _INFO = names.TARGET_UP.name, names.REPLICA_INFO.name
_OF_CLUSTER = f'{CLUSTER}=~"$cluster"'

CLUSTERS = Variable(name="cluster", title="Cluster", source=_UP, label=CLUSTER, many=True, everything=".*")
"""Cluster variable. All also matches series without the label."""

MODELS = Variable(
    name="model",
    title="Model",
    source=f"{_INFO}{{{_OF_CLUSTER}}}",
    label=names.MODEL,
    many=True,
    everything=".*",
)
"""Model variable. It narrows the selectable tiers."""

_TIERS = f'{_INFO}{{{_OF_CLUSTER}, model=~"$model"}}'
SEVERAL_TIERS = Variable(name="tier", title="Tier", source=_TIERS, label=names.TIER, many=True)
ONE_TIER = Variable(name="tier", title="Tier", source=_TIERS, label=names.TIER, many=False)
REPLICA = Variable(
    name="replica",
    title="Replica",
    source=f'{_UP}{{{_OF_CLUSTER}, tier="$tier"}}',
    label=names.REPLICA,
    many=True,
    everything=".*",
)
INSTANCE = Variable(
    name="instance", title="Agent", source=names.BUILD_INFO.name, label="instance", many=True, everything=".*"
)

ABOUT_TIERS = (CLUSTERS, MODELS, SEVERAL_TIERS)
ABOUT_A_TIER = (CLUSTERS, MODELS, ONE_TIER)


SAME_SOURCE = "${datasource:queryparam}&"
"""Address part that keeps the data source of a variable."""


def tier_link(uid: str) -> str:
    """Return the address of a dashboard for the tier of a table row."""
    return f"/d/{uid}?{SAME_SOURCE}${{cluster:queryparam}}&var-tier=${{__data.fields.Tier}}&${{__url_time_range}}"


def marks(where: SeriesScope) -> tuple[Annotation, ...]:
    """Return annotations for incidents and engine restarts."""
    restarts = where.selector(names.exported("restarts"))
    return (
        _incidents(where, "Incidents: page", RED, Severity.PAGE),
        _incidents(where, "Incidents: ticket", AMBER, Severity.TICKET),
        Annotation(
            title="Restarts",
            expr=aggregate("max", (CLUSTER, *names.OF_REPLICA), f"increase({restarts}[{WINDOW}])") + " > 0",
            colour=BLUE,
            heading="Engine restarted",
            text="{{tier}} {{replica}}",
        ),
    )


def _incidents(where: SeriesScope, title: str, colour: str, severity: Severity) -> Annotation:
    return Annotation(
        title=title,
        expr=metric(_of_tier(where), names.INCIDENT, f'{names.LOUDNESS}="{severity}"'),
        colour=colour,
        heading="{{root}}",
        text="{{tier}}",
    )
