"""What the doctor says of rights: who else may read a secret, who else may write what steers us, and may we write our own files?

Owns looking and judging of rights alone; no file is opened. Which keys name a secret follows from their names: a new key that ends
in `_file` or `_files` is looked at, unless it is in PUBLIC.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel

from agent.config.load import LoadedConfig
from agent.data_dir import LOCK_FILE
from agent.doctor.check_result import CheckResult, fail, warn

OF_NOBODY = frozenset({"pid_file"})
"""Read by what does not wait, and told by its own line."""

PUBLIC = frozenset({"ca_file", "client_ca_file", "cert_file", "url_file"}) | OF_NOBODY
"""Hold no secret; of `url_file` the line of its destination speaks."""

OF_HISTORY = ("", "-wal", "-shm")
"""What SQLite adds to the history's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionsProbe:
    """`secrets` that others may read and `steering` files that others may write, each with the key that names it; files of the
    history that this user may not write, that others may read, that belong to another than their folder, or are links."""

    secrets: tuple[tuple[str, str], ...] = ()
    steering: tuple[tuple[str, str], ...] = ()
    unwritable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    strangers: tuple[tuple[str, int], ...] = ()
    links: tuple[str, ...] = ()
    owner: int = 0
    """Of the folder of the history."""


def probe_permissions(loaded: LoadedConfig) -> PermissionsProbe:
    """Asks for the rights of every file that the configuration names, and of the history's."""
    config = loaded.config
    named = dict.fromkeys(_named(config, "", PUBLIC))
    steering = [("the configuration", str(loaded.path)), *([("plan", config.plan)] if config.plan else [])]
    seen = PermissionsProbe(
        secrets=tuple((key, path) for key, path in named if _mode(path) & 0o004),
        steering=tuple((key, path) for key, path in steering if _mode(path) & 0o002),
    )
    return _with_history(config.history_path, seen) if config.history_path else seen


def _with_history(path: Path, seen: PermissionsProbe) -> PermissionsProbe:
    lock, files = path.parent / LOCK_FILE, [path.with_name(path.name + end) for end in OF_HISTORY]
    there = [one for one in (*files, lock) if _mode(one) and stat.S_ISREG(_mode(one))]
    owner, open_to_us = _owner(path.parent), os.access(path.parent, os.W_OK | os.X_OK)
    return replace(
        seen,
        # Of a folder that cannot be written its own line speaks.
        unwritable=tuple(str(one) for one in there if open_to_us and not os.access(one, os.R_OK | os.W_OK)),
        readable=tuple(str(one) for one in there if one != lock and _mode(one) & 0o007),
        # A folder of root's is one that a volume or a package made for another; who else writes there is not known.
        strangers=tuple((str(one), _owner(one)) for one in there if owner and _owner(one) != owner),
        links=tuple(str(one) for one in (*files, lock) if os.path.islink(one)),
        owner=owner,
    )


def check_permissions(seen: PermissionsProbe, _: LoadedConfig) -> Iterator[CheckResult]:
    """A line for each file whose rights are wrong; none where all are right."""
    for key, path in seen.secrets:
        yield warn("secrets", f"{key}: {path} can be read by everybody on this machine", f"chmod o-rwx {path}")
    for key, path in seen.steering:
        yield warn("config", f"{key}: {path} can be written by everybody on this machine", f"chmod o-w {path}")
    for path in seen.unwritable:
        text = f"{path} cannot be read and written by this user (of number {os.geteuid()})"
        yield fail("history", text, f"chown it to the user that `sizewatch run` runs as, and chmod u+rw {path}")
    for path in seen.readable:
        yield warn("history", f"{path} can be read or written by everybody on this machine", f"chmod o-rwx {path}")
    for path, owner in seen.strangers:
        if path not in seen.unwritable:
            text = f"{path} belongs to user {owner}, its folder to user {seen.owner}, who may not be able to write it"
            yield warn("history", text, f"chown --reference={Path(path).parent} {path}")
    for path in seen.links:
        advice = (
            f"rm {path}"
            if path.endswith(LOCK_FILE)
            else "put the file itself there, or name the folder it is in as data_dir"
        )
        yield fail("data_dir", f"{path} is a link, and no daemon starts with it", advice)


def check_special_files(loaded: LoadedConfig) -> tuple[CheckResult, ...]:
    """A line for each file that is a pipe, a folder or a device: whoever reads it may wait for ever, the doctor included."""
    named = dict.fromkeys(_named(loaded.config, "", OF_NOBODY))
    odd = [(key, path) for key, path in named if _mode(path) and not stat.S_ISREG(_mode(path))]
    return tuple(
        fail("config", f"{key}: {path} is no file", "name a file there; then more can be looked at")
        for key, path in odd
    )


def _named(part: object, place: str, public: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Every file that the configuration names, with its key, but for those of keys that are public."""
    if isinstance(part, BaseModel):
        part = {name: getattr(part, name) for name in type(part).model_fields}
    if isinstance(part, Mapping):
        for name, value in part.items():
            here = f"{place}.{name}" if place else str(name)
            if isinstance(value, str) and str(name).endswith("_file") and name not in public:
                yield here, value
            elif isinstance(value, Mapping) and str(name).endswith("_files"):
                yield from ((f"{here}.{header}", file) for header, file in value.items())
            else:
                yield from _named(value, here, public)
    elif isinstance(part, tuple | list):
        for number, value in enumerate(part):
            yield from _named(value, f"{place}[{number}]", public)


def _mode(path: Path | str) -> int:
    """0 where there is none, or none that may be seen: whoever needs it says so."""
    try:
        return os.stat(path).st_mode
    except OSError:
        return 0


def _owner(path: Path) -> int:
    try:
        return os.stat(path).st_uid
    except OSError:
        return 0
