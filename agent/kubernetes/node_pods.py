"""Pods as targets of the daemon: of a node, or the pod of a sidecar.

Two threads follow a node: a watch of its pods, and a loop for the devices of the kubelet. `look` selects
the targets. All other methods answer about the last `look`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from agent.config.config import Config
from agent.config.discovery import Kubernetes
from agent.config.load import LoadedConfig
from agent.config.targets import TargetKeys
from agent.gpu.owners import GpuAssignment, assign_gpus
from agent.kubernetes import pod_gpus, pod_resources
from agent.kubernetes.api import KubernetesClient, endpoint_from_pod
from agent.kubernetes.discovery import DiscoveredPod, DiscoveryResult, Key, discover
from agent.kubernetes.pod_tier import TierCandidates
from agent.kubernetes.pod_watch import PodWatch
from agent.kubernetes.pods import Pod
from agent.scrape.scrapers import Target
from exporters.status.records import DiscoveryHealth
from rules.plan.schema import TierPlan
from rules.replicas.starts import SLOWEST_SECONDS
from rules.telemetry.snapshots import GpuReadout, PodTimes

ROUND_SECONDS = 5.0
"""Interval of kubelet queries after an error."""
DEVICES_SECONDS = 15.0
"""Interval of kubelet queries, for new pods: the devices of a pod never change."""
LIST_SECONDS = 3.0
"""Wait for the first list of pods."""

_log = logging.getLogger(__name__)


class NodePods:
    """Pods of one node, from `start` to `stop`. `look` is for one thread, all else for any thread."""

    def __init__(
        self,
        keys: Kubernetes,
        *,
        clock: Callable[[], float] = time.time,
        watch: PodWatch | None = None,
    ) -> None:
        self.keys = keys
        self._clock = clock
        if watch is None:
            watch = PodWatch(KubernetesClient(keys.api.peer if keys.api is not None else endpoint_from_pod()), keys)
        self._watch = watch
        self._discovered = DiscoveryResult()
        self._owned: Mapping[Key, GpuAssignment] = {}
        self._logged: frozenset[str] = frozenset()
        # Results of the thread of devices. Each is replaced as a whole.
        self._devices: tuple[pod_resources.Devices, ...] | None = None
        self._devices_error = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="devices", daemon=True)

    def start(self) -> None:
        """Start the threads and wait up to LIST_SECONDS for the first list, so that the first cycle has targets."""
        self._watch.start()
        self._thread.start()
        until = time.monotonic() + LIST_SECONDS
        while time.monotonic() < until and not (self._watch.snapshot().listed or self._watch.snapshot().trouble):
            self._stop.wait(0.02)

    def close(self) -> None:
        self._stop.set()
        self._watch.stop()
        self._thread.join(1.0)

    def look(self, tiers: Mapping[str, TierPlan] | None, taken: Container[Key]) -> DiscoveryResult:
        """Return the present targets."""
        pods = self._watch.snapshot().pods
        known = TierCandidates(
            tiers=tiers,
            entries=self.keys.tiers,
            namespaces=self.keys.namespaces,
            holders=frozenset(f"{x.namespace}/{x.pod}" for x in self._devices or () if pod_gpus.is_gpu(x)),
        )
        incumbents = {target.pod.uid for target in self._discovered.targets}
        self._discovered = discover(pods.values(), self.keys, known, taken, incumbents)
        # In one line: there may be thousands.
        left_out = frozenset(excluded.text for excluded in self._discovered.left_out if not excluded.later)
        if new := sorted(left_out - self._logged):
            _log.warning('left out pods number=%d first="%s"', len(new), new[0])
        self._logged = left_out
        return self._discovered

    def add_discovered_targets(self, loaded: LoadedConfig) -> LoadedConfig:
        """Add the present pods to the targets of the configuration file."""
        taken = {(target.tier, target.name) for target in loaded.config.targets}
        pods = self.look(loaded.plan.tiers if loaded.plan is not None else None, taken)
        targets = (*loaded.config.targets, *map(target_from_pod, pods.targets))
        return replace(loaded, config=loaded.config.model_copy(update={"targets": targets}))

    def times(self, key: Key) -> PodTimes | None:
        """Return the times of the replica's pod, None for a replica of the configuration file."""
        pod = self._pod(key)
        return pod.times if pod is not None else None

    def starting(self, key: Key) -> bool:
        """Return whether the replica is a pod within its first start: never Ready, not restarted, and not overdue."""
        pod = self._pod(key)
        if pod is None or pod.ready or pod.restarts or pod.ending or pod.times.ready_at is not None:
            return False
        asked = pod.times.asked_at
        return asked is not None and self._clock() - asked < SLOWEST_SECONDS

    def _pod(self, key: Key) -> Pod | None:
        """Return the present state of a replica's pod, or its last state after deletion."""
        for target in self._discovered.targets:
            if target.key == key:
                return self._watch.snapshot().pods.get(target.pod.uid, target.pod)
        return None

    def assign_gpus(self, targets: Sequence[Target], readouts: Mapping[str, GpuReadout]) -> dict[Key, GpuAssignment]:
        """Return the GPUs of each target, and of each replica with workers on this node."""
        pods = {target.key: target.pod for target in self._discovered.targets}
        owned = assign_gpus([target for target in targets if target.key not in pods], readouts)
        given = self._devices if self._devices is not None else self._devices_error
        for target in targets:
            if target.key in pods:
                owned[target.key] = pod_gpus.assign_pod_gpus(pods[target.key], readouts, given)
        for worker in self._discovered.workers:
            more, before = pod_gpus.assign_pod_gpus(worker.pod, readouts, given), owned.get(worker.key)
            gpus = (*before.gpus, *more.gpus) if before is not None else more.gpus
            owned[worker.key] = GpuAssignment(gpus=gpus, missing=more.missing)
        self._owned = owned
        return owned

    def workers(self) -> tuple[DiscoveredPod, ...]:
        """Return a worker of each replica that has GPUs here and its page on another node."""
        own = {target.key for target in self._discovered.targets}
        return tuple({worker.key: worker for worker in self._discovered.workers if worker.key not in own}.values())

    def health(self) -> DiscoveryHealth:
        """Return errors and excluded pods."""
        state, discovered = self._watch.snapshot(), self._discovered
        starting = sum(self.starting(target.key) for target in discovered.targets)
        later = sum(excluded.later for excluded in discovered.left_out)
        return DiscoveryHealth(
            trouble=state.trouble or (None if state.listed else "the API server has not answered yet"),
            age_seconds=state.age_seconds,
            watched=len(discovered.targets),
            starting=starting + later,
            left_out=tuple(excluded.text for excluded in discovered.left_out),
            notes=pod_gpus.find_shared_gpus(self._owned),
        )

    def _run(self) -> None:
        while not self._stop.is_set():
            seconds = ROUND_SECONDS
            try:
                seconds = self._read_devices()
            except Exception:  # noqa: BLE001 - a defect costs one read
                _log.exception("unexpected error reading devices of the node")
            self._stop.wait(seconds)

    def _read_devices(self) -> float:
        """Read the devices of all pods from the kubelet. Return the seconds until the next time."""
        path = self.keys.pod_resources
        if not pod_resources.socket_exists(path):
            self._devices, self._devices_error = None, f"there is no socket {path} here"
            return DEVICES_SECONDS
        try:
            self._devices, self._devices_error = pod_resources.read_devices(path), ""
        except pod_resources.PodResourcesError as error:
            # The last devices stay valid: those of a pod never change.
            self._devices_error = str(error)
            return ROUND_SECONDS
        return DEVICES_SECONDS


