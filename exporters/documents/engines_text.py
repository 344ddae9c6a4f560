"""Engine x signal: known, bounded, not exposed; for the terminal, for a program and for the documentation.

Owns the words and the layout of that answer. What is known is `rules.engines.support`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rules.engines.support import Exposure, Support, engine_signals, exposures
from rules.engines.table import EngineTable

SHORT = {Support.KNOWN: "known", Support.BOUNDED: "bounded", Support.NOT_EXPOSED: "-"}


def cell(exposure: Exposure) -> str:
    """One cell: what the newest release gives, and since when where it was not always so."""
    support, since, _ = exposure.spans[-1]
    text = SHORT[support]
    if len(exposure.spans) == 1:
        return text
    before = exposure.spans[-2]
    if support is Support.NOT_EXPOSED:
        return f"{SHORT[before[0]]} to {before[2]}"
    return f"{text} from {since}" if before[0] is Support.NOT_EXPOSED else f"{text}, {SHORT[before[0]]} to {before[2]}"


def matrix(engines: Sequence[EngineTable]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Head and rows: a signal a row, an engine generation a column."""
    columns = [{e.signal: e for e in exposures(engine)} for engine in engines]
    rows = tuple((s.name, *(cell(column[s.name]) for column in columns)) for s in engine_signals())
    return ("signal", *(engine.label for engine in engines)), rows


def engines_text(engines: Sequence[EngineTable]) -> str:
    """The matrix for a terminal; of one engine alone every signal with its source or the reason why there is none."""
    if len(engines) == 1:
        return _one(engines[0])
    head, rows = matrix(engines)
    return "\n".join([_columns([head, *rows]), "", LEGEND])


LEGEND = (
    "known: a best estimate with bounds; bounded: bounds alone; -: not exposed. `sizewatch signals --engine NAME` says "
    "why.\nSignals of the GPU come from NVML or a GPU exporter, whatever the engine."
)


def _one(engine: EngineTable) -> str:
    lines = [engine.label + (f", releases {engine.scanned[0]} to {engine.scanned[-1]}" if engine.scanned else ""), ""]
    rows = [(e.signal, cell(e), _said(e)) for e in exposures(engine)]
    return "\n".join([*lines, _columns(rows)])


def _said(exposure: Exposure) -> str:
    return exposure.why if any(support is Support.NOT_EXPOSED for support, _, _ in exposure.spans) else ""


def _columns(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def engines_json(engines: Iterable[EngineTable]) -> dict[str, Any]:
    """The same for a program."""
    return {
        "schema": 1,
        "engines": [
            {
                "engine": engine.name,
                "generation": engine.generation,
                "title": engine.title,
                "releases": list(engine.scanned),
                "signals": {e.signal: _exposure_json(e) for e in exposures(engine)},
            }
            for engine in engines
        ],
    }


def _exposure_json(exposure: Exposure) -> dict[str, Any]:
    spans = [{"support": support.value, "from": first, "to": last} for support, first, last in exposure.spans]
    return {"support": exposure.newest_support.value, "spans": spans, "why": exposure.why}
