"""PromQL of the panels: an agent's metrics, each series once, over Grafana's rate window.

Two agents may export the same replica, so each series counts once. Sums never span tiers, and pools stay apart where a
request passes through both. SCOPE stands for the matchers of the dashboard, OF_TIER for those of its tiers. The boards'
expressions may use everything here and the metrics of `exporters.metrics`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from exporters.metrics import names
from exporters.metrics.names import ExportedMetric
from exporters.prometheus_rules.alerts import NOT_SEEING
from rules.catalogue.registry import BY_NAME, RULES
from rules.verdicts.rule import Severity

SCOPE, OF_TIER, CLUSTER, WINDOW = "@", "#", "cluster", "$__rate_interval"
"""`cluster` is an external label of some installations. Grouping by an absent label is harmless."""

BY_TIER = (CLUSTER, names.TIER)
BY_POOL = (CLUSTER, names.TIER, names.POOL)
BY_REPLICA = (CLUSTER, *names.OF_REPLICA)
BY_ENGINE = (CLUSTER, *names.OF_ENGINE)
BY_GPU = (CLUSTER, *names.OF_GPU)
ON_TIER = f"on ({', '.join(BY_TIER)})"
TO_POOLS = f"{ON_TIER} group_left ()"

WITHOUT_NOTES = f'rule!~"{"|".join(rule.name for rule in RULES if rule.severity is Severity.REPORT)}"'
LOUD = f'{names.SEVERITY}!="{Severity.REPORT}"'
"""Matchers of rules and of incidents that page or make tickets. Findings for the report colour and count nothing."""


def series(name: str, *matchers: str) -> str:
    """Return a selector within the dashboard's scope."""
    return f"{name}{{{', '.join((SCOPE, *matchers))}}}"


def by(operation: str, labels: Iterable[str], expr: str) -> str:
    return f"{operation} by ({', '.join(labels)}) ({expr})"


def per_second(name: str) -> str:
    return f"rate({series(name)}[{WINDOW}])"


def gauge(metric: str | ExportedMetric, *matchers: str, source: str = CLUSTER, is_rate: bool = False) -> str:
    """Return a metric, given by itself or its family's name, once for each of its label sets; a counter per second."""
    if isinstance(metric, str):
        metric = names.metric(metric)
    value = per_second(metric.name) if is_rate else series(metric.name, *matchers)
    return by("max", (source, *metric.labels), value)


rate = partial(gauge, is_rate=True)
own = partial(gauge, source="instance")
own_rate = partial(own, is_rate=True)
"""Metrics of the agents themselves, by the label that Prometheus gives each of them."""


def of_tier(metric: ExportedMetric, *matchers: str) -> str:
    """Return a number of the tier, without informative labels (`currency`)."""
    return by("max", BY_TIER, f"{metric.name}{{{', '.join((OF_TIER, *matchers))}}}")


def total(family: str, labels: Iterable[str] = BY_POOL) -> str:
    """Return a counter family per second, summed by `labels`."""
    return by("sum", labels, rate(family))


def quantile(q: float, family: str, labels: tuple[str, ...] = BY_POOL) -> str:
    """Return a quantile (0-1) by `labels` and release. Releases may have different bucket edges."""
    engine = ", ".join(BY_ENGINE)
    buckets = by("max", (*BY_ENGINE, "le"), per_second(names.bucket(family)))
    # Of several agents' series only the first counts: two would fail the whole query.
    release = f"topk by ({engine}) (1, {series(names.REPLICA_INFO.name)})"
    joined = f"{buckets}\n* on ({engine}) group_left ({', '.join(names.RELEASE)})\n{release}"
    # A quantile without requests is NaN, which draws no line and spoils the axis.
    return f"(histogram_quantile({q:g}, {by('sum', (*labels, *names.RELEASE, 'le'), joined)}) >= 0)"


def divide(above: str, below: str, matching: str = "") -> str:
    """Return a quotient without a result for a zero divisor."""
    return f"{above}\n/ {matching}\n({below} > 0)"


def by_gpu(above: str, below: str) -> str:
    """Return the quotient of two counter families for each GPU."""
    return divide(total(above, BY_GPU), total(below, BY_GPU))


