"""The ScaledObject: what KEDA's schema takes, and what KEDA would do with it, minute by minute."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import jsonschema
import pytest
import yaml
from paths import SHARED
from scaling_samples import CHAT, HOSTILE, SCHEDULES, UNSCHEDULED, WEEK, asked, objects, times

from exporters.autoscaling.manifests import ObjectReference, Scaling, Secret, manifest_text

CRD = SHARED / "infra" / "k8s" / "crds" / "keda.sh_scaledobjects.yaml"
EVERY = {
    "plain": CHAT,
    "no schedule": UNSCHEDULED,
    "token": replace(CHAT, token=Secret(name="prom", key="token")),
    "long": replace(CHAT, hold_seconds=86400.0),
    "to none": replace(UNSCHEDULED, minimum_warm=0),
    "stateful": replace(CHAT, workload=ObjectReference(kind="StatefulSet", name="vllm")),
    **{f"hostile {place}": replace(CHAT, tier=tier, note=tier) for place, tier in enumerate(HOSTILE)},
}


def scaled_object(scaling: Scaling) -> dict[str, Any]:
    return next(one for one in objects(scaling, "keda") if one["kind"] == "ScaledObject")


def schema() -> dict[str, Any]:
    if not CRD.is_file():
        pytest.skip(f"{CRD} is not here: the ScaledObject was NOT checked against KEDA's schema")
    versions = yaml.safe_load(CRD.read_text(encoding="utf-8"))["spec"]["versions"]
    found = next(version["schema"]["openAPIV3Schema"] for version in versions if version["name"] == "v1alpha1")
    strict: dict[str, Any] = json.loads(json.dumps(found), object_hook=closed)
    strict["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    return strict


def closed(node: dict[str, Any]) -> dict[str, Any]:
    """Unknown fields are errors, and an int-or-string is either."""
    if node.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if isinstance(node.get("properties"), dict) and node.get("type") == "object":
        return {"additionalProperties": False, **node}
    return node


@pytest.mark.parametrize("scaling", EVERY.values(), ids=EVERY)
def test_kedas_own_schema_takes_it(scaling: Scaling) -> None:
    one = scaled_object(scaling)
    jsonschema.validate(one, schema())
    spec = one["spec"]
    assert spec["minReplicaCount"] <= spec["maxReplicaCount"], "the rule of the CRD that no schema says"
    assert all(isinstance(value, str) for trigger in spec["triggers"] for value in trigger["metadata"].values())


@pytest.mark.parametrize("broken", [{"treshold": 1}, {"minReplicaCount": "2"}, {"fallback": {"replicas": 1}}])
def test_the_schema_would_see_a_mistake(broken: dict[str, Any]) -> None:
    one = scaled_object(CHAT)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**one, "spec": {**one["spec"], **broken}}, schema())


def test_the_gauge_is_the_count() -> None:
    trigger = scaled_object(CHAT)["spec"]["triggers"][0]
    assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")
    assert trigger["metadata"] == {
        "serverAddress": "http://prometheus.monitoring:9090",
        "query": 'max(sizewatch_recommended_replicas{tier="chat"})',
        "threshold": "1",
        "ignoreNullValues": "false",
    }
    assert "authenticationRef" not in trigger


def test_while_sizewatch_is_away_nothing_shrinks_and_at_least_one_stays() -> None:
    assert scaled_object(CHAT)["spec"]["fallback"] == {
        "failureThreshold": 3,
        "replicas": 2,
        "behavior": "currentReplicasIfHigher",
    }
    none = scaled_object(replace(UNSCHEDULED, minimum_warm=0))["spec"]
    assert (none["minReplicaCount"], none["fallback"]["replicas"], none["cooldownPeriod"]) == (0, 1, 600)
    assert "cooldownPeriod" not in scaled_object(CHAT)["spec"], "KEDA uses it for the way to zero alone"


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_cron_triggers_alone_keep_what_the_schedule_asks_for(name: str) -> None:
    scaling = replace(CHAT, schedule=SCHEDULES[name])
    spec = scaled_object(scaling)["spec"]
    triggers = [trigger["metadata"] for trigger in spec["triggers"] if trigger["type"] == "cron"]
    assert {trigger["timezone"] for trigger in triggers} <= {"Europe/Berlin"}
    counts = [max([spec["minReplicaCount"], *(want(t, minute) for t in spans(triggers))]) for minute in range(WEEK)]
    wanted = asked(scaling)
    assert all(have >= need for have, need in zip(counts, wanted, strict=True))
    if name != "restless":
        assert counts == wanted


def spans(triggers: list[dict[str, str]]) -> list[tuple[list[int], list[int], int]]:
    assert all(trigger["start"] != trigger["end"] for trigger in triggers), "KEDA refuses them"
    return [(times(one["start"]), times(one["end"]), int(one["desiredReplicas"])) for one in triggers]


def want(span: tuple[list[int], list[int], int], minute: int) -> int:
    """KEDA's cron_scaler.go: inactive where the next start comes before the next end; inactive asks for 1."""
    starts, ends, replicas = span
    following = [min(t + WEEK * (t <= minute) for t in these) for these in (starts, ends)]
    return 1 if following[0] < following[1] else replicas


