"""Watch of one node's pods: list, follow, list again after a failure. The last pods stay valid for a while."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent.config.targets import Kubernetes
from agent.durations import retry_delay
from agent.kubernetes.api import KubernetesApiError, KubernetesClient
from agent.kubernetes.pods import Pod, parse_pod

WATCH_SECONDS = 60.0
"""Minimum duration of a watch, half the maximum. A server that has vanished is noticed at its end."""

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.8, 30.0
"""Retry delays of client-go's reflector (backoff 800 ms to 30 s, factor 2)."""

SHORT_SECONDS = 1.0
"""A shorter watch counts as a failure: a proxy may end every watch at once."""

GONE = 410
"""HTTP status of a resource version that is too old. A new list is needed."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWatchState:
    """Pods of the node by uid. `trouble` is the error of an unavailable API, `age_seconds` the age of the pods then."""

    pods: Mapping[str, Pod]
    listed: bool = False
    trouble: str = ""
    age_seconds: float = 0.0


class PodWatch:
    """Watch of the pods of a node in its own thread, from `start` to `stop`. `snapshot` is for any thread."""

    def __init__(self, api: KubernetesClient, keys: Kubernetes, watch_seconds: float = WATCH_SECONDS) -> None:
        self._api = api
        self._keys = keys
        self._watch_seconds = watch_seconds
        # A single namespace has its own path, for which a Role is enough.
        namespace = f"namespaces/{keys.namespaces[0]}/" if len(keys.namespaces) == 1 else ""
        self._path = f"/api/v1/{namespace}pods"
        # Finished pods may be thousands: a node refuses what it has no room for.
        self._query = {"fieldSelector": f"spec.nodeName={keys.node},status.phase!=Failed,status.phase!=Succeeded"}
        if keys.selector:
            self._query["labelSelector"] = keys.selector
        self._pods: dict[str, Pod] = {}
        self._unready: set[str] = set()
        self._version = ""
        self._listed = False
        self._trouble = ""
        self._away_since: float | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.answered = threading.Event()
        """Set after the first list or the first error."""
        self._thread = threading.Thread(target=self._run, name="pods", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the watch and, within a second, its thread."""
        self._stop.set()
        self._api.close()
        self._thread.join(1.0)

    def snapshot(self) -> PodWatchState:
        with self._lock:
            age = 0.0 if self._away_since is None else time.monotonic() - self._away_since
            if age > self._keys.keep_seconds:
                trouble = f"{self._trouble}; its pods are given up"
                return PodWatchState(pods={}, listed=self._listed, trouble=trouble, age_seconds=age)
            return PodWatchState(pods=dict(self._pods), listed=self._listed, trouble=self._trouble, age_seconds=age)

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                if not self._version:
                    self._list()
                self._follow()
                failures = failures + 1 if time.monotonic() - began < SHORT_SECONDS else 0
            except KubernetesApiError as error:
                failures += 1
                if error.status == GONE:
                    self._version = ""
                elif not self._stop.is_set():
                    self._mark_away(str(error))
            except Exception as error:  # noqa: BLE001 - a defect costs this round, not the agent
                failures += 1
                _log.exception("unexpected error watching pods")
                self._mark_away(f"defect in sizewatch while watching pods: {type(error).__name__}, see its log")
            if failures:
                delay = retry_delay(failures, FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
                # At random, so that the agents of a cluster do not retry at the same time.
                self._stop.wait(delay * random.uniform(0.5, 1.0))

    def _list(self) -> None:
        # Version 0: from the API server's memory, indexed by node. A list from etcd reads the whole cluster.
        answer = self._api.get(self._path, resourceVersion="0", **self._query)
        version, items = _version(answer), answer.get("items")
        if not version:
            raise KubernetesApiError(": the list of pods has no resourceVersion")
        pods = map(parse_pod, items) if isinstance(items, list) else ()
        with self._lock:
            wanted = {}
            for pod in pods:
                if pod and self._is_wanted(pod):
                    wanted[pod.uid] = self._with_reliable_times(pod)
            self._pods = wanted
            self._unready &= self._pods.keys()
            self._version, self._listed = version, True
        self._mark_available()

    def _follow(self) -> None:
        seconds = self._watch_seconds * (1.0 + random.random())
        with self._api.watch(self._path, seconds, resourceVersion=self._version, **self._query) as events:
            self._mark_available()
            for event in events:
                self._take(str(event.get("type")), event["object"])
                if self._stop.is_set():
                    return

    def _is_wanted(self, pod: Pod) -> bool:
        return pod.node == self._keys.node and (not self._keys.namespaces or pod.namespace in self._keys.namespaces)

    def _take(self, kind: str, data: dict[str, Any]) -> None:
        pod = parse_pod(data) if kind != "BOOKMARK" else None
        with self._lock:
            self._version = _version(data) or self._version
            if pod is None:
                return
            if kind == "DELETED" or not self._is_wanted(pod):
                self._pods.pop(pod.uid, None)
                self._unready.discard(pod.uid)
            elif kind in ("ADDED", "MODIFIED"):
                self._pods[pod.uid] = self._with_reliable_times(pod)

    def _with_reliable_times(self, pod: Pod) -> Pod:
        """Remove unreliable times: the Ready time of a pod that was not seen before may be that of a later change."""
        before = self._pods.get(pod.uid)
        if not pod.ready and not pod.was_ready and (before is not None or not pod.restarts):
            self._unready.add(pod.uid)
        kept = before.times.ready_at if before is not None and before.restarts == pod.restarts else None
        if kept is None and pod.ready and pod.uid in self._unready:
            since = pod.times.container_at or 0.0
            kept = pod.times.ready_at if (pod.times.ready_at or 0.0) >= since else None
        times = replace(pod.times, ready_at=kept)
        if pod.uid not in self._unready:
            times = replace(times, asked_at=None)
        return replace(pod, times=times)

    def _mark_away(self, text: str) -> None:
        with self._lock:
            if self._away_since is None:
                self._away_since = time.monotonic()
                _log.warning('lost pod watch error="%s"', text)
            self._trouble = text
        self.answered.set()

    def _mark_available(self) -> None:
        with self._lock:
            if self._away_since is not None:
                _log.info("resumed pod watch")
            self._away_since, self._trouble = None, ""
        self.answered.set()


def _version(data: dict[str, Any]) -> str:
    meta = data.get("metadata")
    version = meta.get("resourceVersion") if isinstance(meta, dict) else None
    return version if isinstance(version, str) and len(version) <= 64 else ""
