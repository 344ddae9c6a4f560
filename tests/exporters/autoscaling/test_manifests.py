"""Manifests: what KEDA and Kubernetes take, what they would do minute by minute, and what no name can inject."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import jsonschema
import promql_parser
import pytest
import yaml
from golden_text import check_golden
from paths import SHARED

from exporters.autoscaling.manifests import (
    FORMATS,
    LONGEST_NAME,
    ObjectReference,
    Scaling,
    Secret,
    list_cron_entries,
    manifest_text,
    metric_name,
    object_name,
    recommended_query,
)
from forecast.capacity.drain import DrainTime
from forecast.capacity.prewarm import ScheduleStep
from rules.telemetry.signals import Reading

DAY = 1440
MIDNIGHT = datetime(2026, 7, 6, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()


def steps(replicas_from: dict[int, int]) -> tuple[ScheduleStep, ...]:
    """Steps of replicas by the minutes from local midnight."""
    return tuple(
        ScheduleStep(start=MIDNIGHT + minute * 60, replicas=replicas, demand_rps=1.0)
        for minute, replicas in replicas_from.items()
    )


SCHEDULES = {
    "day": {480: 8, 750: 11, 1140: 3, 1320: 2},
    "night over midnight": {1430: 9, 1620: 5, 1800: 2},
    "early morning": {1: 9, 600: 3},
    "flat": {540: 6},
}

CHAT = Scaling(
    tier="chat",
    namespace="llm",
    workload=ObjectReference(kind="Deployment", name="vllm-chat"),
    minimum_warm=2,
    maximum=14,
    zone="Europe/Berlin",
    prometheus="http://prometheus.monitoring:9090",
    lead_seconds=207.0,
    recommended=6,
    schedule=steps(SCHEDULES["day"]),
    note="schedule of the day that follows, repeated every day",
)
UNSCHEDULED = replace(CHAT, schedule=(), note="")
DRAINED = replace(CHAT, drain=DrainTime(e2e_p99=Reading(value=37.5, low=30.0, high=40.0, n=5000.0)))

HOSTILE = (
    'say "hi" {to} me',
    "x" * 200,
    "a\n---\nkind: Secret\n# b",
    "tier: {{ .Values }} <<.Series>>",
    "back\\slash and 'quotes'",
    "日本語 🦙\u2028\x85 end",
    "--",
    "bell \x07 and \x1b[31mred\x7f",
)


def objects(scaling: Scaling, name: str) -> list[dict[str, Any]]:
    """The objects of a manifest, read back from its text."""
    return [data for data in yaml.safe_load_all(manifest_text(scaling, name)) if data]


def asked(scaling: Scaling, schedule: dict[int, int]) -> list[int]:
    """What must be asked for in each minute of a day: the most that is needed from now until the lead has passed."""
    needed = []
    by_minute = {minute % DAY: replicas for minute, replicas in schedule.items()}
    now = by_minute[max(by_minute)]
    for minute in range(DAY):
        now = by_minute.get(minute, now)
        needed.append(min(max(now, scaling.minimum_warm), scaling.maximum))
    lead = -(-int(scaling.lead_seconds) // 60)
    return [max(needed[(minute + ahead) % DAY] for ahead in range(lead + 1)) for minute in range(DAY)]


CRD = SHARED / "infra" / "k8s" / "crds" / "keda.sh_scaledobjects.yaml"
TOKEN = Secret(name="prom", key="token")
VARIANTS = {
    "plain": CHAT,
    "no schedule": UNSCHEDULED,
    "token": replace(CHAT, token=TOKEN),
    "drained": DRAINED,
    "stateful": replace(CHAT, workload=ObjectReference(kind="StatefulSet", name="vllm")),
    **{f"hostile {place}": replace(CHAT, tier=tier, note=tier) for place, tier in enumerate(HOSTILE)},
}


def scaled_object(scaling: Scaling) -> dict[str, Any]:
    return next(data for data in objects(scaling, "keda") if data["kind"] == "ScaledObject")


def schema() -> dict[str, Any]:
    if not CRD.is_file():
        pytest.skip(f"{CRD} is not here: the ScaledObject was NOT checked against KEDA's schema")
    versions = yaml.safe_load(CRD.read_text(encoding="utf-8"))["spec"]["versions"]
    v1alpha1 = next(version["schema"]["openAPIV3Schema"] for version in versions if version["name"] == "v1alpha1")
    strict: dict[str, Any] = json.loads(json.dumps(v1alpha1), object_hook=closed)
    strict["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    return strict


def closed(node: dict[str, Any]) -> dict[str, Any]:
    """Unknown fields are errors, and an int-or-string is either."""
    if node.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if isinstance(node.get("properties"), dict) and node.get("type") == "object":
        return {"additionalProperties": False, **node}
    return node


@pytest.mark.parametrize("scaling", VARIANTS.values(), ids=VARIANTS)
def test_kedas_own_schema_takes_it(scaling: Scaling) -> None:
    data = scaled_object(scaling)
    jsonschema.validate(data, schema())
    assert data["spec"]["minReplicaCount"] <= data["spec"]["maxReplicaCount"], "the rule of the CRD that no schema says"
    triggers = data["spec"]["triggers"]
    assert all(isinstance(value, str) for trigger in triggers for value in trigger["metadata"].values())


@pytest.mark.parametrize("broken", [{"treshold": 1}, {"minReplicaCount": "2"}, {"fallback": {"replicas": 1}}])
def test_the_schema_would_see_a_mistake(broken: dict[str, Any]) -> None:
    data = scaled_object(CHAT)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "spec": {**data["spec"], **broken}}, schema())


@pytest.mark.parametrize("name", FORMATS)
def test_manifest_is_its_golden_file(name: str) -> None:
    """Both follow the gauge and scale down alike; with a token KEDA logs in."""
    scaling = replace(DRAINED, token=TOKEN, prometheus="https://mimir/prometheus/")
    check_golden(__file__, f"{name}.yaml", manifest_text(scaling, name))
    assert "authenticationRef" not in scaled_object(CHAT)["spec"]["triggers"][0]


@pytest.mark.parametrize(
    ("seconds", "hold", "period", "policies"),
    [(None, 60, 15, 1), (5.0, 60, 15, 2), (300.0, 300, 300, 2), (7680.0, 3600, 1800, 2)],
)
def test_a_step_down_waits_for_the_drain(seconds: float | None, hold: int, period: int, policies: int) -> None:
    """Kubernetes takes a window of an hour and a period of half an hour at most."""
    drain = DrainTime(e2e_p99=Reading(value=1.0, low=0.5, high=seconds, n=500.0)) if seconds else "not read"
    down = objects(replace(CHAT, drain=drain), "hpa")[0]["spec"]["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] == hold
    assert [policy["periodSeconds"] for policy in down["policies"]] == [period] * policies


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("lead", [0.0, 1.0, 60.0, 207.0, 3600.0])
def test_the_cron_triggers_ask_for_every_minute(name: str, lead: float) -> None:
    scaling = replace(CHAT, schedule=steps(SCHEDULES[name]), lead_seconds=lead)
    spec = scaled_object(scaling)["spec"]
    counts = [spec["minReplicaCount"]] * DAY
    for trigger in spec["triggers"][1:]:
        start, end = (minute_of(trigger["metadata"][edge]) for edge in ("start", "end"))
        assert start != end, "KEDA refuses it"
        for minute in range(start, end if end > start else end + DAY):
            counts[minute % DAY] = int(trigger["metadata"]["desiredReplicas"])
    assert counts == asked(scaling, SCHEDULES[name])


def minute_of(cron: str) -> int:
    """The minute of the day at which a daily cron expression fires."""
    minute, hour, *rest = cron.split()
    assert rest == ["*", "*", "*"]
    return int(hour) * 60 + int(minute)


def test_counts_stay_between_minimum_and_maximum() -> None:
    floor, entries = list_cron_entries(replace(CHAT, minimum_warm=4, maximum=9))
    assert (floor, [replicas for _, _, replicas in entries]) == (4, [8, 9])
    assert list_cron_entries(UNSCHEDULED) == (2, [])


def test_repeated_hour_takes_higher_step() -> None:
    back = datetime(2026, 10, 25, 0, 0, tzinfo=UTC).timestamp()  # 02:00 in Berlin, and an hour later again
    twice = tuple(
        ScheduleStep(start=back + after, replicas=count, demand_rps=1.0) for after, count in ((0, 7), (3600, 4))
    )
    assert list_cron_entries(replace(CHAT, schedule=twice)) == (7, [])


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        ({"recommended": 16}, "keda", "16 were recommended, more than the maximum of 14."),
        ({"maximum": 9}, "hpa", "6 were recommended. The time that a pod needs"),
        ({}, "keda", "is not in here: the duration of requests was not read."),
    ],
)
def test_comment_names_owner_and_consequence(change: dict[str, Any], name: str, words: str) -> None:
    comment = manifest_text(replace(CHAT, **change), name).partition("\n---\n")[0]
    assert words in " ".join(comment.replace("#", " ").split())


@pytest.mark.parametrize("tier", ["chat", *HOSTILE])
def test_adapter_serves_metric_of_tier(tier: str) -> None:
    head = manifest_text(replace(CHAT, tier=tier), "hpa").partition("\n---\n")[0]
    rule_text = "\n".join(line.removeprefix("# ") for line in head[head.index("# externalRules") :].split("\n"))
    (rule,) = yaml.safe_load(rule_text)["externalRules"]
    assert rule["metricsQuery"] == recommended_query(tier)
    for query in (rule["seriesQuery"], rule["metricsQuery"]):
        tree: Any = promql_parser.parse(query)
        selector = getattr(tree, "expr", tree)
        assert selector.name == "sizewatch_recommended_replicas"
        assert [(matcher.name, matcher.value) for matcher in selector.matchers.matchers] == [("tier", tier)]
        assert "<" not in query, "the adapter would expand it"
    assert rule["resources"] == {"namespaced": False}
    assert rule["name"] == {"matches": "^sizewatch_recommended_replicas$", "as": metric_name(tier)}
    metric = objects(replace(CHAT, tier=tier), "hpa")[0]["spec"]["metrics"][0]["external"]["metric"]["name"]
    assert metric == metric_name(tier)
    assert re.fullmatch("[a-z0-9_]+", metric)


def test_names_are_valid_in_kubernetes() -> None:
    assert object_name("chat") == "sizewatch-chat"
    tiers = ("a b", "a-b", "A-b", "a_b", "a--b", "x" * 60, "x" * 61, "日本", "日本語", "", "a-b-", "AB", "aB", *HOSTILE)
    assert len({object_name(tier) for tier in tiers}) == len({metric_name(tier) for tier in tiers}) == len(tiers)
    for tier in tiers:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", object_name(tier))
        assert len(object_name(tier)) <= LONGEST_NAME == 52


@pytest.mark.parametrize("tier", HOSTILE)
@pytest.mark.parametrize("name", FORMATS)
def test_hostile_name_adds_no_field(name: str, tier: str) -> None:
    hostile = replace(CHAT, tier=tier, note=tier, drain=tier)
    assert [shape(data) for data in objects(hostile, name)] == [shape(data) for data in objects(CHAT, name)]
    assert objects(hostile, name)[0]["metadata"]["annotations"] == {"sizewatch/tier": tier}
    text = manifest_text(hostile, name)
    assert all(line.isprintable() for line in text.split("\n"))


def shape(data: object) -> object:
    if isinstance(data, dict):
        return {key: shape(value) for key, value in data.items() if key != "annotations"}
    return [shape(part) for part in data] if isinstance(data, list) else type(data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"minimum_warm": 0}, "minimum warm 0 must lie between 1 and the maximum 14"),
        ({"maximum": 1}, "minimum warm 2 must lie between 1 and the maximum 1"),
        ({"namespace": "LLM"}, "'LLM' is no namespace"),
        ({"prometheus": "prometheus:9090"}, "is no address of a Prometheus server"),
        ({"prometheus": "http://"}, "is no address"),
        ({"prometheus": "https://me:secret@prometheus"}, "no credentials in the address"),
        ({"token": Secret(name="a", key="a b")}, "'a b' is no key of a Secret"),
        ({"token": Secret(name="a b", key="token")}, "'a b' is no Kubernetes name"),
        ({"workload": ObjectReference(kind="Deployment", name="x\ny")}, "is no Kubernetes name"),
        ({"workload": ObjectReference(kind="Job", name="x")}, "'Job' is not known here; there are Deployment,"),
    ],
)
def test_what_no_cluster_takes_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        replace(CHAT, **change)


RELEASES = ("1.30", "1.34", "1.37")


@pytest.mark.parametrize("release", RELEASES)
def test_kubernetes_own_schemas_take_every_object(release: str) -> None:
    library: Any = pytest.importorskip(
        "kubernetes_validate",
        reason="kubernetes-validate is not installed: manifests were NOT checked against Kubernetes",
    )
    tiers = [CHAT, *(replace(CHAT, tier=tier, note=tier) for tier in HOSTILE)]
    for one in (one for scaling in tiers for one in objects(scaling, "hpa")):
        library.validate(one, release, strict=True)
    first = objects(CHAT, "hpa")[0]
    with pytest.raises(library.ValidationError):
        library.validate({**first, "spec": {**first["spec"], "minReplica": 1}}, release, strict=True)
