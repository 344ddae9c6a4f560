"""Where reports stand: a folder a report, named by its date, and `latest`, a link to the newest.

Owns names, order and what is thrown away. A report appears whole: it is written beside its place and then moved there. Nothing is
touched that is not named like a report. Readers follow no link: the newest is found by its name.

When a weekly report is due: a day and a time by the clock of the people who read it.

Owns the calendar alone; it knows neither what was written nor what failed. A time that a change to summer time leaves out counts
as the same time before the change (02:30 comes at 03:30); one that comes twice counts the first time.

What the daemon remembers of its reports over a restart: which is made, what is still to be sent to whom.

Owns the record and its file. Each change is on the disk before the next step is taken: a delivery is neither lost nor, but for a
machine that fails between a destination's answer and the writing of its receipt, repeated. No address is kept here.
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
from datetime import date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from pydantic import TypeAdapter, ValidationError

from agent.files import OWNER_AND_GROUP, OWNER_ONLY, open_new_file

LATEST = "latest"
FILES: Mapping[str, str] = {
    "report.html": "text/html; charset=utf-8",
    "report.md": "text/markdown; charset=utf-8",
    "report.json": "application/json",
    "plan.next.yaml": "application/yaml; charset=utf-8",
    "report.png": "image/png",
}
"""The files of a report, and what they are."""

PICTURE = "report.png"
MOST_BYTES = 32 * 1024 * 1024
"""A larger file is none of ours."""

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_UNFINISHED = re.compile(r"\.(new|old)-[0-9]{4}-[0-9]{2}-[0-9]{2}")


def names(folder: Path) -> tuple[str, ...]:
    """Every report there, the newest first; none where there is no folder. Raises OSError."""
    try:
        with os.scandir(folder) as entries:
            found = [one.name for one in entries if _DATE.fullmatch(one.name) and one.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(sorted(found, reverse=True))


def is_name(text: str) -> bool:
    """Whether a report may be called so."""
    return _DATE.fullmatch(text) is not None


def read_report_file(folder: Path, name: str, file: str) -> bytes | None:
    """A file of a report; None where there is none, or something else in its place: a link, a pipe, too much. Raises OSError."""
    if file not in FILES or not is_name(name):
        return None
    only = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        place = os.open(folder / name, only | os.O_DIRECTORY)
        try:
            found = os.open(file, only, dir_fd=place)
        finally:
            os.close(place)
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno in _LINK:
            return None
        raise
    seen = os.fstat(found)
    if not stat.S_ISREG(seen.st_mode) or seen.st_size > MOST_BYTES:
        os.close(found)
        return None
    with os.fdopen(found, "rb") as opened:
        return opened.read(seen.st_size)


_LINK = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO})
"""A link, no folder, a pipe or socket that nobody serves."""


def files(folder: Path, name: str) -> tuple[str, ...]:
    """Which files of a report there are. Raises OSError."""
    return tuple(file for file in FILES if (folder / name / file).is_file())


def stamp(folder: Path, name: str) -> int:
    """Another number once a report was made anew. Raises OSError."""
    return (folder / name).stat().st_mtime_ns


def publish(folder: Path, name: str, files: Mapping[str, bytes]) -> None:
    """Puts a report in its place, for one of the same name too, and `latest` to the newest. Raises OSError."""
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    fresh, old = folder / f".new-{name}", folder / f".old-{name}"
    _remove(fresh)
    fresh.mkdir(mode=0o750)
    for file, content in files.items():
        with open_new_file(fresh / file, OWNER_AND_GROUP) as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
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
    """Throws away all but the newest `keep` reports, and what an interrupted run left; says which went. Raises OSError."""
    gone = names(folder)[keep:]
    for name in gone:
        _remove(folder / name)
    for one in folder.iterdir() if folder.is_dir() else ():
        if _UNFINISHED.fullmatch(one.name):
            _remove(one)
    return gone


def _remove(path: Path) -> None:
    """A folder of ours, never what a link leads to."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


WEEK_DAYS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class WeeklySchedule:
    """`weekday` 0 is Monday, `at` the local time in `zone`."""

    weekday: int
    at: time
    zone: str

    def latest(self, now: float) -> float:
        """The last time at or before `now` (unix seconds)."""
        day = self._day(now)
        return max(t for t in (self._instant(day + timedelta(days=d)) for d in (-WEEK_DAYS, 0)) if t <= now)

    def next(self, now: float) -> float:
        """The first time after `now`."""
        day = self._day(now)
        return min(t for t in (self._instant(day + timedelta(days=d)) for d in (0, WEEK_DAYS)) if t > now)

    def name(self, t: float) -> str:
        """What a report of that time is called: its local date."""
        return self._day_of(t).isoformat()

    def _day(self, now: float) -> date:
        """The weekday in question on or before today."""
        today = self._day_of(now)
        return today - timedelta(days=(today.weekday() - self.weekday) % WEEK_DAYS)

    def _day_of(self, t: float) -> date:
        return datetime.fromtimestamp(t, ZoneInfo(self.zone)).date()

    def _instant(self, day: date) -> float:
        return datetime.combine(day, self.at, ZoneInfo(self.zone)).timestamp()


STATE_FILE = "reports.json"
"""In `data_dir`."""

RECEIPTS = "deliveries"
"""Folder in `data_dir`: a file for each delivery that was taken, written by the process that sent it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDelivery:
    """A report that a destination has not taken yet. Times are unix seconds; after `until` it is given up."""

    destination: str
    report: str
    attempts: int = 0
    next_at: float = 0.0
    until: float
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportState:
    """`begun_at` is when reports were first looked after: what was due before is nobody's. `made_for` is the time that the last
    report was due, `made_at` when it was written. While one fails, `attempts`, `next_at` and `trouble` tell of it. `sent` is
    when each destination took its last one, `unsent` why it has not taken the newest.
    """

    begun_at: float
    made_for: float = 0.0
    made_at: float | None = None
    attempts: int = 0
    next_at: float = 0.0
    trouble: str = ""
    headline: str = ""
    waiting: tuple[PendingDelivery, ...] = ()
    sent: Mapping[str, float] = field(default_factory=dict)
    unsent: Mapping[str, str] = field(default_factory=dict)


_STATE = TypeAdapter(ReportState)


def read_state(path: Path) -> ReportState | None:
    """What was kept; None where nothing was. Raises OSError, and ValueError for what is no such file."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return _STATE.validate_json(text)
    except ValidationError:
        raise ValueError(f"{path} is damaged") from None


def write_state(path: Path, state: ReportState) -> None:
    """Whole or not at all. Raises OSError."""
    write_atomically(path, json.dumps(asdict(state), indent=1).encode())


def receipt(data_dir: Path, report: str, destination: str) -> Path:
    """The file that says that this destination has taken this report."""
    return data_dir / RECEIPTS / f"{report}.{destination}"


def write_atomically(path: Path, content: bytes) -> None:
    """Puts it on the disk under its name, whole. Raises OSError."""
    unfinished = path.with_name(f".{path.name}.new")
    with open_new_file(unfinished, OWNER_ONLY) as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
