"""Files that the daemon follows: the plan, a mounted configuration, and the secrets of its own pages and webhook.

Connections to others read their files again at each use (`agent.http_client`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from agent.config.files import named_files
from agent.config.load import LoadedConfig
from agent.config.web import Web, find_web_file

MARK = "..data"
"""Link in a folder that Kubernetes mounts. The kubelet writes a new folder and moves the link to it (atomic writer)."""

NOT_SECRET = frozenset({"pid_file"})


class FollowedFiles:
    """Small files with their contents as last seen."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._digests: dict[Path, str] = {}
        self.follow(paths)

    def follow(self, paths: Iterable[Path]) -> None:
        """Set the files to follow. New files start with their present contents, known files keep their last seen
        contents."""
        known = self._digests
        self._digests = {path: known[path] if path in known else _digest(path) for path in paths}

    def changed(self) -> bool:
        """Return whether any file has new contents since the last call. Each change is reported once."""
        before, self._digests = self._digests, {path: _digest(path) for path in self._digests}
        return self._digests != before


def files_to_follow(loaded: LoadedConfig, web: Web) -> Iterator[Path]:
    """Yield the plan, every file with a secret or a certificate of the pages and of the webhook, and the configuration if
    Kubernetes mounts it. Elsewhere a person may be editing it: it waits for SIGHUP, or for a change of the others."""
    if loaded.config.plan:
        yield Path(loaded.config.plan)
    if any((folder / MARK).is_symlink() for folder in loaded.path.absolute().parents):
        yield loaded.path
    for section in (web, find_web_file(web.config_file), loaded.config.alerting.receiver):
        yield from (Path(path) for _, path in named_files(section, NOT_SECRET))


def _digest(path: Path) -> str:
    """Return a digest of a file, "" if it is missing, unreadable or no file: reading a pipe could block without end."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    except OSError:
        return ""
