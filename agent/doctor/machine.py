"""Checks of this machine: process, GPUs, folder of the history. A probe looks, a check is pure."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import platform
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.config.config import Config
from agent.config.load import LoadedConfig
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.files import holder
from agent.gpu.collector import ExporterPage, GpuReader
from agent.gpu.nvml_device import NvmlRefusedError, ask
from agent.gpu.nvml_reader import NvmlReader
from agent.http_client.page import PageFetcher
from rules.telemetry.snapshots import GpuReadout

SPARE_FILES = 64
"""Files and sockets needed besides those of targets: libraries, history, log, web clients."""

FREE_BYTES_WARNING = 1024**3

FREE_BYTES_NEEDED = 100 * 1024**2
"""Minimum free bytes: SQLite needs space for its write-ahead log."""

FREE_FILES_NEEDED = 100
"""Minimum free files. The history has three, and each report several."""

NO_LEAVE = "give this user write access to it"

UNWRITABLE = {
    errno.ENOSPC: "free space on its disk (df -h), or files where space is free (df -i)",
    errno.EDQUOT: "free space within this user's quota",
    errno.EROFS: "mount its disk for writing (a disk with errors is read-only until it is mended: see the kernel's log)",
    errno.EIO: "check the disk and the kernel's log",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files of this machine (fs.file-max)",
    errno.EFBIG: "lift the limit of a file's size (ulimit -f)",
    errno.ENOTDIR: "move the file away that stands there",
}
"""Advice per error number of a folder that cannot be written."""

REMOTE_FILESYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "glusterfs", "ceph", "lustre")
"""File systems without the shared memory that SQLite's write-ahead log needs (sqlite.org/wal.html)."""

NO_GPU = ("cpu", "none")
"""GPU products of a plan without GPUs."""

ALWAYS_POLLED = frozenset({"gpu_throttled_hardware_seconds"})
"""Counters that no driver accumulates. Polling them needs no warning."""


TOP_LEVEL = ("agent", "exporters", "forecast", "rules")
"""Our packages at the top level. They are an application's own: nobody else imports them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessProbe:
    python: str
    open_files: int
    """Maximum number of open files and sockets."""
    packages: Mapping[str, str]
    """Versions of the installed packages."""
    clashes: tuple[str, ...] = ()
    """Other installed packages that have a top-level name of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusProbe:
    source: str
    readouts: tuple[GpuReadout, ...] = ()
    problems: tuple[str, ...] = ()
    driver: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFolderProbe:
    """Folder of the history, or its nearest existing parent. `trouble` is why it cannot be written."""

    path: str
    existing: str
    trouble: str = ""
    errno: int = 0
    free_bytes: int = 0
    free_files: int | None = None
    """Number of further files that the disk can hold; None without a limit."""
    filesystem: str = ""
    mode: int = 0
    holder: str = ""
    """Process id of the daemon that uses the folder, or empty."""


def probe_process() -> ProcessProbe:
    packages = {}
    for name in ("sizewatch", "nvidia-ml-py", "pynvml"):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    owners = importlib.metadata.packages_distributions()
    others = {owner for name in TOP_LEVEL for owner in owners.get(name, ()) if owner != "sizewatch"}
    return ProcessProbe(
        python=platform.python_version(), open_files=soft, packages=packages, clashes=tuple(sorted(others))
    )


def probe_gpus(config: Config, clock: Callable[[], float]) -> GpusProbe:
    """Read every GPU of the configured source."""
    keys = config.gpus
    source: GpuReader
    if keys.source == "none":
        return GpusProbe(source=keys.source)
    if keys.exporter is not None:
        exporter, connection = keys.exporter
        source = ExporterPage(PageFetcher(connection.options(config.timeout_seconds())), exporter)
    else:
        source = NvmlReader()
    try:
        readouts, problems = source.read(clock())
        driver = _driver() if readouts and keys.source == "nvml" else ""
    finally:
        source.close()
    return GpusProbe(source=keys.source, readouts=readouts, problems=problems, driver=driver)


def _driver() -> str:
    try:
        return str(ask("nvmlSystemGetDriverVersion"))
    except NvmlRefusedError as refused:
        return f"of unknown version: {refused}"


def probe_data_folder(path: Path) -> DataFolderProbe:
    """Return whether a folder, or the one it will be made in, can be written. Leave no file."""
    existing = next((place for place in (path, *path.absolute().parents) if os.path.exists(place)), Path("/"))
    try:
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(b"sizewatch")
            probe.flush()
        free_bytes = shutil.disk_usage(existing).free
        mode = existing.stat().st_mode
        room = os.statvfs(existing)
    except OSError as error:
        trouble, number = error.strerror or str(error), error.errno or 0
        return DataFolderProbe(
            path=str(path), existing=str(existing), trouble=trouble, errno=number, holder=holder(path)
        )
    return DataFolderProbe(
        path=str(path),
        existing=str(existing),
        free_bytes=free_bytes,
        # File systems without a limit report 0 of 0.
        free_files=room.f_favail if room.f_files else None,
        filesystem=_filesystem(existing),
        holder=holder(path),
        mode=mode & 0o7777 if existing == path else 0,
    )


