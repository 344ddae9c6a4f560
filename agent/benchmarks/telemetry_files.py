"""Telemetry from files: a recording of the same span, or a folder of pages saved before and after each run.

A recording must cover the run, and a single replica must have served it. In a folder, the page after a run has the
result file's tag: `metrics_after_r3.prom` belongs to `bench_r3.json`. The page before it is the latest page of the same
process on which no counter is higher. Names and dates are not used: copying changes them. A gauge on two pages is not a
mean of the run.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from agent.benchmarks.points import BenchmarkMeasurement, Setup
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
from agent.http_client.transport import DEFAULT_MAX_BYTES
from agent.scrape.scrapers import PageReader
from agent.sources.recording import RecordedTarget, Scrape, load, scrapes
from rules.engines.table import EngineTable
from rules.plan.memory import engine_kv_tokens, whole
from rules.replicas import track
from rules.replicas.track import ScrapeTrack
from rules.telemetry import windows
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.readings import window_since_start
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
    setup: Setup | None = None


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
    fields = replace(fields, setup=replica.setup) if fields.values else fields
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
    last: list[Snapshot | None] = [None for _ in recording.targets]
    for scrape in scrapes(recording, met):
        at = scrape.target
        page = _page(readers[at], scrape, recording.targets[at], met)
        if page is None:
            followed[at], window = track.record_failure(followed[at], scrape.t)
        else:
            followed[at], window = track.record_success(followed[at], page)
            engines[at], last[at] = readers[at].engine, page
        if window is not None:
            parts[at].append(window)
    if not any(engines):
        raise BenchmarkError(folder, f"has no page of an engine{f' ({met[0]})' if met else ''}")
    return tuple(
        RecordedReplica(
            name=_name(target, recording.targets),
            engine=engines[at],
            windows=tuple(parts[at]),
            setup=_setup(last[at], target.engine_version),
        )
        for at, target in enumerate(recording.targets)
    )


def _setup(page: Snapshot | None, version: str | None = None) -> Setup:
    """Return what a page tells of the engine's configuration. `version` is that of the recording."""
    facts = page.facts if page is not None else {}
    return Setup(
        engine_version=version or "",
        kv_tokens=engine_kv_tokens(facts),
        max_num_seqs=whole(facts.get("max_num_seqs", "")),
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


SUFFIXES = (".prom", ".txt", ".metrics")

_NAMED = re.compile(r"(?:.*[_-])?(before|after)(?:[_-](.+))?")
"""Page name without suffix: time of saving, and tag of the run."""


@dataclass(frozen=True, slots=True)
class SavedPage:
    """Page of the folder. `tag` is empty for a page before or after all runs."""

    path: Path
    after: bool
    tag: str
    snapshot: Snapshot
    engine: EngineTable


def page_files(folder: Path) -> tuple[Path, ...]:
    """Return the sorted files of a folder with names of saved pages. Raise OSError."""
    return tuple(
        sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES and _NAMED.fullmatch(p.stem) and p.is_file())
    )


