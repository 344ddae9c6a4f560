"""Files that we write: with the rights they need and no more whatever the umask, and never through a link.

Owns how such a file is opened. What a person names on the command line is theirs and opened as they would.

The folder of the history belongs to one daemon at a time.

Owns the making of the folder and the lock on it: two daemons that book the same minutes would count everything twice.
The kernel drops the lock with the process that holds it, whatever ends that; the file that carries it stays.

Whether files that Kubernetes mounts (of a ConfigMap or a Secret) have other contents than when they were read.

Owns the look at them and nothing of what is in them. The kubelet writes a new folder and turns the link `..data` to it
(atomic writer): all files of a ConfigMap change at once and none is half written. Files elsewhere are people's, who say by
SIGHUP when they are done.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from agent.errors import ConfigError

OWNER_ONLY = 0o600
OWNER_AND_GROUP = 0o640
EVERYBODY_READS = 0o644

NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC


def open_new_file(path: Path, mode: int) -> BinaryIO:
    """The file, made or emptied, with at most these rights. Raises OSError, ELOOP among it where a link stands there: somebody
    else who may write in the folder has put it there."""
    return os.fdopen(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | NO_LINK, mode), "wb")


LOCK_FILE = "daemon.lock"

_log = logging.getLogger(__name__)

LOCKS = Path("/proc/locks")
"""What Linux tells of the locks that are held."""


class DataDir:
    """A folder that is ours until `close`. `named` says which configuration names it, for messages.

    Raises BadConfig where it cannot be made or written, or where another daemon has it.
    """

    def __init__(self, folder: Path, named: Path) -> None:
        self._folder = folder
        self._named = named
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / LOCK_FILE, os.O_CREAT | os.O_RDWR | NO_LINK, OWNER_ONLY)
        except (FileExistsError, NotADirectoryError) as error:
            raise self._problem("is, or lies in, a file; name a folder") from error
        except OSError as error:
            raise self._problem(f"cannot be written ({error.strerror}); make it writable, or name another") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holding = _process(self._lock)
            os.close(self._lock)
            if isinstance(error, BlockingIOError):
                raise self._problem(
                    f"is in use by another sizewatch{holding}; stop that one, or name another"
                ) from error
            raise self._problem(f"cannot be locked ({error.strerror}); it must be on a local disk") from error
        self._name_holder()

    def _name_holder(self) -> None:
        """On a full disk nobody is told who holds it; the lock itself needs no room."""
        try:
            os.ftruncate(self._lock, 0)
            os.write(self._lock, str(os.getpid()).encode())
        except OSError as error:
            _log.warning("%s: %s does not say who holds it", self._folder / LOCK_FILE, error.strerror)

    def _problem(self, text: str) -> ConfigError:
        return ConfigError((f"{self._named}: data_dir: {self._folder} {text}",))

    def close(self) -> None:
        """Lets another daemon have it."""
        os.close(self._lock)


def _process(lock: int) -> str:
    pid = os.pread(lock, 32, 0)
    return f" (process {int(pid)})" if pid.isdigit() else ""


def holder(folder: Path) -> str:
    """The process of the daemon that has the folder now, as digits; empty where none has, or this system does not say.

    It takes no lock to find out: a daemon that starts at that moment would find the folder taken.
    """
    try:
        lock = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        pid, inode = os.pread(lock, 32, 0).decode(errors="replace"), os.fstat(lock).st_ino
        rows = [line.split() for line in LOCKS.read_text(encoding="ascii", errors="replace").splitlines()]
    except OSError:
        return ""
    finally:
        os.close(lock)
    # Number, FLOCK, ADVISORY, WRITE, process, device:inode; the device is not that of stat on every file system.
    held = any(row[1] == "FLOCK" and row[4] == pid and row[5].endswith(f":{inode}") for row in rows if len(row) > 5)
    return pid if held else ""


MARK = "..data"

Stamp = tuple[int, int, int, str]


class MountedFiles:
    """The files of one configuration. `changed` is cheap while nothing was mounted anew."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._known: dict[Path, tuple[Stamp, str]] = {}
        self.follow(paths)

    def follow(self, paths: Iterable[Path]) -> None:
        """From now on these: new ones as they are now, others as they were seen last."""
        stamps = {path: _stamp(path) for path in paths}
        self._known = {
            path: self._known.get(path) or (stamp, _digest(path)) for path, stamp in stamps.items() if stamp is not None
        }

    def changed(self) -> bool:
        """Whether any has other contents than at the last look; told once for each change."""
        found = False
        for path, (before, digest) in list(self._known.items()):
            stamp = _stamp(path)
            # While it is away (a mount that is made anew) what was read still counts.
            if stamp is None or stamp == before:
                continue
            now = _digest(path)
            self._known[path] = stamp, now
            found = found or now != digest
        return found


def _stamp(path: Path) -> Stamp | None:
    """None where the file is not mounted so, or not there."""
    try:
        if not (path.parent / MARK).is_symlink():
            return None
        seen = path.stat()
        return seen.st_mtime_ns, seen.st_ino, seen.st_size, os.path.realpath(path)
    except OSError:
        return None


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