def _filesystem(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Kind of the file system that holds a path; empty where this system does not say."""
    try:
        rows = [line.split() for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return ""
    holding = [(row[1], row[2]) for row in rows if len(row) > 2 and path.resolve().is_relative_to(row[1])]
    # The last mount of a place hides the ones before.
    return max(enumerate(holding), key=lambda entry: (len(entry[1][0]), entry[0]))[1][1] if holding else ""


def check_process(seen: ProcessProbe, loaded: LoadedConfig | None) -> Iterator[CheckResult]:
    check = "process"
    version = seen.packages.get("sizewatch")
    yield ok(check, f"Python {seen.python}, sizewatch {version or 'run from its source'}")
    if "pynvml" in seen.packages:
        text = f"the package pynvml {seen.packages['pynvml']} is installed: a deprecated shim over nvidia-ml-py"
        yield warn(check, text, "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py")
    for other in seen.clashes:
        text = (
            f"the package {other} has modules called {', '.join(TOP_LEVEL[:-1])} or {TOP_LEVEL[-1]}, as sizewatch has"
        )
        yield fail(check, text, "install sizewatch into a virtual environment of its own, or with pipx")
    wanted = 2 * len(loaded.config.targets) + SPARE_FILES if loaded else SPARE_FILES
    if 0 <= seen.open_files < wanted:
        text = f"only {seen.open_files} files and sockets may be open at once, {wanted} may be needed"
        yield fail(check, text, f"raise the limit: ulimit -n {wanted}, or LimitNOFILE={wanted} in the systemd unit")


def check_gpus(seen: GpusProbe, loaded: LoadedConfig) -> Iterator[CheckResult]:
    check, config = "gpus", loaded.config
    if seen.source == "none":
        yield ok(check, "not read (gpus.source: none)")
        return
    for problem in seen.problems:
        yield _gpu_problem(problem, seen, loaded)
    if seen.readouts:
        driver = f", driver {seen.driver}" if seen.driver else ""
        yield ok(check, f"{len(seen.readouts)} read through {seen.source}{driver}")
    wants_processes = any(target.gpus == "auto" and target.pid_file for target in config.targets)
    for readout in seen.readouts:
        yield from _gpu(readout, wants_processes)


def _gpu_problem(problem: str, seen: GpusProbe, loaded: LoadedConfig) -> CheckResult:
    asked_for = "source" in loaded.config.gpus.model_fields_set
    planned = loaded.plan is not None and any(
        loaded.plan.tiers[target.tier].gpu.product.casefold() not in NO_GPU
        for target in loaded.config.targets
        if target.tier in loaded.plan.tiers
    )
    if seen.readouts or (planned and not asked_for):
        tool = "amd-smi" if seen.source == "amd" else "nvidia-smi"
        advice = f"GPU signals of that GPU will be missing; `{tool}` says more"
        if not seen.readouts:
            advice = "start sizewatch where the GPUs are, give the container the driver, or set gpus.source: none"
        return warn("gpus", problem, advice)
    if asked_for:
        return fail("gpus", problem, f"gpus.source: {seen.source} is set; make it answer, or set gpus.source: none")
    return ok("gpus", f"{problem} (no target is planned to have one)")


def _gpu(readout: GpuReadout, wants_processes: bool) -> Iterator[CheckResult]:
    check = f"gpu {readout.gpu if readout.index is None else readout.index}"
    gaps = [name for name in readout.gaps if name != "pids"]
    text = f"{readout.product or 'product not told'}, {readout.gpu}, {len(readout.pids)} processes seen"
    yield ok(check, text + (f"; not given: {', '.join(gaps)}" if gaps else ""))
    if wants_processes and "pids" in readout.gaps:
        text = f"its processes cannot be seen ({readout.gaps['pids']})"
        yield warn(check, text, "list each target's gpus by UUID or index instead of gpus: auto")
    polled = sorted(name for name in readout.sampled - ALWAYS_POLLED if name in readout.counters)
    if polled:
        text = f"only plain polls of {', '.join(polled)}: verdicts on them are likely at most"
        yield warn(check, text, "nothing to do; the driver or product gives no sums")


def check_data_folder(seen: DataFolderProbe | None, _: LoadedConfig) -> Iterator[CheckResult]:
    check = "data_dir"
    if seen is None:
        yield ok(check, "no history is kept (role node)")
        return
    if seen.trouble:
        where = seen.path if seen.existing == seen.path else f"{seen.path}, to be made in {seen.existing}"
        yield fail(
            check, f"{where}: {seen.trouble}", f"{UNWRITABLE.get(seen.errno, NO_LEAVE)}, or name another data_dir"
        )
        return
    free = f"{seen.free_bytes / 1024**3:.1f} GiB free"
    made = "" if seen.existing == seen.path else f"will be made in {seen.existing}, "
    if seen.free_bytes < FREE_BYTES_NEEDED:
        yield fail(check, f"{seen.path}: {free}", "free space on this disk, or name another data_dir")
    elif seen.free_bytes < FREE_BYTES_WARNING:
        yield warn(check, f"{seen.path}: {free}", "a full disk costs history: free space, or name another data_dir")
    else:
        yield ok(check, f"{seen.path}: {made}writable, {free}")
    if seen.free_files is not None and seen.free_files < FREE_FILES_NEEDED:
        text = f"{seen.path}: its disk has room for {seen.free_files} more files"
        yield warn(check, text, "delete files there (df -i tells of them), or name another data_dir")
    if seen.filesystem in REMOTE_FILESYSTEMS:
        text = f"{seen.path} is on a network file system ({seen.filesystem}), on which SQLite can lose data"
        yield fail(check, text, "name a data_dir on a local disk")
    if seen.mode & 0o002:
        text = f"{seen.path} can be written by every user of this machine (mode {seen.mode:o})"
        yield warn(check, text, f"chmod o-w {seen.path}")
