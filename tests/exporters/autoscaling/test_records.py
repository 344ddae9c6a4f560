"""The record that manifests are written from: what it refuses, how names and queries are spelt, what no name can inject."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import time
from typing import Any

import promql_parser
import pytest
import yaml
from scaling_samples import CHAT, HOSTILE, objects

from exporters.autoscaling.manifests import (
    FORMATS,
    LONGEST_NAME,
    ObjectReference,
    Secret,
    manifest_text,
    object_name,
    recommended_query,
)
from exporters.autoscaling.schedule import ScheduleSlot

RFC_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


@pytest.mark.parametrize("tier", HOSTILE)
def test_any_tier_has_a_name_that_kubernetes_takes(tier: str) -> None:
    name = object_name(tier)
    assert RFC_1123.fullmatch(name)
    assert len(name) <= LONGEST_NAME == 52


def test_a_plain_name_stays_and_no_two_tiers_share_one() -> None:
    assert object_name("chat") == "sizewatch-chat"
    tiers = ("a b", "a-b", "A-b", "a_b", "a--b", "x" * 60, "x" * 61, "日本", "日本語", "", "a-b-", "AB", "aB", *HOSTILE)
    assert len({object_name(tier) for tier in tiers}) == len(tiers)


@pytest.mark.parametrize("tier", HOSTILE)
def test_the_query_asks_for_that_tier_and_nothing_else(tier: str) -> None:
    query = recommended_query(tier)
    tree: Any = promql_parser.parse(query)
    selector = tree.expr
    assert (type(tree).__name__, selector.name) == ("AggregateExpr", "sizewatch_recommended_replicas")
    assert [(m.name, m.value) for m in selector.matchers.matchers] == [("tier", tier)]
    assert "<" not in query


@pytest.mark.parametrize("tier", HOSTILE)
@pytest.mark.parametrize("name", FORMATS)
def test_no_name_adds_an_object_or_a_field(name: str, tier: str) -> None:
    plain = objects(CHAT, name)
    hostile = objects(replace(CHAT, tier=tier, note=tier), name)
    assert [(one.get("apiVersion"), one.get("kind")) for one in hostile] == [
        (one.get("apiVersion"), one.get("kind")) for one in plain
    ]
    assert [shape(one, {"sizewatch/note"}) for one in hostile] == [shape(one) for one in plain]
    for one in hostile:
        assert one["metadata"]["annotations"] == {"sizewatch/tier": tier, "sizewatch/note": tier}


def shape(node: Any, left_out: set[str] | frozenset[str] = frozenset()) -> Any:
    """Keys and lengths without the values."""
    if isinstance(node, Mapping):
        return {key: shape(value, left_out) for key, value in node.items() if key not in left_out}
    return [shape(value, left_out) for value in node] if isinstance(node, list) else None


@pytest.mark.parametrize("tier", HOSTILE)
@pytest.mark.parametrize("name", FORMATS)
def test_every_line_of_the_head_is_a_comment(name: str, tier: str) -> None:
    head, _, _ = manifest_text(replace(CHAT, tier=tier), name).partition("\n---\n")
    assert all(re.match("#( |$)", line) for line in head.splitlines())


@pytest.mark.parametrize("name", FORMATS)
def test_every_manifest_begins_with_who_owns_the_replica_field_and_what_not_to_apply(name: str) -> None:
    text = " ".join(manifest_text(CHAT, name).replace("\n#", "").split())
    assert re.match(
        r"# Written by sizewatch for tier chat\. .{,60} owns? the replica field of Deployment vllm-chat", text
    )
    assert "Apply nothing beside" in text


@pytest.mark.parametrize("name", FORMATS)
def test_no_manifest_holds_two_owners(name: str) -> None:
    kinds = [one["kind"] for one in objects(CHAT, name)]
    assert len([kind for kind in kinds if kind in {"ScaledObject", "HorizontalPodAutoscaler"}]) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tier": ""}, "a tier has a name"),
        ({"minimum_warm": 15}, "minimum warm 15 must lie between 0 and the maximum 14"),
        ({"minimum_warm": 0, "maximum": 0}, "must lie between 0 and the maximum 0"),
        ({"lead_seconds": -1.0}, r"a lead of -1\.0 s is none"),
        ({"hold_seconds": 86401.0}, r"a hold of 86401\.0 s is none: it must lie between 0 s and a day"),
        ({"hold_seconds": float("nan")}, "a hold of nan s is none"),
        ({"zone": "Europe/Berlino"}, "is no time zone: use an IANA name"),
        ({"zone": "../etc/passwd"}, "is no time zone"),
        ({"prometheus": "prometheus:9090"}, r"begins with http\(s\)://"),
        ({"namespace": "a b"}, "'a b' is no namespace"),
        ({"namespace": "a.b"}, "'a.b' is no namespace"),
        ({"namespace": "a" * 64}, "is no namespace"),
        (
            {"prometheus": "http://user:pass@prometheus:9090"},
            "no credentials in the address of Prometheus: name a Secret",
        ),
        ({"prometheus": "http://"}, "is no address"),
        ({"token": Secret(name="a", key="a b")}, "'a b' is no key of a Secret"),
        ({"workload": ObjectReference(kind="Deployment", name="x\ny")}, "is no Kubernetes name"),
        (
            {"workload": ObjectReference(kind="Job", name="x")},
            "workload kind 'Job' is not known here; there are Deployment,",
        ),
        ({"token": Secret(name="a b", key="token")}, "secret 'a b' is no Kubernetes name"),
    ],
)
def test_what_no_cluster_takes_is_refused(change: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(CHAT, **change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"start": time(8, 0, 1)}, "a slot starts at a whole local minute"),
        ({"weekdays": ()}, r"weekdays are 0 \(Monday\) to 6"),
        ({"weekdays": (7,)}, "weekdays are 0"),
        ({"replicas": -1}, "-1 replicas cannot be warm"),
    ],
)
def test_a_slot_that_cannot_be_is_refused(change: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(ScheduleSlot(start=time(8), weekdays=(0,), replicas=1), **change)


def test_no_secret_stands_in_any_manifest() -> None:
    scaling = replace(CHAT, token=Secret(name="prometheus-token", key="token"))
    kinds = [one["kind"] for name in FORMATS for one in objects(scaling, name)]
    assert "Secret" not in kinds
    assert "TriggerAuthentication" in kinds


def test_what_is_printed_has_no_anchors_and_reads_back_the_same_everywhere() -> None:
    for name in FORMATS:
        text = manifest_text(CHAT, name)
        assert not re.search(r": [&*]", text)
        assert yaml.safe_load(yaml.safe_dump(objects(CHAT, name))) == objects(CHAT, name)


def test_manifests_are_written_without_numpy() -> None:
    code = "import exporters.autoscaling.manifests, sys; print('numpy' in sys.modules, 'pandas' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]
