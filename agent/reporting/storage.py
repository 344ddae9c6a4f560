"""Where reports stand: a folder a report, named by its date, and `latest`, a link to the newest.

Owns names, order and what is thrown away. A report appears whole: it is written beside its place and then moved there. Nothing is
touched that is not named like a report. Readers follow no link: the newest is found by its name.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from agent.files import OWNER_AND_GROUP, open_new_file

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
