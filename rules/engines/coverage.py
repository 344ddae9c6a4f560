"""Coverage of engine pages: which families of a page are read, and the releases that print such a page.

For `sizewatch inspect` and the doctor. Only names and types count; the reader decides by values and labels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rules.engines.registry import (
    PROCESS_START,
    SUFFIXES,
    EngineTable,
    SourceRow,
    normalize_name,
    select_rows,
    strip_wrapper_prefix,
)
from rules.telemetry.families import GPU_NAMES, FamilyKind
from rules.telemetry.signals import SIGNALS

ENGINE_SIGNALS = tuple(signal for signal in SIGNALS if not GPU_NAMES.keys() >= {*signal.families})
"""Signals that an engine's page can give: all except GPU signals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyUse:
    """Family as the page prints it. `families` are the names under which it is read, `text` the same in words or ""."""

    name: str
    families: tuple[str, ...] = ()
    text: str = ""


def explain_families(engine: EngineTable, families: Mapping[str, str]) -> tuple[FamilyUse, ...]:
    """Return the use of each family of a page (printed name and type of its TYPE line), in the page's order."""
    rows = {printed: _rows_of(engine, printed, type_) for printed, type_ in families.items()}
    on_page = {row.source for own in rows.values() for row in own}
    won = select_rows(engine.rows, lambda row: row.source in on_page)
    # Samples that are read but feed no family of ours.
    facts = (*engine.info, *(sample for _, sample in engine.fact_gauges), PROCESS_START, engine.born)
    uses = []
    for printed in families:
        name, *texts = _spellings(engine, printed)
        added = [row for row in won if any(re.sub("_(sum|count)$", "", more) in (name, *texts) for more in row.plus)]
        ours = tuple(dict.fromkeys(row.family for row in (*rows[printed], *added) if row in won))
        text = ", ".join(ours) or ("facts about the engine" if name in facts else "")
        uses.append(FamilyUse(name=printed, families=ours, text=text))
    return tuple(uses)


def _rows_of(engine: EngineTable, printed: str, type_: str) -> list[SourceRow]:
    """Return the rows of a family. What is a histogram in one release may be a gauge in another."""
    name, counter, *parts = _spellings(engine, printed)
    is_histogram = type_ in ("histogram", "summary")
    names = {True: (name,) if is_histogram else tuple(parts), False: () if is_histogram else (name, counter)}
    return [row for row in engine.rows if row.source in names[bool(row.part) or row.kind is FamilyKind.HISTOGRAM]]


def _spellings(engine: EngineTable, printed: str) -> tuple[str, ...]:
    """Return the names that a table may have for a family of a page.

    A counter is printed with `_total` (text format) or without (OpenMetrics), a histogram without TYPE lines in parts.
    """
    name = strip_wrapper_prefix(normalize_name(printed), engine)
    return name, f"{name}_total", *(name.removesuffix(end) for end in SUFFIXES if name.endswith(end))


def version_range(engine: EngineTable, families: Mapping[str, str]) -> str:
    """Return the releases that print such a page, in words: "after 0.15.1 and before 0.20.2", "" if it may be any.

    `families` are printed names and types. A name appeared after the scan before its `since`. A row with an `until`
    wins only on pages without its newer name, which are older than the next scan.
    """
    rows = [_rows_of(engine, printed, type_) for printed, type_ in families.items()]
    since = {
        row.source: engine.scanned.index(row.since) for row in reversed(engine.rows) if row.since in engine.scanned
    }
    present = {row.source for source_rows in rows for row in source_rows}
    first = max((since[source] for source in present & since.keys()), default=0)
    won = select_rows(engine.rows, lambda row: row.source in present)
    last = [engine.scanned.index(row.until) for row in won if row.until in engine.scanned]
    before = min(last, default=len(engine.scanned)) + 1
    if before <= first:
        return ""
    words = [f"after {engine.scanned[first - 1]}"] if first else []
    words += [f"before {engine.scanned[before]}"] if before < len(engine.scanned) else []
    return " and ".join(words)
