"""CronJobs that set replicas of a workload, or the lower bound of its autoscaler, by the schedule.

If the replica field has an owner (`Scaling.autoscaler`), the jobs set only the owner's minimum. Each job may get and
patch only that object by name. It runs as an unprivileged user on a read-only disk without capabilities.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from exporters.autoscaling.manifests import Manifest, Object, comment_name, metadata, week_notes
from exporters.autoscaling.records import AUTOSCALERS, WORKLOADS, ObjectKind, ObjectReference, Scaling
from exporters.autoscaling.schedule import CronEntry, Week, week_of

IMAGE = "registry.k8s.io/kubectl:v1.34.1"
"""kubectl image of the Kubernetes project. Its user is set in the job."""

NOBODY = 65532

LATEST_START_SECONDS = 600
"""Start deadline in seconds, or until the next step if sooner. A later job is skipped, as the next step counts."""

FIELDS: Mapping[str, str] = {
    "HorizontalPodAutoscaler": "minReplicas",
    "ScaledObject": "minReplicaCount",
    "PodAutoscaler": "minReplicas",
}
"""Lower bound field in the spec of each autoscaler."""

LOWEST: Mapping[str, int] = {"HorizontalPodAutoscaler": 1}
"""Minimum of the bound by autoscaler, 0 for all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTarget:
    """Object and number that a job sets."""

    reference: ObjectReference
    kind: ObjectKind
    subresource: str
    field: str
    lowest: int

    @property
    def resource(self) -> str:
        """Return the resource name for RBAC."""
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural

    @property
    def words(self) -> str:
        return f"{self.reference.kind} {self.reference.name}"


def cronjobs(scaling: Scaling) -> Manifest:
    """Return a ServiceAccount, a Role, a RoleBinding, and a CronJob for every step of the week.

    Raise ValueError without a schedule.
    """
    week = week_of(scaling)
    if not week.changes:
        raise ValueError(
            f"tier {comment_name(scaling.tier)} has no schedule yet, and CronJobs know nothing else: "
            "wait for a day of history, or use --format keda or hpa"
        )
    aim = aim_of(scaling)
    jobs = (_job(scaling, aim, week, place, change) for place, change in enumerate(week.changes))
    return Manifest(head=_head(scaling, aim, week), objects=(*_rights(scaling, aim), *jobs))


def aim_of(scaling: Scaling) -> ScaleTarget:
    """Return the owner of the replica field, else the workload itself."""
    if (owner := scaling.autoscaler) is not None:
        lowest = LOWEST.get(owner.kind, 0)
        field = FIELDS[owner.kind]
        return ScaleTarget(reference=owner, kind=AUTOSCALERS[owner.kind], subresource="", field=field, lowest=lowest)
    work = scaling.workload
    return ScaleTarget(reference=work, kind=WORKLOADS[work.kind], subresource="scale", field="replicas", lowest=0)


def _head(scaling: Scaling, aim: ScaleTarget, week: Week) -> tuple[str, ...]:
    target = f"{scaling.workload.kind} {scaling.workload.name}"
    if scaling.autoscaler is None:
        owner = (
            (
                f"Written by sizewatch for tier {comment_name(scaling.tier)}. "
                f"These CronJobs own the replica field of {target}: they set "
                "it by the schedule, and nothing answers traffic that the schedule did not expect."
            ),
            (
                f"Apply nothing beside them that sets replicas of {target}: no HorizontalPodAutoscaler, no ScaledObject, no "
                "PodAutoscaler, and no spec.replicas in what is deployed. Where there is one, name it as the autoscaler: the jobs "
                "then move its minimum."
            ),
        )
    else:
        owner = (
            (
                f"Written by sizewatch for tier {comment_name(scaling.tier)}. "
                f"{aim.words} owns the replica field of {target}; these "
                f"CronJobs move its spec.{aim.field} by the schedule and never the replicas themselves."
            ),
            (
                f"Apply nothing beside them that sets spec.{aim.field} of {aim.words}: leave the field out of what is deployed, "
                "or each deployment undoes the schedule."
            ),
        )
    away = (
        "They need neither sizewatch nor Prometheus to run. The schedule is as old as this file: print and apply it anew when "
        "sizewatch says that it has changed."
    )
    return (*owner, away, *week_notes(week, scaling))


def _rights(scaling: Scaling, aim: ScaleTarget) -> tuple[Object, ...]:
    name = metadata(scaling, "schedule")["name"]
    rule = {
        "apiGroups": [aim.kind.group],
        "resources": [aim.resource],
        "resourceNames": [aim.reference.name],
        "verbs": ["get", "patch"],
    }
    rbac = "rbac.authorization.k8s.io"
    return (
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata(scaling, "schedule"),
            "automountServiceAccountToken": False,
        },
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata(scaling, "schedule"), "rules": [rule]},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": metadata(scaling, "schedule"),
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": scaling.namespace}],
        },
    )


def _job(scaling: Scaling, aim: ScaleTarget, week: Week, place: int, change: CronEntry) -> Object:
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": metadata(scaling, f"{place + 1:02}"),
        "spec": {
            "schedule": change.start,
            "timeZone": scaling.zone,
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": min(LATEST_START_SECONDS, week.shortest * 60),
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {"spec": _job_spec(scaling, command(scaling, aim, change.replicas))},
        },
    }


def command(scaling: Scaling, aim: ScaleTarget, replicas: int) -> list[str]:
    """Return the command of a job, which runs without a shell."""
    patch = json.dumps({"spec": {aim.field: max(replicas, aim.lowest)}}, separators=(",", ":"))
    part = [f"--subresource={aim.subresource}"] if aim.subresource else []
    resource = f"{aim.kind.plural}.{aim.kind.group}"
    return [
        *("kubectl", "patch", resource, aim.reference.name, f"--namespace={scaling.namespace}"),
        *part,
        *("--type=merge", f"--patch={patch}"),
    ]


def _job_spec(scaling: Scaling, words: list[str]) -> Object:
    container = {
        "name": "kubectl",
        "image": IMAGE,
        "command": words,
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {
        "serviceAccountName": metadata(scaling, "schedule")["name"],
        "automountServiceAccountToken": True,
        "restartPolicy": "Never",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": NOBODY,
            "runAsGroup": NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    return {"backoffLimit": 3, "activeDeadlineSeconds": 120, "ttlSecondsAfterFinished": 3600, "template": {"spec": pod}}
