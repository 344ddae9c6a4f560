"""Telemetry from a recording of the same span.

The recording must cover the run, and a single replica must have served it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from agent.benchmarks.points import BenchmarkMeasurement
from agent.benchmarks.telemetry_merge import (
    FINISHED,
    GENERATED,
    RunTelemetry,
    TelemetryFields,
    extract_fields,
    is_inside_run,
    span_of,
    span_text,
)
from agent.errors import BenchmarkError, RecordingError, ScrapeError
from agent.scrape.scrapers import PageReader
from agent.sources.recording import RecordedTarget, Scrape, load, scrapes
from rules.engines.table import EngineTable
from rules.replicas import track
from rules.replicas.track import ScrapeTrack
from rules.telemetry import windows
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window

NO_TIME = "the result file does not tell when this run was: nothing can be taken from telemetry"

_REPLICA = re.compile(r'\{?\s*replica\s*=\s*"([^"]*)"\s*,?\s*\}?')


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedReplica:
    """Replica with its windows in time order. `name` is its name for `--telemetry-selector`."""

    name: str
    engine: EngineTable | None
    windows: tuple[Window, ...]


def covered_share(parts: tuple[Window, ...], start: float, end: float) -> float:
    """Return the share (0-1) of the span that windows with pages at both ends cover."""
    overlaps = (min(w.end, end) - max(w.start, start) for w in parts if w.covered_seconds > 0)
    return min(1.0, math.fsum(overlap for overlap in overlaps if overlap > 0) / (end - start))


def has_traffic(replica: RecordedReplica, start: float, end: float) -> bool:
    """Return whether the replica finished or generated anything in the run."""
    return any(
        is_inside_run(w, start, end) and any(w.counters.get(f, 0.0) > 0 for f in (FINISHED, GENERATED))
        for w in replica.windows
    )


def during_run(
    measured: BenchmarkMeasurement, replica: RecordedReplica, start: float, end: float, whose: str
) -> TelemetryFields:
    """Return the telemetry of one replica from start to end (unix seconds). `whose` names the source."""
    share = covered_share(replica.windows, start, end)
    parts = tuple(w for w in replica.windows if is_inside_run(w, start, end))
    if share < FULL_COVERAGE or not parts:
        text = f"{whose} covers {share:.0%} of this run ({span_text(start, end)}): nothing was taken from it"
        if seen := replica.windows:
            text += f"; it spans {span_text(seen[0].start, seen[-1].end)}"
        return TelemetryFields(remarks=(text,))
    run = RunTelemetry(
        window=windows.sum_windows(parts), engine=replica.engine, edge_seconds=max(w.end - w.start for w in parts)
    )
    fields = extract_fields(measured, run)
    if run.window.counters.get("restarts"):
        return replace(fields, remarks=("the engine restarted during this run", *fields.remarks))
    return fields


class RecordedTelemetry:
    """Replicas of a recording. Raise BenchmarkError if it is unreadable or has no replica named `selector`."""

    def __init__(self, folder: Path, engine: str | None = None, selector: str | None = None) -> None:
        self._folder = folder
        self._replicas = tuple(_chosen(folder, _replicas(folder, engine), selector))

    def read_run(self, measured: BenchmarkMeasurement) -> TelemetryFields:
        """Return the telemetry of the replica that served the run. Raise BenchmarkError if several did."""
        span = span_of(measured)
        if span is None:
            return TelemetryFields(remarks=(NO_TIME,))
        busy = [replica for replica in self._replicas if has_traffic(replica, *span)]
        if len(busy) > 1:
            names = ", ".join(replica.name for replica in busy)
            text = (
                f"{names} all served requests in {span_text(*span)}: name the benchmarked one with --telemetry-selector"
            )
            raise BenchmarkError(self._folder, text)
        # If no replica served, all give the same reason: the span is not covered or nothing ended in it.
        return during_run(measured, (*busy, *self._replicas)[0], *span, whose=str(self._folder))

    def close(self) -> None:
        """Do nothing."""


def _replicas(folder: Path, engine: str | None) -> tuple[RecordedReplica, ...]:
    try:
        recording, problems = load(folder)
    except RecordingError as error:
        raise BenchmarkError(error.path, error.text) from error
    met = list(problems)
    readers = [PageReader(engine or target.engine) for target in recording.targets]
    followed = [ScrapeTrack() for _ in recording.targets]
    parts: list[list[Window]] = [[] for _ in recording.targets]
    engines: list[EngineTable | None] = [None for _ in recording.targets]
    for scrape in scrapes(recording, met):
        at = scrape.target
        page = _page(readers[at], scrape, recording.targets[at], met)
        if page is None:
            followed[at], window = track.record_failure(followed[at], scrape.t)
        else:
            followed[at], window = track.record_success(followed[at], page)
            engines[at] = readers[at].engine
        if window is not None:
            parts[at].append(window)
    if not any(engines):
        raise BenchmarkError(folder, f"has no page of an engine{f' ({met[0]})' if met else ''}")
    return tuple(
        RecordedReplica(name=_name(target, recording.targets), engine=engines[at], windows=tuple(parts[at]))
        for at, target in enumerate(recording.targets)
    )


def _page(reader: PageReader, scrape: Scrape, target: RecordedTarget, problems: list[str]) -> Snapshot | None:
    if scrape.body is None:
        return None
    try:
        return reader.read(scrape.body, scrape.t)
    except ScrapeError as error:
        problems.append(f"{target.path}: page at {scrape.t:.3f}: {error.text}")
        return None


def _name(target: RecordedTarget, targets: tuple[RecordedTarget, ...]) -> str:
    several = sum(other.replica == target.replica for other in targets) > 1
    return f"{target.tier}/{target.replica}" if several else target.replica


def _chosen(folder: Path, replicas: tuple[RecordedReplica, ...], selector: str | None) -> tuple[RecordedReplica, ...]:
    if selector is None:
        return replicas
    written = _REPLICA.fullmatch(selector.strip())
    name = written[1] if written is not None else selector.strip()
    chosen = tuple(replica for replica in replicas if replica.name == name)
    if not chosen:
        known = ", ".join(replica.name for replica in replicas)
        raise BenchmarkError(folder, f"has no replica {name!r}; there is {known}")
    return chosen
