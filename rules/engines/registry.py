"""Registry of engine generations: every table in this folder.

To add a generation: a TOML file here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rules.engines.table import EngineTable, SourceRow, load_engine_tables

ENGINES: tuple[EngineTable, ...] = tuple(
    sorted(load_engine_tables(), key=lambda table: (table.carries_engines, -len(table.rows)))
)
"""In the order in which a page is asked: the fuller table first, and what carries another engine's families last."""

PROCESS_START = "process_start_time_seconds"
"""Metric of every Prometheus client about its process, for all engines (not in multiprocess mode)."""


def normalize_name(name: str) -> str:
    """Return a printed name as tables spell it: ':' is '_' (METRICS trap 1: negotiation, Prometheus 2 and OTel rewrite
    it)."""
    return name.replace(":", "_")


def strip_wrapper_prefix(name: str, engine: EngineTable) -> str:
    """Return the name without the prefix of Ray or KServe."""
    return next((name.removeprefix(prefix) for prefix in engine.wrappers if name.startswith(prefix)), name)


def detect_engine(
    series: Iterable[tuple[str, Mapping[str, str]]], engines: tuple[EngineTable, ...] = ENGINES
) -> EngineTable | None:
    """Return the engine generation with a signature among the (mapped name, labels) of a page, or None. A page with
    several signatures belongs to the first: a Dynamo worker passes its engine's metrics through."""
    page = tuple(series)
    for engine in engines:
        required, refused = set(engine.signature_labels), set(engine.signature_without)
        for name, labels in page:
            is_signature = strip_wrapper_prefix(name, engine) in engine.signatures
            if is_signature and required <= labels.keys() and refused.isdisjoint(labels):
                return engine
    return None


def select_rows(rows: Iterable[SourceRow], on_page: Callable[[SourceRow], bool]) -> tuple[SourceRow, ...]:
    """Return the first alternative of each family with its source on the page."""
    won: dict[str, SourceRow] = {}
    for row in rows:
        if row.family not in won and on_page(row):
            won[row.family] = row
    return tuple(won.values())


def itl_comparable(engine: str | None, engines: tuple[EngineTable, ...] = ENGINES) -> bool:
    """Return whether the engine's ITL is per output event, as in benchmarks (METRICS 1.1, 1.2; PEERS 3.2)."""
    return not any(e.name == engine and e.itl_is_per_token for e in engines)
