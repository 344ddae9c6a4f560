"""The pods of this node as the daemon needs them: what to watch, whose GPUs are whose, when a pod was asked for.

Owns the threads that ask (a watch of the pods; a round for the node, the kubelet and pages that must tell their model) and
what they found out. Judgement is in pure modules beside it: `discovery`, `tiers`, `pod_gpus`. `look` decides; all else only
answers about the last `look`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.config.discovery_keys import Kubernetes
from agent.errors import ScrapeError
from agent.gpu.owners import GpuAssignment, assign_gpus
from agent.http_client.connection import PageFetcher
from agent.http_client.transport import TargetOptions
from agent.kubernetes import pod_gpus, pod_resources
from agent.kubernetes.api import KubernetesApiError, KubernetesClient, KubernetesEndpoint, endpoint_from_pod
from agent.kubernetes.discovery import DiscoveredReplica, DiscoveryResult, Key, Worker, describe_excluded_pods, discover
from agent.kubernetes.pod_resources import Devices, PodResourcesError
from agent.kubernetes.pod_watch import PodSelection, PodWatch
from agent.kubernetes.pods import Pod, truncate_value
from agent.kubernetes.tier_match import PRODUCT_LABELS, TierCandidates
from agent.scrape.scrapers import PageReader, Target
from exporters.status.records import DiscoveryHealth
from rules.plan.schema import TierPlan
from rules.replicas.starts import SILENCE_LIMIT_SECONDS
from rules.telemetry.snapshots import GpuReadout, PodTimes

ROUND_SECONDS = 5.0
DEVICES_SECONDS = 15.0
"""How often the kubelet is asked: a pod's devices never change, so it is for new pods."""
NODE_SECONDS = 600.0
"""How often the node's labels are read again."""
PAGE_SECONDS = 3.0
"""For a page that is asked for the model it serves."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Found:
    """What the rounds found out; replaced as a whole, never changed in place."""

    products: tuple[str, ...] = ()
    node_trouble: str = ""
    devices: tuple[Devices, ...] | None = None
    devices_trouble: str = ""
    models: dict[str, tuple[str, ...]] = field(default_factory=dict)


class NodePods:
    """One node's pods, from `start` to `stop`. `look` is for one thread, the rest for any."""

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
        self._watch = watch or PodWatch(KubernetesClient(self._server), asked, keep_seconds=keys.keep_seconds)
        self._found = _Found()
        self._discovered = DiscoveryResult()
        self._going: dict[str, tuple[DiscoveredReplica | Worker, float]] = {}
        self._gpu_products: tuple[str, ...] = ()
        self._owned: Mapping[Key, GpuAssignment] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._rounds, name="node", daemon=True)

    def start(self) -> None:
        """Begins to ask, and waits a moment for the first list: a first turn then has its targets."""
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
        """What there is to watch now. Pods that are gone stay for three scrapes, unless their address or name is another's."""
        known = TierCandidates(
            tiers=tiers,
            entries=self.keys.tiers,
            products=self._found.products or self._gpu_products,
            models=self._found.models,
        )
        pods = self._watch.snapshot().pods
        now = discover(pods.values(), self.keys, known, taken)
        self._discovered = self._with_going(now, {uid for uid, pod in pods.items() if not pod.is_finished})
        return self._discovered

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
        going = [one for one, _ in self._going.values()]
        return DiscoveryResult(
            targets=(*now.targets, *(one for one in going if isinstance(one, DiscoveredReplica))),
            workers=(*now.workers, *(one for one in going if isinstance(one, Worker))),
            left_out=now.left_out,
        )

    def times(self, key: Key) -> PodTimes | None:
        """When the replica's pod was asked for and so on; None for a replica of the configuration's own."""
        pod = self._pod(key)
        return pod.times if pod is not None else None

    def starting(self, key: Key) -> bool:
        """Return whether the replica is a pod that cannot be expected to answer yet: never Ready so far, not
        restarted, and not
        longer about it than the slowest of starts."""
        pod = self._pod(key)
        if pod is None or pod.ready or pod.restarts or pod.ending or pod.times.ready_at is not None:
            return False
        asked = pod.times.asked_at
        return asked is not None and self._clock() - asked < SILENCE_LIMIT_SECONDS

    def _pod(self, key: Key) -> Pod | None:
        """As it is now; of one that is gone, as it was."""
        found = next((one for one in self._discovered.targets if one.key == key), None)
        return self._watch.snapshot().pods.get(found.pod.uid, found.pod) if found is not None else None

    def assign_gpus(self, targets: Sequence[Target], readouts: Mapping[str, GpuReadout]) -> dict[Key, GpuAssignment]:
        """The GPUs of each target, and of each replica whose workers are here."""
        self._gpu_products = tuple(sorted({one.product for one in readouts.values() if one.product}))
        pods = {one.key: one.pod for one in self._discovered.targets}
        owned = assign_gpus([target for target in targets if target.key not in pods], readouts)
        seen = pod_gpus.GpuAssignmentSources(
            readouts=readouts, devices=self._found.devices, trouble=self._found.devices_trouble
        )
        owned |= {
            target.key: pod_gpus.assign_pod_gpus(pods[target.key], seen) for target in targets if target.key in pods
        }
        for worker in self._discovered.workers:
            owned[worker.key] = _together(owned.get(worker.key), pod_gpus.assign_pod_gpus(worker.pod, seen))
        self._owned = owned
        return owned

    def workers(self) -> tuple[Worker, ...]:
        """Replicas that answer elsewhere and have GPUs here, one a replica."""
        own = {one.key for one in self._discovered.targets}
        several = {one.key: one for one in self._discovered.workers if one.key not in own}
        return tuple(several.values())

    def health(self) -> DiscoveryHealth:
        """What is wrong and what is left out, for the pages."""
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
            notes=tuple(filter(None, (found.node_trouble, *pod_gpus.find_shared_gpus(self._owned)))),
        )

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
        """The node's own labels; whether they were told."""
        # A connection for one question in ten minutes is not worth keeping.
        api = KubernetesClient(self._server)
        try:
            meta = api.get(f"/api/v1/nodes/{self.keys.node}").get("metadata")
        except KubernetesApiError as trouble:
            self._found.node_trouble = f"node {self.keys.node}: {trouble.text}"
            return trouble.missing or trouble.status == 403
        finally:
            api.close()
        labels = meta.get("labels") if isinstance(meta, dict) else None
        labels = labels if isinstance(labels, dict) else {}
        self._found.products = tuple(truncate_value(labels[name]) for name in PRODUCT_LABELS if labels.get(name))
        self._found.node_trouble = ""
        return True

    def _ask_kubelet(self) -> bool:
        path = self.keys.pod_resources
        if not pod_resources.socket_exists(path):
            self._found.devices, self._found.devices_trouble = None, f"there is no socket {path} here"
            return True
        try:
            self._found.devices, self._found.devices_trouble = pod_resources.ask(path), ""
        except PodResourcesError as trouble:
            # What it told before still holds for pods that it told of.
            self._found.devices_trouble = str(trouble)
            return False
        return True

    def _ask_pages(self) -> bool:
        """The models of pods whose tier follows from them."""
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


