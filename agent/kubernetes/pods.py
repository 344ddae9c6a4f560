"""Parser of a pod in the API's JSON.

The input is untrusted: shapes are checked, and every text is bounded and has no control characters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from rules.telemetry.snapshots import PodTimes

PREFIX = "sizewatch.io/"
"""Prefix of our annotations and labels."""

OWN_KEYS = ("scrape", "port", "path", "scheme", "tier", "pool", "engine")
"""What a pod may say of itself."""

MOST_TEXT = 253
"""Maximum characters of a text: Kubernetes' limit of names and label values. Annotations may be longer."""

MOST_LABELS = 64
MOST_PORTS = 64

GPU_RESOURCES = ("nvidia.com/", "amd.com/", "gpu.intel.com/", "habana.ai/")
"""Prefixes of the resource names of accelerators."""

LWS = "leaderworkerset.sigs.k8s.io/"
LWS_LEADER = f"{LWS}leader-name"
"""Annotation of every pod of a group but its leader (LeaderWorkerSet api/leaderworkerset/v1, LeaderPodNameAnnotationKey)."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


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
        """Return whether the pod has ended."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def place(self) -> str:
        return f"{self.namespace}/{self.name}"


def truncate_value(value: object, most: int = MOST_TEXT) -> str:
    """Return a string as one line of at most `most` characters, and an empty text for any other value."""
    text = _CONTROL.sub(" ", value if isinstance(value, str) else "").strip()
    if not text.isprintable():
        text = "".join(sign if sign.isprintable() else "?" for sign in text)
    return text if len(text) <= most else text[: most - 1] + "…"


def parse_pod(data: object) -> Pod | None:
    """Return the pod of an API object, None without a name."""
    meta, spec, status = (_mapping(_mapping(data).get(key)) for key in ("metadata", "spec", "status"))
    uid, name, namespace = (truncate_value(meta.get(key)) for key in ("uid", "name", "namespace"))
    if not (uid and name and namespace):
        return None
    labels, annotations = _texts(meta.get("labels")), _texts(meta.get("annotations"), LWS_LEADER)
    own = {**labels, **annotations}
    containers = _mappings(spec.get("containers"))
    # The serving container: the first that requests a GPU, else the first.
    engine = next(filter(_wants_gpu, containers), containers[0] if containers else {})
    states = _mappings(status.get("containerStatuses"))
    state = next((state for state in states if engine and state.get("name") == engine.get("name")), {})
    running = _mapping(_mapping(state.get("state")).get("running"))
    conditions = {truncate_value(c.get("type")): c for c in _mappings(status.get("conditions"))}
    is_ready, changed_at = _condition(conditions.get("Ready"))
    created_at, container_at = _seconds(meta.get("creationTimestamp")), _seconds(running.get("startedAt"))
    restarts = _whole(state.get("restartCount"))
    return Pod(
        uid=uid,
        namespace=namespace,
        name=name,
        node=truncate_value(spec.get("nodeName")),
        address=truncate_value(status.get("podIP"), 64),
        phase=truncate_value(status.get("phase"), 32),
        labels=labels,
        own={key: own[PREFIX + key] for key in OWN_KEYS if PREFIX + key in own},
        leader=annotations.get(LWS_LEADER, ""),
        ports=tuple(_ports(containers))[:MOST_PORTS],
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


def _wants_gpu(container: Mapping[str, Any]) -> bool:
    # A claim (dynamic resource allocation) has no kind; a requested device is an accelerator.
    return bool(_mapping(container.get("resources")).get("claims")) or _requests_gpu(container)


def _requests_gpu(container: Mapping[str, Any]) -> bool:
    """Return whether a container asks a device plugin for an accelerator. Anybody may ask for none."""
    resources = _mapping(container.get("resources"))
    amounts = {**_mapping(resources.get("requests")), **_mapping(resources.get("limits"))}
    return any(str(name).startswith(GPU_RESOURCES) and str(amount) not in ("", "0") for name, amount in amounts.items())


def _ports(containers: list[Mapping[str, Any]]) -> Iterator[Port]:
    for container in containers:
        for port in _mappings(container.get("ports")):
            number = _whole(port.get("containerPort"))
            if 0 < number <= 65535 and port.get("protocol", "TCP") == "TCP":
                yield Port(truncate_value(port.get("name"), 15), number)


def _texts(value: object, *wanted: str) -> dict[str, str]:
    """Return the labels, or with `wanted` only these and our annotations: all may have a quarter of a megabyte."""
    texts = {}
    for key, text in _mapping(value).items():
        if not wanted or key in wanted or str(key).startswith(PREFIX):
            texts[truncate_value(key, 317)] = truncate_value(text)
        if len(texts) == MOST_LABELS:
            break
    return texts


def _condition(value: Mapping[str, Any] | None) -> tuple[bool, float | None]:
    """Return whether a condition is true, and the Unix time of its last change."""
    condition = _mapping(value)
    return condition.get("status") == "True", _seconds(condition.get("lastTransitionTime"))


def _seconds(value: object) -> float | None:
    """Parse an RFC 3339 time of the API."""
    try:
        return datetime.fromisoformat(value).timestamp() if isinstance(value, str) and value.endswith("Z") else None
    except (ValueError, OverflowError):
        return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _whole(value: object) -> int:
    return value if type(value) is int else 0
