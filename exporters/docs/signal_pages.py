"""Pages docs/signals.md (signals, families, exported metrics) and docs/engines.md (signals and families by engine).

Rows come from `rules.telemetry.signals`, `rules.telemetry.families`, `exporters.metrics.names` and `rules.engines`. New
rows there need no change here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import fill

from exporters.metrics import names
from exporters.render.text import table
from rules.engines.registry import ENGINES
from rules.engines.several import TELLING
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
    return f"`{signal.name}`", signal.unit, signal.text, ", ".join(f"`{family}`" for family in signal.families)


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

Which family each engine prints, and from or up to which release; *-*: not at all. [Signals](signals.md) lists the families
that a signal needs. Releases are those that were looked at: the true change lies between two of them.
`sizewatch inspect PAGE` prints what one page gives, value by value. [GPU signals](gpus.md) do not depend on the engine."""

NAMES = """\
Names as they stand on the page with `:` written as `_`, without what Ray, KServe or a router puts before them. Several
rows of one family are alternatives: the first that is on the page is used. Series of data-parallel engines and label
values are added up unless the note says otherwise."""

SEVERAL = fill(
    "A page with several engines is several replicas, each named `target/engine`: a label with more than one value tells "
    f"them apart. Labels that count: {', '.join(f'`{label}`' for label in TELLING)}; else the model, or its version. "
    "A data-parallel `engine` and ranks are parts of one replica. Where no label tells engines apart, where names of two "
    "engines are mixed, and of the vLLM production-stack router, nothing is judged, and it is no replica: `inspect`, "
    "`doctor` and `init` say so.",
    width=124,
)


def engines_page() -> str:
    printed = {row.family for engine in ENGINES for row in engine.rows}
    rows = ((f"`{f.name}`", *(_printed(engine, f.name) for engine in ENGINES)) for f in FAMILIES if f.name in printed)
    parts = [ENGINES_HEAD, table(("family", *(engine.label for engine in ENGINES)), rows), NAMES, SEVERAL]
    parts += [part for engine in ENGINES for part in _engine(engine)]
    return "\n\n".join(parts) + "\n"


def _printed(engine: EngineTable, family: str) -> str:
    """Return since and until which of its scanned releases an engine prints a family."""
    rows = [row for row in engine.rows if row.family == family]
    if not rows:
        return "-"
    place = {release: number for number, release in enumerate(engine.scanned)}
    first = min(place.get(row.since, 0) for row in rows)
    last = max(place.get(row.until, len(place)) for row in rows)
    words = [f"from {engine.scanned[first]}"] if first else []
    words += [f"to {engine.scanned[last]}"] if last + 1 < len(engine.scanned) else []
    return " ".join(words) or "yes"


def _engine(engine: EngineTable) -> Iterator[str]:
    yield f"## {engine.label}"
    if engine.scanned:
        yield f"`engine: {engine.name}`; releases {', '.join(engine.scanned)}."
    yield table(("our family", "source", "since", "until", "note"), (_row(row) for row in engine.rows))
    if engine.not_exposed:
        yield "Not exposed, or not at once:"
        reasons = ((f"`{name}`" if name != "other" else "all others", why) for name, why in engine.not_exposed.items())
        yield table(("family", "why"), reasons)


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
