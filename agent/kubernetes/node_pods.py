"""Pods as targets of the daemon: of a node, or the pod of a sidecar.

A thread follows the pods of a node. `add_discovered_targets` selects the targets and reads the devices of all pods from
the kubelet. All other methods answer about its last call.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from agent.config.config import Config
from agent.config.load import LoadedConfig
from agent.config.targets import Kubernetes, TargetKeys
from agent.gpu.owners import GpuAssignment, assign_gpus
from agent.kubernetes import pod_gpus
from agent.kubernetes.api import KubernetesClient, endpoint_from_pod
from agent.kubernetes.discovery import DiscoveredPod, DiscoveryResult, Key, TierCandidates, discover
from agent.kubernetes.pod_watch import PodWatch
from agent.scrape.scrapers import Target
from exporters.status.records import DiscoveryHealth
from rules.replicas.starts import SLOWEST_SECONDS
from rules.telemetry.snapshots import GpuReadout, PodTimes

LIST_SECONDS = 3.0
"""Wait for the first list of pods."""

_log = logging.getLogger(__name__)


class PodSource(ABC):
    """Source of pods that are targets."""

    def __init__(self, keys: Kubernetes, clock: Callable[[], float]) -> None:
        self.keys = keys
        self._clock = clock
        self._discovered = DiscoveryResult()

    def start(self) -> None:
        """Start to follow the pods."""
        return

    def close(self) -> None:
        """End what `start` began."""
        return

    def health(self) -> DiscoveryHealth | None:
        """Return errors and excluded pods. None if nothing is discovered."""
        return None

    @abstractmethod
    def add_discovered_targets(self, loaded: LoadedConfig) -> LoadedConfig:
        """Return the configuration with the present pods among its targets."""

    @abstractmethod
    def assign_gpus(self, targets: Sequence[Target], readouts: Mapping[str, GpuReadout]) -> dict[Key, GpuAssignment]:
        """Return the GPUs of each target, and of each replica with workers on this node."""

    def times(self, key: Key) -> PodTimes | None:
        """Return the times of the replica's pod. None if it was not discovered."""
        pod = self._discovered.pods.get(key)
        return pod.times if pod is not None else None

    def starting(self, key: Key) -> bool:
        """Return whether the replica is a pod within its first start: never Ready, not restarted, and not overdue."""
        pod = self._discovered.pods.get(key)
        if pod is None or pod.ready or pod.restarts or pod.ending or pod.times.ready_at is not None:
            return False
        asked_at = pod.times.asked_at
        return asked_at is not None and self._clock() - asked_at < SLOWEST_SECONDS

    def workers(self) -> tuple[DiscoveredPod, ...]:
        """Return a worker of each replica that has GPUs here and its page on another node."""
        known = self._discovered.pods
        return tuple({worker.key: worker for worker in self._discovered.workers if worker.key not in known}.values())


