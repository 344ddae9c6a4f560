"""Shared parts of the manifests: metadata, comments and HorizontalPodAutoscaler behaviour.

Values pass through the YAML dumper, never through string formatting. Comments are stripped of line ends and control
characters.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from exporters.autoscaling.records import WORKLOADS, Scaling, object_name
from exporters.autoscaling.schedule import Week
from exporters.render.text import dump_object, printable_line
from rules.replicas.drain import ROUTING_SECONDS, DrainTime

WIDTH = 110

LONGEST_STABILISATION = 3600
"""Maximum stabilisation in seconds (kubernetes pkg/apis/autoscaling/validation)."""

SHORTEST_PERIOD, LONGEST_PERIOD = 15, 1800
"""Seconds of a policy's period: the HPA's own interval, and the maximum (kubernetes pkg/apis/autoscaling/validation)."""

TOLERATED = 10
"""Replica count from which the default tolerance of 0.1 hides a change by 1 (11 / 10, 9 / 10)."""

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Paragraphs of a leading comment, and the objects below it."""

    head: tuple[str, ...]
    objects: tuple[Object, ...]


def render_manifest(manifest: Manifest) -> str:
    """Return the manifest as YAML for `kubectl apply -f -`."""
    return "---\n".join((comment(manifest.head), *(dump_object(one) for one in manifest.objects)))


def comment(paragraphs: Iterable[str]) -> str:
    """Return paragraphs as YAML comments, separated. A leading blank marks our YAML, kept as is."""
    blocks = (
        "#" + text.replace("\n", "\n#")
        if text.startswith(" ")
        else textwrap.fill(printable_line(text), WIDTH, **_AS_COMMENT)
        for text in paragraphs
    )
    return "\n#\n".join(blocks) + "\n"


_AS_COMMENT: dict[str, Any] = {
    "initial_indent": "# ",
    "subsequent_indent": "# ",
    "break_long_words": False,
    "break_on_hyphens": False,
}


def comment_name(name: str) -> str:
    """Return a tier's name for a comment: a single line of limited length."""
    clean = printable_line(name)
    return clean if len(clean) <= 60 else f"{clean[:57]}..."


def metadata(scaling: Scaling) -> Object:
    """Return name, namespace and labels of an object. An annotation holds the tier's own name."""
    notes = {"sizewatch/tier": scaling.tier, **({"sizewatch/note": scaling.note} if scaling.note else {})}
    return {
        "name": object_name(scaling.tier),
        "namespace": scaling.namespace,
        "labels": {"app.kubernetes.io/name": "sizewatch", "app.kubernetes.io/component": "scaling"},
        "annotations": notes,
    }


def scale_target(scaling: Scaling) -> Object:
    """Return `scaleTargetRef` of the workload."""
    workload = scaling.workload
    return {"apiVersion": WORKLOADS[workload.kind], "kind": workload.kind, "name": workload.name}


def behavior(scaling: Scaling) -> Object:
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
            "policies": [{"type": "Pods", "value": scaling.maximum, "periodSeconds": 15}],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": min(round(max(scaling.hold_seconds, drain)), LONGEST_STABILISATION),
            "selectPolicy": "Max",
            "policies": [{"type": kind, "value": value, "periodSeconds": period} for kind, value in steps],
        },
    }


def behavior_notes(scaling: Scaling) -> tuple[str, ...]:
    """Return the notes on that behaviour in this cluster."""
    notes: list[str] = []
    if scaling.hold_seconds > LONGEST_STABILISATION:
        notes.append(f"Kubernetes holds for at most an hour; {scaling.hold_seconds:g} s were asked for.")
    if scaling.maximum >= TOLERATED:
        notes.append(
            f"From {TOLERATED} replicas on, the autoscaler ignores a change by one: its tolerance is 10 % of what runs. Where "
            "the cluster knows `tolerance` (Kubernetes 1.35 on), set it to 0 under scaleUp and scaleDown."
        )
    return (*notes, *drain_notes(scaling))


def drain_notes(scaling: Scaling) -> tuple[str, ...]:
    """Return the notes on the pods that go: their grace period, and what the engine must do with it."""
    if isinstance(scaling.drain, str):
        return (f"The time that a pod needs to end its requests is not in here: {scaling.drain}.",)
    drain = scaling.drain
    return (
        (
            f"99 % of requests end within {drain.seconds} s. A pod needs terminationGracePeriodSeconds "
            f"{drain.grace_seconds} and a preStop sleep of {ROUTING_SECONDS} s."
        ),
        (
            f"vLLM aborts all requests on SIGTERM unless it is started with --shutdown-timeout {drain.seconds} (0.18 on). "
            "Dynamo's workers drain by themselves."
        ),
    )


def now_notes(scaling: Scaling) -> tuple[str, ...]:
    """Return the present value of the gauge, so that the effect of applying a manifest is clear."""
    cut = f", more than the maximum of {scaling.maximum}" if scaling.recommended > scaling.maximum else ""
    return (f"When this was written, {scaling.recommended} were recommended{cut}.",)


def week_notes(week: Week, scaling: Scaling) -> tuple[str, ...]:
    notes = [f"{scaling.note[0].upper()}{scaling.note[1:]}."] if scaling.note else []
    if scaling.schedule:
        lead = f"{scaling.lead_seconds:.0f} s (the cold start) before they must be warm"
        notes.append(
            f"Times are of {scaling.zone}. Replicas are asked for {lead}; fewer are asked for not a minute early."
        )
    if week.block > 1:
        notes.append(f"The schedule had too many steps: every {week.block} minutes take their highest count.")
    if week.cut:
        notes.append(f"The schedule wants more than the maximum of {scaling.maximum}; it was cut there.")
    return tuple(notes)
