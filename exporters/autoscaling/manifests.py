"""KEDA ScaledObject, or HorizontalPodAutoscaler with its Prometheus Adapter rule, on the gauge of recommended replicas.

Both ask for ceil(value / 1) replicas (AverageValue 1), so the gauge is the count. KEDA fields are those of
`keda.sh/v1alpha1` (CRD of kedacore/keda 8b4f083c, documentation 2.17); a schedule becomes cron triggers, a floor. The HPA
has no schedule. sizewatch writes no replica count to a cluster itself (DESIGN 3.13). A format is a template here.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from exporters.autoscaling.schedule import ScheduleSlot, Week, week_of
from exporters.render.text import dump_object, printable_line, shorten
from forecast.capacity.drain import ROUTING_SECONDS, DrainTime

FORMATS = ("keda", "hpa")
GAUGE = "sizewatch_recommended_replicas"

LONGEST_NAME, DIGEST_LENGTH = 52, 8
"""Maximum length of an object name. KEDA adds 9 for the name of its HPA, and a label holds 63."""

LONGEST_STABILISATION, SHORTEST_PERIOD, LONGEST_PERIOD = 3600, 15, 1800
"""Seconds: what kubernetes pkg/apis/autoscaling/validation takes, and the HPA's own interval."""

TOLERATED = 10
"""Replica count from which the default tolerance of 0.1 hides a change by 1 (11 / 10, 9 / 10)."""

WORKLOADS: Mapping[str, str] = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
}
"""Workloads with the subresource `scale`, with their `apiVersion`."""

_KUBERNETES_NAME = r"[a-z0-9]([-a-z0-9.]{,251}[a-z0-9])?"


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
        if problem := next(self._problems(), ""):
            raise ValueError(problem)

    def _problems(self) -> Iterator[str]:
        if not self.tier:
            yield "a tier has a name"
        if not 0 <= self.minimum_warm <= self.maximum or self.maximum < 1:
            yield f"minimum warm {self.minimum_warm} must lie between 0 and the maximum {self.maximum}"
        for what, seconds in (("lead", self.lead_seconds), ("hold", self.hold_seconds)):
            if not 0 <= seconds <= 86400:
                yield f"a {what} of {seconds} s is none: it must lie between 0 s and a day"
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            yield f"{self.zone!r} is no time zone: use an IANA name such as Europe/Berlin"
        if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", self.prometheus):
            yield f"{self.prometheus!r} is no address of a Prometheus server: it begins with http(s)://"
        if "@" in self.prometheus:
            yield "no credentials in the address of Prometheus: name a Secret that holds a token"
        if self.workload.kind not in WORKLOADS:
            yield f"workload kind {self.workload.kind!r} is not known here; there are {', '.join(WORKLOADS)}"
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{,61}[a-z0-9])?", self.namespace):
            yield f"{self.namespace!r} is no namespace: lower case letters, digits and -, at most 63"
        if self.token and not re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", self.token.key):
            yield f"{self.token.key!r} is no key of a Secret: letters, digits, -, _ and . only"
        for what, name in {
            "workload": self.workload.name,
            **({"secret": self.token.name} if self.token else {}),
        }.items():
            if not re.fullmatch(_KUBERNETES_NAME, name):
                yield f"{what} {name!r} is no Kubernetes name: lower case letters, digits, - and . only"


def manifest_text(scaling: Scaling, name: str) -> str:
    """Return the manifests of a format as YAML for `kubectl apply -f -`. `name` is one of FORMATS."""
    week = week_of(scaling.schedule, scaling.lead_seconds, scaling.minimum_warm, scaling.maximum)
    if name == "keda":
        head = (*_keda_head(scaling, week), *_now_notes(scaling, week))
    else:
        head = (*_hpa_head(scaling), *_now_notes(scaling, None), *_adapter_notes(scaling.tier))
    environment = Environment(loader=PackageLoader(__package__ or "", ""), undefined=StrictUndefined, autoescape=False)
    environment.filters |= {"q": _quote, "comment": _comment}
    return environment.get_template(f"{name}.yaml.j2").render(
        head=head,
        scaling=scaling,
        week=week,
        name=object_name(scaling.tier),
        metric=metric_name(scaling.tier),
        query=recommended_query(scaling.tier),
        behavior=_behavior(scaling),
        target={
            "apiVersion": WORKLOADS[scaling.workload.kind],
            "kind": scaling.workload.kind,
            "name": scaling.workload.name,
        },
    )


def _quote(value: Any) -> str:
    """Return a value as YAML in one line. No text of others can end it: the dumper escapes it."""
    style = '"' if isinstance(value, str) else None
    text = yaml.safe_dump(value, default_flow_style=True, default_style=style, width=2**31, sort_keys=False)
    return text.removesuffix("...\n").strip()


