"""Judges this machine: process, GPUs, the folder of the history, the port. Pure: what was seen goes in, findings come out.

Owns the limits below and the words. It looks at nothing itself (`doctor_probes` does). Another thing to judge is a
function here and a row in `agent.doctor.run`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

from agent.config.load import LoadedConfig
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.doctor.machine_probes import DataFolderProbe, GpusProbe, HistoryProbe, PortProbe, ProcessProbe
from agent.history.schema import VERSION, name_of
from rules.telemetry.snapshots import GpuReadout

SPARE_FILES = 64
"""Files and sockets beside the targets' own: libraries, history, log, web readers."""

AHEAD_SECONDS = 120.0
"""A history that is further ahead of the clock was written by one that has gone back since."""

FREE_BYTES_WARNING = 1024**3
FREE_BYTES_NEEDED = 100 * 1024**2
"""SQLite needs room for its write-ahead log beside the data."""

FREE_FILES_NEEDED = 100
"""The history is three files, and each report a folder of some."""

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
"""What to do where a folder cannot be written."""

REMOTE_FILESYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "glusterfs", "ceph", "lustre")
"""SQLite's write-ahead log needs memory shared by all its readers, which these do not give (sqlite.org/wal.html)."""

NO_GPU = ("cpu", "none")
"""What a plan names as product where there is no GPU."""


def check_process(seen: ProcessProbe, loaded: LoadedConfig | None) -> Iterator[CheckResult]:
    check = "process"
    version = seen.packages.get("sizewatch")
    yield ok(check, f"Python {seen.python}, sizewatch {version or 'run from its source'}")
    if "pynvml" in seen.packages:
        text = f"the package pynvml {seen.packages['pynvml']} is installed: a deprecated shim over nvidia-ml-py"
        yield warn(check, text, "pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py")
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


ALWAYS_POLLED = frozenset({"gpu_throttled_hardware_seconds"})
"""What no driver sums up: that it is polled is not this machine's fault."""


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


def owner(seen: DataFolderProbe | None, web: PortProbe) -> Iterator[CheckResult]:
    """Whether the folder is another daemon's: one that answers where this configuration's would is it itself."""
    if seen is None or not seen.holder:
        return
    if web.ours:
        yield ok("data_dir", f"a sizewatch has it (process {seen.holder})")
        return
    text = f"{seen.path} is in use by another sizewatch (process {seen.holder}), which does not answer at web.listen"
    yield fail("data_dir", text, "stop that one, or name another data_dir: a second daemon does not start there")


def check_history(seen: HistoryProbe | None, _: LoadedConfig) -> Iterator[CheckResult]:
    if seen is None:
        return
    if seen.trouble:
        yield fail(
            "history", seen.trouble, "until then nothing is remembered, and `sizewatch check` has nothing to read"
        )
    else:
        yield ok("history", f"{seen.path}: {_history_words(seen)}")
    if seen.ahead_seconds > AHEAD_SECONDS:
        text = f"{seen.path}: its newest minute is {seen.ahead_seconds:.0f} s ahead of this machine's clock"
        advice = (
            "correct the clock if it is wrong now; if it was, do nothing: minutes of a time that is booked already"
            " are judged and not kept, all others are kept"
        )
        yield warn("history", text, advice)
    if seen.copies:
        size = sum(each for _, each in seen.copies) / 1024**2
        names = ", ".join(name for name, _ in seen.copies)
        yield warn(
            "history",
            f"left over from changes of the format: {names} ({size:.1f} MiB)",
            "delete them once nobody goes back to the older sizewatch; nothing else ever does",
        )


def _history_words(seen: HistoryProbe) -> str:
    if not seen.exists:
        return "begins with the first run"
    if seen.format < VERSION:
        copy = name_of(Path(seen.path), seen.format).name
        return f"can be read; of format {seen.format}; `sizewatch run` copies it to {copy} and brings it to {VERSION}"
    return "can be read"


def check_port(seen: PortProbe, loaded: LoadedConfig) -> Iterator[CheckResult]:
    check, listen = "web", loaded.config.web.listen
    for trouble in seen.file_troubles:
        yield fail(check, trouble, "correct the file or its name, and let this user read it")
    if not seen.trouble:
        yield ok(check, f"{listen} is free")
    elif seen.ours:
        yield ok(check, f"{listen}: a sizewatch answers there already")
    elif seen.in_use:
        text = f"{listen} is taken, and not by a sizewatch that can be asked"
        yield fail(
            check, text, f"see who holds it (ss -ltnp 'sport = :{loaded.config.web.address[1]}'), or change web.listen"
        )
    else:
        advice = "web.listen must be an address of this machine, with a port above 1023 unless run as root"
        yield fail(check, f"{listen}: {seen.trouble}", advice)
