"""Checks of configuration and plan, and of what they configure on this machine."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from agent.config.config import Config
from agent.config.files import named_files
from agent.config.load import LoadedConfig, build_tier_contexts
from agent.config.web import find_web_file
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.doctor.targets import NO_GPU
from agent.durations import duration_text
from agent.errors import SizewatchError, find_missing
from agent.gpu.collector import GpuRead
from agent.gpu.owners import hosts_of
from agent.history.schema import HistoryError, HistoryFormatError
from agent.history.store import HistoryStore
from agent.kubernetes import pod_gpus
from agent.kubernetes.discovery import TierCandidates, find_open_tiers
from agent.kubernetes.node_pods import PodSource, pods_of
from exporters.status.records import DiscoveryHealth
from rules.catalogue.registry import CATALOGUE
from rules.plan.checks import check_plan
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.wording import format_count

CORRECT = "correct it; docs/configuration.md has every key, docs/plan.schema.json those of a plan"


def check_config(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Report grave mistakes, what is watched, and weaknesses."""
    for mistake in loaded.mistakes:
        yield fail(mistake, CORRECT)
    config, text = loaded.config, duration_text(loaded.config.cycle_seconds)
    if config.role == "fleet":
        tiers = format_count(len(build_tier_contexts(loaded)), "tier")
        watched = f"{tiers} of a store, which is asked every {text}"
    else:
        tiers = format_count(len({target.tier for target in config.targets}), "tier")
        watched = f"{format_count(len(config.targets), 'target')} in {tiers}, scraped every {text}"
    yield ok(f"{loaded.path}: role {config.role}, {watched}")
    for tier, rules in config.thresholds.items():
        changed = []
        for rule, limits in rules.items():
            for name, value in limits.items():
                changed.append(f"{rule} {name} {value:g} (catalogue {CATALOGUE[rule].limit(name, {}):g})")
        yield ok(f"thresholds of {tier} are not the catalogue's: {', '.join(changed) or 'none'}")
    for warning in loaded.warnings:
        yield warn(warning, "correct it, or leave it knowingly")


