"""Pods as targets of the daemon: of a node, or the pod of a sidecar.

Two threads follow a node: a watch of its pods, and a loop for its labels, the kubelet, and pages whose model decides the
tier. `look` selects the targets. All other methods answer about the last `look`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.config.config import Config
from agent.config.discovery import Kubernetes
from agent.config.load import LoadedConfig
from agent.config.targets import TargetKeys
from agent.errors import ScrapeError
from agent.gpu.owners import GpuAssignment, assign_gpus
from agent.http_client.options import TargetOptions
from agent.http_client.page import fetch_page
from agent.kubernetes import pod_gpus, pod_resources
from agent.kubernetes.api import KubernetesApiError, KubernetesClient, endpoint_from_pod
from agent.kubernetes.discovery import (
    MOST_TARGETS,
    DiscoveredReplica,
    DiscoveryResult,
    Key,
    Worker,
    describe_excluded_pods,
    discover,
    find_repeated_names,
    pod_rank,
)
from agent.kubernetes.pod_tier import PRODUCT_LABELS, TierCandidates
from agent.kubernetes.pod_watch import PodSelection, PodWatch
from agent.kubernetes.pods import Pod, truncate_value
from agent.scrape.scrapers import PageReader, Target
from exporters.status.records import MISSES_UNTIL_GONE, DiscoveryHealth
from rules.plan.schema import TierPlan
from rules.replicas.starts import SILENCE_LIMIT_SECONDS
from rules.telemetry.snapshots import GpuReadout, PodTimes

ROUND_SECONDS = 5.0
DEVICES_SECONDS = 15.0
"""Interval of kubelet queries, for new pods: the devices of a pod never change."""
NODE_SECONDS = 600.0
"""Interval of reading the node's labels."""
PAGE_SECONDS = 3.0
"""Timeout of a page that is read for its model."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Found:
    """Results of the node thread. Every field is replaced as a whole."""

    products: tuple[str, ...] = ()
    node_error: str = ""
    devices: tuple[pod_resources.Devices, ...] | None = None
    devices_error: str = ""
    holders: frozenset[str] = frozenset()
    models: dict[str, tuple[str, ...]] = field(default_factory=dict)


class NodePods:
    """Pods of one node, from `start` to `stop`. `look` is for one thread, all else for any thread."""

    def __init__(
        self,
        keys: Kubernetes,
        *,
        grace_seconds: float,
        clock: Callable[[], float] = time.time,
        round_seconds: float = ROUND_SECONDS,
        watch: PodWatch | None = None,
    ) -> None:
        self.keys = keys
        self._server = _server(keys)
        self._grace = grace_seconds
        self._clock = clock
        self._round_seconds = round_seconds
        asked = PodSelection(node=keys.node, namespaces=keys.namespaces, selector=keys.selector)
        self._found = _Found()
        self._watch = watch or PodWatch(
            KubernetesClient(self._server),
            asked,
            keep_seconds=keys.keep_seconds,
            rank=lambda pod: pod_rank(pod, keys, self._known(None)),
        )
        self._discovered = DiscoveryResult()
        self._going: dict[str, tuple[DiscoveredReplica | Worker, float]] = {}
        self._gpu_products: tuple[str, ...] = ()
        self._owned: Mapping[Key, GpuAssignment] = {}
        self._told: frozenset[str] = frozenset()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._rounds, name="node", daemon=True)

    def start(self) -> None:
        """Start the threads and wait up to PAGE_SECONDS for the first list, so that the first cycle has targets."""
        self._watch.start()
        self._thread.start()
        until = time.monotonic() + PAGE_SECONDS
        while time.monotonic() < until and not (self._watch.snapshot().listed or self._watch.snapshot().trouble):
            self._stop.wait(0.02)

    def stop(self) -> None:
        self._stop.set()
        self._watch.stop()
        self._thread.join(1.0)

    def look(self, tiers: Mapping[str, TierPlan] | None, taken: Container[Key]) -> DiscoveryResult:
        """Return the present targets. A deleted pod stays for three scrapes, unless its address or name is reused."""
        pods = self._watch.snapshot().pods
        incumbents = {one.pod.uid for one in self._discovered.targets}
        now = discover(pods.values(), self.keys, self._known(tiers), taken, incumbents)
        self._discovered = self._with_going(now, {uid for uid, pod in pods.items() if not pod.is_finished})
        self._log_excluded_pods()
        return self._discovered

    def _known(self, tiers: Mapping[str, TierPlan] | None) -> TierCandidates:
        found = self._found
        return TierCandidates(
            tiers=tiers,
            entries=self.keys.tiers,
            namespaces=self.keys.namespaces,
            products=found.products or self._gpu_products,
            models=found.models,
            holders=found.holders,
        )

    def _log_excluded_pods(self) -> None:
        """Log pods that are newly left out, in one line: there may be thousands."""
        told = frozenset(f"{one.pod.place}: {one.reason}" for one in self._discovered.left_out if not one.later)
        new = sorted(told - self._told)
        if new:
            _log.warning('left out pods number=%d first="%s"', len(new), new[0])
        self._told = told

    def add_discovered_targets(self, loaded: LoadedConfig) -> LoadedConfig:
        """Add the present pods to the targets of the configuration file."""
        taken = {(target.tier, target.name) for target in loaded.config.targets}
        found = self.look(loaded.plan.tiers if loaded.plan is not None else None, taken)
        targets = (*loaded.config.targets, *map(_target, found.targets))
        return replace(loaded, config=loaded.config.model_copy(update={"targets": targets}))

    def _with_going(self, now: DiscoveryResult, alive: Container[str]) -> DiscoveryResult:
        several: tuple[DiscoveredReplica | Worker, ...] = (*now.targets, *now.workers)
        before: tuple[DiscoveredReplica | Worker, ...] = (*self._discovered.targets, *self._discovered.workers)
        here = {one.pod.uid for one in several}
        moment = time.monotonic()
        for one in before:
            if one.pod.uid not in here and one.pod.uid not in alive:
                self._going.setdefault(one.pod.uid, (one, moment))
        urls = {one.url for one in now.targets}
        keys = {one.key for one in now.targets}
        self._going = {
            uid: (one, since)
            for uid, (one, since) in self._going.items()
            if moment - since < self._grace and uid not in here and uid not in alive
            if isinstance(one, Worker) or not (one.url in urls or one.key in keys)
        }
        going = [one for one, _ in self._going.values()][: MOST_TARGETS - len(now.targets)]
        return DiscoveryResult(
            targets=(*now.targets, *(one for one in going if isinstance(one, DiscoveredReplica))),
            workers=(*now.workers, *(one for one in going if isinstance(one, Worker))),
            left_out=now.left_out,
        )

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
        return asked is not None and self._clock() - asked < SILENCE_LIMIT_SECONDS

    def _pod(self, key: Key) -> Pod | None:
        """Return the present state of a replica's pod, or its last state after deletion."""
        found = next((one for one in self._discovered.targets if one.key == key), None)
        return self._watch.snapshot().pods.get(found.pod.uid, found.pod) if found is not None else None

    def assign_gpus(self, targets: Sequence[Target], readouts: Mapping[str, GpuReadout]) -> dict[Key, GpuAssignment]:
        """Return the GPUs of each target, and of each replica with workers on this node."""
        self._gpu_products = tuple(sorted({one.product for one in readouts.values() if one.product}))
        pods = {one.key: one.pod for one in self._discovered.targets}
        owned = assign_gpus([target for target in targets if target.key not in pods], readouts)
        seen = pod_gpus.GpuAssignmentSources(
            readouts=readouts, devices=self._found.devices, error=self._found.devices_error
        )
        owned |= {
            target.key: pod_gpus.assign_pod_gpus(pods[target.key], seen) for target in targets if target.key in pods
        }
        for worker in self._discovered.workers:
            owned[worker.key] = _combined(owned.get(worker.key), pod_gpus.assign_pod_gpus(worker.pod, seen))
        self._owned = owned
        return owned

    def workers(self) -> tuple[Worker, ...]:
        """Return a worker of each replica that has GPUs here and its page on another node."""
        own = {one.key for one in self._discovered.targets}
        several = {one.key: one for one in self._discovered.workers if one.key not in own}
        return tuple(several.values())

    def health(self) -> DiscoveryHealth:
        """Return errors and excluded pods."""
        known, found, discovered = self._watch.snapshot(), self._found, self._discovered
        starting = [one for one in discovered.targets if self.starting(one.key)]
        later = [one for one in discovered.left_out if one.later]
        return DiscoveryHealth(
            trouble=known.trouble or (None if known.listed else "the API server has not answered yet"),
            age_seconds=known.age_seconds,
            watched=len(discovered.targets),
            starting=len(starting) + len(later),
            later=len(later),
            left_out=tuple(describe_excluded_pods(discovered)),
            notes=tuple(filter(None, (found.node_error, known.overflow, *pod_gpus.find_shared_gpus(self._owned)))),
        )

    def repeated_names(self) -> Iterator[str]:
        """Return a sentence for each name of pods in several namespaces."""
        return find_repeated_names(self._discovered)

    def _rounds(self) -> None:
        due = {self._ask_node: 0.0, self._ask_kubelet: 0.0, self._ask_pages: 0.0}
        every = {self._ask_node: NODE_SECONDS, self._ask_kubelet: DEVICES_SECONDS, self._ask_pages: 0.0}
        while not self._stop.is_set():
            for ask, at in due.items():
                if time.monotonic() < at:
                    continue
                try:
                    good = ask()
                except Exception:  # noqa: BLE001 - a defect costs one question of one round
                    _log.exception("unexpected error reading pods of the node")
                    good = True
                due[ask] = time.monotonic() + (every[ask] if good else self._round_seconds)
            self._stop.wait(self._round_seconds)

    def _ask_node(self) -> bool:
        """Read the labels of the node. Return False to retry soon."""
        # No kept connection: the next request comes in ten minutes.
        api = KubernetesClient(self._server)
        try:
            meta = api.get(f"/api/v1/nodes/{self.keys.node}").get("metadata")
        except KubernetesApiError as error:
            self._found.node_error = f"node {self.keys.node}: {error.text}"
            return error.missing or error.status == 403
        finally:
            api.close()
        labels = meta.get("labels") if isinstance(meta, dict) else None
        labels = labels if isinstance(labels, dict) else {}
        self._found.products = tuple(truncate_value(labels[name]) for name in PRODUCT_LABELS if labels.get(name))
        self._found.node_error = ""
        return True

    def _ask_kubelet(self) -> bool:
        path = self.keys.pod_resources
        if not pod_resources.socket_exists(path):
            self._found.devices, self._found.devices_error = None, f"there is no socket {path} here"
            return True
        try:
            devices = pod_resources.read_devices(path)
            self._found.devices, self._found.devices_error = devices, ""
            self._found.holders = frozenset(f"{x.namespace}/{x.pod}" for x in devices if pod_gpus.is_gpu(x))
        except pod_resources.PodResourcesError as error:
            # The last devices stay valid: those of a pod never change.
            self._found.devices_error = str(error)
            return False
        return True

    def _ask_pages(self) -> bool:
        """Read the models of pods whose tier depends on them."""
        waiting = {one.pod.uid: one.url for one in self._discovered.left_out if one.url and one.later}
        alive = self._watch.snapshot().pods
        models = {uid: served for uid, served in self._found.models.items() if uid in alive}
        for uid, url in waiting.items():
            if self._stop.is_set():
                break
            served = _models(url, self._clock())
            models |= {uid: served} if served is not None else {}
        self._found.models = models
        return True


