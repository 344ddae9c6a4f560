"""Which process an engine is, and which processes are its own, from /proc.

Owns the reading of pid files and of /proc. A process that ended meanwhile, or that this process may not see, has no
ancestors and is nobody's; that is no error.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

PROC = Path("/proc")

MOST_GENERATIONS = 64
"""A pid that is used again while it is looked at can close a circle; no real tree of processes is so deep."""


MOST_LETTERS, MOST_DIGITS = 100, 20
"""More than any pid file has; no number of a process is as long as one of 64 bits."""


class PidFileError(Exception):
    """A pid file that names no process, with the reason in words."""


def read_pid(path: str) -> int:
    """The process id in a pid file. Raises NoPid."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise PidFileError(f"{path}: is no file")
        with Path(path).open(encoding="ascii") as file:
            text = file.read(MOST_LETTERS).strip()
    except OSError as error:
        raise PidFileError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from error
    except UnicodeDecodeError:
        raise PidFileError(f"{path}: holds no process id") from None
    if not text.isdigit() or len(text) >= MOST_DIGITS or not int(text):
        raise PidFileError(f"{path}: holds no process id")
    return int(text)


def lineage(pid: int, proc: Path = PROC) -> frozenset[int]:
    """A process and all its ancestors as far as they can be seen."""
    found: set[int] = set()
    while pid > 0 and pid not in found and len(found) < MOST_GENERATIONS:
        found.add(pid)
        pid = _parent(pid, proc)
    return frozenset(found)


def _parent(pid: int, proc: Path) -> int:
    try:
        stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        # The second field, the command in parentheses, may hold blanks: the parent is the second field after it.
        return int(stat.rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
