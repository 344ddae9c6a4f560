"""Checks of this machine: GPUs, files of secrets, folder and file of the history."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from agent.config.config import Config
from agent.config.files import named_files
from agent.config.load import LoadedConfig
from agent.config.web import find_web_file
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.doctor.targets import NO_GPU
from agent.gpu.collector import GpuRead
from agent.history.schema import HistoryError, HistoryFormatError
from agent.history.store import HistoryStore
from rules.telemetry.snapshots import GpuReadout

FREE_BYTES = 1024**3
"""Free bytes below which a full disk is near."""

AHEAD_SECONDS = 120.0
"""Limit in seconds. A history further ahead of the clock was written before the clock was set back."""

PUBLIC = frozenset({"ca_file", "client_ca_file", "cert_file", "pid_file"})
"""Keys of files without a secret."""


def check_secrets(config: Config) -> Iterator[CheckResult]:
    """Report each file of a secret that everybody on this machine may read."""
    web_file = find_web_file(config.web.config_file)
    for key, path in dict.fromkeys((*named_files(config, PUBLIC), *named_files(web_file, PUBLIC))):
        if os.path.exists(path) and os.stat(path).st_mode & stat.S_IROTH:
            yield warn(f"{key}: {path} can be read by everybody on this machine", f"chmod o-rwx {path}")


def check_gpus(gpus: GpuRead, loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Report the GPUs that were read, and problems by their weight: GPUs that nobody planned are no problem."""
    config, (readouts, problems) = loaded.config, gpus
    if config.gpus.source == "none":
        yield ok("not read (gpus.source: none)")
    for problem in problems:
        yield _weigh_gpu_problem(problem, readouts, loaded)
    if readouts:
        yield ok(f"{len(readouts)} read through {config.gpus.source}")
    for readout in readouts:
        gaps = [name for name in readout.gaps if name != "pids"]
        text = f"{readout.product or 'product not told'}, {readout.gpu}, {len(readout.pids)} processes seen"
        if gaps:
            text += f"; not given: {', '.join(gaps)}"
        yield replace(ok(text), check=f"gpu {readout.gpu if readout.index is None else readout.index}")


def _weigh_gpu_problem(problem: str, readouts: tuple[GpuReadout, ...], loaded: LoadedConfig) -> CheckResult:
    config, tiers = loaded.config, loaded.plan.tiers if loaded.plan is not None else {}
    if readouts:
        return warn(problem, "GPU signals of that GPU will be missing")
    if "source" in config.gpus.model_fields_set:
        return fail(problem, f"make gpus.source: {config.gpus.source} answer, or set gpus.source: none")
    planned = [tiers[target.tier] for target in config.targets if target.tier in tiers]
    if any(tier.gpu.product.casefold() not in NO_GPU for tier in planned):
        advice = "start sizewatch where the GPUs are, give the container the driver, or set gpus.source: none"
        return warn(problem, advice)
    return ok(f"{problem} (no target is planned to have one)")


def check_data_dir(config: Config) -> Iterator[CheckResult]:
    """Check that the folder of the history, or its nearest existing parent, can be written. Leave no file."""
    if config.data_dir is None:
        yield ok("no history is kept (role node)")
        return
    folder = Path(config.data_dir)
    existing = next(place for place in (folder, *folder.absolute().parents) if os.path.exists(place))
    where = f"{folder}" if existing == folder else f"{folder}: will be made in {existing}"
    advice = "give this user write access to it and free space, or name another data_dir"
    try:
        with tempfile.TemporaryFile(dir=existing) as probe:
            probe.write(b"sizewatch")
            probe.flush()
        free_bytes = shutil.disk_usage(existing).free
    except OSError as error:
        yield fail(f"{where}: {error.strerror}", advice)
        return
    text = f"{where}: writable, {free_bytes / 1024**3:.1f} GiB free"
    if free_bytes < FREE_BYTES:
        yield warn(text, "a full disk costs history: free space, or name another data_dir")
    else:
        yield ok(text)


def check_history(config: Config, now: float) -> Iterator[CheckResult]:
    """Check that the history can be read and written. `now` is unix seconds."""
    path = config.history_path
    if path is None:
        return
    try:
        os.stat(path)
    except FileNotFoundError:
        yield ok(f"{path}: begins with the first run")
        return
    except OSError as error:
        yield fail(f"{path}: {error.strerror}", "give this user access to the folder, or run as its owner")
        return
    if not os.access(path, os.W_OK):
        yield fail(f"{path}: cannot be written by this user", "run as the user that owns it, or chown it")
        return
    # Where no writer left a log, reading must leave no files either.
    alone = not os.path.exists(f"{path}-wal")
    try:
        with HistoryStore.open_reader(path, alone=alone) as reader:
            ahead_seconds = (reader.newest_minute_end or now) - now
    except HistoryFormatError as error:
        yield warn(str(error), "no command reads it until then; nothing has to be done")
    except HistoryError as error:
        yield fail(str(error), "until then nothing is stored, and `sizewatch check` has nothing to read")
    else:
        if ahead_seconds > AHEAD_SECONDS:
            text = f"{path}: its newest minute is {ahead_seconds:.0f} s ahead of this machine's clock"
            yield warn(text, "correct the clock if it is wrong now; if it was wrong before, do nothing")
        else:
            yield ok(f"{path}: can be read and written")
