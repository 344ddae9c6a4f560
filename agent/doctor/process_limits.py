"""What the doctor says of the limits that this process runs under, and of the clock that it runs by.

Owns looking and judging of what the system sets from outside: memory, threads, the size of files, whether the clock is kept. How
many files may be open is `doctor_machine`'s. Another limit is a field here and a row in JUDGES.
"""

from __future__ import annotations

import ctypes
import resource
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agent.config.load import LoadedConfig
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.worker.process import FORECAST_MEMORY_BYTES, MIB

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
    """Whether the kernel holds its clock for synchronised; None where it does not say."""
    asked = ctypes.create_string_buffer(TIMEX_BYTES)
    try:
        state = ctypes.CDLL(None).adjtimex(asked)
    except (OSError, AttributeError):
        return None
    return None if state < 0 else bool(state != NOT_KEPT)
