"""The CronJobs: one owner, the least rights, and a real kubectl that does with them exactly what its Role allows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from scaling_samples import (
    BEHIND_AIBRIX,
    BEHIND_HPA,
    CHAT,
    HOSTILE,
    SCHEDULES,
    UNSCHEDULED,
    WEEK,
    asked,
    objects,
    times,
)
from waiting import CEILING_SECONDS

from exporters.autoscaling.cronjob import FIELDS, aim_of
from exporters.autoscaling.formats import manifest_text
from exporters.autoscaling.records import AUTOSCALERS, WORKLOADS, ObjectReference, Scaling, ScheduleSlot

BEHIND_KEDA = replace(CHAT, autoscaler=ObjectReference(kind="ScaledObject", name="chat-so"))
OF_SETS = replace(CHAT, workload=ObjectReference(kind="LeaderWorkerSet", name="llama"))
EVERY = {"alone": CHAT, "hpa": BEHIND_HPA, "keda": BEHIND_KEDA, "aibrix": BEHIND_AIBRIX, "sets": OF_SETS}
PATHS = {
    "alone": "/apis/apps/v1/namespaces/llm/deployments/vllm-chat/scale",
    "hpa": "/apis/autoscaling/v2/namespaces/llm/horizontalpodautoscalers/chat-hpa",
    "keda": "/apis/keda.sh/v1alpha1/namespaces/llm/scaledobjects/chat-so",
    "aibrix": "/apis/autoscaling.aibrix.ai/v1alpha1/namespaces/llm/podautoscalers/chat-pa",
    "sets": "/apis/leaderworkerset.x-k8s.io/v1/namespaces/llm/leaderworkersets/llama/scale",
}


def jobs(scaling: Scaling) -> list[dict[str, Any]]:
    return [one for one in objects(scaling, "cronjob") if one["kind"] == "CronJob"]


def pod(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return found


def command(job: dict[str, Any]) -> list[str]:
    words: list[str] = pod(job)["containers"][0]["command"]
    return words


def patch(job: dict[str, Any]) -> dict[str, int]:
    found: dict[str, int] = json.loads(command(job)[-1].removeprefix("--patch="))["spec"]
    return found


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_jobs_replayed_over_a_week_keep_what_the_schedule_asks_for(name: str) -> None:
    scaling = replace(CHAT, schedule=SCHEDULES[name])
    at: dict[int, int] = {}
    for job in jobs(scaling):
        for minute in times(job["spec"]["schedule"]):
            assert minute not in at, "two jobs of one minute would race"
            at[minute] = patch(job)["replicas"]
    now, wanted = at[max(at)], asked(scaling)
    for minute in range(WEEK):
        now = at.get(minute, now)
        assert now >= wanted[minute]
        assert now == wanted[minute] or name == "restless"


@pytest.mark.parametrize("name", ["hpa", "keda", "aibrix"])
def test_where_something_owns_the_replicas_only_its_minimum_is_moved(name: str) -> None:
    text = manifest_text(EVERY[name], "cronjob")
    assert '"replicas"' not in text
    assert "/scale" not in text
    owner = EVERY[name].autoscaler
    assert owner is not None
    assert {key for job in jobs(EVERY[name]) for key in patch(job)} == {FIELDS[owner.kind]}
    assert f"{owner.kind} {owner.name} owns the replica field" in text.replace("\n# ", " ")


def test_every_autoscaler_has_a_bound_to_move() -> None:
    assert set(FIELDS) == set(AUTOSCALERS)


def test_an_hpa_is_never_given_a_minimum_of_none() -> None:
    none = replace(
        CHAT, minimum_warm=0, schedule=tuple(replace(slot, replicas=slot.replicas - 2) for slot in CHAT.schedule)
    )
    assert min(patch(job)["replicas"] for job in jobs(none)) == 0
    behind = replace(none, autoscaler=BEHIND_HPA.autoscaler)
    assert min(patch(job)["minReplicas"] for job in jobs(behind)) == 1


@pytest.mark.parametrize("name", EVERY)
def test_the_role_allows_to_get_and_patch_that_one_object_and_nothing_else(name: str) -> None:
    account, role, binding = objects(EVERY[name], "cronjob")[:3]
    aim = aim_of(EVERY[name])
    assert [one["kind"] for one in (account, role, binding)] == ["ServiceAccount", "Role", "RoleBinding"]
    assert role["rules"] == [
        {
            "apiGroups": [aim.kind.group],
            "resources": [aim.resource],
            "resourceNames": [aim.reference.name],
            "verbs": ["get", "patch"],
        }
    ]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"], "namespace": "llm"}]
    assert account["automountServiceAccountToken"] is False
    assert all(pod(job)["serviceAccountName"] == account["metadata"]["name"] for job in jobs(EVERY[name]))


def test_a_job_runs_as_nobody_on_a_read_only_disk_without_capabilities() -> None:
    for job in jobs(CHAT):
        spec = pod(job)
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
        assert ":" in container["image"]
        assert not container["image"].endswith(":latest")


def test_a_job_that_is_late_does_not_undo_the_next_step() -> None:
    for job in jobs(CHAT):
        assert (job["spec"]["timeZone"], job["spec"]["concurrencyPolicy"]) == ("Europe/Berlin", "Forbid")
        assert job["spec"]["startingDeadlineSeconds"] == 600
        assert job["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"] == 120
    close = replace(CHAT, lead_seconds=0.0, schedule=(*SCHEDULES["days"], replace(SCHEDULES["days"][0], replicas=9)))
    assert jobs(close)[0]["spec"]["startingDeadlineSeconds"] == 600
    near = replace(close.schedule[0], start=close.schedule[0].start.replace(minute=4), replicas=10)
    assert {
        job["spec"]["startingDeadlineSeconds"] for job in jobs(replace(close, schedule=(*close.schedule, near)))
    } == {240}


def test_the_shortest_of_the_days_bounds_how_late_a_job_may_start() -> None:
    slots = [(8, 0, (0, 1), 5), (8, 3, (0,), 2), (9, 0, (1,), 2)]
    schedule = tuple(ScheduleSlot(start=time(h, m), weekdays=days, replicas=count) for h, m, days, count in slots)
    scaling = replace(CHAT, lead_seconds=0.0, schedule=schedule)
    assert {job["spec"]["startingDeadlineSeconds"] for job in jobs(scaling)} == {180}


def test_without_a_schedule_it_says_what_to_use_instead() -> None:
    with pytest.raises(
        ValueError, match=r"has no schedule yet, and CronJobs know nothing else: .* --format keda or hpa"
    ):
        manifest_text(UNSCHEDULED, "cronjob")


@pytest.mark.parametrize("tier", HOSTILE)
def test_names_of_jobs_leave_room_for_what_kubernetes_adds(tier: str) -> None:
    names = [one["metadata"]["name"] for one in objects(replace(CHAT, tier=tier), "cronjob")]
    assert all(len(name) <= 52 for name in names)
    assert len(set(names)) == len(names) - 2, "account, role and binding share one"


@pytest.mark.server
@pytest.mark.parametrize("name", EVERY)
def test_a_real_kubectl_asks_for_nothing_that_the_role_does_not_allow(name: str, tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: the jobs' command was NOT run")
    job = jobs(EVERY[name])[0]
    with stand_in(PATHS[name]) as (url, seen):
        ran = subprocess.run(
            [*command(job), f"--server={url}"],
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": os.devnull},
            capture_output=True,
            text=True,
            timeout=CEILING_SECONDS,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    assert [(verb, path) for verb, path, _ in seen] == [("GET", PATHS[name]), ("PATCH", PATHS[name])]
    assert json.loads(seen[1][2]) == {"spec": patch(job)}


@contextmanager
def stand_in(path: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """An API server that knows the kinds of our tables and holds one object; yields what was asked beside discovery."""
    seen: list[tuple[str, str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def result(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            asked_for = self.path.partition("?")[0]
            data = discovery().get(asked_for)
            if data is None:
                seen.append((self.command, asked_for, body))
                data = {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": path.split("/")[-2]}}
            text = json.dumps(data).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PATCH = result  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Silent: the test asserts on what was asked."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def discovery() -> dict[str, Any]:
    """What a server tells about itself, by path."""
    kinds = {**WORKLOADS, **AUTOSCALERS}
    groups = {kind.group: kind.api_version for kind in kinds.values()}
    versions = {group: {"groupVersion": api, "version": api.rpartition("/")[2]} for group, api in groups.items()}
    pages: dict[str, Any] = {
        "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.1"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
        "/apis": {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [{"name": g, "versions": [v], "preferredVersion": v} for g, v in versions.items()],
        },
    }
    for api in groups.values():
        rows = [
            {"name": kind.plural + sub, "singularName": "", "namespaced": True, "kind": name, "verbs": ["get", "patch"]}
            for name, kind in kinds.items()
            if kind.api_version == api
            for sub in ("", "/scale")
        ]
        pages[f"/apis/{api}"] = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api, "resources": rows}
    return pages
