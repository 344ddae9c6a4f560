"""What the daemon asks of whoever knows about pods, and how found pods become targets of the configuration.

Owns the interface (`Pods`), the making of the one that the configuration asks for, and the sidecar's, which knows one pod.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from agent.config.discovery_keys import Kubernetes
from agent.config.keys import Config, TargetKeys
from agent.config.load import LoadedConfig
from agent.gpu.owners import GpuAssignment
from agent.kubernetes.discovery import DiscoveredReplica, Key, Worker
from agent.kubernetes.node_pods import NodePods
from agent.kubernetes.pod_gpus import GpuAssignmentSources, gpus_from_exporter
from agent.scrape.scrapers import Target
from exporters.status.records import MISSES_UNTIL_GONE, DiscoveryHealth
from rules.telemetry.snapshots import GpuReadout, PodTimes


class PodSource(Protocol):
    """What is known of pods: `NodePods` by way of `OfNode`, or `Sidecar`."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def add_discovered_targets(self, loaded: LoadedConfig) -> LoadedConfig: ...

    def assign_gpus(
        self, targets: Sequence[Target], readouts: Mapping[str, GpuReadout]
    ) -> dict[Key, GpuAssignment]: ...

    def times(self, key: Key) -> PodTimes | None: ...

    def starting(self, key: Key) -> bool: ...

    def workers(self) -> tuple[Worker, ...]: ...

    def health(self) -> DiscoveryHealth | None: ...


def has_same_discovery(one: Config, other: Config) -> bool:
    """Return whether what is known for the one holds for the other."""
    return one.discovery == other.discovery and one.scrape_interval_seconds == other.scrape_interval_seconds


def pods_of(config: Config, clock: Callable[[], float] = time.time) -> PodSource | None:
    """What the configuration asks for, not yet begun; None where it asks for none. Raises ApiTrouble outside of a cluster."""
    keys = config.discovery.kubernetes
    if keys is None:
        return None
    if keys.scope == "pod":
        return SidecarPodSource(keys)
    return NodePodSource(keys, grace_seconds=MISSES_UNTIL_GONE * config.scrape_interval_seconds, clock=clock)


class NodePodSource(NodePods):
    """The pods of the node, and the configuration with them."""

    def add_discovered_targets(self, loaded: LoadedConfig) -> LoadedConfig:
        """The configuration as it is in the file, with the pods of now as further targets."""
        taken = {(target.tier, target.name) for target in loaded.config.targets}
        found = self.look(loaded.plan.tiers if loaded.plan is not None else None, taken)
        targets = (*loaded.config.targets, *map(_target, found.targets))
        return replace(loaded, config=loaded.config.model_copy(update={"targets": targets}))


def _target(found: DiscoveredReplica) -> TargetKeys:
    given = {
        "url": found.url,
        "tier": found.tier,
        "replica": found.pod.name,
        "pool": found.pool,
        "engine": found.engine,
    }
    # Whose GPUs are whose its pod tells, and nothing else does.
    return TargetKeys.model_validate(given).model_copy(update={"gpus": ()})


class SidecarPodSource:
    """The one pod that this agent is part of. It asks nobody: targets stand in the file, GPUs come from the node's exporter."""

    def __init__(self, keys: Kubernetes) -> None:
        self._keys = keys

    def start(self) -> None:
        """Nothing runs."""

    def stop(self) -> None:
        """Nothing ran."""

    def add_discovered_targets(self, loaded: LoadedConfig) -> LoadedConfig:
        """The file's targets, called after the pod where they have no name: every pod's are at 127.0.0.1."""
        several = len(loaded.config.targets) > 1
        targets = tuple(
            target if target.replica else target.model_copy(update={"replica": self._name(target, several)})
            for target in loaded.config.targets
        )
        return replace(loaded, config=loaded.config.model_copy(update={"targets": targets}))

    def _name(self, target: TargetKeys, several: bool) -> str:
        return f"{self._keys.pod}:{target.name.rpartition(':')[2]}" if several else self._keys.pod

    def assign_gpus(self, targets: Sequence[Target], readouts: Mapping[str, GpuReadout]) -> dict[Key, GpuAssignment]:
        """The GPUs that the exporter says are the pod's; with several targets nobody says whose they are."""
        owned = gpus_from_exporter(f"{self._keys.namespace}/{self._keys.pod}", GpuAssignmentSources(readouts=readouts))
        return {target.key: owned if len(targets) == 1 else GpuAssignment(gpus=()) for target in targets}

    def times(self, key: Key) -> PodTimes | None:
        """Its own pod's status it does not ask for."""
        return None

    def starting(self, key: Key) -> bool:
        """Not known."""
        return False

    def workers(self) -> tuple[Worker, ...]:
        """None: a sidecar of a worker has no target."""
        return ()

    def health(self) -> DiscoveryHealth | None:
        """Nothing is discovered."""
        return None
