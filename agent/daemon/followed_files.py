"""Files that the daemon follows: the plan, a mounted configuration, and the secrets of its own pages and webhook.

Connections to others read their files again at each use (`agent.http_client`).
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from functools import lru_cache
from pathlib import Path

from agent.config.files import named_files
from agent.config.load import LoadedConfig
from agent.config.web import Web, find_web_file

MARK = "..data"
"""Link in a folder that Kubernetes mounts. The kubelet writes a new folder and moves the link to it (atomic writer)."""

RESTED_SECONDS = 2.0
"""Age in seconds from which a file's times tell of every change. FAT's clock has the coarsest tick: two seconds."""


def digest_files(loaded: LoadedConfig, web: Web) -> dict[Path, str]:
    """Return a digest of the plan, of every file with a secret or a certificate of the pages and of the webhook, and of the
    configuration if Kubernetes mounts it. Elsewhere a person may be editing it: it waits for SIGHUP, or for the others.
    """
    paths = [loaded.config.plan] if loaded.config.plan else []
    if any((folder / MARK).is_symlink() for folder in loaded.path.absolute().parents):
        paths.append(str(loaded.path))
    for section in (web, find_web_file(web.config_file), loaded.config.alerting.receiver):
        paths += [path for _, path in named_files(section)]
    return {Path(path): digest_file(path) for path in paths}


def digest_file(path: str | Path) -> str:
    """Return a digest of a file, "" if it is missing, unreadable or no file: reading a pipe could block without end.

    It is read again only after a change of what the file system tells of it.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return ""
        # Two changes within a tick of the file system's clock look like one: a file is trusted when it has rested.
        unrested = time.time_ns() if time.time() - status.st_ctime < RESTED_SECONDS else 0
        return _digest(path, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size, unrested)
    except OSError:
        return ""


@lru_cache(maxsize=64)
def _digest(path: str | Path, *_: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
