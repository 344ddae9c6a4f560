"""Check of pod discovery: Kubernetes API, node, pod-resources socket of the kubelet.

Loaded only if the configuration asks for discovery. Pages of pods are checked with the other targets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent.config.load import LoadedConfig
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.errors import SizewatchError
from agent.gpu.owners import GpuAssignment
from agent.kubernetes import pod_resources
from agent.kubernetes.node_pods import PodSource, pods_of
from agent.kubernetes.pod_tier import TierCandidates, find_open_tiers
from agent.scrape.scrapers import Target
from exporters.status.records import DiscoveryHealth
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.wording import format_count

CHECK = "pods"
LOOK_SECONDS = 6.0
"""Maximum wait in seconds for a page that names the model of its pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryProbe:
    """Discovered pods. `loaded` is the configuration with the pods, `trouble` is why discovery failed."""

    loaded: LoadedConfig
    pods: PodSource | None = None
    health: DiscoveryHealth | None = None
    trouble: str = ""
    socket: bool = False

    def assign_gpus(
        self, targets: Sequence[Target], readouts: Mapping[str, GpuReadout]
    ) -> dict[tuple[str, str], GpuAssignment]:
        """Return the GPUs of each target."""
        nothing = {target.key: GpuAssignment(gpus=()) for target in targets}
        return nothing if self.pods is None else nothing | self.pods.assign_gpus(targets, readouts)


def probe_discovery(loaded: LoadedConfig, clock: Callable[[], float] = time.time) -> DiscoveryProbe:
    """List the node's pods once. The configuration must ask for discovery."""
    keys = loaded.config.discovery.kubernetes
    assert keys is not None
    try:
        pods = pods_of(loaded.config, clock)
        assert pods is not None
        pods.start()
    except SizewatchError as error:
        return DiscoveryProbe(loaded=loaded, trouble=str(error))
    try:
        joined = pods.add_discovered_targets(loaded)
        until = time.monotonic() + LOOK_SECONDS
        while (health := pods.health()) is not None and health.later and time.monotonic() < until:
            time.sleep(0.1)
            joined = pods.add_discovered_targets(loaded)
        socket = pod_resources.socket_exists(keys.pod_resources)
        return DiscoveryProbe(loaded=joined, pods=pods, health=health, socket=socket)
    finally:
        pods.stop()


def check_discovery(seen: DiscoveryProbe, loaded: LoadedConfig) -> Iterator[CheckResult]:
    """Report the discovered pods, the pods left out, and a missing pod-resources socket."""
    keys = loaded.config.discovery.kubernetes
    assert keys is not None
    if seen.trouble or (seen.health is not None and seen.health.trouble):
        said = seen.trouble or (seen.health.trouble if seen.health is not None else "")
        yield fail(CHECK, str(said), "look at the service account and its role; docs/kubernetes-discovery.md has both")
        return
    if seen.health is None:
        yield ok(CHECK, f"sidecar of {keys.namespace}/{keys.pod}; its targets stand in the file")
        return
    found = seen.health
    yield ok(CHECK, f"node {keys.node}: {format_count(found.watched, 'engine pod')}, {found.starting} starting")
    if not found.watched and not found.left_out:
        yield warn(
            CHECK,
            "no pod of this node is taken for an engine",
            "annotate them with sizewatch.io/scrape: 'true', or set discovery.kubernetes.selector",
        )
    for text in found.left_out:
        yield warn(CHECK, f"left out: {text}", "docs/kubernetes-discovery.md says what a pod must tell")
    tiers = loaded.plan.tiers if loaded.plan is not None else {target.tier for target in seen.loaded.config.targets}
    if several := find_open_tiers(tiers, TierCandidates(entries=keys.tiers, namespaces=keys.namespaces)):
        yield warn(
            CHECK,
            f"no namespaces are named for {', '.join(several)}: a pod with a GPU may join from any",
            "name them: discovery.kubernetes.tiers[].namespaces",
        )
    for text in found.notes:
        yield warn(CHECK, text, "docs/kubernetes-discovery.md has what the agent needs")
    if not seen.socket:
        yield warn(
            CHECK,
            f"there is no socket {keys.pod_resources} here: which GPU is whose only the exporter or hostPID can tell",
            "mount the folder of the kubelet's pod-resources socket",
        )