def _comment(paragraphs: Iterable[str]) -> str:
    """Return paragraphs as YAML comments, separated. A leading blank marks our YAML, kept as is."""
    blocks = (
        "#" + text.replace("\n", "\n#")
        if text.startswith(" ")
        else textwrap.fill(
            printable_line(text),
            110,
            initial_indent="# ",
            subsequent_indent="# ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for text in paragraphs
    )
    return "\n#\n".join(blocks)


def _behavior(scaling: Scaling) -> dict[str, Any]:
    """Return `behavior` of an HPA: up at once, down only to the highest count within the hold.

    With a known drain time the hold is at least that, and a step down waits for the last one to end: a replica, or a
    tenth (serving guide: one at a time, then look at the queue). Otherwise the gauge alone limits the pace.
    """
    drain = scaling.drain.seconds if isinstance(scaling.drain, DrainTime) else 0
    steps = (("Pods", 1), ("Percent", 10)) if drain else (("Percent", 100),)
    period = min(max(drain, SHORTEST_PERIOD), LONGEST_PERIOD)
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "selectPolicy": "Max",
            "policies": [{"type": "Pods", "value": scaling.maximum, "periodSeconds": SHORTEST_PERIOD}],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": min(round(max(scaling.hold_seconds, drain)), LONGEST_STABILISATION),
            "selectPolicy": "Max",
            "policies": [{"type": kind, "value": value, "periodSeconds": period} for kind, value in steps],
        },
    }


def _keda_head(scaling: Scaling, week: Week) -> Iterable[str]:
    target = f"{scaling.workload.kind} {scaling.workload.name}"
    kept = "the schedule" if week.entries else str(max(week.floor, 1))
    yield (
        f"Written by sizewatch for tier {shorten(printable_line(scaling.tier), 60)}. KEDA owns the replica field of {target}, "
        "through the HPA that it makes; sizewatch writes nothing."
    )
    yield (
        f"Apply nothing beside it that sets replicas of {target}: no other ScaledObject, no HorizontalPodAutoscaler, and no "
        "spec.replicas in what is deployed."
    )
    yield (
        f"While sizewatch or Prometheus is away: the present count if that is higher, else {kept}. A missing gauge is an error, "
        "never zero (ignoreNullValues). Needs KEDA 2.17 (fallback.behavior)."
    )


def _hpa_head(scaling: Scaling) -> Iterable[str]:
    target = f"{scaling.workload.kind} {scaling.workload.name}"
    yield (
        f"Written by sizewatch for tier {shorten(printable_line(scaling.tier), 60)}. This HorizontalPodAutoscaler owns the "
        f"replica field of {target}; sizewatch writes nothing."
    )
    yield (
        f"Apply nothing beside it that sets replicas of {target}: no ScaledObject, no second HPA, and no spec.replicas in what "
        "is deployed."
    )
    yield (
        "While sizewatch or Prometheus is away, the HPA keeps the count that it has: it neither grows nor shrinks. It knows no "
        "schedule; KEDA does (--format keda)."
    )
    if scaling.minimum_warm == 0:
        yield "The minimum is 1: an HPA does not scale to none unless the cluster has HPAScaleToZero on."


def _adapter_notes(tier: str) -> Iterable[str]:
    yield "The metric comes from Prometheus Adapter. Add to its configuration:"
    yield "\n".join(f"   {line}" for line in adapter_rule(tier).splitlines())


def _now_notes(scaling: Scaling, week: Week | None) -> Iterable[str]:
    """Yield the effect of applying a manifest now, what was done to the schedule, and what pods that go need."""
    cut = f", more than the maximum of {scaling.maximum}" if scaling.recommended > scaling.maximum else ""
    yield f"When this was written, {scaling.recommended} were recommended{cut}."
    if week and scaling.note:
        yield f"{scaling.note[0].upper()}{scaling.note[1:]}."
    if week and scaling.schedule:
        yield (
            f"Times are of {scaling.zone}. Replicas are asked for {scaling.lead_seconds:.0f} s (the cold start) before they must "
            "be warm; fewer are asked for not a minute early."
        )
    if week and week.block > 1:
        yield f"The schedule had too many steps: every {week.block} minutes take their highest count."
    if week and week.cut:
        yield f"The schedule wants more than the maximum of {scaling.maximum}; it was cut there."
    if scaling.hold_seconds > LONGEST_STABILISATION:
        yield f"Kubernetes holds for at most an hour; {scaling.hold_seconds:g} s were asked for."
    if scaling.maximum >= TOLERATED:
        yield (
            f"From {TOLERATED} replicas on, the autoscaler ignores a change by one: its tolerance is 10 % of what runs. Where "
            "the cluster knows `tolerance` (Kubernetes 1.35 on), set it to 0 under scaleUp and scaleDown."
        )
    if isinstance(scaling.drain, str):
        yield f"The time that a pod needs to end its requests is not in here: {scaling.drain}."
        return
    yield (
        f"99 % of requests end within {scaling.drain.seconds} s. A pod needs terminationGracePeriodSeconds "
        f"{scaling.drain.grace_seconds} and a preStop sleep of {ROUTING_SECONDS} s. vLLM aborts all requests on SIGTERM unless it "
        f"is started with --shutdown-timeout {scaling.drain.seconds} (0.18 on). Dynamo's workers drain by themselves."
    )


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


def adapter_rule(tier: str) -> str:
    """Return the rule for `externalRules` (kubernetes-sigs/prometheus-adapter docs/externalmetrics.md).

    `namespaced: false`: the gauge has the agent's namespace, if any, not the workload's.
    """
    rule = {
        "seriesQuery": _selector(tier),
        "resources": {"namespaced": False},
        "name": {"matches": f"^{GAUGE}$", "as": metric_name(tier)},
        "metricsQuery": recommended_query(tier),
    }
    return dump_object({"externalRules": [rule]})
