"""State of the daemon for its pages and metrics: running sums, the last scrape of each target, the last hour.

Cycles write it and the status reads it. No rule depends on it. Sums are mutable lists: a new Window per scrape would make
this the hottest code on a GPU node.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent.pipeline.interfaces import Sink
from exporters.status.records import TrendPoint
from rules.evaluator.observation import ClosedMinute, Observation, ReplicaGpus, ReplicaKey, ReplicaScrape, StepResult
from rules.evaluator.tier_minutes import AHEAD_SECONDS
from rules.evaluator.timeline import TimelineEvent
from rules.plan.load_bins import TierContext
from rules.telemetry import readings, windows
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import BY_NAME
from rules.telemetry.windows import DAY_SECONDS, Window
from rules.verdicts.verdict import Finding


class RunningSums:
    """Sums of the counters and histograms of one replica since the agent started.

    A histogram restarts at zero when its bucket edges change, like a counter after a restart. An untrusted sum (`total`
    is None) adds nothing, which leaves out corrupt data (vLLM issue 49135).
    """

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._edges: dict[str, tuple[float, ...]] = {}
        self._counts: dict[str, list[float]] = {}
        self._totals: dict[str, float] = {}
        self._start = self._end = 0.0

    def add(self, window: Window, leave_out: Container[str] = ()) -> None:
        """Add a window without the counters in `leave_out`, which are summed elsewhere."""
        self._start = self._start or window.start
        self._end = window.end
        counters = self._counters
        for name, value in window.counters.items():
            if name not in leave_out:
                counters[name] = counters.get(name, 0.0) + value
        for family, parts in window.histograms.items():
            for part in parts:
                self._add_part(family, part)

    def _add_part(self, family: str, part: Histogram) -> None:
        if self._edges.get(family) != part.edges:
            self._edges[family], self._counts[family], self._totals[family] = part.edges, [0.0] * len(part.edges), 0.0
        counts = self._counts[family]
        for place, count in enumerate(part.counts):
            if count:
                counts[place] += count
        if part.total is not None:
            self._totals[family] += part.total

    def window(self) -> Window:
        """Return the sums as a window with zero coverage: for export, not for readings."""
        parts = {
            family: (Histogram(edges=edges, counts=tuple(self._counts[family]), total=self._totals[family]),)
            for family, edges in self._edges.items()
        }
        return Window(
            start=self._start,
            end=self._end,
            expected_seconds=0.0,
            covered_seconds=0.0,
            counters=dict(self._counters),
            histograms=parts,
        )


TREND_SIGNALS = (
    "completed_rps",
    "arrival_rps",
    "ttft_p50_seconds",
    "ttft_p99_seconds",
    "tpot_p99_seconds",
    "requests_running",
    "requests_waiting",
    "kv_utilization",
    "prefix_hit_ratio",
    "gpu_utilization",
    "fleet_utilization",
    "cost_per_million_tokens",
)
TREND_MINUTES = 60

OPEN_MINUTES = 3
"""Number of newest minutes that may still gain a replica: a slow target's page may belong to the minute before."""

MOST_EVENTS = 1_000
"""Maximum number of events of the last day in memory. A replica that restarts every minute fills it in a day."""


@dataclass(slots=True)
class ReplicaRuntime:
    """Runtime record of one replica: running sums, last scrape, time of the last good page (`seen`), and its GPUs.

    `error` is the text of the last failure, also while the target is skipped after it. Empty after a good page.
    """

    sums: RunningSums = field(default_factory=RunningSums)
    scrape: ReplicaScrape | None = None
    seen: float | None = None
    error: str = ""
    gpus: ReplicaGpus = field(default_factory=ReplicaGpus)
    gpu_totals: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def is_up(self) -> bool:
        """Return whether the last scrape gave a page."""
        return self.scrape is not None and self.scrape.snapshot is not None


