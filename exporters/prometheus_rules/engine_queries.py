"""An engine's own names as PromQL: which series stand for a family, added up over a tier or kept by replica.

Owns the way from a row of `rules.engines` to a selector, and the bucket edges that released engines print. It serves
rule files for installations without an agent; a page that the agent reads needs none of it. A family whose row needs more
than a selector is refused with the reason. A new engine's spelling is a row of PREFIXES, its edges a row of EDGES.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rules.engines.registry import ENGINES
from rules.engines.table import EngineTable, LabelAggregation, Match, SourceRow

PREFIXES: Mapping[str, str] = {"vllm_": "vllm:", "sglang_": "sglang:", "llamacpp_": "llamacpp:"}
"""The tables spell ':' as '_'; so are the names on the page."""

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
}
"""Finite bucket edges by engine and family (vLLM v1/metrics/loggers.py, 0.8.5 to 0.33.0). A page with others lacks the
series, and the file's own EngineMetricsAbsent says so.
"""


class UnsupportedSeriesError(ValueError):
    """A rule or a family that cannot be written in PromQL for this engine; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSelector:
    """The series of one family of one tier: name and label matchers."""

    name: str
    matchers: tuple[str, ...]
    repeats: tuple[str, ...]
    replica: str = "instance"

    def selector(self, *more: str, suffix: str = "") -> str:
        return f"{self.name}{suffix}{{{','.join((*self.matchers, *more))}}}"

    def increase(self, window: str, *more: str, suffix: str = "", by_replica: bool = False) -> str:
        """The increase over `window`, added up over the tier or by replica; series that repeat one number count once."""
        grown = f"increase({self.selector(*more, suffix=suffix)}[{window}])"
        once = self._once(grown)
        return f"sum by ({self.replica}) ({once})" if by_replica else f"sum({once})"

    def level(self, window: str) -> str:
        """The mean of a gauge over `window` by replica, its engines added up."""
        return f"sum by ({self.replica}) ({self._once(f'avg_over_time({self.selector()}[{window}])')})"

    def _once(self, expr: str) -> str:
        return f"max without ({', '.join(self.repeats)}) ({expr})" if self.repeats else expr


def engine_named(name: str, engines: tuple[EngineTable, ...] = ENGINES) -> EngineTable:
    """The newest generation of an engine. Raises Unable for a stranger."""
    found = next((engine for engine in engines if engine.name == name), None)
    if found is None:
        known = ", ".join(sorted({engine.name for engine in engines}))
        raise UnsupportedSeriesError(f"no engine is called {name}; sizewatch knows {known}")
    return found


def series(engine: EngineTable, family: str, selector: str) -> EngineSelector:
    """The series of a family as the newest scanned release prints them. Raises Unable where a selector is not enough."""
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
    """The first bucket edge at or above `limit` (same unit): what is beyond it is certainly beyond the limit.

    Raises Unable where the edges are not known or all lie below.
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
    """A matcher of the bucket up to `edge`, however the edge is spelt (1, 1.0)."""
    text = f"{edge:g}"
    return f'le="{text}"' if "." in text else f'le=~"{text}([.]0)?"'


def _written(source: str) -> str:
    for mapped, printed in PREFIXES.items():
        if source.startswith(mapped):
            return printed + source.removeprefix(mapped)
    return source


def _matchers(row: SourceRow) -> tuple[str, ...]:
    return (*(f'{label}="{value}"' for label, value in row.where), *(_matcher(match) for match in row.matches))


def _matcher(match: Match) -> str:
    values = [re.escape(value).replace("\\", "\\\\") + (".*" if match.starts else "") for value in match.values]
    if match.optional != match.without:
        # A label that is not there is empty to PromQL.
        values.append("")
    return f'{match.label}{"!~" if match.without else "=~"}"{"|".join(values)}"'
