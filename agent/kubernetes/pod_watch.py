"""Watch of the pods of one node: list, follow, and list again after a failure.

The last pods stay valid for a limited time while the API is unavailable.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from agent.durations import retry_delay
from agent.kubernetes.api import KubernetesApiError, KubernetesClient
from agent.kubernetes.discovery import LEAST_RANK
from agent.kubernetes.pods import Pod, pod_of

WATCH_SECONDS = 300.0
"""Minimum duration of a watch; the maximum is twice as long, as in client-go's reflector (minWatchTimeout 5 minutes)."""

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.8, 30.0
"""Retry delays of client-go's reflector (backoff 800 ms to 30 s, factor 2)."""

SHORT_SECONDS = 1.0
SHORT_FAILURES = 3
"""Failures that a watch shorter than SHORT_SECONDS counts as: the next one waits about 2 s."""

MOST_PODS = 512
"""Maximum pods that are kept. The kubelet's default limit is 110; OpenShift allows 500."""

_Order = tuple[int, bool, float, str, str]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWatchState:
    """Pods of the node by uid. `trouble` is the error of an unavailable API, `age_seconds` the age of the pods then.

    `listed` is False until the first list. `overflow` says that there are more pods than are kept.
    """

    pods: Mapping[str, Pod]
    listed: bool = False
    trouble: str = ""
    age_seconds: float = 0.0
    overflow: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSelection:
    node: str
    namespaces: tuple[str, ...] = ()
    selector: str | None = None

    @property
    def path(self) -> str:
        """Return the API path. A single namespace has its own path, for which a Role is enough."""
        return f"/api/v1/namespaces/{self.namespaces[0]}/pods" if len(self.namespaces) == 1 else "/api/v1/pods"

    @property
    def query(self) -> dict[str, str]:
        # Finished pods may be thousands: a node refuses what it has no room for.
        query = {"fieldSelector": f"spec.nodeName={self.node},status.phase!=Failed,status.phase!=Succeeded"}
        return query | ({"labelSelector": self.selector} if self.selector else {})

    def wants(self, pod: Pod) -> bool:
        return pod.node == self.node and (not self.namespaces or pod.namespace in self.namespaces)


