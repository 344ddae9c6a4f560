"""KEDA ScaledObject, or HorizontalPodAutoscaler with its Prometheus Adapter rule, on the gauge of recommended replicas.

Both ask for ceil(value / 1) replicas (AverageValue 1), so the gauge is the count. KEDA fields are those of
`keda.sh/v1alpha1` (CRD of kedacore/keda 8b4f083c, documentation 2.17). The day's schedule becomes cron triggers, a floor;
the HPA has none. sizewatch writes no replica count to a cluster itself (DESIGN 3.13). A format is a template here.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from exporters.render.safe_text import printable_line, shorten
from forecast.capacity.drain import DrainTime
from forecast.capacity.prewarm import ScheduleStep

FORMATS = ("keda", "hpa")
GAUGE = "sizewatch_recommended_replicas"

LONGEST_NAME, DIGEST_LENGTH = 52, 8
"""Maximum length of an object name. KEDA adds 9 for the name of its HPA, and a label holds 63."""

SHORTEST_HOLD, LONGEST_HOLD, SHORTEST_PERIOD, LONGEST_PERIOD = 60, 3600, 15, 1800
"""Seconds: a missing scrape (the gauge has its own hold), the HPA's interval, and what Kubernetes takes at most."""

DAY = 1440

WORKLOADS: Mapping[str, str] = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
}
"""Workloads with the subresource `scale`, with their `apiVersion`."""

_KUBERNETES_NAME = r"[a-z0-9]([-a-z0-9.]{,251}[a-z0-9])?"
_NO_NAME = "is no Kubernetes name: lower case letters, digits, - and . only"


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
class Scaling:
    """Scaling of a tier. Raise ValueError for values that no cluster accepts.

    `recommended` is the present recommendation. `schedule` is in replicas that must be *warm*; manifests repeat it every
    day by the clock of `zone` (IANA). They ask for more replicas `lead_seconds` (the cold start) earlier, and never for
    fewer too early. `note` explains the schedule. `drain` is the time that requests need to end, or why it is not known.
    """

    tier: str
    namespace: str
    workload: ObjectReference
    minimum_warm: int
    maximum: int
    zone: str
    prometheus: str
    lead_seconds: float
    recommended: int
    schedule: tuple[ScheduleStep, ...] = ()
    token: Secret | None = None
    note: str = ""
    drain: DrainTime | str = "the duration of requests was not read"

    def __post_init__(self) -> None:
        if not 0 < self.minimum_warm <= self.maximum:
            raise ValueError(f"minimum warm {self.minimum_warm} must lie between 1 and the maximum {self.maximum}")
        if self.workload.kind not in WORKLOADS:
            raise ValueError(
                f"workload kind {self.workload.kind!r} is not known here; there are {', '.join(WORKLOADS)}"
            )
        if "@" in self.prometheus:
            raise ValueError("no credentials in the address of Prometheus: name a Secret that holds a token")
        texts = [
            (self.namespace, r"[a-z0-9]([-a-z0-9]{,61}[a-z0-9])?", "is no namespace: lower case letters, digits and -"),
            (self.workload.name, _KUBERNETES_NAME, _NO_NAME),
            (self.prometheus, r"https?://[^\s/]+(/\S*)?", "is no address of a Prometheus server: http(s)://HOST"),
        ]
        if self.token is not None:
            texts.append((self.token.name, _KUBERNETES_NAME, _NO_NAME))
            texts.append(
                (self.token.key, r"[-._a-zA-Z0-9]{1,253}", "is no key of a Secret: letters, digits, -, _ and .")
            )
        for text, pattern, why in texts:
            if not re.fullmatch(pattern, text):
                raise ValueError(f"{text!r} {why}")


def manifest_text(scaling: Scaling, name: str) -> str:
    """Return the manifests of a format as YAML for `kubectl apply -f -`. `name` is one of FORMATS."""
    loader = PackageLoader(__package__ or "", "")
    environment = Environment(loader=loader, undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
    environment.filters |= {"q": _quote, "line": printable_line}
    drain = scaling.drain.seconds if isinstance(scaling.drain, DrainTime) else 0
    floor, entries = list_cron_entries(scaling)
    return environment.get_template(f"{name}.yaml.j2").render(
        scaling=scaling,
        title=shorten(printable_line(scaling.tier), 60),
        floor=floor,
        entries=entries,
        name=object_name(scaling.tier),
        metric=metric_name(scaling.tier),
        selector=_selector(scaling.tier),
        query=recommended_query(scaling.tier),
        api_version=WORKLOADS[scaling.workload.kind],
        drain=drain,
        hold=min(max(SHORTEST_HOLD, drain), LONGEST_HOLD),
        period=min(max(drain, SHORTEST_PERIOD), LONGEST_PERIOD),
    )


def _quote(value: Any) -> str:
    """Return a value as YAML in one line. No text of others can end it: the dumper escapes it."""
    return yaml.safe_dump(value, default_style='"', width=2**31).strip()


def list_cron_entries(scaling: Scaling) -> tuple[int, Sequence[tuple[int, int, int]]]:
    """Return the fewest replicas of a day, and begin, end and replicas of each interval with more, earlier by the lead.

    Times are minutes from local midnight.
    """
    starts: dict[int, int] = {}
    for step in scaling.schedule:
        local = datetime.fromtimestamp(step.start, ZoneInfo(scaling.zone))
        minute = local.hour * 60 + local.minute
        # An hour that comes twice, as at a clock change, counts as its higher step.
        starts[minute] = max(starts.get(minute, 0), step.replicas)
    day, lead, times = [scaling.minimum_warm] * DAY, math.ceil(scaling.lead_seconds / 60), sorted(starts)
    ends = [*times[1:], *(start + DAY for start in times[:1])]
    for replicas, start, end in sorted((starts[start], start, end) for start, end in zip(times, ends, strict=True)):
        # The highest count comes last.
        for minute in range(start - lead, min(end, start - lead + DAY)):
            day[minute % DAY] = min(max(replicas, scaling.minimum_warm), scaling.maximum)
    edges = [minute for minute in range(DAY) if day[minute] != day[minute - 1]]
    entries = []
    for start, end in zip(edges, [*edges[1:], *edges[:1]], strict=True):
        if day[start] > min(day):
            entries.append((start, end, day[start]))
    return min(day), entries


def object_name(tier: str) -> str:
    """Return an RFC 1123 name for an object of this tier, at most LONGEST_NAME long.

    Invalid characters become hyphens. A changed or cut name carries a digest, so that tiers never share a name.
    """
    wanted = f"sizewatch-{tier}"
    spelt = re.sub(r"-+", "-", re.sub(r"[^a-z0-9-]", "-", wanted.lower())).strip("-")
    if spelt == wanted and len(spelt) <= LONGEST_NAME:
        return spelt
    digest = hashlib.sha256(tier.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]
    return f"{spelt[: LONGEST_NAME - DIGEST_LENGTH - 1].rstrip('-')}-{digest}"


def metric_name(tier: str) -> str:
    """Return the external metric of a tier. It is part of a path: letters, digits and underscores only."""
    return f"{GAUGE}_{object_name(tier).removeprefix('sizewatch-').replace('-', '_')}"


def recommended_query(tier: str) -> str:
    """Return PromQL for the gauge of a tier: a single value, or none without a recommendation."""
    return f"max({_selector(tier)})"


def _selector(tier: str) -> str:
    """Return the gauge of a tier. `<` is escaped too, as Prometheus Adapter would expand it."""
    escaped = tier.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'{GAUGE}{{tier="{escaped}"}}'.replace("<", "\\x3c")