def _server(keys: Kubernetes) -> TargetOptions:
    if keys.api is None:
        return endpoint_from_pod()
    return TargetOptions(url=keys.api.url, bearer_token_file=keys.api.bearer_token_file, ca_file=keys.api.ca_file)


def _combined(one: GpuAssignment | None, other: GpuAssignment) -> GpuAssignment:
    if one is None:
        return other
    missing = "; ".join(dict.fromkeys(filter(None, (one.missing, other.missing))))
    return GpuAssignment(gpus=tuple(dict.fromkeys((*one.gpus, *other.gpus))), missing=missing)


def _models(url: str, now: float) -> tuple[str, ...] | None:
    """Return the models on a page, None without a page."""
    try:
        pages = PageReader().read_engines(fetch_page(TargetOptions(url=url, timeout_seconds=PAGE_SECONDS)), now)
    except ScrapeError:
        return None
    models = dict.fromkeys(name for page in pages.values() for name in page.facts.get("model", "").split(",") if name)
    return tuple(truncate_value(name) for name in models)


def _target(found: DiscoveredReplica) -> TargetKeys:
    given = {
        "url": found.url,
        "tier": found.tier,
        "pool": found.pool,
        "engine": found.engine,
    }
    # Only the pod determines the GPUs. Namespace and name may be longer than a name in the file.
    return TargetKeys.model_validate(given).model_copy(update={"replica": found.pod.place, "gpus": ()})


