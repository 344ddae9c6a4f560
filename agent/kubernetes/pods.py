"""Parser of a pod in the API's JSON. Its texts are anybody's: each is bounded and has no control characters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from exporters.render.safe_text import printable_line, shorten
from rules.telemetry.snapshots import PodTimes

PREFIX = "sizewatch.io/"
"""Prefix of our annotations and labels."""

OWN_KEYS = ("scrape", "port", "path", "scheme", "tier", "pool", "engine")
"""What a pod may say of itself."""

MOST_TEXT = 253
"""Maximum characters of a text: Kubernetes' limit of names and label values. Annotations may be longer."""

MOST_LABELS = 64

GPU_RESOURCES = ("nvidia.com/", "amd.com/", "gpu.intel.com/", "habana.ai/")
"""Prefixes of the resource names of accelerators."""

LWS = "leaderworkerset.sigs.k8s.io/"
LWS_LEADER = f"{LWS}leader-name"
"""Annotation of every pod of a group but its leader (LeaderWorkerSet api/leaderworkerset/v1, LeaderPodNameAnnotationKey)."""


class Port(NamedTuple):
    name: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """Pod. `own` are our annotations and labels without prefix; an annotation wins. `address` is empty until it is set.

    `by_claim`: its device is asked for by a claim, which has no kind. `was_ready`: the pod was Ready after the
    start of its container and is not Ready now. `leader` is the name of the leader's pod of a LeaderWorkerSet.
    """

    uid: str
    namespace: str
    name: str
    node: str = ""
    address: str = ""
    phase: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    leader: str = ""
    ports: tuple[Port, ...] = ()
    wants_gpu: bool = False
    by_claim: bool = False
    host_network: bool = False
    ready: bool = False
    was_ready: bool = False
    ending: bool = False
    restarts: int = 0
    times: PodTimes = field(default_factory=PodTimes)
    created_at: float = 0.0
    """Unix seconds by the API server, which no pod can choose."""

    @property
    def is_finished(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def place(self) -> str:
        return f"{self.namespace}/{self.name}"


def truncate_value(value: object, most: int = MOST_TEXT) -> str:
    """Return a string as one line of at most `most` characters, and an empty text for any other value."""
    return shorten(printable_line(value), most) if isinstance(value, str) else ""


def parse_pod(data: dict[str, Any]) -> Pod | None:
    """Return the pod of an API object, None for an object of another shape."""
    try:
        return _parse_pod(data["metadata"], data["spec"], data.get("status") or {})
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _parse_pod(meta: dict[str, Any], spec: dict[str, Any], status: dict[str, Any]) -> Pod:
    labels, annotations = _texts(meta.get("labels")), _texts(meta.get("annotations"), LWS_LEADER)
    own = {**labels, **annotations}
    containers = spec["containers"]
    # The serving container: the first that requests a GPU, else the first.
    engine = next(filter(_wants_gpu, containers), containers[0])
    states = {state["name"]: state for state in status.get("containerStatuses") or ()}
    state = states.get(engine["name"], {})
    ready: dict[str, Any] = next((c for c in status.get("conditions") or () if c["type"] == "Ready"), {})
    is_ready, changed_at = ready.get("status") == "True", _seconds(ready.get("lastTransitionTime"))
    created_at = _seconds(meta.get("creationTimestamp"))
    container_at = _seconds((state.get("state", {}).get("running") or {}).get("startedAt"))
    restarts = int(state.get("restartCount", 0))
    ports = []
    for container in containers:
        for port in container.get("ports") or ():
            if port.get("protocol", "TCP") == "TCP":
                ports.append(Port(truncate_value(port.get("name"), 15), int(port["containerPort"])))
    return Pod(
        uid=truncate_value(meta["uid"]),
        namespace=truncate_value(meta["namespace"]),
        name=truncate_value(meta["name"]),
        node=truncate_value(spec.get("nodeName")),
        address=truncate_value(status.get("podIP"), 64),
        phase=truncate_value(status.get("phase"), 32),
        labels=labels,
        own={key: own[PREFIX + key] for key in OWN_KEYS if PREFIX + key in own},
        leader=annotations.get(LWS_LEADER, ""),
        ports=tuple(ports),
        wants_gpu=_wants_gpu(engine),
        by_claim=_wants_gpu(engine) and not _requests_gpu(engine),
        host_network=spec.get("hostNetwork") is True,
        ready=is_ready,
        was_ready=not is_ready and (changed_at or 0.0) > (container_at or math.inf),
        ending=bool(meta.get("deletionTimestamp")),
        restarts=restarts,
        # `ready_at` is reliable only if the pod was seen before.
        times=PodTimes(
            asked_at=None if restarts else created_at,
            container_at=container_at,
            ready_at=changed_at if is_ready else None,
        ),
        created_at=created_at or 0.0,
    )


def _wants_gpu(container: dict[str, Any]) -> bool:
    # A claim (dynamic resource allocation) has no kind; a requested device is an accelerator.
    return bool(container.get("resources", {}).get("claims")) or _requests_gpu(container)


def _requests_gpu(container: dict[str, Any]) -> bool:
    """Return whether a container asks a device plugin for an accelerator. Anybody may ask for none."""
    resources = container.get("resources", {})
    amounts = {**resources.get("requests", {}), **resources.get("limits", {})}
    return any(name.startswith(GPU_RESOURCES) and str(amount) not in ("", "0") for name, amount in amounts.items())


def _texts(value: dict[str, str] | None, *wanted: str) -> dict[str, str]:
    """Return the labels, or with `wanted` only these and our annotations: all may have a quarter of a megabyte."""
    texts = {}
    for key, text in (value or {}).items():
        if not wanted or key in wanted or key.startswith(PREFIX):
            texts[truncate_value(key, 317)] = truncate_value(text)
        if len(texts) == MOST_LABELS:
            break
    return texts


def _seconds(value: str | None) -> float | None:
    return datetime.fromisoformat(value).timestamp() if value else None
