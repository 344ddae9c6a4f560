"""Which of several equal processes works: leader election by a Lease of coordination.k8s.io/v1, as client-go does it.

Owns the step (one try to get or keep the lease) and the thread that repeats it. It starts and stops nothing: who works asks
`leads`. Algorithm and times: client-go tools/leaderelection/leaderelection.go (leaseDuration 15 s, renewDeadline 10 s,
retryPeriod 2 s, JitterFactor 1.2), which kube-controller-manager uses with these very values.

No clock is compared with another machine's: a lease is valid for its duration since *this* process saw it change. Who leads
stops 10 s after it *began* its last renewal that was taken; another one takes over 15 s after it *saw* that renewal, or later.
So there are never two while both clocks run at nearly the same speed (half as fast again is too much).
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from agent.kubernetes.api import KubernetesApiError

LEASE_SECONDS = 15.0
RENEW_SECONDS = 10.0
RETRY_SECONDS = 2.0
JITTER = 1.2
"""A try comes 1 to 2.2 retry periods after the one before it, while another one leads."""

REQUEST_SECONDS = 4.0
"""Timeout to give the API's client: two requests of one step then end before RENEW_SECONDS."""

_log = logging.getLogger(__name__)


class Leases(Protocol):
    """What a step asks of the API: `agent.kubernetes.api.KubernetesClient`, or a stand-in."""

    def get(self, path: str) -> dict[str, Any]: ...

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...

    def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLease:
    """The lease as it was last seen: its spec, and when (monotonic seconds) it was first seen like this."""

    spec: Mapping[str, Any]
    at: float

    @property
    def holder(self) -> str:
        return str(self.spec.get("holderIdentity") or "")

    def valid(self, now: float) -> bool:
        """Return whether its holder may still lead."""
        seconds = self.spec.get("leaseDurationSeconds")
        # Not added to a time: a whole number of 400 digits is larger than any.
        return (seconds if isinstance(seconds, int) else LEASE_SECONDS) > now - self.at


class Leadership:
    """One process's part in the election. `identity` must be its own alone (the pod's name). For one thread, but `leads`."""

    def __init__(
        self,
        api: Leases,
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
        """Why the last step could not be made, in words."""

    @property
    def holder(self) -> str:
        """Who holds the lease, as far as it was seen; empty: nobody."""
        return self._seen.holder if self._seen is not None else ""

    def is_leader(self, now: float) -> bool:
        """Return whether this process leads at `now` (monotonic seconds), also while a step hangs."""
        return now < self._until

    def step(self, now: float) -> bool:
        """One try at `now` (monotonic seconds) to get or to keep the lease; whether this process leads then. Whatever the API
        answers is no error of the caller's: `trouble` tells it."""
        try:
            if self._renewed(now) or self._taken(now):
                # From before the request: another one counts from after it.
                self._until = now + RENEW_SECONDS
            elif self.holder != self._identity:
                self._until = float("-inf")
            self.trouble = ""
        except KubernetesApiError as trouble:
            # What was won stands until its time is over.
            self.trouble = f"lease {self._namespace}/{self._name}: {trouble.text}"
        return self.is_leader(now)

    def _renewed(self, now: float) -> bool:
        """The way without a question, while nothing speaks against it."""
        if self._object is None or self.holder != self._identity or not self.is_leader(now):
            return False
        try:
            self._write(self._spec(self._seen))
        except KubernetesApiError as trouble:
            if trouble.conflict or trouble.missing:
                return False
            raise
        return True

    def _taken(self, now: float) -> bool:
        try:
            self._see(self._api.get(f"{self._all}/{self._name}"))
        except KubernetesApiError as trouble:
            if not trouble.missing:
                raise
            # Somebody deleted it; who held it does not know yet.
            self._object = None
        seen = self._seen
        if self.holder and self.holder != self._identity:
            # Whatever comes of the rest of this step: somebody has taken what was won.
            self._until = float("-inf")
        if seen is not None and seen.holder and seen.holder != self._identity and seen.valid(now):
            return False
        try:
            self._write(self._spec(seen))
        except KubernetesApiError as trouble:
            if trouble.conflict:
                # Another one was faster; who it is shows the next step.
                return False
            raise
        return True

    def release(self, now: float) -> None:
        """Gives the lease back, so that another one need not wait; where that fails, it ends by itself."""
        ours = self.is_leader(now) and self.holder == self._identity and self._object is not None
        self._until = float("-inf")
        if not ours:
            return
        assert self._seen is not None
        spec = {**self._spec(self._seen), "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            self._write(spec)
        except KubernetesApiError as trouble:
            _log.warning('releasing the lease failed lease=%s/%s error="%s"', self._namespace, self._name, trouble.text)

    def _see(self, found: dict[str, Any]) -> None:
        spec = found.get("spec")
        spec = spec if isinstance(spec, dict) else {}
        # By its version: the times in it are those of a machine whose clock may stand.
        same = self._object is not None and _version(self._object) == _version(found)
        self._object = found
        if self._seen is None or not same:
            # After the answer: its holder may have written it while the question was on its way.
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
        """Only over the version that was seen: the API refuses every other with a conflict."""
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
    """Repeats the step in a thread of its own, from `start` to `stop`; `changed` is called there with every change."""

    def __init__(
        self,
        leadership: Leadership,
        changed: Callable[[bool], None] = lambda leads: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._leadership = leadership
        self._changed = changed
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    @property
    def leads(self) -> bool:
        """Return whether this process leads now."""
        return self._leadership.is_leader(self._clock())

    @property
    def trouble(self) -> str:
        return self._leadership.trouble

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, and gives the lease back."""
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
                self._changed(leads)
            # Who leads keeps to its period; those that wait do not all come at once.
            self._stop.wait(RETRY_SECONDS * (1.0 if leads else 1.0 + JITTER * random.random()))
