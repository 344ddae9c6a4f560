"""Telemetry of benchmark runs, which no client sees: summed windows of a store or of sizewatch's own history."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from agent.benchmarks.run_model import CONTRADICTION, BenchmarkRun
from agent.config.load import LoadedConfig, build_tier_contexts, history_path
from agent.errors import BenchmarkError
from agent.fleet.tier_readers import AGENTS, build_replica_reader
from agent.history.schema import MINUTES
from agent.history.store import HistoryStore
from agent.prometheus.api import StoreApi
from rules.plan.schema import Point
from rules.replicas.state import ScrapeTrack, record_failure, record_success
from rules.telemetry.gpu_windows import GPU_UTILIZATION_KINDS, gpu_utilization
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading
from rules.telemetry.windows import Window, group_by, sum_windows

FIELDS = ("prefix_hit_ratio", "eviction_rate", "speculative_acceptance", "kv_utilization")
"""Fields of a point with a signal of the same name. GPU utilisation is added by kind."""

BEYOND_SECONDS = 120.0
"""Query margin in seconds before and after a run, for a scrape on each side."""

LONGEST_PART = 0.25
"""Largest share of a run for one window. A longer one mixes too much idle time into a mean level."""

OTHER_TRAFFIC = 0.2
"""Share of differing requests above which the engine served others too."""


@dataclass(slots=True)
class RunTelemetry:
    """Telemetry of one run: values by field of a point, the kind of GPU utilisation, and remarks."""

    values: dict[str, float] = field(default_factory=dict)
    gpu_utilization_kind: str | None = None
    remarks: list[str] = field(default_factory=list)


class TelemetrySource(NamedTuple):
    """Source of telemetry by its name for messages. `replicas` returns windows by replica from and to unix seconds."""

    name: str
    replicas: Callable[[float, float], Mapping[str, Sequence[Window]]]


def open_source(loaded: LoadedConfig, tier: str) -> TelemetrySource:
    """Return the store of the configuration, or its history. Raise ConfigError if it has neither."""
    if loaded.config.store is None:
        path = history_path(loaded)
        return TelemetrySource(name=f"sizewatch's own history {path}", replicas=partial(_read_history, path, tier))
    return TelemetrySource(name=f"the store {loaded.config.store.url}", replicas=partial(_read_store, loaded, tier))


def _read_history(path: Path, tier: str, start: float, end: float) -> dict[str, list[Window]]:
    with HistoryStore.open_reader(path) as reader:
        minutes = group_by(reader.minutes(tier, start - MINUTES.seconds, end), lambda minute: minute.replica or "")
    return {replica: [minute.window for minute in group] for replica, group in minutes.items()}


def _read_store(loaded: LoadedConfig, tier: str, start: float, end: float) -> dict[str, list[Window]]:
    assert loaded.config.store is not None
    replicas: defaultdict[str, list[Window]] = defaultdict(list)
    tracks: defaultdict[str, ScrapeTrack] = defaultdict(ScrapeTrack)
    with closing(StoreApi(loaded.config.store)) as api:
        tiers, contexts = loaded.config.tiers, build_tier_contexts(loaded)
        reader = build_replica_reader(tier, tiers.get(tier, AGENTS), contexts[tier], api)
        pages = reader.ask(start - BEYOND_SECONDS, end + BEYOND_SECONDS)
    for page in pages:
        track = tracks[page.replica]
        if page.snapshot is None:
            tracks[page.replica], window = record_failure(track, page.t)
        else:
            tracks[page.replica], window = record_success(track, page.snapshot)
        replicas[page.replica] += [part for part in (window, page.gpu_window) if part is not None]
    return replicas


def observe(runs: Sequence[BenchmarkRun], source: TelemetrySource) -> str | None:
    """Add their telemetry to what the runs' files tell. Return the kind of GPU utilisation, of which a curve has one."""
    telemetry = [read_run(run, source) for run in runs]
    kind = next((seen.gpu_utilization_kind for seen in telemetry if seen.gpu_utilization_kind), None)
    for run, seen in zip(runs, telemetry, strict=True):
        if seen.gpu_utilization_kind != kind:
            seen.values.pop("gpu_utilization", None)
        run.point = Point.model_validate({**seen.values, **run.point.model_dump(exclude_none=True)})
        run.remarks += seen.remarks
    return kind


def read_run(run: BenchmarkRun, source: TelemetrySource) -> RunTelemetry:
    """Return the telemetry of a run. Raise StoreError, HistoryError, and BenchmarkError where several replicas served.

    The windows whose middle lies in the run are its own. Those of GPUs alone lie in it wholly: they hold levels.
    """
    start, end = run.started_at, run.ended_at
    if start is None or end is None or end <= start:
        return RunTelemetry(remarks=["the result file does not tell when this run was: it has no telemetry"])
    span = f"{datetime.fromtimestamp(start, UTC):%Y-%m-%d %H:%M:%S} to {datetime.fromtimestamp(end, UTC):%H:%M:%S} UTC"
    busy = {}
    for name, windows in source.replicas(start, end).items():
        pages = [w for w in windows if w.covered_seconds > 0]
        parts = [w for w in pages if start <= w.middle <= end]
        if any(w.counters.get(family, 0.0) > 0 for w in parts for family in ("requests_finished", "generation_tokens")):
            gpus = [w for w in windows if not w.covered_seconds > 0 and start <= w.start and w.end <= end]
            busy[name] = (pages, parts, gpus)
    if len(busy) > 1:
        text = f"{len(busy)} replicas served requests from {span}: {', '.join(busy)}"
        raise BenchmarkError(source.name, f"{text}; a curve is of one replica: select the measured one by its labels")
    if not busy:
        return RunTelemetry(remarks=[f"{source.name} has no request of this run, {span}: do its times fit?"])
    ((pages, parts, gpus),) = busy.values()
    covered = math.fsum(max(min(w.end, end) - max(w.start, start), 0.0) for w in pages) / (end - start)
    if covered < FULL_COVERAGE:
        return RunTelemetry(remarks=[f"{source.name} covers {covered:.0%} of this run, {span}: nothing was taken"])
    # The longest part may cross an end of the run.
    window, longest = sum_windows([*parts, *gpus]), max(part.span for part in parts)
    finished, counted = window.counters.get("requests_finished", 0.0), run.point.requests or 0
    if abs(finished - counted) > OTHER_TRAFFIC * counted + finished * longest / window.span:
        text = f"the engine finished {finished:.0f} requests in this run, the result file has {counted}"
        return RunTelemetry(remarks=[f"{text}: its telemetry is not of this run alone, and nothing was taken"])
    seen = RunTelemetry()
    for name in FIELDS:
        value = read(BY_NAME[name], window)
        if isinstance(value, Missing):
            if value.gap is Gap.CONTRADICTORY:
                text = value.text.removesuffix(" cannot be") or "the engine counts more hits than lookups"
                seen.remarks.append(f"{name}: {text}, {CONTRADICTION}; left out")
        elif value.value is not None and (value.value <= 1 or name == "eviction_rate"):
            seen.values[name] = value.value
    if longest > LONGEST_PART * window.span:
        seen.values.pop("kv_utilization", None)
        seen.remarks.append(f"kv_utilization, gpu_utilization: parts of {longest:.0f} s are too long for this run")
        return seen
    for kind in GPU_UTILIZATION_KINDS:
        use = gpu_utilization(window, kind)
        if isinstance(use, Reading) and use.value is not None and use.value <= 1:
            seen.values["gpu_utilization"], seen.gpu_utilization_kind = use.value, kind
            break
    return seen
