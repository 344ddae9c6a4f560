"""What a manifest for an autoscaler is written from: the record `Scaling`, and how its names and queries are spelt.

Owns the records, what they refuse, object names and the PromQL of the gauge. It knows no autoscaler: each has a module of
its own (`exporters.autoscaling.keda`, `_hpa`, `_cronjob`, `_aibrix`) and a row in `exporters.autoscaling.formats`. Nothing here
talks to a cluster; sizewatch never writes a replica count itself (DESIGN 3.13).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import time
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

GAUGE = "sizewatch_recommended_replicas"
"""What autoscalers follow; replicas of a tier, already for the demand one lead ahead."""

LONGEST_NAME = 52
"""CronJob names end here (its jobs' names add 11 to reach the 63 of a label), and so do all others, for one rule."""

_DIGEST = 8
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{,61}[a-z0-9])?")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectKind:
    """A kind of Kubernetes object: its `apiVersion`, and the plural by which RBAC and kubectl name it."""

    api_version: str
    plural: str

    @property
    def group(self) -> str:
        """The API group, as RBAC has it."""
        return self.api_version.rpartition("/")[0]


WORKLOADS: Mapping[str, ObjectKind] = {
    "Deployment": ObjectKind(api_version="apps/v1", plural="deployments"),
    "StatefulSet": ObjectKind(api_version="apps/v1", plural="statefulsets"),
    "LeaderWorkerSet": ObjectKind(api_version="leaderworkerset.x-k8s.io/v1", plural="leaderworkersets"),
}
"""What can be scaled: each has the subresource `scale`. Another kind is a row here."""

AUTOSCALERS: Mapping[str, ObjectKind] = {
    "HorizontalPodAutoscaler": ObjectKind(api_version="autoscaling/v2", plural="horizontalpodautoscalers"),
    "ScaledObject": ObjectKind(api_version="keda.sh/v1alpha1", plural="scaledobjects"),
    "PodAutoscaler": ObjectKind(api_version="autoscaling.aibrix.ai/v1alpha1", plural="podautoscalers"),
}
"""What may own the replica field of a workload already. Another one is a row here and one in `scaling_cronjob.FIELDS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReference:
    """An object in the tier's namespace, by kind and name."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """Where a bearer token for the Prometheus server lies: a Secret of the namespace, and its key. Never the token."""

    name: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSlot:
    """From `start` (local time, whole minutes) on each of `weekdays` (0 is Monday) so many replicas must be warm.

    It lasts until the next slot, of whatever day.
    """

    start: time
    weekdays: tuple[int, ...]
    replicas: int

    def __post_init__(self) -> None:
        if self.start.second or self.start.microsecond or self.start.tzinfo is not None:
            raise ValueError(f"a slot starts at a whole local minute, not at {self.start.isoformat()}")
        if not self.weekdays or not set(self.weekdays) <= set(range(7)):
            raise ValueError(f"weekdays are 0 (Monday) to 6, at least one, not {self.weekdays}")
        if self.replicas < 0:
            raise ValueError(f"{self.replicas} replicas cannot be warm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How one tier is to be scaled. Raises ValueError for what no cluster takes.

    `recommended` is what sizewatch recommends now (None: nothing yet). `schedule` says when how many replicas must be
    *warm* by the clock of `zone` (IANA); manifests ask for them `lead_seconds` (the cold start) earlier, and for fewer not
    a minute earlier. `hold_seconds` is how long the autoscaler keeps the highest count it lately wanted. `autoscaler` is
    what owns the replica field today, if anything does. `exact_steps` says that the cluster knows `tolerance` (Kubernetes
    1.35, or the feature gate HPAConfigurableTolerance). `note` goes out as an annotation.
    """

    tier: str
    namespace: str
    workload: ObjectReference
    minimum_warm: int
    maximum: int
    zone: str
    prometheus: str
    lead_seconds: float
    hold_seconds: float
    recommended: int | None = None
    schedule: tuple[ScheduleSlot, ...] = ()
    autoscaler: ObjectReference | None = None
    token: Secret | None = None
    exact_steps: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        if not self.tier:
            raise ValueError("a tier has a name")
        if not 0 <= self.minimum_warm <= self.maximum or self.maximum < 1:
            raise ValueError(f"minimum warm {self.minimum_warm} must lie between 0 and the maximum {self.maximum}")
        for what, seconds in (("lead", self.lead_seconds), ("hold", self.hold_seconds)):
            if not 0 <= seconds <= 86400:
                raise ValueError(f"a {what} of {seconds} s is none: it must lie between 0 s and a day")
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"{self.zone!r} is no time zone: use an IANA name such as Europe/Berlin") from error
        _address(self.prometheus)
        _known(self.workload, WORKLOADS, "workload")
        if self.autoscaler is not None:
            _known(self.autoscaler, AUTOSCALERS, "autoscaler")
        _spelt(self)


def _address(prometheus: str) -> None:
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", prometheus):
        raise ValueError(f"{prometheus!r} is no address of a Prometheus server: it begins with http(s)://")
    if "@" in prometheus.split("/")[2]:
        raise ValueError("no credentials in the address of Prometheus: name a Secret that holds a token")


def _spelt(scaling: Scaling) -> None:
    """Names of others are used as they are, so they must be what Kubernetes takes."""
    if not _NAMESPACE.fullmatch(scaling.namespace):
        raise ValueError(f"{scaling.namespace!r} is no namespace: lower case letters, digits and -, at most 63")
    if scaling.token is not None and not _KEY.fullmatch(scaling.token.key):
        raise ValueError(f"{scaling.token.key!r} is no key of a Secret: letters, digits, -, _ and . only")
    for what, name in _names(scaling):
        if len(name) > 253 or not _NAME.fullmatch(name):
            raise ValueError(f"{what} {name!r} is no Kubernetes name: lower case letters, digits, - and . only")


def _known(reference: ObjectReference, kinds: Mapping[str, ObjectKind], what: str) -> None:
    if reference.kind not in kinds:
        raise ValueError(f"{what} kind {reference.kind!r} is not known here; there are {', '.join(kinds)}")


def _names(scaling: Scaling) -> list[tuple[str, str]]:
    found = [("workload", scaling.workload.name)]
    found += [("autoscaler", scaling.autoscaler.name)] if scaling.autoscaler else []
    return found + ([("secret", scaling.token.name)] if scaling.token else [])


def object_name(tier: str, *parts: str) -> str:
    """A name after RFC 1123 for an object of this tier, at most LONGEST_NAME long.

    What cannot be spelt is a hyphen; a name that had to be changed or cut carries a digest, so that two tiers never share
    one.
    """
    wanted = "-".join(("sizewatch", tier, *parts))
    spelt = re.sub(r"-+", "-", re.sub(r"[^a-z0-9-]", "-", wanted.lower())).strip("-")
    if spelt == wanted and len(spelt) <= LONGEST_NAME:
        return spelt
    digest = hashlib.sha256("\0".join((tier, *parts)).encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{spelt[: LONGEST_NAME - _DIGEST - 1].rstrip('-')}-{digest}"


def recommended_query(tier: str) -> str:
    """PromQL for the gauge of one tier: one value, or none while sizewatch recommends nothing."""
    return f'max({GAUGE}{{tier="{label_value(tier)}"}})'


def label_value(text: str) -> str:
    """A label's value between the double quotes of PromQL; `<` too is escaped, which Prometheus Adapter would expand."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return escaped.replace("<", "\\x3c")
