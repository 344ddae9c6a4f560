"""Storage of reports: a folder per date, and the state of reports and deliveries.

A report appears complete: it is written to a temporary folder, then renamed. Only names in the form of a report are
touched. Readers follow no link and find the newest report by name. No address is stored here.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from agent.durations import retry_delay
from agent.files import OWNER_AND_GROUP, OWNER_ONLY, open_new_file

LATEST = "latest"
FILES: Mapping[str, str] = {
    "report.html": "text/html; charset=utf-8",
    "report.md": "text/markdown; charset=utf-8",
    "report.json": "application/json",
    "plan.next.yaml": "application/yaml; charset=utf-8",
    "calibration.json": "application/json",
}
"""Files of a report and their content types."""

STATE_FILE = "reports.json"
"""File in `data_dir`."""

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 60.0, 3600.0
"""Retry delays in seconds. The delay doubles with each further failure, up to the maximum."""

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_UNFINISHED = ".new-"

_log = logging.getLogger(__name__)


def names(folder: Path) -> tuple[str, ...]:
    """Return the names of all reports, newest first; empty without a folder. Raise OSError."""
    if not folder.is_dir():
        return ()
    return tuple(sorted((path.name for path in folder.iterdir() if _is_report(folder, path.name)), reverse=True))


def _is_report(folder: Path, name: str) -> bool:
    path = folder / name
    return _DATE.fullmatch(name) is not None and path.is_dir() and not path.is_symlink()


def read_report_file(folder: Path, name: str, file: str) -> bytes | None:
    """Return a file of a report. Return None if it is missing, a link or a pipe. Raise OSError."""
    path = folder / name / file
    if file not in FILES or not _is_report(folder, name) or not path.is_file() or path.is_symlink():
        return None
    return path.read_bytes()


def files(folder: Path, name: str) -> tuple[str, ...]:
    """Return the existing files of a report. Raise OSError."""
    return tuple(file for file in FILES if (folder / name / file).is_file())


def publish(folder: Path, name: str, files: Mapping[str, bytes], keep: int) -> None:
    """Move a report to its place, over an existing one, and remove all but the newest `keep`. Raise OSError."""
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    unfinished = folder / f"{_UNFINISHED}{name}"
    _remove(unfinished)
    unfinished.mkdir(mode=0o750)
    for file, content in files.items():
        _write_new_file(unfinished / file, content, OWNER_AND_GROUP)
    _remove(folder / name)
    unfinished.rename(folder / name)
    for path in (*(folder / gone for gone in names(folder)[keep:]), *folder.glob(f"{_UNFINISHED}*")):
        _remove(path)


def _remove(path: Path) -> None:
    """Remove a folder or a link. The target of a link stays."""
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


@dataclass(slots=True, kw_only=True)
class Attempts:
    """Failed attempts at a report or a delivery, the last at `tried_at` (unix seconds), and its `trouble`."""

    attempts: int = 0
    tried_at: float = 0.0
    trouble: str = ""

    @property
    def retry_at(self) -> float:
        """Return the time of the next attempt, in unix seconds."""
        if not self.attempts:
            return self.tried_at
        return self.tried_at + retry_delay(self.attempts, FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS)

    def is_due(self, now: float) -> bool:
        """Return whether the next attempt is due. A clock that was set back waits for none."""
        return now < self.tried_at or now >= self.retry_at


@dataclass(slots=True, kw_only=True)
class Delivery(Attempts):
    """Delivery of the newest report to one destination. `sent_at` is the last success, also of earlier reports."""

    is_pending: bool = True
    sent_at: float | None = None


@dataclass(slots=True, kw_only=True)
class ReportState(Attempts):
    """State of reports and deliveries; times are unix seconds. Its attempts are at a later report, which fails.

    `begun_at` is the first start: earlier due times are ignored. The report `newest` was written at `made_at` for the
    due time `made_for`. `deliveries` has the name of each destination.
    """

    begun_at: float
    newest: str = ""
    made_for: float = 0.0
    made_at: float | None = None
    headline: str = ""
    deliveries: dict[str, Delivery] = field(default_factory=dict)


_STATE = TypeAdapter(ReportState)


def read_state(path: Path) -> ReportState | None:
    """Return the stored state, or None without a usable file. Raise OSError."""
    try:
        return _STATE.validate_json(path.read_bytes()) if path.exists() else None
    except ValueError:
        # Sent reports are unknown now. Prefer a missing report to a repeated one.
        _log.error('report state reset error="%s is damaged"', path)
        return None


def write_state(path: Path, state: ReportState) -> None:
    """Write the state atomically and sync it to disk. Raise OSError."""
    unfinished = path.with_name(f".{path.name}.new")
    _write_new_file(unfinished, _STATE.dump_json(state, indent=1), OWNER_ONLY)
    unfinished.replace(path)


def _write_new_file(path: Path, content: bytes, mode: int) -> None:
    with open_new_file(path, mode) as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
