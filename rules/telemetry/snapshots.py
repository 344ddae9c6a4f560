"""What one checked page said: an engine's counters, histograms and gauges under sizewatch's own family names.

Owns the record only. `rules.engines.normalize` makes it from a page by an engine's table; `rules.telemetry.windows` takes the
difference of two. It never holds quantiles or ratios: those belong to windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rules.telemetry.histograms import Cumulative
from rules.telemetry.pod_times import PodTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One page at one instant. Family names and units are those of `rules.telemetry.families`.

    `started_at` is when the counters began, as far as the page tells (unix seconds, None where it does not).
    `ready_at` is when the engine made its metrics, which is when it became ready. `facts` are labels of info series.
    `pod` is what is known of the pod that the page is from, where it is from one.
    `broken` are the families that were broken on this page and are therefore absent here, `contradictory` those that
    contradict each other and are absent, too; `problems` says how.
    """

    t: float
    engine: str
    generation: str
    started_at: float | None
    ready_at: float | None
    counters: Mapping[str, float]
    histograms: Mapping[str, Cumulative]
    gauges: Mapping[str, float]
    facts: Mapping[str, str]
    problems: tuple[str, ...] = ()
    broken: frozenset[str] = frozenset()
    contradictory: frozenset[str] = frozenset()
    sampled: frozenset[str] = frozenset()
    pod: PodTimes | None = None
