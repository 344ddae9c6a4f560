"""Assignment of GPUs to replicas: by configured UUID or index, or for `auto` by the process in a pid file.

A MIG instance is a GPU without an index. A process that has ended, or that this one may not see, has no ancestors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.scrape.scrapers import Target
from rules.telemetry.gpu_windows import REFRESH_SECONDS
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.windows import group_by

PROC = Path("/proc")

AUTO = ("auto",)

Lineage = Callable[[int], frozenset[int]]


class PidFileError(Exception):
    """Pid file that names no process."""


def read_pid(path: str) -> int:
    """Return the process id in a pid file. Raise PidFileError."""
    try:
        # Not a pipe, whose other end may never write.
        if not Path(path).is_file():
            raise PidFileError(f"{path}: no such file")
        with Path(path).open("rb") as file:
            pid = int(file.read(20))  # The digits of a 64-bit number.
    except OSError as error:
        raise PidFileError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from error
    except ValueError:
        pid = 0
    if pid <= 0:
        raise PidFileError(f"{path}: holds no process id")
    return pid


def lineage(pid: int, proc: Path = PROC) -> frozenset[int]:
    """Return a process and all its visible ancestors."""
    pids: set[int] = set()
    # A reused pid can close a circle.
    while pid > 0 and pid not in pids:
        pids.add(pid)
        try:
            stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
            # The second field, the command in parentheses, may contain blanks. The parent is the second field after it.
            pid = int(stat.rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return frozenset(pids)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAssignment:
    """GPUs of a replica by UUID, and a text about those that were not found."""

    gpus: tuple[str, ...]
    missing: str = ""


def hosts_of(readouts: Iterable[GpuReadout]) -> str:
    """Return the names of the machines where a source has read GPUs of several, else an empty text."""
    hosts = sorted({readout.host for readout in readouts} - {""})
    return " or ".join(hosts) if len(hosts) > 1 else ""


def gpus_by_index(readouts: Mapping[str, GpuReadout]) -> dict[str, str]:
    """Return the GPUs by index: those still read. Several, or several machines, make a text that is no GPU's name."""
    gpus, hosts = {}, hosts_of(readouts.values())
    for index, group in group_by(readouts.values(), lambda readout: readout.index).items():
        since = max(readout.t for readout in group) - 2 * REFRESH_SECONDS
        gpus[str(index)] = " and ".join(readout.gpu for readout in group if readout.t > since)
        if hosts:
            gpus[str(index)] = f"of {hosts}"
    return gpus


def assign_gpus(
    targets: Sequence[Target], readouts: Mapping[str, GpuReadout], ancestors: Lineage = lineage
) -> dict[tuple[str, str], GpuAssignment]:
    """Return the GPUs of each target, by (tier, replica).

    For `auto` without a pid file the only target of a node owns every GPU on it. With several targets it owns none.
    """
    by_index = gpus_by_index(readouts)
    alone = len(targets) == 1
    return {
        target.key: _by_process(target, readouts, ancestors, alone)
        if target.gpus == AUTO
        else _by_name(target, readouts, by_index)
        for target in targets
    }


def _by_name(target: Target, readouts: Mapping[str, GpuReadout], by_index: Mapping[str, str]) -> GpuAssignment:
    named = {name: by_index.get(name, name) for name in target.gpus}
    unseen = [name for name, gpu in named.items() if gpu not in readouts]
    instances = ", ".join(gpu for gpu, readout in readouts.items() if readout.index is None)
    advice = f" (where MIG is on, name its instances: {instances})" if instances else ""
    missing = ""
    if unseen:
        missing = f"GPU {', '.join(unseen)} is configured for it and is not read here{advice}"
    for name in filter(by_index.get, unseen):
        missing = f"GPU {name} is {by_index[name]}: name it by UUID"
    # A GPU named twice, by index and by UUID, counts once.
    return GpuAssignment(gpus=tuple(dict.fromkeys(filter(readouts.get, named.values()))), missing=missing)


def _by_process(target: Target, readouts: Mapping[str, GpuReadout], ancestors: Lineage, alone: bool) -> GpuAssignment:
    if hosts := hosts_of(readouts.values()):
        return GpuAssignment(gpus=(), missing=f"its GPUs are not known: those read are of {hosts}")
    if target.pid_file is None:
        return GpuAssignment(gpus=tuple(readouts) if alone else ())
    try:
        pid = read_pid(target.pid_file)
    except PidFileError as error:
        return GpuAssignment(gpus=(), missing=f"its GPUs are not known: pid_file {error}")
    gpus = tuple(gpu for gpu, readout in readouts.items() if any(pid in ancestors(own) for own in readout.pids))
    if gpus:
        return GpuAssignment(gpus=gpus)
    return GpuAssignment(gpus=(), missing=f"its GPUs are not known: process {pid} uses none that is read")