def check_sizing_plan(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Report grave mistakes and weaknesses of the plan."""
    if loaded.plan is None:
        text = "none: targets are watched, and compared with nothing"
        yield warn(text, "name one with the key plan; docs/plan.schema.json has its keys")
        return
    findings = check_plan(loaded.plan, CATALOGUE, loaded.config.thresholds)
    mistakes = [finding for finding in findings if finding.severity == "mistake"]
    weaknesses = [finding for finding in findings if finding.severity == "warning"]
    for finding in mistakes:
        yield fail(f"{finding.path}: {finding.text}", "correct the plan; what follows from this value is wrong")
    tiers, weak = format_count(len(loaded.plan.tiers), "tier"), format_count(len(weaknesses), "weakness", "weaknesses")
    grave = ""
    if mistakes:
        grave = f", {format_count(len(mistakes), 'grave mistake')} (above)"
    yield ok(f"{loaded.config.plan}: {tiers}, {weak}{grave}")
    for finding in weaknesses:
        yield warn(f"{finding.path}: {finding.text}", "sizewatch plan check has more; the plan is used as it is")


def check_forecast(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Report whether forecasts are made, and the libraries that they lack."""
    if loaded.config.history_path is None:
        yield ok("none: this agent keeps no history")
    elif not loaded.config.forecast.enabled:
        yield ok("off (forecast.enabled: false)")
    elif missing := find_missing("pandas"):
        yield warn("off: its libraries are not installed", f"{missing}, or set forecast.enabled: false")
    else:
        yield ok("on, its libraries are installed")


def check_report(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Report the schedule, the folder and the destinations of the weekly report. No address is read."""
    config, report = loaded.config, loaded.config.report
    if config.report_folder is None:
        yield ok(f"none: role {config.role} writes none" if report.enabled else "off (report.enabled: false)")
        return
    when = f"{report.weekday.capitalize()} {report.at} {report.zone or config.forecast.zone}"
    where = f"into {config.report_folder}, the newest {report.keep} are kept"
    receivers = ", ".join(destination.name for destination in report.deliver) or "nobody"
    span = duration_text(report.since_seconds)
    yield ok(f"every {when}, of the last {span}, {where}; delivered to {receivers}")


class PodsProbe(NamedTuple):
    """Discovered pods. `loaded` is the configuration with the pods, `trouble` is why discovery failed."""

    loaded: LoadedConfig
    source: PodSource | None = None
    health: DiscoveryHealth | None = None
    trouble: str = ""


def read_pods(loaded: LoadedConfig, clock: Callable[[], float]) -> PodsProbe:
    """List the node's pods once, if they are discovered."""
    try:
        pods = pods_of(loaded.config, clock)
        if pods is None:
            return PodsProbe(loaded)
        with closing(pods):
            pods.start()
            joined, health = pods.add_discovered_targets(loaded), pods.health()
    except SizewatchError as error:
        return PodsProbe(loaded, trouble=str(error))
    return PodsProbe(joined, pods, health, trouble=(health and health.trouble) or "")


def check_pods(probe: PodsProbe, loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Report the discovered pods, the pods left out, and a missing pod-resources socket."""
    keys = loaded.config.discovery.kubernetes
    if keys is None:
        return
    if probe.trouble:
        yield fail(probe.trouble, "look at the service account and its role; docs/kubernetes-discovery.md has both")
        return
    if probe.health is None:
        yield ok(f"sidecar of {keys.namespace}/{keys.pod}; its targets stand in the file")
        return
    health = probe.health
    yield ok(f"node {keys.node}: {format_count(health.watched, 'engine pod')}, {health.starting} starting")
    if not health.watched and not health.left_out:
        advice = "annotate them with sizewatch.io/scrape: 'true', or set discovery.kubernetes.selector"
        yield warn("no pod of this node is taken for an engine", advice)
    for text in health.left_out:
        yield warn(f"left out: {text}", "docs/kubernetes-discovery.md says what a pod must tell")
    plan, targets = loaded.plan, probe.loaded.config.targets
    tiers = plan.tiers if plan is not None else {target.tier for target in targets}
    if open_tiers := find_open_tiers(tiers, TierCandidates(entries=keys.tiers, namespaces=keys.namespaces)):
        text = f"no namespaces are named for {', '.join(open_tiers)}: a pod with a GPU may join from any"
        yield warn(text, "name the namespaces of each tier: discovery.kubernetes.tiers[].namespaces")
    for text in health.notes:
        yield warn(text, "docs/kubernetes-discovery.md has what the agent needs")
    if not pod_gpus.socket_exists(keys.pod_resources):
        text = f"there is no socket {keys.pod_resources} here: which GPU is whose only the exporter can tell"
        yield warn(text, "mount the folder of the kubelet's pod-resources socket")


FREE_BYTES = 1024**3
"""Free bytes below which a full disk is near."""

AHEAD_SECONDS = 120.0
"""Limit in seconds. A history further ahead of the clock was written before the clock was set back."""

PUBLIC = frozenset({"ca_file", "client_ca_file", "cert_file", "pid_file"})
"""Keys of files without a secret."""


def check_secrets(config: Config) -> Iterator[CheckResult]:
    """Report each file of a secret that everybody here may read. A mounted Secret is its containers' alone."""
    web_file = find_web_file(config.web.config_file)
    for key, path in dict.fromkeys((*named_files(config, PUBLIC), *named_files(web_file, PUBLIC))):
        is_open = os.path.exists(path) and os.stat(path).st_mode & stat.S_IROTH
        if is_open and not Path(path).with_name("..data").is_symlink():
            yield warn(f"{key}: {path} can be read by everybody on this machine", f"chmod o-rwx {path}")


def check_gpus(gpus: GpuRead, loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Report the GPUs that were read. Missing GPUs that nobody planned are no problem."""
    config, (readouts, problems) = loaded.config, gpus
    if config.gpus.source == "none":
        yield ok("not read (gpus.source: none)")
    for problem in problems:
        yield _weigh_gpu_problem(problem, readouts, loaded)
    if hosts := hosts_of(readouts):
        yield warn(f"{len(readouts)} read, of {hosts}", "read the exporter of one machine, or name GPUs by UUID")
    elif readouts:
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
    existing = next(filter(os.path.exists, (folder, *folder.absolute().parents)))
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
    try:
        # Where no writer left a log, reading must leave no files either.
        with HistoryStore.open_reader(path, alone=not os.path.exists(f"{path}-wal")) as reader:
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
