"""Files that we write: with the rights they need and no more whatever the umask, and never through a link.

Owns how such a file is opened. What a person names on the command line is theirs and opened as they would.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

OWNER_ONLY = 0o600
OWNER_AND_GROUP = 0o640
EVERYBODY_READS = 0o644

NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC


def open_new_file(path: Path, mode: int) -> BinaryIO:
    """The file, made or emptied, with at most these rights. Raises OSError, ELOOP among it where a link stands there: somebody
    else who may write in the folder has put it there."""
    return os.fdopen(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | NO_LINK, mode), "wb")
