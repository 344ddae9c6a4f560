"""What the doctor says of the limits that this process runs under, and of the clock that it runs by.

Owns looking and judging of what the system sets from outside: memory, threads, the size of files, whether the clock is kept. How
many files may be open is `doctor_machine`'s. Another limit is a field here and a row in JUDGES.

What the doctor says of rights: who else may read a secret, who else may write what steers us, and may we write our own files?

Owns looking and judging of rights alone; no file is opened. Which keys name a secret follows from their names: a new key that ends
in `_file` or `_files` is looked at, unless it is in PUBLIC.
"""

from __future__ import annotations

import ctypes
import os
import resource
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel

from agent.config.load import LoadedConfig
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.files import LOCK_FILE
from agent.forecasting.service import FORECAST_MEMORY_BYTES
from agent.worker.process import MIB

OWN_BYTES = 100 * MIB
"""What the daemon itself takes: 62 to 91 MiB were measured (docs/performance.md, docs/reliability.md)."""

NO_LIMIT_BYTES = 2**60
"""How version 1 of control groups writes that there is no limit: somewhat below 2**63."""

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")

NOT_KEPT = 5
"""TIME_ERROR of Linux' adjtimex(2): nobody has told the kernel that its clock is synchronised."""

TIMEX_BYTES = 512
"""More than `struct timex` takes on any machine; all zero it only asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsProbe:
    """None where there is no limit, or where this system does not say."""

    memory_bytes: int | None = None
    file_bytes: int | None = None
    thread_trouble: str = ""
    clock_kept: bool | None = None


def probe_limits() -> LimitsProbe:
    """Reads limits, begins one thread and ends it."""
    file_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return LimitsProbe(
        memory_bytes=memory_limit(),
        file_bytes=None if file_bytes == resource.RLIM_INFINITY else file_bytes,
        thread_trouble=_thread_trouble(),
        clock_kept=is_clock_synchronized(),
    )


def check_limits(seen: LimitsProbe, loaded: LoadedConfig) -> Iterator[CheckResult]:
    """A line for each limit that is too tight, and one for the clock."""
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


def _clock(seen: LimitsProbe, _: LoadedConfig) -> Iterator[CheckResult]:
    if seen.clock_kept:
        yield ok("clock", "this machine's is synchronised")
    elif seen.clock_kept is not None:
        text = "nothing keeps this machine's clock, as far as its kernel was told"
        yield warn("clock", text, "run a time service here (systemd-timesyncd, chrony with rtcsync)")


JUDGES: tuple[Callable[[LimitsProbe, LoadedConfig], Iterator[CheckResult]], ...] = (_memory, _files, _threads, _clock)


def memory_limit(base: Path = CGROUPS, own: Path = OWN_CGROUPS) -> int | None:
    """The least memory, in bytes, that this process' control group or one above it may use; None without a limit."""
    found = [number for place in _places(base, own) if (number := _number(place)) is not None]
    return min((number for number in found if number < NO_LIMIT_BYTES), default=None)


def _places(base: Path, own: Path) -> Iterator[Path]:
    """Where a limit may stand. In a container the path may be the host's, and the limit stands at the top."""
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


def is_clock_synchronized() -> bool | None:
    """Return whether the kernel holds its clock for synchronised; None where it does not say."""
    asked = ctypes.create_string_buffer(TIMEX_BYTES)
    try:
        state = ctypes.CDLL(None).adjtimex(asked)
    except (OSError, AttributeError):
        return None
    return None if state < 0 else bool(state != NOT_KEPT)


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
