"""docs/signals.md: every signal, every family, and what sizewatch exports.

Owns the layout. The rows are `rules.telemetry.signals`, `rules.telemetry.families` and `exporters.metrics.names`; a new one
there needs no change here. What each engine prints is `exporters.docs.engines_page`'s.
"""

from __future__ import annotations

from exporters.metrics import names
from exporters.render.markdown import table
from rules.telemetry.families import FAMILIES, Family
from rules.telemetry.signals import SIGNALS, Signal

SIGNALS_PAGE_HEAD = """\
# Signals

<!-- Generated from the program's own tables; `sizewatch render` writes it anew. -->

A **family** is what an engine or a GPU exposes, under our name. A **signal** is what is read from families over a
window: it has bounds and a count, or a named gap ([concepts](concepts.md)). [Engines](engines.md) differ in what they
expose. Units are base units, ratios run from 0 to 1.
Families are exported, signals are not: a quantile or a ratio cannot be added up again, so compute it from the families."""

SIGNALS_HEAD = """\
## Signals

These names stand in `sizewatch replay --format json`, `sizewatch inspect` and `/api/status`."""

FAMILIES_HEAD = """\
## Families

Counters and histograms are exported as the agent's own running sums of what it accepted: a restart of the engine does
not set them back. A histogram has `_bucket` (with the engine's own `le`), `_sum` and `_count`. What has no exported name
stays inside."""

OWN_HEAD = """\
## What sizewatch says of itself, of its verdicts and of the plan

Labels stand in the order of the metric. `replica` is empty where a verdict is about the whole tier."""


def signals_page() -> str:
    """The whole page."""
    parts = [
        SIGNALS_PAGE_HEAD,
        SIGNALS_HEAD,
        table(("signal", "unit", "meaning", "from"), (_signal(signal) for signal in SIGNALS)),
        FAMILIES_HEAD,
        table(("family", "kind", "exported as", "labels", "meaning"), (_family(family) for family in FAMILIES)),
        OWN_HEAD,
        table(("metric", "kind", "labels", "meaning"), (_own(metric) for metric in names.OWN)),
    ]
    return "\n\n".join(parts) + "\n"


def _signal(signal: Signal) -> tuple[str, ...]:
    return f"`{signal.name}`", signal.unit.value, signal.text, ", ".join(f"`{family}`" for family in signal.families)


def _family(family: Family) -> tuple[str, ...]:
    metric = names.FAMILY.get(family.name)
    exported = (f"`{metric.name}`", _labels(metric)) if metric else ("", "")
    return f"`{family.name}`", family.kind.value, *exported, family.text


def _own(metric: names.ExportedMetric) -> tuple[str, ...]:
    return f"`{metric.name}`", metric.kind.value, _labels(metric), metric.text


def _labels(metric: names.ExportedMetric) -> str:
    return ", ".join(metric.labels)