class NodePods(PodSource):
    """Pods of one node, from `start` to `close`."""

    def __init__(self, keys: Kubernetes, clock: Callable[[], float]) -> None:
        super().__init__(keys, clock)
        peer = keys.api.to_peer() if keys.api is not None else endpoint_from_pod()
        self._watch = PodWatch(KubernetesClient(peer), keys)
        self._owned: Mapping[Key, GpuAssignment] = {}
        self._logged: frozenset[str] = frozenset()
        self._devices: tuple[pod_gpus.Devices, ...] | str = ""
        """Devices of all pods by the kubelet, or why there are none."""

    def start(self) -> None:
        """Start the watch and wait for the first list, so that the first cycle has targets."""
        self._watch.start()
        self._watch.answered.wait(LIST_SECONDS)

    def close(self) -> None:
        self._watch.stop()

    def add_discovered_targets(self, loaded: LoadedConfig) -> LoadedConfig:
        try:
            self._devices = pod_gpus.read_devices(self.keys.pod_resources)
        except pod_gpus.PodResourcesError as error:
            if isinstance(self._devices, str):
                self._devices = str(error)
        # The last devices stay valid: those of a pod never change.
        devices = () if isinstance(self._devices, str) else self._devices
        known = TierCandidates(
            tiers=loaded.plan.tiers if loaded.plan is not None else None,
            entries=self.keys.tiers,
            namespaces=self.keys.namespaces,
            holders=frozenset(f"{held.namespace}/{held.pod}" for held in devices if pod_gpus.is_gpu(held)),
        )
        taken = {(target.tier, target.name) for target in loaded.config.targets}
        watched = {pod.uid for pod in self._discovered.pods.values()}
        self._discovered = discover(self._watch.snapshot().pods.values(), self.keys, known, taken, watched)
        # In one line: there may be thousands.
        left_out = frozenset(excluded.text for excluded in self._discovered.left_out if not excluded.later)
        if new := sorted(left_out - self._logged):
            _log.warning('left out pods number=%d first="%s"', len(new), new[0])
        self._logged = left_out
        targets = (*loaded.config.targets, *map(target_from_pod, self._discovered.targets))
        return replace(loaded, config=loaded.config.model_copy(update={"targets": targets}))

    def assign_gpus(self, targets: Sequence[Target], readouts: Mapping[str, GpuReadout]) -> dict[Key, GpuAssignment]:
        pods = self._discovered.pods
        owned = assign_gpus([target for target in targets if target.key not in pods], readouts)
        for target in targets:
            if target.key in pods:
                owned[target.key] = pod_gpus.assign_pod_gpus(pods[target.key], readouts, self._devices)
        for worker in self._discovered.workers:
            more, before = pod_gpus.assign_pod_gpus(worker.pod, readouts, self._devices), owned.get(worker.key)
            gpus = (*before.gpus, *more.gpus) if before is not None else more.gpus
            owned[worker.key] = GpuAssignment(gpus=gpus, missing=more.missing)
        self._owned = owned
        return owned

    def health(self) -> DiscoveryHealth:
        state, discovered = self._watch.snapshot(), self._discovered
        starting = sum(map(self.starting, discovered.pods))
        later = sum(excluded.later for excluded in discovered.left_out)
        return DiscoveryHealth(
            trouble=state.trouble or (None if state.listed else "the API server has not answered yet"),
            age_seconds=state.age_seconds,
            watched=len(discovered.targets),
            starting=starting + later,
            left_out=tuple(excluded.text for excluded in discovered.left_out),
            notes=pod_gpus.find_shared_gpus(self._owned),
        )


def target_from_pod(pod: DiscoveredPod) -> TargetKeys:
    """Return the target of a pod, as if it stood in the file: without credentials."""
    keys = {"url": pod.url, "tier": pod.tier, "pool": pod.pool, "engine": pod.engine}
    # Only the pod determines the GPUs. Namespace and name may be longer than a name in the file.
    return TargetKeys.model_validate(keys).model_copy(update={"replica": pod.replica, "gpus": ()})


class SidecarPod(PodSource):
    """Pod that this agent is part of. Targets come from the configuration, GPUs from NVML or the node's exporter."""

    _planned: Mapping[str, int] = MappingProxyType({})

    def add_discovered_targets(self, loaded: LoadedConfig) -> LoadedConfig:
        """Name the targets without a name after the pod: the targets of every pod are at 127.0.0.1."""
        if loaded.plan is not None and loaded.config.gpus.source == "nvml":
            self._planned = {name: tier.gpu.per_replica for name, tier in loaded.plan.tiers.items()}
        targets = []
        for target in loaded.config.targets:
            if not target.replica:
                port = f":{target.name.rpartition(':')[2]}" if len(loaded.config.targets) > 1 else ""
                name = f"{self.keys.namespace}/{self.keys.pod}{port}"
                target = target.model_copy(update={"replica": name})
            targets.append(target)
        return replace(loaded, config=loaded.config.model_copy(update={"targets": tuple(targets)}))

    def assign_gpus(self, targets: Sequence[Target], readouts: Mapping[str, GpuReadout]) -> dict[Key, GpuAssignment]:
        """Return the GPUs of the pod. With several targets their owner is unknown."""
        if len(targets) != 1:
            return {target.key: GpuAssignment(gpus=()) for target in targets}
        (target,) = targets
        place = f"{self.keys.namespace}/{self.keys.pod}"
        return {target.key: pod_gpus.visible_gpus(place, readouts, self._planned.get(target.tier))}


def pods_of(config: Config, clock: Callable[[], float]) -> PodSource | None:
    """Return the configured source, not started; None without discovery. Raise KubernetesApiError outside a cluster."""
    keys = config.discovery.kubernetes
    if keys is None:
        return None
    if keys.scope == "pod":
        return SidecarPod(keys, clock)
    return NodePods(keys, clock)
