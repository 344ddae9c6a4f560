"""Least privilege, object by object: what a manifest asks for is what is listed here and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployed import Json, Key, base, containers, overlay, pods
from deployed import with_components as overlay_with

PARTS = ("node", "fleet", "standalone")
TIGHT = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
HOST = ("hostNetwork", "hostPID", "hostIPC", "hostUsers", "shareProcessNamespace")

READS: dict[str, list[Any]] = {
    "node": [[[""], ["pods"], ["list", "watch"], []]],
    "fleet": [],
}
READS["standalone"] = READS["node"]
"""Every permission that there is."""


def rules(objects: dict[Key, Json]) -> list[Any]:
    return [
        [rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames", [])]
        for one in objects.values()
        for rule in one.get("rules", ())
    ]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_may_ask_the_api_server_for_this_and_nothing_else(part: str) -> None:
    objects = base(part)
    assert rules(objects) == READS[part]
    words = str(rules(objects))
    assert "*" not in words
    assert "secrets" not in words
    roles = {name for kind, name in objects if kind == "ClusterRole"}
    for (kind, _), one in objects.items():
        if kind.endswith("Binding"):
            assert one["roleRef"]["name"] in roles
            assert [(s["kind"], s["name"]) for s in one["subjects"]] == [("ServiceAccount", f"sizewatch-{part}")]


@pytest.mark.parametrize("part", PARTS)
def test_a_token_is_mounted_only_where_a_pod_asks_for_it(part: str) -> None:
    objects = base(part)
    assert objects["ServiceAccount", f"sizewatch-{part}"]["automountServiceAccountToken"] is False
    for spec in pods(objects).values():
        assert spec["automountServiceAccountToken"] is (part != "fleet"), "the fleet asks the API server nothing"
        assert spec["enableServiceLinks"] is False


@pytest.mark.parametrize("part", PARTS)
def test_a_pod_is_nobody_and_can_do_nothing_to_its_node(part: str) -> None:
    (spec,) = pods(base(part)).values()
    security = spec["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] > 10000
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not set(spec) & set(HOST)
    assert not [volume for volume in spec["volumes"] if "hostPath" in volume]
    (container,) = containers(spec)
    assert container["securityContext"] == TIGHT
    assert "hostPort" not in str(container["ports"])
    assert container["resources"]["limits"]["memory"]
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert all(mount.get("readOnly") or mount["name"] in ("tmp", "data") for mount in container["volumeMounts"])


@pytest.mark.parametrize("part", PARTS)
def test_mounted_files_can_be_written_by_nobody(part: str) -> None:
    (spec,) = pods(base(part)).values()
    modes = [volume["projected"]["defaultMode"] for volume in spec["volumes"] if "projected" in volume]
    assert modes
    assert all(mode & 0o333 == 0 for mode in modes)


def test_the_sidecar_keeps_to_the_same_whatever_its_engine_does() -> None:
    own = next(c for spec in pods(overlay("sidecar")).values() for c in containers(spec) if c["name"] == "sizewatch")
    assert own["securityContext"] == {
        **TIGHT,
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


@pytest.mark.parametrize("part", PARTS)
def test_the_namespace_is_of_the_strictest_standard_and_a_part_alone_keeps_to_it(part: str) -> None:
    labels = base("shared")["Namespace", "sizewatch"]["metadata"]["labels"]
    levels = {name.partition("/")[2]: level for name, level in labels.items() if name.startswith("pod-security")}
    assert levels == {"enforce": "restricted", "audit": "restricted", "warn": "restricted"}
    (spec,) = pods(base(part)).values()
    allowed = {"configMap", "emptyDir", "projected", "secret", "persistentVolumeClaim"}
    assert {kind for volume in spec["volumes"] for kind in volume if kind != "name"} <= allowed


def test_the_kubelets_socket_costs_user_0_and_one_folder_and_no_capability(tmp_path: Path) -> None:
    spec = pods(overlay_with(tmp_path, "cluster", "pod-resources"))["DaemonSet", "sizewatch-node"]
    (container,) = containers(spec)
    assert container["securityContext"] == {**TIGHT, "runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0}
    (volume,) = (one for one in spec["volumes"] if "hostPath" in one)
    assert volume["hostPath"] == {"path": "/var/lib/kubelet/pod-resources", "type": "Directory"}
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == volume["name"])
    assert mount["readOnly"] is True
    assert spec["securityContext"]["runAsUser"] > 10000, "only the one container is user 0"
    assert not set(spec) & set(HOST)


def ports(rule: Json) -> set[tuple[Any, str]]:
    return {(one["port"], one["protocol"]) for one in rule["ports"]}


@pytest.mark.parametrize("part", PARTS)
def test_every_pod_is_shut_and_then_opened_for_what_it_needs(part: str) -> None:
    shut = base("shared")["NetworkPolicy", "sizewatch-shut"]["spec"]
    assert set(shut) == {"podSelector", "policyTypes"}
    policy = base(part)["NetworkPolicy", f"sizewatch-{part}"]["spec"]
    (template,) = (one["spec"]["template"] for one in base(part).values() if "template" in one.get("spec", {}))
    labels = template["metadata"]["labels"]
    for one in (shut, policy):
        assert one["podSelector"]["matchLabels"].items() <= labels.items()
        assert sorted(one["policyTypes"]) == ["Egress", "Ingress"]
    (inward,) = policy["ingress"]
    assert ports(inward) == {("http", "TCP")}
    assert inward["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    for rule in policy["egress"]:
        assert rule["ports"], "a rule without ports would open every one"
        assert "to" in rule or (part != "fleet" and ports(rule) == {(443, "TCP"), (6443, "TCP")})


def test_who_is_evicted_under_pressure_is_not_the_watcher_and_nobody_is_moved_for_it() -> None:
    one = base("node")["PriorityClass", "sizewatch-node"]
    assert one["value"] > 0
    assert one["preemptionPolicy"] == "Never"
    assert one["globalDefault"] is False


def test_one_replica_watches_the_fleet_and_ends_before_the_next_begins() -> None:
    spec = base("fleet")["Deployment", "sizewatch-fleet"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert "volumeClaimTemplates" not in spec
