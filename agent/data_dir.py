"""The folder of the history belongs to one daemon at a time.

Owns the making of the folder and the lock on it: two daemons that book the same minutes would count everything twice.
The kernel drops the lock with the process that holds it, whatever ends that; the file that carries it stays.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from agent.errors import BadConfig

LOCK_FILE = "daemon.lock"


class DataDir:
    """A folder that is ours until `close`. `named` says which configuration names it, for messages.

    Raises BadConfig where it cannot be made or written, or where another daemon has it.
    """

    def __init__(self, folder: Path, named: Path) -> None:
        self._folder = folder
        self._named = named
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except (FileExistsError, NotADirectoryError) as error:
            raise self._problem("is, or lies in, a file; name a folder") from error
        except OSError as error:
            raise self._problem(f"cannot be written ({error.strerror}); make it writable, or name another") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = self._holder()
            os.close(self._lock)
            if isinstance(error, BlockingIOError):
                raise self._problem(
                    f"is in use by another sizewatch{holder}; stop that one, or name another"
                ) from error
            raise self._problem(f"cannot be locked ({error.strerror}); it must be on a local disk") from error
        os.ftruncate(self._lock, 0)
        os.write(self._lock, str(os.getpid()).encode())

    def _holder(self) -> str:
        pid = os.pread(self._lock, 32, 0)
        return f" (process {int(pid)})" if pid.isdigit() else ""

    def _problem(self, text: str) -> BadConfig:
        return BadConfig((f"{self._named}: data_dir: {self._folder} {text}",))

    def close(self) -> None:
        """Lets another daemon have it."""
        os.close(self._lock)
