"""Safe file access: output files that never follow a link, and the lock of the data directory.

Output files get minimal rights under any umask.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Mapping
from contextlib import suppress
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


def write_files(contents: Mapping[Path, str], mode: int) -> None:
    """Write all files or none, with at most these rights. A reader sees no part of a file. Raise OSError.

    An unfinished file has a fixed name: the next writer replaces what a killed one left.
    """
    unfinished = {path: path.with_name(f".{path.name}.new") for path in contents}
    try:
        for path, text in contents.items():
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            with open_new_file(unfinished[path], mode) as file:
                file.write(text.encode("utf-8", "replace"))
        for path, written in unfinished.items():
            written.replace(path)
    finally:
        for written in unfinished.values():
            written.unlink(missing_ok=True)


LOCK_FILE = "daemon.lock"


class DataDir:
    """Data directory, locked by this daemon until `close`. `named` is the configuration file for error messages.

    Two daemons on one history would count every minute twice. The lock file names the holder; the kernel releases the
    lock when the process ends, and the file stays.
    """

    def __init__(self, folder: Path, named: Path) -> None:
        self._folder, self._place = folder, f"{named}: data_dir: {folder}"
        self._lock: int | None = None
        self.lock()

    def lock(self) -> None:
        """Lock the directory, again if its lock file was removed. Raise ConfigError if another daemon holds it."""
        self.close()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = lock = os.open(self._folder / LOCK_FILE, os.O_CREAT | os.O_RDWR | NO_LINK, OWNER_ONLY)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            text = f"cannot be written ({error.strerror}); make it writable, or name another on a local disk"
            if isinstance(error, BlockingIOError):
                holder = os.pread(lock, 32, 0).decode(errors="replace") or "not named: the disk was full"
                text = f"is in use by another sizewatch (process {holder}); stop that one, or name another"
            self.close()
            raise ConfigError((f"{self._place} {text}",)) from error
        with suppress(OSError):  # A full disk costs only the process id.
            os.ftruncate(lock, 0)
            os.write(lock, str(os.getpid()).encode())

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
