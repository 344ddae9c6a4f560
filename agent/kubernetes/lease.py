"""Leader election by a Lease of coordination.k8s.io/v1, as in client-go.

Algorithm and times: client-go tools/leaderelection/leaderelection.go (leaseDuration 15 s, renewDeadline 10 s, retryPeriod
2 s, JitterFactor 1.2), as in kube-controller-manager.

Clocks of different machines are not compared: a lease is valid for its duration since *this* process saw it change. A
leader stops 10 s after the *start* of its last successful renewal. Another process takes over 15 s or more after it *saw*
that renewal. There are never two leaders unless one clock runs 1.5 times as fast as the other.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from agent.config.store import Lease
from agent.kubernetes.api import KubernetesApiError, KubernetesClient, KubernetesEndpoint, endpoint_from_pod

LEASE_SECONDS = 15.0
RENEW_SECONDS = 10.0
RETRY_SECONDS = 2.0
JITTER = 1.2
"""Random part of the interval between tries while another process leads: 1 to 2.2 retry periods."""

REQUEST_SECONDS = 4.0
"""Timeout of a request. Two requests of one step then end before RENEW_SECONDS."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLease:
    """Last seen lease. `at` is the time (monotonic seconds) when this version was first seen."""

    spec: Mapping[str, Any]
    at: float

    @property
    def holder(self) -> str:
        return str(self.spec.get("holderIdentity") or "")

    def valid(self, now: float) -> bool:
        """Return whether its holder may still lead."""
        seconds = self.spec.get("leaseDurationSeconds")
        # Not added to a time: an integer of 400 digits does not fit into a float.
        return (seconds if isinstance(seconds, int) else LEASE_SECONDS) > now - self.at


