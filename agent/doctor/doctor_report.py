"""What the doctor says of the weekly report: when it is due and where it goes, can it be written there, is each address one that
Apprise understands?

Owns looking and judging of this one part; nothing is written and nothing is sent. Addresses are read by a process of their own, and
nothing of them is told but the name of the service.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent.config.keys import Config
from agent.config.load import LoadedConfig
from agent.config.report_keys import Destination
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.durations import duration_text
from agent.reporting.jobs import AddressCheckJob, AddressCheckResult
from agent.worker.process_part import JobRunner

REPORT_CHECK = "report"

FREE_BYTES = 10 * 1024**2
"""A report with its pages, tables and plan takes less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportProbe:
    """Of each destination what its address is; `unwritable` is why no report can be written, "" where one can."""

    unwritable: str = ""
    checked: tuple[AddressCheckResult, ...] = ()
    trouble: str = ""


def probe_report(config: Config) -> ReportProbe | None:
    """Reads the addresses; takes a second where there are any. None where no report is written."""
    if config.report_folder is None:
        return None
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
    """A line for the report, and one for each destination."""
    keys = loaded.config.report
    if seen is None:
        off = "off (report.enabled: false)" if not keys.enabled else f"none: role {loaded.config.role} writes none"
        yield ok(REPORT_CHECK, off)
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
        yield fail(REPORT_CHECK, text, "reinstall with the libraries of requirements.lock")
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
