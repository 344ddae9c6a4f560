"""Telemetry from a folder of pages saved before and after each run.

The page after a run has the result file's tag: `metrics_after_r3.prom` belongs to `bench_r3.json`. The page before it
is the latest page of the same process on which no counter is higher. Names and dates are not used: copying changes
them. A gauge on two pages is not a mean of the run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from agent.benchmarks.points import BenchmarkMeasurement
from agent.benchmarks.telemetry_merge import FINISHED, RunTelemetry, TelemetryFields, extract_fields
from agent.errors import BenchmarkError, ScrapeError
from agent.http_client.transport import DEFAULT_MAX_BYTES
from agent.scrape.scrapers import PageReader
from rules.engines.table import EngineTable
from rules.telemetry import windows
from rules.telemetry.readings import window_since_start
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window

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
        return replace(found, remarks=(*remarks, *found.remarks))

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
