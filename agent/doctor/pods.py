"""Check of pod discovery: Kubernetes API, node, pod-resources socket of the kubelet.

Pages of pods are checked with the other targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agent.config.load import LoadedConfig
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.errors import SizewatchError
from agent.kubernetes import pod_resources
from agent.kubernetes.discovery import TierCandidates, find_open_tiers
from agent.kubernetes.node_pods import PodSource, pods_of
from exporters.status.records import DiscoveryHealth
from rules.telemetry.wording import format_count

CHECK = "pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsProbe:
    """Discovered pods. `loaded` is the configuration with the pods, `trouble` is why discovery failed."""

    loaded: LoadedConfig
    source: PodSource | None = None
    health: DiscoveryHealth | None = None
    trouble: str = ""


def read_pods(loaded: LoadedConfig, clock: Callable[[], float]) -> PodsProbe | None:
    """List the node's pods once. Return None without discovery."""
    try:
        pods = pods_of(loaded.config, clock)
        if pods is None:
            return None
        pods.start()
    except SizewatchError as error:
        return PodsProbe(loaded=loaded, trouble=str(error))
    try:
        joined, health = pods.add_discovered_targets(loaded), pods.health()
    finally:
        pods.close()
    trouble = health.trouble if health is not None else ""
    return PodsProbe(loaded=joined, source=pods, health=health, trouble=trouble or "")


def check_pods(probe: PodsProbe | None, loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Report the discovered pods, the pods left out, and a missing pod-resources socket."""
    keys = loaded.config.discovery.kubernetes
    if probe is None or keys is None:
        return
    if probe.trouble:
        yield fail(
            CHECK, probe.trouble, "look at the service account and its role; docs/kubernetes-discovery.md has both"
        )
        return
    if probe.health is None:
        yield ok(CHECK, f"sidecar of {keys.namespace}/{keys.pod}; its targets stand in the file")
        return
    health = probe.health
    yield ok(CHECK, f"node {keys.node}: {format_count(health.watched, 'engine pod')}, {health.starting} starting")
    if not health.watched and not health.left_out:
        advice = "annotate them with sizewatch.io/scrape: 'true', or set discovery.kubernetes.selector"
        yield warn(CHECK, "no pod of this node is taken for an engine", advice)
    for text in health.left_out:
        yield warn(CHECK, f"left out: {text}", "docs/kubernetes-discovery.md says what a pod must tell")
    plan, targets = loaded.plan, probe.loaded.config.targets
    tiers = plan.tiers if plan is not None else {target.tier for target in targets}
    if open_tiers := find_open_tiers(tiers, TierCandidates(entries=keys.tiers, namespaces=keys.namespaces)):
        text = f"no namespaces are named for {', '.join(open_tiers)}: a pod with a GPU may join from any"
        yield warn(CHECK, text, "name the namespaces of each tier: discovery.kubernetes.tiers[].namespaces")
    for text in health.notes:
        yield warn(CHECK, text, "docs/kubernetes-discovery.md has what the agent needs")
    if not pod_resources.socket_exists(keys.pod_resources):
        text = f"there is no socket {keys.pod_resources} here: which GPU is whose only the exporter can tell"
        yield warn(CHECK, text, "mount the folder of the kubelet's pod-resources socket")
