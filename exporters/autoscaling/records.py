"""Inputs of autoscaler manifests: the record `Scaling`, its validation, object names and the gauge's PromQL.

Both autoscalers are in `exporters.autoscaling.hpa`, with a row each in `exporters.autoscaling.formats`. No replica
count is written to a cluster by sizewatch itself (DESIGN 3.13).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import time
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rules.replicas.drain import DrainTime

GAUGE = "sizewatch_recommended_replicas"
"""Gauge that autoscalers follow: replicas of a tier for the demand at lead time."""

LONGEST_NAME = 52
"""Maximum length of an object name. KEDA adds 9 for the name of its HPA, and a label holds 63."""

_DIGEST = 8
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{,61}[a-z0-9])?")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


WORKLOADS: Mapping[str, str] = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
}
"""Workloads with the subresource `scale`, with their `apiVersion`. A new kind is a row here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReference:
    """Object in the tier's namespace, by kind and name."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """Secret of the namespace and its key with the bearer token for Prometheus. The token itself is never stored."""

    name: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSlot:
    """Replicas that must be warm from `start` (local time, whole minutes) on each of `weekdays` (0 is Monday).

    A slot lasts until the next slot of any day.
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
    """Scaling of a tier. Raise ValueError for values that no cluster accepts.

    `recommended` is the present recommendation. `schedule` is in replicas that must be *warm*, by the clock of `zone`
    (IANA). Manifests ask for more replicas `lead_seconds` (the cold start) earlier, and never for fewer too early.
    `hold_seconds` is the time that the autoscaler keeps its highest recent count. `note` becomes an annotation.
    `drain` is the time that requests need to end, or why it is not known.
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
    recommended: int
    schedule: tuple[ScheduleSlot, ...] = ()
    token: Secret | None = None
    note: str = ""
    drain: DrainTime | str = "the duration of requests was not read"

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
        if self.workload.kind not in WORKLOADS:
            raise ValueError(
                f"workload kind {self.workload.kind!r} is not known here; there are {', '.join(WORKLOADS)}"
            )
        _spelt(self)


def _address(prometheus: str) -> None:
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", prometheus):
        raise ValueError(f"{prometheus!r} is no address of a Prometheus server: it begins with http(s)://")
    if "@" in prometheus.split("/")[2]:
        raise ValueError("no credentials in the address of Prometheus: name a Secret that holds a token")


def _spelt(scaling: Scaling) -> None:
    """Raise ValueError if Kubernetes rejects a name. External names are used unchanged."""
    if not _NAMESPACE.fullmatch(scaling.namespace):
        raise ValueError(f"{scaling.namespace!r} is no namespace: lower case letters, digits and -, at most 63")
    if scaling.token is not None and not _KEY.fullmatch(scaling.token.key):
        raise ValueError(f"{scaling.token.key!r} is no key of a Secret: letters, digits, -, _ and . only")
    for what, name in _names(scaling):
        if len(name) > 253 or not _NAME.fullmatch(name):
            raise ValueError(f"{what} {name!r} is no Kubernetes name: lower case letters, digits, - and . only")


def _names(scaling: Scaling) -> list[tuple[str, str]]:
    return [("workload", scaling.workload.name), *([("secret", scaling.token.name)] if scaling.token else [])]


def object_name(tier: str) -> str:
    """Return an RFC 1123 name for an object of this tier, at most LONGEST_NAME long.

    Invalid characters become hyphens. A changed or cut name carries a digest, so that tiers never share a name.
    """
    wanted = f"sizewatch-{tier}"
    spelt = re.sub(r"-+", "-", re.sub(r"[^a-z0-9-]", "-", wanted.lower())).strip("-")
    if spelt == wanted and len(spelt) <= LONGEST_NAME:
        return spelt
    digest = hashlib.sha256(tier.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{spelt[: LONGEST_NAME - _DIGEST - 1].rstrip('-')}-{digest}"


def recommended_query(tier: str) -> str:
    """Return PromQL for the gauge of a tier: a single value, or none without a recommendation."""
    return f'max({GAUGE}{{tier="{label_value(tier)}"}})'


def label_value(text: str) -> str:
    """Return a label value for double quotes in PromQL. `<` is escaped too, as Prometheus Adapter would expand it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return escaped.replace("<", "\\x3c")
