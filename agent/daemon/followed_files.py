"""Files that the daemon follows: the plan, a mounted configuration, and the secrets of its own pages and webhook.

Connections to others read their files again at each use (`agent.http_client`).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from agent.config.files import named_files
from agent.config.load import LoadedConfig
from agent.config.web import Web, find_web_file

MARK = "..data"
"""Link in a folder that Kubernetes mounts. The kubelet writes a new folder and moves the link to it (atomic writer)."""


def digest_files(loaded: LoadedConfig, web: Web) -> dict[Path, str]:
    """Return a digest of the plan, of every file with a secret or a certificate of the pages and of the webhook, and of the
    configuration if Kubernetes mounts it. Elsewhere a person may be editing it: it waits for SIGHUP, or for the others.
    """
    paths = [loaded.config.plan] if loaded.config.plan else []
    if any((folder / MARK).is_symlink() for folder in loaded.path.absolute().parents):
        paths.append(str(loaded.path))
    for section in (web, find_web_file(web.config_file), loaded.config.alerting.receiver):
        paths += [path for _, path in named_files(section)]
    return {Path(path): _digest(Path(path)) for path in paths}


def _digest(path: Path) -> str:
    """Return a digest of a file, "" if it is missing, unreadable or no file: reading a pipe could block without end."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    except OSError:
        return ""
