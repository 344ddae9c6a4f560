"""The pods of one node as the API tells them, kept up to date by a watch: list, follow, and begin anew when that broke.

Owns the thread, the pods it knows and since when the API is away. It judges no pod. While the API is away what was known
stands for a stated time and no longer: then nothing is known, and that is told.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent.kubernetes.api import KubernetesApiError, KubernetesClient, backoff_seconds
from agent.kubernetes.pods import Pod, pod_of

WATCH_SECONDS = 300.0
"""A watch lasts so long and up to twice, as those of client-go's reflector (minWatchTimeout 5 minutes)."""

SHORT_SECONDS = 1.0
SHORT_FAILURES = 3
"""A watch that ended sooner counts as so many failures: the next one waits about 2 s."""

MOST_PODS = 1000
"""Of one node; the kubelet's own limit is 110 by default, and 256 are run."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWatchState:
    """The pods of the node, by uid. `trouble` says in words why that may be old, `age_seconds` how old it is then; without
    `listed` they were never heard of.
    """

    pods: Mapping[str, Pod]
    listed: bool = False
    trouble: str = ""
    age_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSelection:
    """Which pods are watched."""

    node: str
    namespaces: tuple[str, ...] = ()
    selector: str | None = None

    @property
    def path(self) -> str:
        """One namespace is asked for by itself: its Role is then enough."""
        return f"/api/v1/namespaces/{self.namespaces[0]}/pods" if len(self.namespaces) == 1 else "/api/v1/pods"

    @property
    def query(self) -> dict[str, str]:
        query = {"fieldSelector": f"spec.nodeName={self.node}"}
        return query | ({"labelSelector": self.selector} if self.selector else {})

    def wants(self, pod: Pod) -> bool:
        return pod.node == self.node and (not self.namespaces or pod.namespace in self.namespaces)


class PodWatch:
    """Follows the pods of a node in a thread of its own, from `start` to `stop`. `known` is for any thread."""

    def __init__(
        self,
        api: KubernetesClient,
        asked: PodSelection,
        *,
        keep_seconds: float,
        watch_seconds: float = WATCH_SECONDS,
        wait: Callable[[int], float] | None = None,
    ) -> None:
        self._api = api
        self._asked = asked
        self._keep = keep_seconds
        self._watch_seconds = watch_seconds
        self._wait = wait or (lambda failures: backoff_seconds(failures, random.random()))
        self._pods: dict[str, Pod] = {}
        self._unready: set[str] = set()
        self._version = ""
        self._listed = False
        self._trouble = ""
        self._away_since: float | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pods", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch and, within a second, its thread."""
        self._stop.set()
        self._api.close()
        self._thread.join(1.0)

    def snapshot(self) -> PodWatchState:
        """What is known now."""
        with self._lock:
            age = 0.0 if self._away_since is None else time.monotonic() - self._away_since
            kept = age <= self._keep
            trouble = self._trouble if kept or not self._trouble else f"{self._trouble}; its pods are given up"
            return PodWatchState(
                pods=dict(self._pods) if kept else {}, listed=self._listed, trouble=trouble, age_seconds=age
            )

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list()
                # What the list told is known from here on; a watch that breaks at once still counts as a failure.
                began = time.monotonic()
                self._follow()
                failures = 0
                if time.monotonic() - began < SHORT_SECONDS:
                    # Something on the way ends every watch at once; it would be asked without a pause.
                    self._stop.wait(self._wait(SHORT_FAILURES))
            except KubernetesApiError as trouble:
                if self._stop.is_set():
                    return
                if trouble.is_expired:
                    # The list of after a while: asked for anew, at once the first time.
                    self._version = ""
                else:
                    self._away(trouble.text)
                failures += 1
                self._stop.wait(0.0 if trouble.is_expired and failures == 1 else self._wait(failures))
            except Exception as error:  # noqa: BLE001 - a defect costs this round, not the agent
                _log.exception("unexpected error watching pods")
                self._away(f"defect in sizewatch while watching pods: {type(error).__name__}, see its log")
                self._version = ""
                failures += 1
                self._stop.wait(self._wait(failures))

    def _list(self) -> None:
        # Version 0: from the API server's memory, where pods are found by node; a list from etcd reads all of the cluster.
        found = self._api.get(self._asked.path, resourceVersion="0", **self._asked.query)
        items = found.get("items")
        version = _version(found)
        if not isinstance(items, list) or not version:
            raise KubernetesApiError("API server: the list of pods has no items or no resourceVersion")
        read = [pod_of(item) for item in items[:MOST_PODS] if isinstance(item, dict)]
        pods = {pod.uid: self._believed(pod) for pod in read if pod is not None and self._asked.wants(pod)}
        with self._lock:
            self._pods, self._version, self._listed = pods, version, True
            self._unready &= pods.keys()
        self._back()

    def _follow(self) -> None:
        seconds = self._watch_seconds * (1.0 + random.random())
        events = self._api.watch(self._asked.path, seconds, resourceVersion=self._version, **self._asked.query)
        self._back()
        for event in events:
            self._take(str(event.get("type")), event["object"])
            if self._stop.is_set():
                return

    def _take(self, kind: str, data: dict[str, Any]) -> None:
        version = _version(data)
        pod = pod_of(data) if kind != "BOOKMARK" else None
        with self._lock:
            self._version = version or self._version
            if pod is None:
                return
            if kind == "DELETED" or not self._asked.wants(pod):
                self._pods.pop(pod.uid, None)
                self._unready.discard(pod.uid)
            elif kind in ("ADDED", "MODIFIED") and (pod.uid in self._pods or len(self._pods) < MOST_PODS):
                self._pods[pod.uid] = self._believed(pod)

    def _believed(self, pod: Pod) -> Pod:
        """When it was Ready is known of a pod that was seen before; of another, its condition may have changed often."""
        before = self._pods.get(pod.uid)
        if not pod.ready and not pod.was_ready and (before is not None or not pod.restarts):
            self._unready.add(pod.uid)
        kept = before.times.ready_at if before is not None and before.restarts == pod.restarts else None
        if kept is None and pod.ready and pod.uid in self._unready:
            since = pod.times.container_at or 0.0
            kept = pod.times.ready_at if (pod.times.ready_at or 0.0) >= since else None
        times = replace(pod.times, ready_at=kept)
        if pod.uid not in self._unready:
            times = replace(times, asked_at=None, scheduled_at=None)
        return replace(pod, times=times)

    def _away(self, text: str) -> None:
        with self._lock:
            if self._away_since is None:
                self._away_since = time.monotonic()
                _log.warning('lost pod watch error="%s"', text)
            self._trouble = text

    def _back(self) -> None:
        with self._lock:
            if self._away_since is not None:
                _log.info("resumed pod watch")
            self._away_since, self._trouble = None, ""


def _version(data: dict[str, Any]) -> str:
    meta = data.get("metadata")
    version = meta.get("resourceVersion") if isinstance(meta, dict) else None
    return version if isinstance(version, str) and len(version) <= 64 else ""