class RuntimeState(Sink):
    """Sink for the status page and the metrics: runtime records of all replicas, findings and events of the last day.

    `other_exporters` are tiers whose sums other agents export already.
    """

    def __init__(self, other_exporters: Container[str] = ()) -> None:
        self.replicas: defaultdict[ReplicaKey, ReplicaRuntime] = defaultdict(ReplicaRuntime)
        self.failures: Counter[tuple[str, str, str]] = Counter()
        self.gpu_problems: tuple[str, ...] = ()
        self.past: list[Finding] = []
        self.events: tuple[TimelineEvent, ...] = ()
        self._other_exporters = other_exporters
        self._trend: dict[str, dict[float, TrendPoint]] = {}
        self._minutes: dict[str, dict[float, Window]] = {}

    def accept(self, result: StepResult) -> None:
        if result.observation is not None:
            self._record_observation(result.observation, result.windows)
            self.past = [past for past in self.past if (past.ended_at or 0.0) > result.now - DAY_SECONDS]
        self.past += [span for span in result.closed if isinstance(span, Finding)]
        if result.events:
            kept = [event for event in self.events if event.t > result.now - DAY_SECONDS]
            self.events = (*kept, *result.events)[-MOST_EVENTS:]
        # Last: readings of a strange page may fail, and must not cost the findings and events above.
        self.record_minutes(result.minutes, result.tiers, result.now)

    def retain(self, keys: Container[ReplicaKey], other_exporters: Container[str]) -> None:
        """Drop the records of replicas that a new configuration does not monitor."""
        self._other_exporters = other_exporters
        self._drop({key for key in (*self.replicas, *(labels[:2] for labels in self.failures)) if key not in keys})

    def trend(self, tier: str) -> tuple[TrendPoint, ...]:
        """Return the last hour of a tier, one point per closed minute, oldest first."""
        return tuple(self._trend.get(tier, {}).values())

    def _record_observation(self, observation: Observation, added: Sequence[tuple[ReplicaKey, Window]]) -> None:
        self.gpu_problems = observation.gpu_problems
        for scrape in observation.scrapes:
            entry = self.replicas[scrape.key]
            entry.scrape = scrape
            if scrape.snapshot is not None:
                entry.seen, entry.error = scrape.t, ""
            elif scrape.failure:
                entry.error = scrape.error
                self.failures[(*scrape.key, scrape.failure)] += 1
        for key, window in added:
            if key[0] not in self._other_exporters:
                gpus = observation.gpus.get(key, _NO_GPUS).windows
                of_gpus = {name for extra in gpus.values() for name in extra.counters}
                self.replicas[key].sums.add(window, leave_out=of_gpus)
        # The GPUs of a target count only where its own window does.
        left_out = {scrape.key for scrape in observation.scrapes if observation.gpus} - {key for key, _ in added}
        for key, gpus_of in observation.gpus.items():
            entry = self.replicas[key]
            entry.gpus = replace(gpus_of, windows=_NO_GPUS.windows)
            for gpu, window in gpus_of.windows.items() if key not in left_out else ():
                entry.gpu_totals.setdefault(gpu, Counter()).update(window.counters)
        if observation.removed:
            self._drop(observation.removed)

    def _drop(self, gone: Collection[ReplicaKey]) -> None:
        for key in gone:
            self.replicas.pop(key, None)
        self.failures = Counter({labels: n for labels, n in self.failures.items() if labels[:2] not in gone})

    def record_minutes(
        self, minutes: tuple[ClosedMinute, ...], contexts: Mapping[str, TierContext], now: float = math.inf
    ) -> None:
        """Record closed minutes. Replicas may close a minute in different cycles; its point covers all of them so far."""
        grouped: dict[tuple[str, float], list[Window]] = {}
        for closed in minutes:
            grouped.setdefault((closed.tier, windows.minute_of(closed.slice.window)), []).append(closed.slice.window)
        for (tier, minute), group in grouped.items():
            sums, points = self._minutes.get(tier, {}), self._trend.get(tier, {})
            total = windows.sum_windows([sums[minute], *group] if minute in sums else group)
            values = {name: readings.read(BY_NAME[name], total, contexts[tier].basis) for name in TREND_SIGNALS}
            point = TrendPoint(t=minute + windows.MINUTE_SECONDS, readings=values)
            self._minutes[tier] = _newest({**sums, minute: total}, now, OPEN_MINUTES)
            self._trend[tier] = _newest({**points, minute: point}, now, TREND_MINUTES)


_NO_GPUS = ReplicaGpus()


def _newest(by_minute: Mapping[float, Any], now: float, most: int) -> dict[float, Any]:
    """Return the newest minutes in their order, without those far ahead of `now`: a clock was set back since."""
    kept = sorted(minute for minute in by_minute if minute <= now + AHEAD_SECONDS)
    return {minute: by_minute[minute] for minute in kept[-most:]}
