"""What the doctor says of the history's file beyond that it opens: is it whole, does somebody hold it?

Owns looking and judging of these two. It reads, with a connection of its own, and takes no lock that a daemon would wait for.
What else is said of the history is `doctor_machine`'s, rights are `doctor_rights`'s.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent.doctor.check_result import CheckResult, fail, warn
from agent.doctor.machine_probes import is_idle_file
from agent.files import LOCKS, holder
from agent.history.schema import VERSION, missing_bytes

if TYPE_CHECKING:
    from agent.doctor.machine_probes import HistoryProbe

CHECK = "history"

LOOK_SECONDS = 5.0
"""Looking through a large file ends then; what was seen until then was whole."""

STEPS_BETWEEN = 10_000
"""Of SQLite's machine, between two looks at the clock."""

HELD_SECONDS = 0.5
"""A booking holds the file for some ten milliseconds; who has it at both ends of so long keeps it."""

DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFileProbe:
    """`damage` is what SQLite says first, `held_by` the process that keeps the file from being written, as digits."""

    path: str
    damage: str = ""
    held_by: str = ""
    missing_bytes: int = 0
    """Of the room for the copy that is made before an older format becomes the present one."""


def probe_history_file(path: Path | None, seen: HistoryProbe | None) -> HistoryFileProbe | None:
    """Looks through the file, where it can be read at all; None where there is none. `seen` is what opening it showed."""
    if path is None or seen is None or not os.path.isfile(path):
        return None
    readable = not seen.trouble
    return HistoryFileProbe(
        path=str(path),
        damage=_damage(path) if readable else "",
        held_by=_held_by(path),
        missing_bytes=missing_bytes(path) if readable and seen.format < VERSION else 0,
    )


def check_history_file(seen: HistoryFileProbe | None) -> Iterator[CheckResult]:
    """A line for each thing that is wrong; none where nothing is."""
    if seen is None:
        return
    if seen.damage:
        text = f"{seen.path} is damaged ({seen.damage})"
        advice = "stop the daemon, move it away with its -wal and -shm, and put a backup in its place, or begin anew"
        yield fail(CHECK, text, advice)
    if seen.held_by:
        text = f"process {seen.held_by}, which is not the daemon, keeps {seen.path} locked: it cannot be written"
        yield warn(CHECK, text, f"see what it is (ps -p {seen.held_by}) and let it end")
    if seen.missing_bytes:
        mebibytes = f"{seen.missing_bytes / 1024**2:.0f} MiB"
        text = f"its disk lacks {mebibytes} for the copy of {seen.path}, with which its new format begins"
        yield fail(CHECK, text, "free so much there, or nothing is remembered until there is")


def _damage(path: Path) -> str:
    until = time.monotonic() + LOOK_SECONDS
    mode = "ro&immutable=1" if is_idle_file(path) else "ro"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)) as connection:
            connection.set_progress_handler(lambda: time.monotonic() > until, STEPS_BETWEEN)
            told = [str(row[0]) for row in connection.execute("PRAGMA quick_check(1)")]
    except sqlite3.DatabaseError as error:
        # Not to the end in time, or busy: nothing is known then, and nothing said.
        return str(error) if getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGE else ""
    return "" if told == ["ok"] else " ".join(" ".join(told).split())[:200]


def _held_by(path: Path) -> str:
    first = _writers(path)
    if not first:
        return ""
    time.sleep(HELD_SECONDS)
    return min(first & _writers(path), default="")


def _writers(path: Path) -> frozenset[str]:
    """Processes but the daemon's that hold a lock for writing on the file or its index; none where this system does not say."""
    try:
        places = [os.stat(one) for one in (path, path.with_name(f"{path.name}-shm")) if one.exists()]
        rows = [line.split() for line in LOCKS.read_text(encoding="ascii", errors="replace").splitlines()]
    except OSError:
        return frozenset()
    # Number, POSIX, ADVISORY, WRITE, process, device:inode, from, to.
    held = [row for row in rows if len(row) > 5 and row[1] == "POSIX" and row[3] == "WRITE"]
    return frozenset({row[4] for row in held if any(_is_of(row[5], one) for one in places)} - {holder(path.parent)})


def _is_of(told: str, file: os.stat_result) -> bool:
    """Return whether device and inode, as the kernel tells them of a lock, are those of a file. File systems that lie
    on no device of
    their own (btrfs, overlay) give `stat` another number than the kernel's, of the same major 0."""
    major, minor, inode = told.split(":")
    if inode != str(file.st_ino) or int(major, 16) != os.major(file.st_dev):
        return False
    return int(minor, 16) == os.minor(file.st_dev) or os.major(file.st_dev) == 0