def _server(keys: Kubernetes) -> KubernetesEndpoint:
    if keys.api is None:
        return endpoint_from_pod()
    return KubernetesEndpoint(url=keys.api.url, token_file=keys.api.bearer_token_file, ca_file=keys.api.ca_file)


def _together(one: GpuAssignment | None, other: GpuAssignment) -> GpuAssignment:
    if one is None:
        return other
    missing = "; ".join(dict.fromkeys(filter(None, (one.missing, other.missing))))
    return GpuAssignment(gpus=tuple(dict.fromkeys((*one.gpus, *other.gpus))), missing=missing)


def _models(url: str, now: float) -> tuple[str, ...] | None:
    """What the page says it serves; None where there is no page yet."""
    fetcher = PageFetcher(TargetOptions(url=url, timeout_seconds=PAGE_SECONDS))
    try:
        facts = PageReader(None).read(fetcher.fetch(), now).facts
    except ScrapeError:
        return None
    finally:
        fetcher.close()
    return tuple(truncate_value(name) for name in facts.get("model", "").split(",") if name)


def troubles(health: DiscoveryHealth) -> Iterable[str]:
    """A line for each thing that is wrong."""
    if health.trouble is not None:
        yield f"Pods are not followed: {health.trouble}"
    yield from health.left_out