def price_of(gpus: str) -> str:
    """Return the hourly cost of a tier's GPUs. The plan's currency stays a label."""
    return f"{gauge(names.PLAN_PRICE)}\n* {TO_POOLS}\n(\n{gpus}\n)"


def verdict_of(metric: ExportedMetric, rule: str, bound: str = "") -> str:
    """Return what a rule of the tier observed or expected."""
    return of_tier(metric, f'rule="{rule}"', f'bound="{bound}"')


def tolerated(rule: str) -> str:
    """Return the benchmark's value at this load with the rule's factor."""
    return f"{BY_NAME[rule].thresholds['factor'].value:g} * {verdict_of(names.EXPECTED, rule)}"


UP_BY_POOL = by("sum", BY_POOL, gauge(names.TARGET_UP))
REPLICAS_UP = by("sum", BY_TIER, gauge(names.TARGET_UP))
GPUS_UP = f"{REPLICAS_UP}\n*\n{of_tier(names.PLAN_GPUS)}"
"""GPUs of running replicas, with the planned GPUs of each."""
USABLE_RPS = f"{UP_BY_POOL}\n* {TO_POOLS}\n{of_tier(names.CAPACITY_RPS)}"
PLANNED_IN_SYSTEM = f"{UP_BY_POOL}\n* {TO_POOLS}\n{of_tier(names.PLAN_C_MAX)}"
FINISHED = by("max", BY_TIER, total("requests_finished"))
"""Requests per second of a tier; where they pass through several pools, those of the busiest."""
GENERATED = total("generation_tokens", BY_TIER)
TTFT = by("max", BY_TIER, quantile(0.99, "ttft_seconds"))
TPOT = by("max", BY_TIER, quantile(0.99, "tpot_seconds"))
TTFT_SHARE = divide(TTFT, of_tier(names.PLAN_TTFT))
TPOT_SHARE = divide(TPOT, of_tier(names.PLAN_TPOT))
"""P99 as a share of its objective, for the worst pool and release."""
RESTARTS = by("max", BY_REPLICA, f"round(increase({series(names.exported('restarts'))}[{WINDOW}]))")

CERTAIN_VERDICTS = f"{gauge(names.VERDICT, WITHOUT_NOTES)}\n*\n{gauge(names.VERDICT_CERTAIN)}"
"""Likely verdicts count as 0."""
WORST_VERDICT = by("max", BY_TIER, CERTAIN_VERDICTS)
FIRING = f"{gauge(names.VERDICT, WITHOUT_NOTES)} > 0"
BLIND = by("count", (*BY_TIER, names.REASON), gauge(names.UNKNOWN, f'reason=~"{"|".join(NOT_SEEING)}"'))
_INCIDENTS = by("sum", BY_TIER, gauge(names.INCIDENT, LOUD))
INCIDENT_COUNT = f"{_INCIDENTS}\nor\n0 * {of_tier(names.VERDICT)}"

MONEY_PER_HOUR = price_of(GPUS_UP)
COST_PER_MILLION = f"1e6 / 3600 * ({MONEY_PER_HOUR} > 0)\n/ {TO_POOLS}\n({GENERATED} > 0)"
"""Money by generated tokens, divided once (DESIGN 3.14)."""
REQUESTS_FOR_MONEY = f"3600 * {FINISHED}\n/ {ON_TIER} group_right ()\n({MONEY_PER_HOUR} > 0)"
_PLANNED_GPUS = of_tier(names.PLAN_GPUS)
SURPLUS_MONEY = price_of(f"{of_tier(names.SURPLUS_REPLICAS)}\n*\n{_PLANNED_GPUS}")
TTFT_PRICE = f"{price_of(_PLANNED_GPUS)}\n* {TO_POOLS}\n({TTFT})"
_PREFILL, _DECODE = (
    by("sum", BY_POOL, by("max", BY_ENGINE, per_second(names.total(family))))
    for family in ("prefill_seconds", "decode_seconds")
)
PREFILL_SHARE = divide(_PREFILL, f"({_PREFILL} + {_DECODE})")


def beside_firing(metric: ExportedMetric) -> str:
    """Return what firing rules observed, expected or how certain they are."""
    return f"{by('max', (*BY_TIER, names.REPLICA, names.RULE), series(metric.name))}\nand\n({FIRING})"