class SavedPages:
    """Saved pages of one folder. Raise BenchmarkError if no page is readable."""

    def __init__(self, folder: Path, files: tuple[Path, ...], engine: str | None = None) -> None:
        self._folder = folder
        self._broken: dict[Path, str] = {}
        self._pages: list[SavedPage] = []
        for path in files:
            try:
                self._pages.append(_read(path, engine))
            except (ScrapeError, OSError) as error:
                self._broken[path] = error.text if isinstance(error, ScrapeError) else str(error.strerror or error)
        if not self._pages:
            path, why = next(iter(self._broken.items()))
            raise BenchmarkError(path, f"cannot be used as a page of metrics, nor any other here: {why}")

    def read_run(self, measured: BenchmarkMeasurement) -> TelemetryFields:
        """Return the telemetry between the two pages around the run. Raise BenchmarkError if two pages have the run's
        tag."""
        page = self._after(measured)
        if isinstance(page, str):
            return TelemetryFields(remarks=(page,))
        counted = self._since(page, measured)
        if isinstance(counted, str):
            return TelemetryFields(remarks=(counted,))
        window, remarks = counted
        found = extract_fields(measured, RunTelemetry(window=window, engine=page.engine, ends_only=True))
        return replace(found, setup=_setup(page.snapshot) if found.values else None, remarks=(*remarks, *found.remarks))

    def close(self) -> None:
        """Do nothing."""

    def _after(self, measured: BenchmarkMeasurement) -> SavedPage | str:
        """Return the page saved after the run: its tag is the longest suffix of the result file's name."""
        stem = Path(measured.source).stem
        fitting = [page for page in self._pages if page.after and _ends_in(stem, page.tag)]
        if not fitting:
            return self._none_after(stem)
        longest = max(len(page.tag) for page in fitting)
        of_it = [page for page in fitting if len(page.tag) == longest]
        if len(of_it) > 1:
            names = " and ".join(page.path.name for page in of_it)
            raise BenchmarkError(self._folder, f"{names} both say that they were saved after {stem}: keep one of them")
        return of_it[0]

    def _none_after(self, stem: str) -> str:
        for path, why in self._broken.items():
            named = _NAMED.fullmatch(path.stem)
            if named is not None and named[1] == "after" and _ends_in(stem, named[2] or ""):
                return f"{path.name}, saved after this run, cannot be used: {why}"
        return f"{self._folder} has no page that was saved after this run (metrics_after_{stem}.prom)"

    def _since(self, page: SavedPage, measured: BenchmarkMeasurement) -> tuple[Window, tuple[str, ...]] | str:
        """Return the window between the pages before and after the run, with remarks."""
        earlier = [other.snapshot for other in self._pages if other is not page and _precedes(other, page)]
        if earlier:
            before = max(earlier, key=_progress)
            # Pages carry no time. Only ratios of counters are read, and these need none.
            return windows.diff_snapshots(replace(before, t=0.0), replace(page.snapshot, t=_seconds(measured))), ()
        started = page.snapshot.started_at
        if started is None or measured.point.requests is None:
            return f"{self._folder} has no page of this process from before {page.path.name}: what its run added is not known"
        counted = window_since_start(replace(page.snapshot, t=started + _seconds(measured)))
        return counted, (f"no page of this process is older than {page.path.name}: counted since the process started",)


def _read(path: Path, engine: str | None) -> SavedPage:
    named = _NAMED.fullmatch(path.stem)
    assert named is not None
    with path.open("rb") as file:
        body = file.read(DEFAULT_MAX_BYTES + 1)
    if len(body) > DEFAULT_MAX_BYTES:
        raise OSError(f"holds more than {DEFAULT_MAX_BYTES} bytes")
    reader = PageReader(engine)
    # The time of the page is unknown. A far one keeps every update time on it in the past.
    page = reader.read(body, 4e9)
    return SavedPage(path, named[1] == "after", named[2] or "", page, reader.engine)


def _ends_in(stem: str, tag: str) -> bool:
    return bool(tag) and (stem == tag or stem.endswith((f"_{tag}", f"-{tag}")))


def _precedes(other: SavedPage, page: SavedPage) -> bool:
    """Return whether the other page is earlier and of the same process."""
    before, now = other.snapshot, page.snapshot
    shared = before.counters.keys() & now.counters.keys()
    grew = [now.counters[family] - before.counters[family] for family in shared]
    return (
        bool(grew)
        and min(grew) >= 0
        and max(grew) > 0
        and not windows.is_restart(replace(before, t=0.0), replace(now, t=1.0))
    )


def _progress(page: Snapshot) -> tuple[float, float]:
    """Return a sort key: every counter of a later page is at least as high."""
    return page.counters.get(FINISHED, 0.0), sum(page.counters.values())


def _seconds(measured: BenchmarkMeasurement) -> float:
    if measured.started_at is None or measured.ended_at is None:
        return 1.0
    return max(1.0, measured.ended_at - measured.started_at)