class SidecarPodSource:
    """Pod that this agent is part of. Targets come from the configuration, GPUs from the node's exporter."""

    def __init__(self, keys: Kubernetes) -> None:
        self._keys = keys

    def start(self) -> None:
        """Do nothing: no thread is needed."""

    def stop(self) -> None:
        """Do nothing: no thread runs."""

    def add_discovered_targets(self, loaded: LoadedConfig) -> LoadedConfig:
        """Name the targets without a name after the pod: the targets of every pod are at 127.0.0.1."""
        several = len(loaded.config.targets) > 1
        targets = tuple(
            target if target.replica else target.model_copy(update={"replica": self._name(target, several)})
            for target in loaded.config.targets
        )
        return replace(loaded, config=loaded.config.model_copy(update={"targets": targets}))

    def _name(self, target: TargetKeys, several: bool) -> str:
        place = f"{self._keys.namespace}/{self._keys.pod}"
        return f"{place}:{target.name.rpartition(':')[2]}" if several else place

    def assign_gpus(self, targets: Sequence[Target], readouts: Mapping[str, GpuReadout]) -> dict[Key, GpuAssignment]:
        """Return the GPUs that the exporter assigns to the pod. With several targets their owner is unknown."""
        seen = pod_gpus.GpuAssignmentSources(readouts=readouts)
        owned = pod_gpus.gpus_from_exporter(f"{self._keys.namespace}/{self._keys.pod}", seen)
        return {target.key: owned if len(targets) == 1 else GpuAssignment(gpus=()) for target in targets}

    def times(self, key: Key) -> PodTimes | None:
        """Return None: the status of the pod is not requested."""
        return None

    def starting(self, key: Key) -> bool:
        """Return False: the status of the pod is not requested."""
        return False

    def workers(self) -> tuple[Worker, ...]:
        """Return nothing: a sidecar of a worker has no target."""
        return ()

    def repeated_names(self) -> tuple[str, ...]:
        """Return nothing: there is one pod."""
        return ()

    def health(self) -> DiscoveryHealth | None:
        """Return None: nothing is discovered."""
        return None


PodSource = NodePods | SidecarPodSource
"""Source of pods: all of a node, or the pod of a sidecar."""


def has_same_discovery(one: Config, other: Config) -> bool:
    """Return whether both configurations discover the same pods."""
    return one.discovery == other.discovery and one.scrape_interval_seconds == other.scrape_interval_seconds


def pods_of(config: Config, clock: Callable[[], float] = time.time) -> PodSource | None:
    """Return the configured source, not started; None without discovery. Raise KubernetesApiError outside a cluster."""
    keys = config.discovery.kubernetes
    if keys is None:
        return None
    if keys.scope == "pod":
        return SidecarPodSource(keys)
    return NodePods(keys, grace_seconds=MISSES_UNTIL_GONE * config.scrape_interval_seconds, clock=clock)
