"""Checks of the limits of this process (memory, threads, file size), and of file permissions.

No file is opened. A key that ends in `_file` or `_files` names a secret, unless it is in PUBLIC. Another limit is a field of
LimitsProbe and a row of JUDGES.
"""

from __future__ import annotations

import os
import resource
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from agent.config.load import LoadedConfig
from agent.config.named_files import named_files
from agent.config.web import find_web_file
from agent.doctor.check_result import CheckResult, fail, warn
from agent.files import LOCK_FILE
from agent.forecasting.service import FORECAST_MEMORY_BYTES
from agent.worker.process import MIB

OWN_BYTES = 100 * MIB
"""Memory of the daemon in bytes: 62 to 91 MiB were measured (docs/performance.md, docs/reliability.md)."""

NO_LIMIT_BYTES = 2**60
"""Bytes from which a limit of control groups version 1 means none; it writes almost 2**63."""

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsProbe:
    """Limits of the process. None: no limit, or unknown."""

    memory_bytes: int | None = None
    file_bytes: int | None = None
    thread_trouble: str = ""


def probe_limits() -> LimitsProbe:
    """Read the limits, and start and end one thread."""
    file_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return LimitsProbe(
        memory_bytes=memory_limit(),
        file_bytes=None if file_bytes == resource.RLIM_INFINITY else file_bytes,
        thread_trouble=_thread_trouble(),
    )


def check_limits(seen: LimitsProbe, loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Report each limit that is too low."""
    for judge in JUDGES:
        yield from judge(seen, loaded)


def _memory(seen: LimitsProbe, loaded: LoadedConfig) -> Iterator[CheckResult]:
    config = loaded.config
    forecasts = bool(config.history_path and config.forecast.enabled)
    wanted = OWN_BYTES + (FORECAST_MEMORY_BYTES if forecasts else 0)
    if seen.memory_bytes is None or seen.memory_bytes >= wanted:
        return
    text = f"its control group may use {seen.memory_bytes // MIB} MiB of memory, {wanted // MIB} MiB may be needed"
    advice = "raise the limit (MemoryMax, resources.limits.memory)"
    yield warn("process", text, f"{advice}, or set forecast.enabled: false" if forecasts else advice)


def _files(seen: LimitsProbe, loaded: LoadedConfig) -> Iterator[CheckResult]:
    if seen.file_bytes is not None and loaded.config.data_dir:
        text = f"no file may grow beyond {seen.file_bytes} bytes: the history will not be written once it is so long"
        yield fail("process", text, "lift the limit: ulimit -f unlimited, or LimitFSIZE=infinity in the systemd unit")


def _threads(seen: LimitsProbe, _: LoadedConfig) -> Iterator[CheckResult]:
    if seen.thread_trouble:
        text = f"it may begin no thread ({seen.thread_trouble})"
        yield fail("process", text, "raise the limit: ulimit -u, TasksMax in the systemd unit, pids.max of a container")


JUDGES: tuple[Callable[[LimitsProbe, LoadedConfig], Iterator[CheckResult]], ...] = (_memory, _files, _threads)


def memory_limit(base: Path = CGROUPS, own: Path = OWN_CGROUPS) -> int | None:
    """Return the lowest memory limit in bytes of the control group and its parents, or None."""
    found = [number for place in _places(base, own) if (number := _number(place)) is not None]
    return min((number for number in found if number < NO_LIMIT_BYTES), default=None)


def _places(base: Path, own: Path) -> Iterator[Path]:
    """Yield the files with a limit. In a container the path may be the host's, and the limit is at the top."""
    try:
        rows = [line.split(":", 2) for line in own.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        rows = []
    for _, controllers, path in (row for row in rows if len(row) == 3):
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (base / "memory", "memory.limit_in_bytes") if controllers else (base, "memory.max")
        group = top / path.lstrip("/")
        yield from (above / name for above in (group, *group.parents) if above.is_relative_to(top))


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and len(text) < 20 else None


def _thread_trouble() -> str:
    thread = threading.Thread(target=lambda: None, name="doctor")
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        return str(error)
    thread.join()
    return ""


OF_NOBODY = frozenset({"pid_file"})
"""Keys that another check covers."""

PUBLIC = frozenset({"ca_file", "client_ca_file", "cert_file", "url_file"}) | OF_NOBODY
"""Keys without a secret, or, as `url_file`, covered by another check."""

OF_HISTORY = ("", "-wal", "-shm")
"""Suffixes of SQLite's files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionsProbe:
    """Files with wrong permissions. `secrets` are readable by others and `steering` files writable, each with its key.

    The other fields are files of the history: not writable, readable by others, of another owner than their folder, links.
    """

    secrets: tuple[tuple[str, str], ...] = ()
    steering: tuple[tuple[str, str], ...] = ()
    unwritable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    strangers: tuple[tuple[str, int], ...] = ()
    links: tuple[str, ...] = ()
    owner: int = 0
    """User id of the owner of the history's folder."""


def probe_permissions(loaded: LoadedConfig) -> PermissionsProbe:
    """Read the permissions of the files in the configuration and of the history."""
    config = loaded.config
    named = dict.fromkeys((*named_files(config, PUBLIC), *named_files(find_web_file(config.web.config_file), PUBLIC)))
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
        # The check of the folder reports a folder that cannot be written.
        unwritable=tuple(str(one) for one in there if open_to_us and not os.access(one, os.R_OK | os.W_OK)),
        readable=tuple(str(one) for one in there if one != lock and _mode(one) & 0o007),
        # Volumes and packages make folders of root for other users, so their users are unknown.
        strangers=tuple((str(one), _owner(one)) for one in there if owner and _owner(one) != owner),
        links=tuple(str(one) for one in (*files, lock) if os.path.islink(one)),
        owner=owner,
    )


def check_permissions(seen: PermissionsProbe, _: LoadedConfig) -> Iterator[CheckResult]:
    """Report each file with wrong permissions."""
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
        move = "put the file itself there, or name the folder it is in as data_dir"
        advice = f"rm {path}" if path.endswith(LOCK_FILE) else move
        yield fail("data_dir", f"{path} is a link, and no daemon starts with it", advice)


def check_special_files(loaded: LoadedConfig) -> tuple[CheckResult, ...]:
    """Report each file that is a pipe, a folder or a device: reading it may block for ever."""
    named = dict.fromkeys(named_files(loaded.config, OF_NOBODY))
    odd = [(key, path) for key, path in named if _mode(path) and not stat.S_ISREG(_mode(path))]
    return tuple(
        fail("config", f"{key}: {path} is no file", "name a file there; then more can be looked at")
        for key, path in odd
    )


def _mode(path: Path | str) -> int:
    """Return the mode, or 0 if the file is missing or not accessible."""
    try:
        return os.stat(path).st_mode
    except OSError:
        return 0


def _owner(path: Path) -> int:
    try:
        return os.stat(path).st_uid
    except OSError:
        return 0
