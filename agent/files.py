"""Safe file access: creation of output files, and the lock of the data directory.

Output files get minimal rights under any umask and never follow a link. Paths from the command line open normally.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from typing import BinaryIO

from agent.errors import ConfigError

OWNER_ONLY = 0o600
OWNER_AND_GROUP = 0o640
EVERYBODY_READS = 0o644

NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC


def open_new_file(path: Path, mode: int) -> BinaryIO:
    """Create or truncate a file with at most these rights. Raise OSError, with ELOOP if the path is a link.

    A link may be an attack by another user with write access to the folder.
    """
    return os.fdopen(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | NO_LINK, mode), "wb")


LOCK_FILE = "daemon.lock"

_log = logging.getLogger(__name__)


class DataDir:
    """Data directory, locked by this daemon until `close`. `named` is the configuration file for error messages.

    Two daemons on one history would count every minute twice. The lock file names the holder; the directory itself is
    locked as well, because somebody may delete the file. The kernel releases both when the process ends; the file stays.
    Raise ConfigError if the directory is not writable or another daemon holds it.
    """

    def __init__(self, folder: Path, named: Path) -> None:
        self._folder = folder
        self._named = named
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / LOCK_FILE, os.O_CREAT | os.O_RDWR | NO_LINK, OWNER_ONLY)
            self._directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileExistsError, NotADirectoryError) as error:
            raise self._problem("is, or lies in, a file; name a folder") from error
        except OSError as error:
            raise self._problem(f"cannot be written ({error.strerror}); make it writable, or name another") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._lock_directory()
        except OSError as error:
            holding = _process(self._lock)
            self.close()
            if isinstance(error, BlockingIOError):
                raise self._problem(
                    f"is in use by another sizewatch{holding}; stop that one, or name another"
                ) from error
            raise self._problem(f"cannot be locked ({error.strerror}); it must be on a local disk") from error
        self._name_holder()

    def _lock_directory(self) -> None:
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError as error:
            # NFS locks files only.
            _log.warning('directory not locked, only its file folder=%s error="%s"', self._folder, error.strerror)

    def _name_holder(self) -> None:
        """Write the process id to the lock file. A full disk costs only the id: the lock needs no space."""
        try:
            os.ftruncate(self._lock, 0)
            os.write(self._lock, str(os.getpid()).encode())
        except OSError as error:
            _log.warning('lock file without process id file=%s error="%s"', self._folder / LOCK_FILE, error.strerror)

    def _problem(self, text: str) -> ConfigError:
        return ConfigError((f"{self._named}: data_dir: {self._folder} {text}",))

    def close(self) -> None:
        """Release the locks."""
        os.close(self._directory)
        os.close(self._lock)


def _process(lock: int) -> str:
    pid = os.pread(lock, 32, 0)
    return f" (process {int(pid)})" if pid.isdigit() else ""