def test_up_is_at_once_and_down_waits_for_the_hold() -> None:
    both = scaled_object(CHAT)["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    up, down = both["scaleUp"], both["scaleDown"]
    assert (up["stabilizationWindowSeconds"], down["stabilizationWindowSeconds"]) == (0, 600)
    assert [len(way["policies"]) for way in (up, down)] == [1, 1]
    assert up["policies"][0] == {"type": "Pods", "value": 14, "periodSeconds": 15}, (
        "from none to the maximum in one step"
    )
    long = scaled_object(replace(CHAT, hold_seconds=7200.0))["spec"]["advanced"]["horizontalPodAutoscalerConfig"]
    assert long["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 3600, "Kubernetes takes no more"
    assert "at most an hour; 7200 s were asked for" in manifest_text(replace(CHAT, hold_seconds=7200.0), "keda")


def test_the_tolerance_that_hides_one_replica_in_ten_is_told() -> None:
    hidden = "ignores a change by one"
    assert hidden in manifest_text(CHAT, "keda")
    assert hidden not in manifest_text(replace(CHAT, maximum=9), "keda")


def test_a_token_is_a_reference_to_a_secret() -> None:
    first, second = objects(EVERY["token"], "keda")
    assert first["kind"] == "TriggerAuthentication"
    assert first["spec"] == {"secretTargetRef": [{"parameter": "bearerToken", "name": "prom", "key": "token"}]}
    trigger = second["spec"]["triggers"][0]
    assert trigger["authenticationRef"] == {"name": first["metadata"]["name"]}
    assert trigger["metadata"]["authModes"] == "bearer"
    assert [one["metadata"]["namespace"] for one in (first, second)] == ["llm", "llm"]


def test_the_head_tells_what_was_done_to_the_schedule() -> None:
    assert "every 240 minutes" not in manifest_text(CHAT, "keda")
    assert "take their highest count" in manifest_text(replace(CHAT, schedule=SCHEDULES["restless"]), "keda")
    assert "more than the maximum of 9" in manifest_text(replace(CHAT, maximum=9), "keda")
    assert "207 s (the cold start) before" in manifest_text(CHAT, "keda").replace("\n# ", " ")
    assert "Times are of" not in manifest_text(UNSCHEDULED, "keda")


def test_the_head_says_what_will_follow() -> None:
    assert "6 were recommended." in manifest_text(CHAT, "keda")
    assert "16 were recommended, more than the maximum of 14." in manifest_text(replace(CHAT, recommended=16), "keda")


def test_an_address_may_end_in_a_slash() -> None:
    trigger = scaled_object(replace(CHAT, prometheus="https://mimir/prometheus/"))["spec"]["triggers"][0]
    assert trigger["metadata"]["serverAddress"] == "https://mimir/prometheus"


def test_windows_follow_one_another_without_a_gap() -> None:
    triggers = [one["metadata"] for one in scaled_object(CHAT)["spec"]["triggers"][1:]]
    workdays = [one for one in triggers if one["start"].endswith("1-5")]
    assert [one["desiredReplicas"] for one in workdays] == ["8", "11", "3"]
    assert all(a["end"] == b["start"] for a, b in pairwise(workdays))
