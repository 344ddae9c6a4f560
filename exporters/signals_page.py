"""docs/signals.md: every signal, every family, what each engine prints for it, and what sizewatch exports.

Owns the layout. The rows are `rules.signals`, `rules.families`, `rules.engines` and `exporters.names`; a new one there
needs no change here, and a new engine gets its section by being in the registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from exporters import names
from rules.engines.registry import ENGINES
from rules.engines.table import Across, Engine, Row
from rules.families import FAMILIES, Family
from rules.signals import SIGNALS, Signal

HEAD = """\
# Signals

<!-- Generated from the program's own tables; `sizewatch render` writes it anew. -->

A **family** is what an engine or a GPU exposes, under our name. A **signal** is what is read from families over a
window: it has bounds and a count, or a named gap ([concepts](concepts.md)). Units are base units, ratios run from 0 to 1.
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
        HEAD,
        SIGNALS_HEAD,
        _table(("signal", "unit", "meaning", "from"), (_signal(signal) for signal in SIGNALS)),
        FAMILIES_HEAD,
        _table(("family", "kind", "exported as", "labels", "meaning"), (_family(family) for family in FAMILIES)),
        OWN_HEAD,
        _table(("metric", "kind", "labels", "meaning"), (_own(metric) for metric in names.OWN)),
    ]
    return "\n\n".join([*parts, *(part for engine in ENGINES for part in _engine(engine))]) + "\n"


def _engine(engine: Engine) -> Iterator[str]:
    yield f"## {engine.title}, generation {engine.generation.upper()}"
    yield (
        "Names as they stand on the page with `:` written as `_`. Several rows of one family are alternatives: the first "
        "that is on the page is used. *Since* and *until* are the first and last release that was looked at and has it; "
        "the true change lies between two such releases. Series of data-parallel engines and label values are added "
        "up unless the note says otherwise."
    )
    yield _table(("our family", "source", "since", "until", "note"), (_row(row) for row in engine.rows))
    if engine.not_exposed:
        yield "Not exposed, whatever the release:"
        yield _table(("our family", "why"), ((f"`{family}`", why) for family, why in engine.not_exposed))
    yield "Left alone, by the start of the name:"
    yield _table(("names", "why"), ((f"`{one.prefix}...`", one.why) for one in engine.ignored))


def _signal(signal: Signal) -> tuple[str, ...]:
    return f"`{signal.name}`", signal.unit.value, signal.text, ", ".join(f"`{family}`" for family in signal.families)


def _family(family: Family) -> tuple[str, ...]:
    metric = names.FAMILY.get(family.name)
    exported = (f"`{metric.name}`", _labels(metric)) if metric else ("", "")
    return f"`{family.name}`", family.kind.value, *exported, family.text


def _own(metric: names.Metric) -> tuple[str, ...]:
    return f"`{metric.name}`", metric.kind.value, _labels(metric), metric.text


def _labels(metric: names.Metric) -> str:
    return ", ".join(metric.labels)


def _row(row: Row) -> tuple[str, ...]:
    where = ",".join(f'{label}="{value}"' for label, value in row.where)
    source = row.source + (f"{{{where}}}" if where else "")
    ways = [row.across.value.replace("_", " ")] if row.across is not Across.SUM else []
    ways += [f"its `_{row.part}`"] if row.part else []
    ways += [f"by `{row.by}`"] if row.by else []
    ways += [f"times {row.factor:g}"] if row.factor != 1 else []
    ways += [f"times `{row.factor_fact}`"] if row.factor_fact else []
    note = "; ".join(text for text in (", ".join(ways), row.note) if text)
    return f"`{row.family}`", f"`{source}`", row.since, row.until, note


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows)
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {line} |" for line in cells)])