class Leadership:
    """Participation of one process in the election. `identity` is unique (the pod's name).

    `is_leader` is for any thread, all else for one thread.
    """

    def __init__(
        self,
        api: KubernetesClient,
        name: str,
        namespace: str,
        identity: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._name, self._namespace, self._identity = name, namespace, identity
        self._all = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._clock, self._wall = clock, wall
        self._object: dict[str, Any] | None = None
        self._seen: ObservedLease | None = None
        self._until = float("-inf")
        self.trouble = ""
        """Error of the last step, or empty."""

    @property
    def holder(self) -> str:
        """Return the last seen holder of the lease, or an empty text."""
        return self._seen.holder if self._seen is not None else ""

    def is_leader(self, now: float) -> bool:
        """Return whether this process leads at `now` (monotonic seconds), also during a hanging step."""
        return now < self._until

    def step(self, now: float) -> bool:
        """Try to get or keep the lease at `now` (monotonic seconds). Return whether this process leads.

        An error of the API is kept in `trouble`.
        """
        try:
            if self._renewed(now) or self._taken(now):
                # From before the request: another process counts from after it.
                self._until = now + RENEW_SECONDS
            elif self.holder != self._identity:
                self._until = float("-inf")
            self.trouble = ""
        except KubernetesApiError as error:
            # The lease stays valid until it expires.
            self.trouble = f"lease {self._namespace}/{self._name}: {error.text}"
        return self.is_leader(now)

    def _renewed(self, now: float) -> bool:
        """Renew the lease without reading it, while this process holds it."""
        if self._object is None or self.holder != self._identity or not self.is_leader(now):
            return False
        try:
            self._write(self._spec(self._seen))
        except KubernetesApiError as error:
            if error.conflict or error.missing:
                return False
            raise
        return True

    def _taken(self, now: float) -> bool:
        try:
            self._see(self._api.get(f"{self._all}/{self._name}"))
        except KubernetesApiError as error:
            if not error.missing:
                raise
            # The lease was deleted. Its holder may not have seen that yet.
            self._object = None
        seen = self._seen
        if self.holder and self.holder != self._identity:
            # Another process has the lease, whatever the rest of this step returns.
            self._until = float("-inf")
        if seen is not None and seen.holder and seen.holder != self._identity and seen.valid(now):
            return False
        try:
            self._write(self._spec(seen))
        except KubernetesApiError as error:
            if error.conflict:
                # Another process was faster.
                return False
            raise
        return True

    def release(self, now: float) -> None:
        """Give the lease back, so that another process need not wait. If that fails, it expires."""
        ours = self.is_leader(now) and self.holder == self._identity and self._object is not None
        self._until = float("-inf")
        if not ours:
            return
        assert self._seen is not None
        spec = {**self._spec(self._seen), "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            self._write(spec)
        except KubernetesApiError as error:
            _log.warning('releasing the lease failed lease=%s/%s error="%s"', self._namespace, self._name, error.text)

    def _see(self, found: dict[str, Any]) -> None:
        spec = found.get("spec")
        spec = spec if isinstance(spec, dict) else {}
        # Compare versions, not times: the clock of the other machine may be wrong.
        same = self._object is not None and _version(self._object) == _version(found)
        self._object = found
        if self._seen is None or not same:
            # After the response: the holder may have written it during the request.
            self._seen = ObservedLease(spec=spec, at=self._clock())

    def _spec(self, seen: ObservedLease | None) -> dict[str, Any]:
        stamp = datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = seen.spec if seen is not None else {}
        changes = before.get("leaseTransitions")
        changes = changes if isinstance(changes, int) else 0
        ours = seen is not None and seen.holder == self._identity
        return {
            **before,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(LEASE_SECONDS),
            "acquireTime": before.get("acquireTime", stamp) if ours else stamp,
            "renewTime": stamp,
            "leaseTransitions": changes + (seen is not None and not ours),
        }

    def _write(self, spec: Mapping[str, Any]) -> None:
        """Write over the seen version only. The API refuses any other with a conflict."""
        if self._object is None:
            meta = {"name": self._name, "namespace": self._namespace}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
            written = self._api.create(self._all, body)
        else:
            written = self._api.replace(f"{self._all}/{self._name}", {**self._object, "spec": spec})
        self._object = written
        self._seen = ObservedLease(spec=dict(spec), at=self._clock())


def _version(found: Mapping[str, Any]) -> object:
    meta = found.get("metadata")
    return meta.get("resourceVersion") if isinstance(meta, dict) else None


class Elector:
    """Thread that repeats the step from `start` to `stop`."""

    def __init__(self, leadership: Leadership, clock: Callable[[], float] = time.monotonic) -> None:
        self._leadership = leadership
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    @property
    def leads(self) -> bool:
        """Return whether this process leads now."""
        return self._leadership.is_leader(self._clock())

    @property
    def trouble(self) -> str:
        """Return the error of the last step, or an empty text."""
        return self._leadership.trouble

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and give the lease back."""
        self._stop.set()
        self._thread.join(2 * REQUEST_SECONDS)
        if not self._thread.is_alive():
            self._leadership.release(self._clock())

    def _run(self) -> None:
        led = False
        while not self._stop.is_set():
            now = self._clock()
            leads = self._leadership.step(now) and self._leadership.is_leader(self._clock())
            if leads != led:
                led = leads
                _log.info("acquired leadership" if leads else "lost leadership")
            # The leader keeps its period; waiting processes do not all come at once.
            self._stop.wait(RETRY_SECONDS * (1.0 if leads else 1.0 + JITTER * random.random()))


class LeaderElection(Elector):
    """Participation of a fleet agent in the election of `keys`, until `stop`. Raises KubernetesApiError outside a pod.

    All agents evaluate; only the leader posts alerts and sends reports. An agent without access to the API does not lead.
    """

    def __init__(self, keys: Lease, server: KubernetesEndpoint | None = None) -> None:
        self.keys = keys
        found = server or endpoint_from_pod()
        self._api = KubernetesClient(replace(found, timeout_seconds=min(found.timeout_seconds, REQUEST_SECONDS)))
        super().__init__(Leadership(self._api, keys.name, keys.namespace, keys.identity))
        self.start()

    def stop(self) -> None:
        """End the thread, give the lease back and close the connection."""
        super().stop()
        self._api.close()
