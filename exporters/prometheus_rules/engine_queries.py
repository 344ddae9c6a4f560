"""PromQL selectors for an engine's own metric names, summed over a tier or by replica.

They serve rule files for installations without an agent. A family whose row in `rules.engines` needs more than a
selector is refused with a reason. A new engine whose histogram edges are known may have a row in EDGES.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rules.engines.registry import ENGINES, NAMESPACES
from rules.engines.table import EngineTable, LabelAggregation, Match, SourceRow

_VLLM_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)

EDGES: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("vllm", "ttft_seconds"): (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
        *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
    ),
    ("vllm", "tpot_seconds"): _VLLM_PER_TOKEN,
    ("vllm", "itl_seconds"): _VLLM_PER_TOKEN,
    ("vllm", "e2e_seconds"): (
        *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
        *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
    ),
}
"""Finite bucket edges by engine and family (vLLM v1/metrics/loggers.py, 0.8.5 to 0.33.0). A page with other edges lacks
the series, and EngineMetricsAbsent of the same file fires.
"""


class UnsupportedSeriesError(ValueError):
    """Rule or family that PromQL cannot express for this engine. The message holds the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSelector:
    """Series of a family in a tier: metric name and label matchers."""

    name: str
    matchers: tuple[str, ...]
    repeats: tuple[str, ...]
    replica: str = "instance"

    def selector(self, *more: str, suffix: str = "") -> str:
        return f"{self.name}{suffix}{{{','.join((*self.matchers, *more))}}}"

    def increase(self, window: str, *more: str, suffix: str = "", by_replica: bool = False) -> str:
        """Return the increase over `window`, by tier or replica. Series that repeat a number count once."""
        grown = f"increase({self.selector(*more, suffix=suffix)}[{window}])"
        once = self._once(grown)
        return f"sum by ({self.replica}) ({once})" if by_replica else f"sum({once})"

    def level(self, window: str) -> str:
        """Return the mean of a gauge over `window` by replica, summed over its engines."""
        return f"sum by ({self.replica}) ({self._once(f'avg_over_time({self.selector()}[{window}])')})"

    def _once(self, expr: str) -> str:
        return f"max without ({', '.join(self.repeats)}) ({expr})" if self.repeats else expr


def engine_named(name: str, engines: tuple[EngineTable, ...] = ENGINES) -> EngineTable:
    """Return the newest generation of an engine. Raise UnsupportedSeriesError for an unknown engine."""
    found = next((engine for engine in engines if engine.name == name), None)
    if found is None:
        known = ", ".join(sorted({engine.name for engine in engines}))
        raise UnsupportedSeriesError(f"no engine is called {name}; sizewatch knows {known}")
    return found


def series(engine: EngineTable, family: str, selector: str) -> EngineSelector:
    """Return a family's series in the newest scanned release. Raise UnsupportedSeriesError if no selector suffices."""
    row = next((row for row in engine.rows if row.family == family and not row.until), None)
    if row is None:
        raise UnsupportedSeriesError(f"{engine.title} does not expose {family}")
    if (
        row.plus
        or row.by
        or row.factor_fact
        or row.zero_with
        or row.factor != 1
        or row.across is LabelAggregation.NEWEST_NAMES
    ):
        raise UnsupportedSeriesError(
            f"{engine.title} gives {family} only to who reads more than one series of the page"
        )
    return EngineSelector(
        name=_written(row.sample.removesuffix("_bucket")),
        matchers=(*(part for part in (selector,) if part), *_matchers(row)),
        repeats=engine.repeats,
    )


def edge_above(engine: EngineTable, family: str, limit: float) -> float:
    """Return the first bucket edge at or above `limit`, in the unit of `limit`.

    Raise UnsupportedSeriesError if the edges are unknown or all lie below.
    """
    edges = EDGES.get((engine.name, family))
    if edges is None:
        raise UnsupportedSeriesError(f"the bucket edges of {engine.title}'s {family} are not in the table")
    found = next((edge for edge in edges if edge >= limit), None)
    if found is None:
        raise UnsupportedSeriesError(
            f"{limit:g} lies beyond the last bucket edge of {engine.title}'s {family}, {edges[-1]:g}"
        )
    return found


def le(edge: float) -> str:
    """Return a matcher of the bucket up to `edge` in any spelling (1, 1.0)."""
    text = f"{edge:g}"
    return f'le="{text}"' if "." in text else f'le=~"{text}([.]0)?"'


def _written(source: str) -> str:
    for mapped, printed in NAMESPACES.items():
        if source.startswith(mapped):
            return printed + source.removeprefix(mapped)
    return source


def _matchers(row: SourceRow) -> tuple[str, ...]:
    return (*(f'{label}="{value}"' for label, value in row.where), *(_matcher(match) for match in row.matches))


def _matcher(match: Match) -> str:
    values = [re.escape(value).replace("\\", "\\\\") + (".*" if match.starts else "") for value in match.values]
    if match.optional != match.without:
        # PromQL treats a missing label as empty.
        values.append("")
    return f'{match.label}{"!~" if match.without else "=~"}"{"|".join(values)}"'
