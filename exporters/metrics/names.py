"""Labels of exported metrics, and the names of exported engine and GPU families (DESIGN 6).

Families go out by `rules.telemetry.families`; sizewatch's own metrics are in `exporters.metrics.self_metrics`. Quantiles
and ratios of a window are not exported, as they cannot be summed. Names follow Prometheus: base units, `_total`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rules.telemetry.families import BY_NAME, FAMILIES, GPU_NAMES, Family, FamilyKind, stem

PREFIX = "sizewatch_"

TIER, POOL, REPLICA, MODEL, GPU = "tier", "pool", "replica", "model", "gpu"
RULE, REASON, KIND, BOUND = "rule", "reason", "kind", "bound"
ALERTMANAGER, QUANTILE, DESTINATION, SEVERITY = "alertmanager", "quantile", "destination", "severity"

OF_TIER = (TIER,)
OF_REPLICA = (TIER, POOL, REPLICA)
OF_ENGINE = (TIER, POOL, REPLICA, MODEL)
OF_GPU = (TIER, POOL, REPLICA, GPU)
OF_RULE = (TIER, REPLICA, RULE)
OF_BOUND = (*OF_RULE, BOUND)
OF_INCIDENT = (TIER, "root", SEVERITY)
OF_QUANTILE = (TIER, QUANTILE)
OF_STRATEGY = (TIER, "strategy")
RELEASE = ("engine", "engine_version")

PARTS: Mapping[str, str] = {"spec_accepted_at_position": "position", "gpu_fault_events_by_code": "code"}
"""Label of the part number, for families with parts (`spec_accepted_at_position/2`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedMetric:
    """Exported metric: full name (of a histogram without `_bucket`), labels in order, help text."""

    name: str
    kind: FamilyKind
    labels: tuple[str, ...]
    text: str

    @property
    def type(self) -> str:
        """Return the type of the TYPE line: series with a quantile are a summary, although they rise and fall as gauges."""
        return "summary" if QUANTILE in self.labels else self.kind.value


def _family(family: Family) -> ExportedMetric:
    labels = OF_GPU if family.name in GPU_NAMES else OF_ENGINE
    part = (PARTS[family.name],) if family.name in PARTS else ()
    return ExportedMetric(name=PREFIX + family.export, kind=family.kind, labels=labels + part, text=family.text)


FAMILY: Mapping[str, ExportedMetric] = {family.name: _family(family) for family in FAMILIES if family.export}
"""Exported engine and GPU metrics by family name. A family without an export name is not exported."""


def metric(family: str) -> ExportedMetric:
    """Return the metric of a family or of its part. Raise KeyError if it is not exported."""
    return FAMILY[stem(family)]


def exported(family: str) -> str:
    """Return the exported name of a counter or gauge family. Raise KeyError if it is not exported."""
    return metric(family).name


def bucket(family: str) -> str:
    """Return the exported name of a histogram family's buckets. Raise KeyError if it is not an exported histogram."""
    return _histogram(family) + "_bucket"


def total(family: str) -> str:
    """Return the exported name of a histogram family's sum. Raise KeyError if it is not an exported histogram."""
    return _histogram(family) + "_sum"


def count(family: str) -> str:
    """Return the exported name of a histogram family's count. Raise KeyError if it is not an exported histogram."""
    return _histogram(family) + "_count"


def _histogram(family: str) -> str:
    if BY_NAME[family].kind is not FamilyKind.HISTOGRAM:
        raise KeyError(f"{family} is no histogram")
    return FAMILY[family].name
