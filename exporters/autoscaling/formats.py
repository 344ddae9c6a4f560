"""Manifest formats by the name in `sizewatch prewarm --format`, and the patch of an AIBrix PodAutoscaler.

AIBrix has schedules since vllm-project/aibrix pull request 2529 (August 2026), API `autoscaling/v1alpha1`, package
`scheduledbounds`. An entry has `name`, `timezone`, `cron`, `duration` and its bounds. Its cron takes a minute, hours,
`* *` and weekdays. Windows must not overlap and last a week at most, which runs of a week satisfy. An older AIBrix
drops the field. Use CronJobs there (`exporters.autoscaling.cronjob`, with the PodAutoscaler as the autoscaler).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from exporters.autoscaling.cronjob import cronjobs
from exporters.autoscaling.hpa import hpa, keda
from exporters.autoscaling.manifests import Manifest, Object, comment_name, drain_patch, render_manifest, week_notes
from exporters.autoscaling.records import AUTOSCALERS, Scaling
from exporters.autoscaling.schedule import CronEntry, Week, week_of

KIND = "PodAutoscaler"
DRAIN = "drain"
"""Format that patches the workload itself and needs no count."""


def aibrix(scaling: Scaling) -> Manifest:
    """Return a merge patch for the PodAutoscaler that `scaling.autoscaler` names.

    Raise ValueError if it is missing or of another kind.
    """
    if scaling.autoscaler is None or scaling.autoscaler.kind != KIND:
        raise ValueError(
            f"tier {comment_name(scaling.tier)}: a schedule for AIBrix needs the name of the {KIND} that owns the replicas"
        )
    week = week_of(scaling)
    patch: Object = {
        "apiVersion": AUTOSCALERS[KIND].api_version,
        "kind": KIND,
        "metadata": {"name": scaling.autoscaler.name, "namespace": scaling.namespace},
        "spec": {
            "minReplicas": week.floor,
            "maxReplicas": scaling.maximum,
            "scheduledBounds": [_bound(scaling, place, entry) for place, entry in enumerate(week.entries)],
        },
    }
    return Manifest(head=_head(scaling, week, scaling.autoscaler.name), objects=(patch,))


def _head(scaling: Scaling, week: Week, name: str) -> tuple[str, ...]:
    where = f"-n {scaling.namespace} podautoscaler {name}"
    return (
        (
            f"Written by sizewatch for tier {comment_name(scaling.tier)}. The PodAutoscaler {name} owns the replica field of "
            f"{scaling.workload.kind} {scaling.workload.name}; this patch moves its bounds by the schedule and nothing else."
        ),
        (
            "Apply nothing beside it that sets replicas or these bounds: no HorizontalPodAutoscaler of your own, no "
            "ScaledObject, no CronJob, and neither minReplicas, maxReplicas nor scheduledBounds in what is deployed."
        ),
        (
            f"Apply it with: kubectl patch {where} --type merge --patch-file FILE. It replaces all of scheduledBounds. Then "
            f"see that it is there: kubectl get {where} -o jsonpath={{.spec.scheduledBounds}}. AIBrix before its pull request "
            "2529 (August 2026) has no such field and drops it in silence: use --format cronjob there."
        ),
        (
            "It needs neither sizewatch nor Prometheus to run. In the night that the clock is changed a window begins or ends "
            "an hour off: AIBrix counts its length in hours, not to an hour of the clock."
        ),
        *week_notes(week, scaling),
    )


def _bound(scaling: Scaling, place: int, entry: CronEntry) -> Object:
    return {
        "name": f"sizewatch-{place + 1:02}",
        "timezone": scaling.zone,
        "cron": entry.start,
        "duration": _duration(entry.minutes),
        "minReplicas": entry.replicas,
    }


def _duration(minutes: int) -> str:
    """Return a Go duration: 45m, 2h, 2h30m."""
    hours, rest = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{rest}m" if rest else "")


FORMATS: Mapping[str, Callable[[Scaling], Manifest]] = {
    "keda": keda,
    "hpa": hpa,
    "cronjob": cronjobs,
    "aibrix": aibrix,
    DRAIN: drain_patch,
}

NEW_OWNERS = frozenset({"keda", "hpa"})
"""Formats that create an owner of the replica field. No other owner may exist."""


def manifest_text(scaling: Scaling, name: str) -> str:
    """Return the manifests of a format as YAML. Raise KeyError if unknown, ValueError if not writable."""
    if name in NEW_OWNERS and (owner := scaling.autoscaler) is not None:
        raise ValueError(
            f"{owner.kind} {owner.name} owns the replicas, and {name} would be a second owner: remove it and name no "
            "autoscaler, or keep it and write cronjob, which moves its minimum"
        )
    return render_manifest(FORMATS[name](scaling))
