"""What can go wrong with the history file, in words a person can act on.

    SizewatchError
    ├── HistoryProblem(path, text)    the file cannot be this program's history: a person must choose or move a file
    └── HistoryTrouble(kind, text)    the file did not take or give something now; the agent goes on and asks again

Owns the two classes, the words of `Trouble`, and the one place where sqlite3's errors become them. A result code of
SQLite that is not in `KINDS` is a defect of ours and rises as it is; add a new one there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from agent.errors import SizewatchError
from exporters.plain_text import told


class Trouble(StrEnum):
    """Why the history did not take or give something: one word, counted and exported."""

    FULL = "full"
    LOCKED = "locked"
    READ_ONLY = "read_only"
    CORRUPT = "corrupt"
    MISSING = "missing"
    IO = "io"


class HistoryProblem(SizewatchError):
    """The file cannot be this program's history."""

    def __init__(self, path: Path | str, text: str) -> None:
        super().__init__(f"{path}: {text}")
        self.path = path
        self.text = text


class HistoryTrouble(SizewatchError):
    """The history did not take or give something; nothing of it was half done."""

    def __init__(self, kind: Trouble, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


KINDS = {
    sqlite3.SQLITE_FULL: Trouble.FULL,
    sqlite3.SQLITE_IOERR_SHMSIZE: Trouble.FULL,
    sqlite3.SQLITE_BUSY: Trouble.LOCKED,
    sqlite3.SQLITE_LOCKED: Trouble.LOCKED,
    sqlite3.SQLITE_PROTOCOL: Trouble.LOCKED,
    sqlite3.SQLITE_READONLY: Trouble.READ_ONLY,
    sqlite3.SQLITE_PERM: Trouble.READ_ONLY,
    sqlite3.SQLITE_CORRUPT: Trouble.CORRUPT,
    sqlite3.SQLITE_NOTADB: Trouble.CORRUPT,
    sqlite3.SQLITE_CANTOPEN: Trouble.MISSING,
    sqlite3.SQLITE_IOERR: Trouble.IO,
}
"""By result code of SQLite (sqlite.org/rescode.html), the primary one where the extended is not here."""

MOST_QUOTED = 300

UNDECODED = "Could not decode to UTF-8"
"""How Python's sqlite3 begins what it says, without a code, of a text that is not UTF-8."""

WHAT_TO_DO = {
    Trouble.FULL: "free space on its disk",
    Trouble.LOCKED: "another process holds it; see which has it open (fuser)",
    Trouble.READ_ONLY: "give this user write access to the file and its directory",
    Trouble.CORRUPT: "move the file with its -wal and -shm away and restart: a new history begins",
    Trouble.MISSING: "restart, once its directory is there and may be entered",
    Trouble.IO: "check the disk and the kernel's log",
}


def trouble(kind: Trouble, path: Path, what: str) -> HistoryTrouble:
    """A trouble whose text names the file and what to do."""
    return HistoryTrouble(kind, f"{path}: {what}: {WHAT_TO_DO[kind]}")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turns SQLite's own failures into HistoryTrouble. Misuse of the library (no code, or none of ours) is a defect."""
    try:
        yield
    except sqlite3.Error as error:
        # Extended codes keep the primary one in their low byte.
        code = getattr(error, "sqlite_errorcode", -1)
        kind = KINDS.get(code, KINDS.get(code & 0xFF))
        if kind is None and str(error).startswith(UNDECODED):
            # Without its cause, which holds the row; a text that is none stands where we wrote none.
            raise trouble(Trouble.CORRUPT, path, "holds a text that is none") from None
        if kind is None:
            raise
        # Of a damaged file it quotes what it stumbled over.
        raise trouble(kind, path, f"{told(str(error), MOST_QUOTED)} ({error.sqlite_errorname})") from error
