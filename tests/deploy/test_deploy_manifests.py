"""deploy/kubernetes against the schemas, against itself and against the program: would a cluster take it, would it work?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from deployed import (
    BASE_OBJECTS,
    BASES,
    COMPONENTS,
    CRDS,
    KUBERNETES,
    OVERLAYS,
    Json,
    Key,
    base,
    built,
    containers,
    documents,
    overlay,
    pods,
)
from deployed import with_components as overlay_with
from paths import ROOT

from agent.config.load import load
from agent.version import VERSION

FOLDERS = {
    name: yaml.safe_load((KUBERNETES / name / "kustomization.yaml").read_text(encoding="utf-8"))
    for name in (*BASES, *COMPONENTS, *OVERLAYS)
}
RELEASES = ("1.30", "1.34", "1.37")
NAMES = [name.partition("/")[2] for name in OVERLAYS]
ON_NODES = ("nvidia-runtime", "dcgm", "pod-resources")
"""Components that change the agents on nodes."""


def library() -> Any:
    return pytest.importorskip(
        "kubernetes_validate",
        reason="kubernetes-validate is not installed: manifests were NOT checked against Kubernetes",
    )


def refused(several: Iterable[Json], release: str) -> list[str]:
    """What the schemas of a release of Kubernetes have against these objects."""
    problems = []
    for one in several:
        try:
            library().validate(one, release, strict=True)
        except library().ValidationError as error:
            problems.append(str(error))
    return problems


def is_custom(one: Json) -> bool:
    return "coreos.com" in one["apiVersion"]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("path", BASE_OBJECTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_kubernetes_own_schemas_take_every_object_of_the_bases(path: Path, release: str) -> None:
    assert refused(documents(path.read_text(encoding="utf-8")), release) == []


@pytest.mark.parametrize("name", NAMES)
def test_kubernetes_own_schemas_take_what_each_overlay_builds(name: str) -> None:
    found = overlay(name)
    assert len(found) > 3
    own = [one for one in found.values() if not is_custom(one)]
    assert [refused(own, release) for release in (RELEASES[0], RELEASES[-1])] == [[], []]


def test_the_schemas_would_see_a_mistake() -> None:
    one = base("node")["DaemonSet", "sizewatch-node"]
    one["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFileSystem"] = True
    (problem,) = refused([one], RELEASES[0])
    assert "readOnlyRootFileSystem" in problem


def crd(kind: str) -> Json:
    path = CRDS / f"{kind.lower()}s.yaml"
    if not path.is_file():
        pytest.skip(f"{path} is not here: a {kind} was NOT checked against the Prometheus operator's schema")
    (version,) = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["versions"]
    strict: Json = closed(version["schema"]["openAPIV3Schema"])
    strict["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    return strict


def closed(node: Any) -> Any:
    """Unknown fields are errors, and an int-or-string is either."""
    if isinstance(node, list):
        return [closed(one) for one in node]
    if not isinstance(node, dict):
        return node
    if node.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    made = {name: closed(value) for name, value in node.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        return {"additionalProperties": False, **made}
    return made


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
def test_the_operators_own_schema_takes_the_monitors(kind: str) -> None:
    text = (KUBERNETES / "components" / "monitoring" / "monitors.yaml").read_text(encoding="utf-8")
    text += "---\n" + (KUBERNETES / "components" / "sidecar" / "monitor.yaml").read_text(encoding="utf-8")
    found = [one for one in documents(text) if one["kind"] == kind]
    assert len(found) == 2
    for one in found:
        jsonschema.validate(one, crd(kind))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found[0], "spec": {**found[0]["spec"], "selectors": {}}}, crd(kind))


@pytest.mark.parametrize("name", FOLDERS)
def test_a_kustomization_names_every_file_of_its_folder_and_folders_that_exist(name: str) -> None:
    folder = KUBERNETES / name
    told = FOLDERS[name]
    patches = [one["path"] for one in told.get("patches", ()) if "path" in one]
    named = [*told.get("resources", ()), *told.get("components", ()), *patches]
    files = {one for one in named if one.endswith(".yaml")}
    assert files | {"kustomization.yaml"} == {path.name for path in folder.iterdir()}
    for other in set(named) - files:
        assert (folder / other / "kustomization.yaml").is_file(), other
        assert (folder / other).resolve().is_relative_to(ROOT)


@pytest.mark.parametrize("component", ON_NODES)
def test_every_component_can_be_put_on_the_cluster_overlay(component: str, tmp_path: Path) -> None:
    before, after = overlay("cluster"), overlay_with(tmp_path, "cluster", component)
    assert set(before) == set(after)
    changed = {name for name in before if before[name] != after[name]}
    expected: dict[str, set[Key]] = {
        "nvidia-runtime": {("DaemonSet", "sizewatch-node")},
        "dcgm": {("DaemonSet", "sizewatch-node"), ("ConfigMap", "sizewatch-node")},
        "pod-resources": {("DaemonSet", "sizewatch-node"), ("Namespace", "sizewatch")},
    }
    assert changed == expected[component]
    for one in after.values():
        if not is_custom(one):
            library().validate(one, RELEASES[-1], strict=True)


def test_every_component_is_used_somewhere() -> None:
    named = {one.rpartition("/")[2] for told in FOLDERS.values() for one in told.get("components", ())}
    assert named | set(ON_NODES) == {name.partition("/")[2] for name in COMPONENTS}


def variable(spec: Json) -> set[str]:
    return {one["name"] for container in containers(spec) for one in container.get("env", ())}


def test_nvml_is_asked_for_by_two_variables_and_no_gpu_is_reserved(tmp_path: Path) -> None:
    spec = pods(base("node"))["DaemonSet", "sizewatch-node"]
    wanted = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
    env = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
    assert wanted.items() <= env.items()
    assert "nvidia.com/gpu" not in str(spec["containers"][0]["resources"])
    with_dcgm = pods(overlay_with(tmp_path, "cluster", "dcgm"))["DaemonSet", "sizewatch-node"]
    assert not variable(with_dcgm) & set(wanted)
    assert {"NODE_NAME", "POD_NAME", "POD_NAMESPACE"} <= variable(with_dcgm)


def own_configs(objects: dict[Key, Json]) -> dict[str, str]:
    return {
        name: one["data"]["sizewatch.yaml"]
        for (kind, name), one in objects.items()
        if kind == "ConfigMap" and "sizewatch.yaml" in one["data"]
    }


CONFIGS = {
    **{f"{name}": own_configs(base(name.partition("/")[2])) for name in BASES},
    **{
        name: own_configs({("ConfigMap", file): one})
        for name in (*COMPONENTS, *OVERLAYS)
        for file in ("config",)
        for path in [KUBERNETES / name / "config.yaml"]
        if path.is_file()
        for one in documents(path.read_text(encoding="utf-8"))[:1]
    },
}
LOADED = [(folder, name, text) for folder, found in CONFIGS.items() for name, text in found.items()]


def test_every_part_has_its_configuration() -> None:
    assert [(folder, name) for folder, name, _ in LOADED] == [
        ("base/fleet", "sizewatch-fleet"),
        ("base/node", "sizewatch-node"),
        ("base/standalone", "sizewatch-standalone"),
        ("components/dcgm", "config"),
        ("components/sidecar", "config"),
        ("overlays/engines-only", "config"),
        ("overlays/nodes", "config"),
    ]


@pytest.mark.parametrize(
    ("folder", "part", "own"),
    [
        ("base/standalone", "node", {"role", "tier_verdicts", "data_dir"}),
        ("components/dcgm", "node", {"gpus"}),
        ("components/sidecar", "node", {"tier_verdicts", "discovery", "targets", "gpus"}),
        ("overlays/engines-only", "fleet", {"tiers"}),
        ("overlays/nodes", "node", {"tier_verdicts"}),
    ],
)
def test_a_variant_changes_the_keys_it_is_for_and_no_other(folder: str, part: str, own: set[str]) -> None:
    (usual,), (other,) = (map(yaml.safe_load, CONFIGS[one].values()) for one in (f"base/{part}", folder))
    assert {key for key in {*usual, *other} if usual.get(key) != other.get(key)} == own


@pytest.mark.parametrize(("folder", "name", "text"), LOADED, ids=[folder for folder, _, _ in LOADED])
def test_the_program_takes_the_configuration_with_the_plan(folder: str, name: str, text: str, tmp_path: Path) -> None:
    (plan,) = (one for one in base("shared").values() if one["metadata"]["name"] == "sizewatch-plan")
    for file, content in (("sizewatch.yaml", text), ("plan.yaml", plan["data"]["plan.yaml"])):
        (tmp_path / file).write_text(content, encoding="utf-8")
    environment = {"NODE_NAME": "gpu-1", "POD_NAME": "vllm-0", "POD_NAMESPACE": "serving"}
    found = load(tmp_path / "sizewatch.yaml", environment=environment)
    assert found.plan is not None
    assert found.config.web.address == ("", 19095)
    # Every address of the pod, shut by the network policy: the one weakness that is known.
    assert [one for one in found.warnings if "web.listen" not in one] == []


def test_every_pod_mounts_what_exists_and_names_what_is_made() -> None:
    for part in ("node", "fleet", "standalone"):
        objects = {**base("shared"), **base(part)}
        for spec in pods(objects).values():
            assert ("ServiceAccount", spec["serviceAccountName"]) in objects
            for volume in spec["volumes"]:
                for source in volume.get("projected", {}).get("sources", ()):
                    data = objects["ConfigMap", source["configMap"]["name"]]["data"]
                    assert {item["key"] for item in source["configMap"]["items"]} <= set(data)
            claims = objects.get(("StatefulSet", "sizewatch-standalone"), {}).get("spec", {})
            volumes = {one["name"] for one in spec["volumes"]}
            volumes |= {one["metadata"]["name"] for one in claims.get("volumeClaimTemplates", ())}
            for container in containers(spec):
                assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            if "priorityClassName" in spec:
                assert ("PriorityClass", spec["priorityClassName"]) in objects


def selected(selector: Json, objects: dict[Key, Json]) -> list[Key]:
    return [
        name
        for name, one in objects.items()
        if pods({name: one}) and selector.items() <= one["spec"]["template"]["metadata"]["labels"].items()
    ]


@pytest.mark.parametrize(
    ("part", "workload"), [("node", "DaemonSet"), ("fleet", "Deployment"), ("standalone", "StatefulSet")]
)
def test_selectors_find_the_pods_they_are_meant_for_and_ports_have_their_names(part: str, workload: str) -> None:
    objects = base(part)
    monitors = documents((KUBERNETES / "components/monitoring/monitors.yaml").read_text(encoding="utf-8"))
    objects |= {(one["kind"], one["metadata"]["name"]): one for one in monitors}
    (spec,) = pods(objects).values()
    ports = {port["name"] for port in spec["containers"][0]["ports"]}
    own = {(kind, name): one for (kind, name), one in objects.items() if name == f"sizewatch-{part}"}
    seen = set()
    for (kind, _), one in own.items():
        inner = one.get("spec", {})
        selector = inner.get("podSelector") or inner.get("selector")
        if selector is None or kind == workload:
            continue
        seen.add(kind)
        assert selected(selector.get("matchLabels", selector), objects) == [(workload, f"sizewatch-{part}")]
        named = [*inner.get("podMetricsEndpoints", ()), *inner.get("endpoints", ())]
        assert {one["port"] for one in named} <= ports
        if kind == "Service":
            assert {one["targetPort"] for one in inner["ports"]} <= ports
    assert seen >= {"NetworkPolicy", "PodMonitor" if part == "node" else "ServiceMonitor"}
    assert "Service" in seen or part == "node"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "sidecar"])
def test_everything_that_has_a_namespace_is_in_the_one_and_so_are_the_accounts_that_roles_are_given_to(
    name: str,
) -> None:
    without = {"Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass"}
    for (kind, _), one in overlay(name).items():
        assert ("namespace" in one["metadata"]) == (kind not in without), kind
        assert one["metadata"].get("namespace", "sizewatch") == "sizewatch"
        for subject in one.get("subjects", ()):
            assert subject["namespace"] == "sizewatch"


def test_the_rules_and_dashboards_of_an_overlay_are_those_of_the_repository() -> None:
    found = overlay("cluster")
    rules = documents((ROOT / "rules/prometheus/prometheusrule.yaml").read_text(encoding="utf-8"))
    assert len(rules) == 1
    for one in rules:
        assert found["PrometheusRule", one["metadata"]["name"]]["spec"] == one["spec"]
    boards = documents((ROOT / "grafana/kubernetes/dashboards.yaml").read_text(encoding="utf-8"))
    assert len(boards) == 4
    for one in boards:
        assert found["ConfigMap", one["metadata"]["name"]]["data"] == one["data"]


def test_a_plan_of_ones_own_replaces_the_example(tmp_path: Path) -> None:
    """As the page shows it."""
    objects = overlay_with(tmp_path, "cluster")
    told = yaml.safe_load((tmp_path / "own/kustomization.yaml").read_text(encoding="utf-8"))
    told["configMapGenerator"] = [
        {"name": "sizewatch-plan", "namespace": "sizewatch", "behavior": "merge", "files": ["plan.yaml"]}
    ]
    told["generatorOptions"] = {"disableNameSuffixHash": True}
    (tmp_path / "own/kustomization.yaml").write_text(yaml.safe_dump(told), encoding="utf-8")
    (tmp_path / "own/plan.yaml").write_text("schema: 1\ntiers: {}\n", encoding="utf-8")
    after = built(tmp_path / "own")
    assert set(after) == set(objects)
    assert after["ConfigMap", "sizewatch-plan"]["data"] == {"plan.yaml": "schema: 1\ntiers: {}\n"}


def test_the_images_are_of_this_version_and_a_registry_can_be_put_before_them(tmp_path: Path) -> None:
    overlay_with(tmp_path, "cluster")
    told = yaml.safe_load((tmp_path / "own/kustomization.yaml").read_text(encoding="utf-8"))
    new = {"sizewatch-node": "registry.example/sizewatch-node", "sizewatch": "registry.example/sizewatch"}
    told["images"] = [{"name": name, "newName": other} for name, other in new.items()]
    (tmp_path / "own/kustomization.yaml").write_text(yaml.safe_dump(told), encoding="utf-8")
    images = {one["image"] for spec in pods(built(tmp_path / "own")).values() for one in containers(spec)}
    assert images == {f"{other}:{VERSION}" for other in new.values()}


def test_a_sidecar_never_takes_its_engine_out_of_service() -> None:
    (spec,) = pods(overlay("sidecar")).values()
    own, engine = spec["containers"]
    assert (own["name"], engine["name"]) == ("sizewatch", "vllm")
    assert "readinessProbe" not in own
    assert "livenessProbe" in own
    assert spec["automountServiceAccountToken"] is False
    objects = overlay("sidecar")
    (config,) = own_configs(objects).values()
    assert yaml.safe_load(config)["discovery"] == {"kubernetes": {"scope": "pod"}}
    assert objects["ConfigMap", "sizewatch-plan"] == base("shared")["ConfigMap", "sizewatch-plan"]


def test_a_sidecar_is_the_nodes_container_in_workloads_of_both_kinds(tmp_path: Path) -> None:
    overlay_with(tmp_path, "sidecar")
    engine = tmp_path / "deploy/kubernetes/overlays/sidecar/engine.yaml"
    (deployment,) = documents(engine.read_text(encoding="utf-8"))
    engine.write_text(yaml.safe_dump({**deployment, "kind": "StatefulSet"}), encoding="utf-8")
    ((kind, _), spec), *_ = pods(built(tmp_path / "own")).items()
    assert kind == "StatefulSet"
    assert spec == pods(overlay("sidecar"))["Deployment", "vllm"]
    own, (node,) = spec["containers"][0], containers(pods(base("node"))["DaemonSet", "sizewatch-node"])
    different = {"env", "ports", "securityContext", "livenessProbe", "readinessProbe", "volumeMounts"}
    assert {name for name in node if own.get(name) != node[name]} == different
    assert node["securityContext"].items() <= own["securityContext"].items()
