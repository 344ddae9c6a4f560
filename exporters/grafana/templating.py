"""Variables, annotations and addresses shared by several dashboards.

A new variable or annotation is a row here.
"""

from __future__ import annotations

from exporters.grafana.queries import CLUSTER, WINDOW, SeriesScope, aggregate
from exporters.grafana.records import AMBER, BLUE, RED, Annotation, Variable, limit
from exporters.metrics import names
from rules.verdicts.verdict import SEVERITY, Status

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
    """Return annotations for certain findings and engine restarts."""
    restarts = where.selector(names.exported("restarts"))
    return (
        _episodes(where, "Critical findings", RED, f"== {SEVERITY[Status.CRITICAL]}"),
        _episodes(where, "Warnings", AMBER, f"== {SEVERITY[Status.WARNING]}"),
        Annotation(
            title="Restarts",
            expr=aggregate("max", (CLUSTER, *names.OF_REPLICA), f"increase({restarts}[{WINDOW}])") + " > 0",
            colour=BLUE,
            heading="Engine restarted",
            text="{{tier}} {{replica}}",
        ),
    )


def _episodes(where: SeriesScope, title: str, colour: str, condition: str) -> Annotation:
    labels = (CLUSTER, *names.VERDICT.labels)
    verdict = aggregate("max", labels, where.selector(names.VERDICT.name))
    certain = aggregate("max", labels, where.selector(names.VERDICT_CERTAIN.name))
    return Annotation(
        title=title,
        expr=f"{verdict} {condition}\nand\n{certain} == 1",
        colour=colour,
        heading="{{rule}}",
        text="{{tier}} {{replica}}",
    )


def divergence(rule: str) -> float:
    """Return the factor by which a latency may exceed the benchmark at equal load."""
    return limit(rule, "factor")
