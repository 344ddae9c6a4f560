"""Checks of the forecast worker and of the weekly report.

The worker is started as the daemon starts it, and ended. Addresses are read by a process of their own: only the name of the
service leaves it. Nothing is written or sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from agent.config.config import Config
from agent.config.load import LoadedConfig
from agent.config.report import Destination
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.durations import duration_text
from agent.errors import find_missing
from agent.forecasting.service import FORECAST_MEMORY_BYTES
from agent.forecasting.worker import LibraryCheck, check_libraries
from agent.reporting.jobs import JobRunner
from agent.reporting.records import AddressCheckJob, AddressCheckResult
from agent.worker.process import MIB, WorkerError, WorkerProcess

START_SECONDS = 30.0
"""Time limit in seconds of the start. The libraries load in one or two seconds from an idle disk."""

FORECAST_CHECK = "forecast"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastProbe:
    """Libraries of the process, or the error."""

    libraries: LibraryCheck | None = None
    trouble: str = ""
    missing: str = ""
    """Advice to install the libraries, empty if they are there."""


def probe_forecast(config: Config) -> ForecastProbe | None:
    """Start the process in one or two seconds. Return None if forecasts are off."""
    if config.history_path is None or not config.forecast.enabled:
        return None
    if missing := find_missing("forecast"):
        return ForecastProbe(missing=missing)
    try:
        with closing(WorkerProcess(FORECAST_MEMORY_BYTES)) as process:
            return ForecastProbe(
                libraries=process.call(check_libraries, config.forecast.country, seconds=START_SECONDS)
            )
    except WorkerError as error:
        return ForecastProbe(trouble=f"does not start: {error}")


def check_forecast(seen: ForecastProbe | None, loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Report the process, missing methods and unknown holidays."""
    if seen is None:
        off = "off (forecast.enabled: false)" if loaded.config.history_path else "none: this agent keeps no history"
        yield ok(FORECAST_CHECK, off)
        return
    if seen.missing:
        yield warn(
            FORECAST_CHECK, "off: its libraries are not installed", f"{seen.missing}, or set forecast.enabled: false"
        )
        return
    if seen.libraries is None:
        advice = "lift limits of memory (ulimit -v, -d), reinstall, or set forecast.enabled: false"
        yield fail(FORECAST_CHECK, f"its process {seen.trouble}", advice)
        return
    if seen.libraries.no_holidays:
        yield fail(
            FORECAST_CHECK,
            f"forecast.country: {seen.libraries.no_holidays}",
            "correct it or leave it out; until then nothing is forecast",
        )
    held, limit = seen.libraries.memory_bytes // MIB, FORECAST_MEMORY_BYTES // MIB
    yield ok(FORECAST_CHECK, f"its process starts: its libraries take {held} MiB, it may take {limit} MiB for a tier")
    if seen.libraries.no_trees:
        text = f"boosted trees are left out ({seen.libraries.no_trees.splitlines()[0]})"
        yield warn(
            FORECAST_CHECK,
            text,
            "install libgomp1 (the system's OpenMP library); until then the other methods forecast",
        )


REPORT_CHECK = "report"

FREE_BYTES = 10 * 1024**2
"""Minimum free bytes; a report with its files is smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportProbe:
    """Addresses of the destinations. `unwritable` is why no report can be written, or empty."""

    missing: str = ""
    unwritable: str = ""
    checked: tuple[AddressCheckResult, ...] = ()
    trouble: str = ""


def probe_report(config: Config) -> ReportProbe | None:
    """Read the addresses in about a second. Return None if no report is written."""
    if config.report_folder is None:
        return None
    if missing := find_missing("report"):
        return ReportProbe(missing=missing)
    several = config.report.deliver
    done = JobRunner().run(AddressCheckJob(destinations=several)) if several else None
    return ReportProbe(
        unwritable=_unwritable(config.report_folder.absolute()),
        checked=done.checked if done is not None else (),
        trouble=done.trouble if done is not None else "",
    )


def _unwritable(folder: Path) -> str:
    existing = next(one for one in (folder, *folder.parents) if os.path.exists(one))
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        return f"{existing} cannot be written"
    room = os.statvfs(existing)
    if room.f_bavail * room.f_frsize < FREE_BYTES or (room.f_files and not room.f_favail):
        return f"{existing} has no room for a report"
    return ""


def check_report(seen: ReportProbe | None, loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Report the schedule, the folder and each destination."""
    keys = loaded.config.report
    if seen is None:
        off = "off (report.enabled: false)" if not keys.enabled else f"none: role {loaded.config.role} writes none"
        yield ok(REPORT_CHECK, off)
        return
    if seen.missing:
        yield warn(
            REPORT_CHECK, "off: its libraries are not installed", f"{seen.missing}, or set report.enabled: false"
        )
        return
    if seen.unwritable:
        yield fail(
            REPORT_CHECK, seen.unwritable, "make it writable or free space there, or name another report.directory"
        )
    when = f"{keys.weekday.capitalize()} {keys.at} {keys.zone or loaded.config.forecast.zone}"
    where = f"into {loaded.config.report_folder}, the newest {keys.keep} are kept"
    yield ok(REPORT_CHECK, f"every {when}, of the last {duration_text(keys.since_seconds)}, {where}")
    if seen.trouble:
        text = f"its addresses were not looked at: {seen.trouble}"
        yield fail(REPORT_CHECK, text, "reinstall: pip install 'sizewatch[report]'")
    for one, checked in zip(keys.deliver, seen.checked, strict=False):
        yield from _destination(one, checked)


def _destination(one: Destination, checked: AddressCheckResult) -> Iterator[CheckResult]:
    if checked.trouble:
        advice = "put one address there, as Apprise writes them (github.com/caronc/apprise/wiki)"
        yield fail(REPORT_CHECK, f"deliver to {one.name}: {checked.trouble}", advice)
        return
    along = f"with {', '.join(one.attached)}" if one.attached else "without files"
    if one.attached and not checked.takes_files:
        along = "the sentences alone: it takes no files"
    yield ok(REPORT_CHECK, f"deliver to {one.name}: {checked.service}, {along}")
    if checked.readable_by_all:
        yield warn(
            REPORT_CHECK, f"{one.url_file} can be read by everybody on this machine", f"chmod 600 {one.url_file}"
        )