class PodWatch:
    """Watch of the pods of a node in its own thread, from `start` to `stop`. `snapshot` is for any thread.

    Of more than MOST_PODS those of the lowest `rank` are kept, then those known before, then the oldest.
    """

    def __init__(
        self,
        api: KubernetesClient,
        asked: PodSelection,
        *,
        keep_seconds: float,
        watch_seconds: float = WATCH_SECONDS,
        wait: Callable[[int], float] | None = None,
        rank: Callable[[Pod], int] = lambda pod: 0,
    ) -> None:
        self._api = api
        self._asked = asked
        self._keep = keep_seconds
        self._watch_seconds = watch_seconds
        self._wait = wait or _retry_seconds
        self._rank = rank
        self._number = 0
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
        """End the watch and, within a second, its thread."""
        self._stop.set()
        self._api.close()
        self._thread.join(1.0)

    def snapshot(self) -> PodWatchState:
        with self._lock:
            age = 0.0 if self._away_since is None else time.monotonic() - self._away_since
            kept = age <= self._keep
            trouble = self._trouble if kept or not self._trouble else f"{self._trouble}; its pods are given up"
            return PodWatchState(
                pods=dict(self._pods) if kept else {},
                listed=self._listed,
                trouble=trouble,
                age_seconds=age,
                overflow=f"{self._beyond} further pods of the node are not looked at: {MOST_PODS} are kept, those "
                "with a GPU first"
                if self._beyond
                else "",
            )

    @property
    def _beyond(self) -> int:
        return max(0, self._number - len(self._pods))

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list()
                # The list is valid from here. A watch that breaks at once still counts as a failure.
                began = time.monotonic()
                self._follow()
                failures = 0
                if self._beyond:
                    # Some of the others may have a place now.
                    self._version = ""
                if time.monotonic() - began < SHORT_SECONDS:
                    # A proxy may end every watch at once.
                    self._stop.wait(self._wait(SHORT_FAILURES))
            except KubernetesApiError as error:
                if self._stop.is_set():
                    return
                if error.is_expired:
                    # List again, at once the first time.
                    self._version = ""
                else:
                    self._mark_away(error.text)
                failures += 1
                self._stop.wait(0.0 if error.is_expired and failures == 1 else self._wait(failures))
            except Exception as error:  # noqa: BLE001 - a defect costs this round, not the agent
                _log.exception("unexpected error watching pods")
                self._mark_away(f"defect in sizewatch while watching pods: {type(error).__name__}, see its log")
                self._version = ""
                failures += 1
                self._stop.wait(self._wait(failures))

    def _list(self) -> None:
        # Version 0: from the API server's memory, indexed by node. A list from etcd reads the whole cluster.
        read: list[tuple[_Order, Pod]] = []
        number = 0

        def take(data: dict[str, Any]) -> None:
            nonlocal number
            pod = pod_of(data)
            if pod is None or not self._asked.wants(pod):
                return
            number += 1
            read.append((self._order(pod), pod))
            if len(read) >= 2 * MOST_PODS:
                read[:] = sorted(read, key=itemgetter(0))[:MOST_PODS]

        query = self._asked.query | {"resourceVersion": "0"}
        version = _version(self._api.read_list(self._asked.path, take, **query))
        if not version:
            raise KubernetesApiError("API server: the list of pods has no resourceVersion")
        first = sorted(read, key=itemgetter(0))[:MOST_PODS]
        with self._lock:
            self._pods = {pod.uid: self._with_reliable_times(pod) for _, pod in first}
            self._version, self._listed, self._number = version, True, number
            self._unready &= self._pods.keys()
        self._mark_available()

    def _order(self, pod: Pod) -> _Order:
        """Return the place of a pod if there are too many."""
        return self._rank(pod), pod.uid not in self._pods, pod.created_at, pod.namespace, pod.name

    def _follow(self) -> None:
        seconds = self._watch_seconds * (1.0 + random.random())
        events = self._api.watch(self._asked.path, seconds, resourceVersion=self._version, **self._asked.query)
        self._mark_available()
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
                self._number -= kind == "DELETED" and self._asked.wants(pod)
                return
            self._number += kind == "ADDED" and pod.uid not in self._pods
            if kind in ("ADDED", "MODIFIED") and self._has_place(pod):
                self._pods[pod.uid] = self._with_reliable_times(pod)

    def _has_place(self, pod: Pod) -> bool:
        """Return whether a pod is kept. Where there are too many, it takes the place of one that matters less."""
        if pod.uid in self._pods or len(self._pods) < MOST_PODS:
            return True
        if (rank := self._rank(pod)) >= LEAST_RANK:
            return False
        worst = max(self._pods.values(), key=self._order)
        if self._rank(worst) <= rank:
            return False
        del self._pods[worst.uid]
        self._unready.discard(worst.uid)
        return True

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
            times = replace(times, asked_at=None, scheduled_at=None)
        return replace(pod, times=times)

    def _mark_away(self, text: str) -> None:
        with self._lock:
            if self._away_since is None:
                self._away_since = time.monotonic()
                _log.warning('lost pod watch error="%s"', text)
            self._trouble = text

    def _mark_available(self) -> None:
        with self._lock:
            if self._away_since is not None:
                _log.info("resumed pod watch")
            self._away_since, self._trouble = None, ""


def _retry_seconds(failures: int) -> float:
    """Return a random delay, so that the agents of a cluster do not retry at the same time."""
    return retry_delay(failures, FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS) * random.uniform(0.5, 1.0)


def _version(data: dict[str, Any]) -> str:
    meta = data.get("metadata")
    version = meta.get("resourceVersion") if isinstance(meta, dict) else None
    return version if isinstance(version, str) and len(version) <= 64 else ""
