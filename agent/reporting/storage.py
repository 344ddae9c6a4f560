"""Storage of reports: a folder per date, the link `latest`, and the state of deliveries.

A report appears complete: it is written to a temporary folder, then moved. Only names in the form of a report are
touched. Readers follow no link and find the newest report by name.

Every change of state is on disk before the next step. Deliveries are not lost. A delivery repeats only if the machine
fails between acceptance and the receipt. No address is stored here.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from agent.files import OWNER_AND_GROUP, OWNER_ONLY, open_new_file

LATEST = "latest"
FILES: Mapping[str, str] = {
    "report.html": "text/html; charset=utf-8",
    "report.md": "text/markdown; charset=utf-8",
    "report.json": "application/json",
    "plan.next.yaml": "application/yaml; charset=utf-8",
}
"""Files of a report and their content types."""

MOST_BYTES = 32 * 1024 * 1024
"""Maximum size of a report file in bytes. Larger files are foreign."""

STATE_FILE = "reports.json"
"""File in `data_dir`."""

RECEIPTS = "deliveries"
"""Folder in `data_dir` with a file per accepted delivery, written by the sending process."""

_LINK = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO})
"""Errors for a link, a path that is no folder, and a pipe or socket without a reader."""

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_UNFINISHED = re.compile(r"\.(new|old)-[0-9]{4}-[0-9]{2}-[0-9]{2}")


def names(folder: Path) -> tuple[str, ...]:
    """Return the names of all reports, newest first; empty without a folder. Raise OSError."""
    try:
        with os.scandir(folder) as entries:
            found = [one.name for one in entries if _DATE.fullmatch(one.name) and one.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(sorted(found, reverse=True))


def is_name(text: str) -> bool:
    """Return whether the text is a valid report name."""
    return _DATE.fullmatch(text) is not None


def read_report_file(folder: Path, name: str, file: str) -> bytes | None:
    """Return a file of a report. Return None if it is missing, a link, a pipe or too large. Raise OSError."""
    if file not in FILES or not is_name(name):
        return None
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        report = os.open(folder / name, flags | os.O_DIRECTORY)
        try:
            found = os.open(file, flags, dir_fd=report)
        finally:
            os.close(report)
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno in _LINK:
            return None
        raise
    status = os.fstat(found)
    if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
        os.close(found)
        return None
    with os.fdopen(found, "rb") as opened:
        return opened.read(status.st_size)


def files(folder: Path, name: str) -> tuple[str, ...]:
    """Return the existing files of a report. Raise OSError."""
    return tuple(file for file in FILES if (folder / name / file).is_file())


def stamp(folder: Path, name: str) -> int:
    """Return a number that changes when a report is rewritten. Raise OSError."""
    return (folder / name).stat().st_mtime_ns


def publish(folder: Path, name: str, files: Mapping[str, bytes]) -> None:
    """Move a report to its place, over an existing one, and point `latest` to the newest. Raise OSError."""
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    fresh, old = folder / f".new-{name}", folder / f".old-{name}"
    _remove(fresh)
    fresh.mkdir(mode=0o750)
    for file, content in files.items():
        _write_new_file(fresh / file, content, OWNER_AND_GROUP)
    _remove(old)
    with suppress(FileNotFoundError):
        (folder / name).rename(old)
    fresh.rename(folder / name)
    _remove(old)
    _link(folder)


def _link(folder: Path) -> None:
    link = folder / f".{LATEST}"
    with suppress(FileNotFoundError):
        link.unlink()
    link.symlink_to(names(folder)[0])
    link.replace(folder / LATEST)


def prune(folder: Path, keep: int) -> tuple[str, ...]:
    """Remove all but the newest `keep` reports and unfinished folders. Return the removed names. Raise OSError."""
    gone = names(folder)[keep:]
    for name in gone:
        _remove(folder / name)
    for one in folder.iterdir() if folder.is_dir() else ():
        if _UNFINISHED.fullmatch(one.name):
            _remove(one)
    return gone


def _remove(path: Path) -> None:
    """Remove a file, link or folder. The target of a link stays."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """State of a destination. Times are unix seconds.

    `report` is the one that it has not accepted yet, "" for none; it is given up after `until`. `sent_at` is the last
    success, `trouble` the reason why the newest report did not arrive.
    """

    report: str = ""
    attempts: int = 0
    next_at: float = 0.0
    until: float = 0.0
    sent_at: float | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportState:
    """State of reports and deliveries; times are unix seconds.

    `begun_at` is the first start: earlier due times are ignored. `made_for` is the due time of the last report,
    `made_at` the time of its writing. `attempts`, `next_at` and `trouble` describe a failing report. `deliveries` are
    those of each destination by name.
    """

    begun_at: float
    made_for: float = 0.0
    made_at: float | None = None
    attempts: int = 0
    next_at: float = 0.0
    trouble: str = ""
    headline: str = ""
    deliveries: Mapping[str, Delivery] = field(default_factory=dict)


_STATE = TypeAdapter(ReportState)


def read_state(path: Path) -> ReportState | None:
    """Return the stored state, or None without a file. Raise OSError, or ValueError for a damaged file."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return _STATE.validate_json(text)
    except ValidationError:
        raise ValueError(f"{path} is damaged") from None


def write_state(path: Path, state: ReportState) -> None:
    """Write the state atomically. Raise OSError."""
    write_atomically(path, json.dumps(asdict(state), indent=1).encode())


def receipt(data_dir: Path, report: str, destination: str) -> Path:
    """Return the path of the receipt of a delivery."""
    return data_dir / RECEIPTS / f"{report}.{destination}"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically and sync it to disk. Raise OSError."""
    unfinished = path.with_name(f".{path.name}.new")
    _write_new_file(unfinished, content, OWNER_ONLY)
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_new_file(path: Path, content: bytes, mode: int) -> None:
    with open_new_file(path, mode) as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