def target_from_pod(found: DiscoveredPod) -> TargetKeys:
    """Return the target of a pod, as if it stood in the file: without credentials."""
    keys = {"url": found.url, "tier": found.tier, "pool": found.pool, "engine": found.engine}
    # Only the pod determines the GPUs. Namespace and name may be longer than a name in the file.
    return TargetKeys.model_validate(keys).model_copy(update={"replica": found.replica, "gpus": ()})


class SidecarPodSource:
    """Pod that this agent is part of. Targets come from the configuration, GPUs from the node's exporter."""

    def __init__(self, keys: Kubernetes) -> None:
        self._place = f"{keys.namespace}/{keys.pod}"

    def start(self) -> None:
        """Do nothing: no thread is needed."""

    def close(self) -> None:
        """Do nothing: no thread runs."""

    def add_discovered_targets(self, loaded: LoadedConfig) -> LoadedConfig:
        """Name the targets without a name after the pod: the targets of every pod are at 127.0.0.1."""
        targets = []
        for target in loaded.config.targets:
            if not target.replica:
                port = f":{target.name.rpartition(':')[2]}" if len(loaded.config.targets) > 1 else ""
                target = target.model_copy(update={"replica": f"{self._place}{port}"})
            targets.append(target)
        return replace(loaded, config=loaded.config.model_copy(update={"targets": tuple(targets)}))

    def assign_gpus(self, targets: Sequence[Target], readouts: Mapping[str, GpuReadout]) -> dict[Key, GpuAssignment]:
        """Return the GPUs that the exporter assigns to the pod. With several targets their owner is unknown."""
        owned = pod_gpus.gpus_from_exporter(self._place, readouts)
        return {target.key: owned if len(targets) == 1 else GpuAssignment(gpus=()) for target in targets}

    def times(self, key: Key) -> PodTimes | None:
        """Return None: the status of the pod is not requested."""
        return None

    def starting(self, key: Key) -> bool:
        """Return False: the status of the pod is not requested."""
        return False

    def workers(self) -> tuple[DiscoveredPod, ...]:
        """Return nothing: a sidecar of a worker has no target."""
        return ()

    def health(self) -> DiscoveryHealth | None:
        """Return None: nothing is discovered."""
        return None


PodSource = NodePods | SidecarPodSource
"""Source of pods: all of a node, or the pod of a sidecar."""


def has_same_discovery(one: Config, other: Config) -> bool:
    """Return whether both configurations discover the same pods."""
    return one.discovery == other.discovery


def pods_of(config: Config, clock: Callable[[], float] = time.time) -> PodSource | None:
    """Return the configured source, not started; None without discovery. Raise KubernetesApiError outside a cluster."""
    keys = config.discovery.kubernetes
    if keys is None:
        return None
    if keys.scope == "pod":
        return SidecarPodSource(keys)
    return NodePods(keys, clock=clock)
