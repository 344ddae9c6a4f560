"""Which replica owns which GPU: by UUID or index as configured, by process id for `auto`.

Owns the assignment and the words for what could not be assigned. It reads pid files and, through
`agent.gpu.owners`, /proc; the GPUs themselves come in as readouts. A MIG instance is a GPU like any other, but
has no index: it is named by its UUID, as in CUDA_VISIBLE_DEVICES.

Which process an engine is, and which processes are its own, from /proc.

Owns the reading of pid files and of /proc. A process that ended meanwhile, or that this process may not see, has no
ancestors and is nobody's; that is no error.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.scrape.scrapers import Target
from rules.telemetry.snapshots import GpuReadout

PROC = Path("/proc")

MOST_GENERATIONS = 64
"""A pid that is used again while it is looked at can close a circle; no real tree of processes is so deep."""


MOST_LETTERS, MOST_DIGITS = 100, 20
"""More than any pid file has; no number of a process is as long as one of 64 bits."""


class PidFileError(Exception):
    """A pid file that names no process, with the reason in words."""


def read_pid(path: str) -> int:
    """The process id in a pid file. Raises NoPid."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise PidFileError(f"{path}: is no file")
        with Path(path).open(encoding="ascii") as file:
            text = file.read(MOST_LETTERS).strip()
    except OSError as error:
        raise PidFileError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from error
    except UnicodeDecodeError:
        raise PidFileError(f"{path}: holds no process id") from None
    if not text.isdigit() or len(text) >= MOST_DIGITS or not int(text):
        raise PidFileError(f"{path}: holds no process id")
    return int(text)


def lineage(pid: int, proc: Path = PROC) -> frozenset[int]:
    """A process and all its ancestors as far as they can be seen."""
    found: set[int] = set()
    while pid > 0 and pid not in found and len(found) < MOST_GENERATIONS:
        found.add(pid)
        pid = _parent(pid, proc)
    return frozenset(found)


def _parent(pid: int, proc: Path) -> int:
    try:
        stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        # The second field, the command in parentheses, may hold blanks: the parent is the second field after it.
        return int(stat.rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


AUTO = ("auto",)

MIG = "MIG-"
"""How the UUID of an instance begins."""

Lineage = Callable[[int], frozenset[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAssignment:
    """A replica's GPUs by UUID, and in words what could not be found of them."""

    gpus: tuple[str, ...]
    missing: str = ""


def assign_gpus(
    targets: Sequence[Target], readouts: Mapping[str, GpuReadout], ancestors: Lineage = lineage
) -> dict[tuple[str, str], GpuAssignment]:
    """The GPUs of each target, by (tier, replica).

    For `auto` without a pid file the only target of a node owns every GPU on it; with several targets it owns none.
    """
    # In the order of time: where a GPU was replaced, its index is the one that was read last.
    by_index = {str(r.index): r.gpu for r in sorted(readouts.values(), key=lambda r: r.t) if r.index is not None}
    alone = len(targets) == 1
    return {
        target.key: _by_process(target, readouts, ancestors, alone)
        if target.gpus == AUTO
        else _by_name(target, readouts, by_index)
        for target in targets
    }


def owners(
    targets: Sequence[Target], readouts: Mapping[str, GpuReadout], ancestors: Lineage = lineage
) -> dict[tuple[str, str], tuple[str, ...]]:
    """The same, GPUs alone."""
    return {key: owned.gpus for key, owned in assign_gpus(targets, readouts, ancestors).items()}


def _by_name(target: Target, readouts: Mapping[str, GpuReadout], by_index: Mapping[str, str]) -> GpuAssignment:
    named = {name: by_index.get(name, name) for name in target.gpus}
    unseen = ", ".join(name for name, gpu in named.items() if gpu not in readouts)
    by_instance = any(gpu.startswith(MIG) for gpu in readouts)
    advice = " (where MIG is on, name its instances by UUID: `nvidia-smi -L`)" if by_instance else ""
    return GpuAssignment(
        # A GPU named twice, by index and by UUID, counts once.
        gpus=tuple(dict.fromkeys(gpu for gpu in named.values() if gpu in readouts)),
        missing=f"GPU {unseen} is configured for it and has never been read here{advice}" if unseen else "",
    )


def _by_process(target: Target, readouts: Mapping[str, GpuReadout], ancestors: Lineage, alone: bool) -> GpuAssignment:
    if target.pid_file is None:
        return GpuAssignment(gpus=tuple(readouts) if alone else ())
    try:
        pid = read_pid(target.pid_file)
    except PidFileError as error:
        return GpuAssignment(gpus=(), missing=f"its GPUs are not known: pid_file {error}")
    gpus = tuple(gpu for gpu, readout in readouts.items() if any(pid in ancestors(own) for own in readout.pids))
    return GpuAssignment(
        gpus=gpus, missing="" if gpus else f"its GPUs are not known: process {pid} uses none that is read"
    )
