"""Whether files that Kubernetes mounts (of a ConfigMap or a Secret) have other contents than when they were read.

Owns the look at them and nothing of what is in them. The kubelet writes a new folder and turns the link `..data` to it
(atomic writer): all files of a ConfigMap change at once and none is half written. Files elsewhere are people's, who say by
SIGHUP when they are done.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

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
