"""Checks of configuration and plan, and of what they configure: forecasts, weekly reports and the discovery of pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

from agent.config.load import LoadedConfig, build_tier_contexts
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.durations import duration_text
from agent.errors import FORECAST_MODULE, SizewatchError, find_missing
from agent.kubernetes import pod_resources
from agent.kubernetes.discovery import TierCandidates, find_open_tiers
from agent.kubernetes.node_pods import PodSource, pods_of
from exporters.status.records import DiscoveryHealth
from rules.catalogue.registry import CATALOGUE
from rules.plan.checks import check_plan
from rules.telemetry.wording import format_count

CORRECT = "correct it; docs/configuration.md has every key"


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
    grave = f", {format_count(len(mistakes), 'grave mistake')} (above)" if mistakes else ""
    yield ok(f"{loaded.config.plan}: {tiers}, {weak}{grave}")
    for finding in weaknesses:
        yield warn(f"{finding.path}: {finding.text}", "sizewatch plan check has more; the plan is used as it is")


def check_forecast(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Report whether forecasts are made, and the libraries that they lack."""
    if loaded.config.history_path is None:
        yield ok("none: this agent keeps no history")
    elif not loaded.config.forecast.enabled:
        yield ok("off (forecast.enabled: false)")
    elif missing := find_missing(FORECAST_MODULE):
        yield warn("off: its libraries are not installed", f"{missing}, or set forecast.enabled: false")
    else:
        yield ok("on, its libraries are installed")


def check_report(loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Report the schedule, the folder and the destinations of the weekly report. No address is read."""
    config, report = loaded.config, loaded.config.report
    if config.report_folder is None:
        off = f"none: role {config.role} writes none" if report.enabled else "off (report.enabled: false)"
        yield ok(off)
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
    if not pod_resources.socket_exists(keys.pod_resources):
        text = f"there is no socket {keys.pod_resources} here: which GPU is whose only the exporter can tell"
        yield warn(text, "mount the folder of the kubelet's pod-resources socket")
