"""Signals: the table SIGNALS (name, unit, kind, families) and the types Reading, Missing and Gap.

`rules.telemetry.readings` computes readings by this table. To add a signal: a row of signals.toml.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rules.tables import freeze, read_table


class Gap(StrEnum):
    """Reason for a missing number. The later member wins if windows with different gaps are added."""

    NO_TRAFFIC = "no_traffic"
    TOO_FEW_REQUESTS = "too_few_requests"
    NOT_IN_PLAN = "not_in_plan"
    OUTSIDE_BENCHMARK = "outside_benchmark"
    NOT_EXPOSED = "not_exposed"
    STALE = "stale"
    RESTARTED = "restarted"
    NOT_SCRAPED = "not_scraped"
    CONTRADICTORY = "contradictory"
    IMPOSSIBLE = "impossible"
    SCRAPE_FAILED = "scrape_failed"


GAP_ORDER = {gap: place for place, gap in enumerate(Gap)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Value of a signal in a window, with certain bounds.

    For a quantile the bounds are the edges of the bucket that holds the rank; `high` is None in the last bucket.
    `value` is the best estimate, or None if only bounds are known. `n` counts the observations (requests for latencies,
    events for rates, samples for gauges). The bounds exclude sampling uncertainty.
    """

    value: float | None
    low: float | None
    high: float | None
    n: float

    def map(self, change: Callable[[float], float]) -> Reading:
        """Return the reading with a rising function of its value and its bounds."""
        value, low, high = (None if end is None else change(end) for end in (self.value, self.low, self.high))
        return Reading(value=value, low=low, high=high, n=self.n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Missing number and its reason. `text` adds details beyond the name of the gap."""

    gap: Gap
    text: str = ""


SignalValue = Reading | Missing


class SignalKind(StrEnum):
    """Kind of reading. Each is one function in `rules.telemetry.reading_methods`."""

    QUANTILE = "quantile"  # of a histogram family
    RATE = "rate"  # counter increase per second, tier total
    RATIO = "ratio"  # increase of one counter by the increase of another
    LEVEL = "level"  # mean of a gauge over its covered time, per replica
    TOTAL_LEVEL = "total_level"  # level summed over the replicas
    DERIVED = "derived"  # a function in `rules.telemetry.derived`, by the signal's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Row of SIGNALS: `unit` is a base unit. `families` are the names in a window that `how` reads; `q` is the quantile
    (0-1). `also` are further families that may change the reading."""

    name: str
    unit: str
    how: SignalKind
    families: tuple[str, ...]
    also: tuple[str, ...] = ()
    q: float | None = None
    text: str


def _load(row: dict[str, Any]) -> Signal:
    return Signal(**freeze(row) | {"how": SignalKind(row.get("how", "derived"))})


SIGNALS: tuple[Signal, ...] = tuple(map(_load, read_table("rules.telemetry", "signals")["signals"]))

BY_NAME = {signal.name: signal for signal in SIGNALS}
