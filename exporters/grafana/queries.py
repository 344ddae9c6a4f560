"""PromQL for panels: what the agent exports, once for each series, per tier, over Grafana's own rate window.

Owns the pieces that every panel's expression is made of. Two agents may tell of one replica, so what they tell is first
taken once; nothing is ever added up across tiers, and pools stay apart where a request passes through both. A quantile
comes from buckets of one grid: replicas of unlike releases are kept apart. Needs no recording rule. Another piece is a
function here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from exporters.metrics import names
from exporters.metrics.names import ExportedMetric

CLUSTER = "cluster"
"""An external label that some installations have. Grouping by it is harmless where nobody has it."""

WINDOW = "$__rate_interval"
"""Four scrapes at least, however far one zooms in (Grafana's own variable)."""

BY_TIER = (CLUSTER, names.TIER)
BY_POOL = (CLUSTER, names.TIER, names.POOL)
BY_REPLICA = (CLUSTER, names.TIER, names.POOL, names.REPLICA)
BY_ENGINE = (CLUSTER, *names.OF_ENGINE)
BY_GPU = (CLUSTER, *names.OF_GPU)
RELEASE = ("engine", "engine_version")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesScope:
    """Which series a dashboard is about: matchers with Grafana's variables in them."""

    matchers: tuple[str, ...]

    def selector(self, name: str, *more: str) -> str:
        """The selector of a name."""
        return f"{name}{{{', '.join((*self.matchers, *more))}}}"


_CLUSTERS = f'{CLUSTER}=~"$cluster"'
TIERS = SeriesScope(matchers=(_CLUSTERS, 'tier=~"$tier"'))
"""For a dashboard on which several tiers can be chosen: one line each."""
TIER = SeriesScope(matchers=(_CLUSTERS, 'tier="$tier"'))
"""For a dashboard about one tier."""
REPLICAS = SeriesScope(matchers=(*TIER.matchers, 'replica=~"$replica"'))
AGENTS = SeriesScope(matchers=('instance=~"$instance"',))
"""For what an agent tells of itself. `instance` is Prometheus' own label."""


def aggregate(operation: str, labels: Iterable[str], inner: str) -> str:
    """An aggregation; none is without `labels`."""
    return f"{operation} by ({', '.join(labels)}) ({inner})"


def metric(where: SeriesScope, metric: ExportedMetric, *more: str) -> str:
    """A metric of the agent, once for each of its label sets."""
    return aggregate("max", (CLUSTER, *metric.labels), where.selector(metric.name, *more))


def metric_by_tier(where: SeriesScope, metric: ExportedMetric) -> str:
    """A metric of a tier's plan or forecast, without labels that only inform (`currency`)."""
    return aggregate("max", BY_TIER, where.selector(metric.name))


def level(where: SeriesScope, family: str) -> str:
    """A gauge family, once for each replica or GPU."""
    return metric(where, names.metric(family))


def rate(where: SeriesScope, family: str) -> str:
    """A counter family per second, once for each replica or GPU. Kept apart by code or position where it comes in parts."""
    return metric_rate(where, names.metric(family))


def metric_rate(where: SeriesScope, metric: ExportedMetric) -> str:
    """A counter of the agent per second, once for each of its label sets."""
    return aggregate("max", (CLUSTER, *metric.labels), f"rate({where.selector(metric.name)}[{WINDOW}])")


def histogram_rate(where: SeriesScope, family: str, part: str) -> str:
    """`_sum` or `_count` of a histogram family per second, once for each replica; KeyError for what is no histogram."""
    name = {"sum": names.total, "count": names.count}[part](family)
    return aggregate("max", BY_ENGINE, f"rate({where.selector(name)}[{WINDOW}])")


def total(where: SeriesScope, family: str, labels: Iterable[str] = BY_POOL) -> str:
    """A counter family per second, added up over what `labels` do not name."""
    return aggregate("sum", labels, rate(where, family))


def quantile(where: SeriesScope, q: float, family: str, labels: tuple[str, ...] = BY_POOL) -> str:
    """A quantile (0-1) for each of `labels` and each release: other releases may have other bucket edges."""
    buckets = aggregate("max", (*BY_ENGINE, "le"), f"rate({where.selector(names.bucket(family))}[{WINDOW}])")
    # Of several agents' words one is taken: two would be an error of the whole query.
    release = f"topk by ({', '.join(BY_ENGINE)}) (1, {where.selector(names.REPLICA_INFO.name)})"
    joined = f"{buckets}\n* on ({', '.join(BY_ENGINE)}) group_left ({', '.join(RELEASE)})\n{release}"
    # Without a request in the window a quantile is NaN, which is no line and spoils the axis of the others.
    return f"(histogram_quantile({q:g}, {aggregate('sum', (*labels, *RELEASE, 'le'), joined)}) >= 0)"


def divide(above: str, below: str, matching: str = "") -> str:
    """A quotient; nothing where it would be one by zero."""
    return f"{above}\n/{f' {matching}' if matching else ''}\n({below} > 0)"


def multiply(left: str, right: str, matching: str = "") -> str:
    """A product."""
    return f"{left}\n*{f' {matching}' if matching else ''}\n{right}"


POOLS_TO_TIER = f"on ({', '.join(BY_TIER)}) group_left ()"
"""Matches series of pools with a number of their tier."""


def replicas_up(where: SeriesScope, labels: Iterable[str] = BY_TIER) -> str:
    """Replicas whose last scrape gave a page."""
    return aggregate("sum", labels, metric(where, names.TARGET_UP))


def gpus_up(where: SeriesScope) -> str:
    """GPUs of the replicas that are up, by tier, as many as the plan gives each."""
    return multiply(replicas_up(where), metric_by_tier(where, names.PLAN_GPUS))


def capacity_rps(where: SeriesScope) -> str:
    """Requests per second that a pool's replicas that are up carry within the SLO now."""
    usable = metric_by_tier(where, names.CAPACITY_RPS)
    return multiply(replicas_up(where, BY_POOL), usable, POOLS_TO_TIER)


def load(where: SeriesScope) -> str:
    """Finished requests as a share of the usable capacity, by pool (DESIGN 3.12, the part in requests)."""
    return divide(total(where, "requests_finished"), capacity_rps(where))


def aggregate_tier(expression: str, operation: str = "max") -> str:
    """One number a tier of what its pools and releases have: the largest unless said otherwise."""
    return aggregate(operation, BY_TIER, expression)


def price_of(where: SeriesScope, gpus: str) -> str:
    """What so many GPUs of a tier cost an hour, in the plan's currency, which stays a label."""
    price = aggregate("max", (CLUSTER, *names.PLAN_PRICE.labels), where.selector(names.PLAN_PRICE.name))
    return f"{price}\n* on ({', '.join(BY_TIER)}) group_left ()\n(\n{gpus}\n)"


def money_per_hour(where: SeriesScope) -> str:
    """What the tier's running GPUs cost an hour."""
    return price_of(where, gpus_up(where))


def cost_per_million_tokens(where: SeriesScope) -> str:
    """Money by generated tokens, divided once (DESIGN 3.14)."""
    tokens = total(where, "generation_tokens", BY_TIER)
    return f"1e6 / 3600 * ({money_per_hour(where)} > 0)\n/ on ({', '.join(BY_TIER)}) group_left ()\n({tokens} > 0)"
