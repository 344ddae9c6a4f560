"""Pages docs/signals.md (signals, families, exported metrics) and docs/engines.md (signals and families by engine).

Rows come from `rules.telemetry.signals`, `rules.telemetry.families`, `exporters.metrics.names` and `rules.engines`. New
rows there need no change here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import fill

from exporters.documents.signal_exposure import matrix
from exporters.metrics import names
from exporters.render.text import table
from rules.engines.coverage import Support, exposures
from rules.engines.registry import ENGINES
from rules.engines.several import ROUTERS, TELLING
from rules.engines.table import EngineTable, LabelAggregation, SourceRow
from rules.telemetry.families import FAMILIES, Family
from rules.telemetry.signals import SIGNALS, Signal

SIGNALS_PAGE_HEAD = """\
# Signals

<!-- Generated from the program's own tables; `sizewatch render` writes it anew. -->

A **family** is what an engine or a GPU exposes, under our name. A **signal** is what is read from families over a
window: it has bounds and a count, or a named gap ([readings](readings.md)). [Engines](engines.md) differ in what they
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
    return f"`{metric.name}`", metric.type, _labels(metric), metric.text


def _labels(metric: names.ExportedMetric) -> str:
    return ", ".join(metric.labels)


ENGINES_HEAD = """\
# Engines

<!-- Generated from the program's own tables; `sizewatch render` writes it anew. -->

Which signal each engine can give. *known*: a best estimate with its bounds; *bounded*: bounds alone; *-*: not exposed by
the engine, for the reason in its section. Releases are those that were looked at: the true change lies between two of
them. `sizewatch inspect PAGE` prints what one page gives, value by value.
[GPU signals](gpus.md) do not depend on the engine."""

NAMES = """\
Names as they stand on the page with `:` written as `_`, without what Ray, KServe or a router puts before them. Several
rows of one family are alternatives: the first that is on the page is used. Series of data-parallel engines and label
values are added up unless the note says otherwise."""

SEVERAL = fill(
    "A page with several engines is several replicas, each named `target/engine`: a label with more than one value tells "
    f"them apart. Labels that count: {', '.join(f'`{label}`' for label in TELLING)}; else the model, or its version. "
    "A data-parallel `engine` and ranks are parts of one replica. Where no label tells engines apart, where names of two "
    f"engines are mixed, and of a router ({'; '.join(ROUTERS)}), nothing is judged, and it is "
    "no replica: `inspect`, `doctor` and `init` say so.",
    width=124,
)


def engines_page() -> str:
    head, rows = matrix(ENGINES)
    parts = [ENGINES_HEAD, table(head, ((f"`{name}`", *cells) for name, *cells in rows)), NAMES, SEVERAL]
    parts += [part for engine in ENGINES for part in _engine(engine)]
    return "\n\n".join(parts) + "\n"


def _engine(engine: EngineTable) -> Iterator[str]:
    yield f"## {engine.label}"
    if engine.scanned:
        yield f"`engine: {engine.name}`; releases {', '.join(engine.scanned)}."
    yield table(("our family", "source", "since", "until", "note"), (_row(row) for row in engine.rows))
    missing = [e for e in exposures(engine) if any(support is Support.NOT_EXPOSED for support, _, _ in e.spans)]
    told = [(f"`{e.signal}`", e.why) for e in missing if e.why]
    if told:
        yield "Not exposed:"
        yield table(("signal", "why"), told)


def _row(row: SourceRow) -> tuple[str, ...]:
    where = [_condition(label, "=", value) for label, value in row.where.items()]
    where += [_condition(label, "!", value) for label, value in row.unless.items()]
    source = row.source + (f"{{{','.join(where)}}}" if where else "")
    ways = [row.across.value.replace("_", " ")] if row.across is not LabelAggregation.SUM else []
    ways += [f"its `_{row.part}`"] if row.part else []
    ways += [f"plus `{more}`" for more in row.plus]
    ways += [f"by `{row.by}`"] if row.by else []
    ways += [f"times {row.factor:g}"] if row.factor != 1 else []
    ways += [f"times `{row.factor_fact}`"] if row.factor_fact else []
    note = "; ".join(text for text in (", ".join(ways), row.note) if text)
    return f"`{row.family}`", f"`{source}`", row.since, row.until, note


def _condition(label: str, sign: str, pattern: str) -> str:
    """Return the condition in PromQL notation."""
    is_plain = pattern == re.escape(pattern).replace("\\-", "-")
    operator = {"=": "=" if is_plain else "=~", "!": "!=" if is_plain else "!~"}[sign]
    return f'{label}{operator}"{pattern}"'
