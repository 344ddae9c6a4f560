"""The Helm chart: its templates through Go's own text/template, its values against its schema, its objects against the manifests.

No Helm is needed: py-go-template is Go's text/template with the functions that Helm adds. What Helm does beside rendering
(hooks, releases, `helm lint`) is not looked at here.
"""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
import yaml
from deployed import (
    CHART,
    DEFAULTS,
    KUBERNETES,
    SCHEMA,
    VALUES,
    Json,
    Key,
    base,
    chart,
    charted,
    containers,
    documents,
    pods,
    render,
)
from paths import ROOT

from agent.version import VERSION


def manifests() -> dict[Key, Json]:
    """What kustomize's cluster overlay has, without the namespace: Helm's user names one."""
    monitors = documents((KUBERNETES / "components/monitoring/monitors.yaml").read_text(encoding="utf-8"))
    rules = documents((ROOT / "rules/prometheus/prometheusrule.yaml").read_text(encoding="utf-8"))
    found = {**base("shared"), **base("node"), **base("fleet")}
    found |= {(one["kind"], one["metadata"]["name"]): one for one in (*monitors, *rules)}
    del found["Namespace", "sizewatch"]
    del found["ServiceMonitor", "sizewatch-standalone"]
    return found


def read(objects: dict[Key, Json]) -> dict[Key, Json]:
    """With the documents inside of ConfigMaps as documents: their layout is not the same."""
    made: dict[Key, Json] = json_like(objects)
    for (kind, _), one in made.items():
        if kind == "ConfigMap":
            one["data"] = {
                name: json.loads(text) if name.endswith(".json") else yaml.safe_load(text)
                for name, text in one["data"].items()
            }
    return made


def json_like(objects: dict[Key, Json]) -> dict[Key, Json]:
    return {name: json.loads(json.dumps(one)) for name, one in objects.items()}


def test_the_chart_makes_the_same_objects_as_the_manifests() -> None:
    found, expected = read(charted()), read(manifests())
    assert sorted(found) == sorted(expected)
    for name, one in expected.items():
        assert found[name] == one, name


def test_the_dashboards_and_the_standalone_pod_are_those_of_the_manifests_too() -> None:
    found = charted(
        {"standalone.enabled": True, "dashboards.enabled": True, "node.enabled": False, "fleet.enabled": False}
    )
    boards = documents((ROOT / "grafana/kubernetes/dashboards.yaml").read_text(encoding="utf-8"))
    expected = {**base("standalone"), **{("ConfigMap", one["metadata"]["name"]): one for one in boards}}
    assert len(boards) == 4
    made = read(found)
    for name, one in read(expected).items():
        assert made[name] == one, name
    assert ("DaemonSet", "sizewatch-node") not in found
    assert ("Deployment", "sizewatch-fleet") not in found
    assert ("ServiceMonitor", "sizewatch-standalone") in found


SWITCHES: dict[str, tuple[Any, set[str]]] = {
    "node.enabled": (False, {"DaemonSet", "ClusterRole", "ClusterRoleBinding", "PriorityClass", "PodMonitor"}),
    "fleet.enabled": (False, {"Deployment", "Service", "ServiceMonitor"}),
    "networkPolicy.enabled": (False, {"NetworkPolicy"}),
    "monitoring.enabled": (False, {"PodMonitor", "ServiceMonitor"}),
    "rules.enabled": (False, {"PrometheusRule"}),
    "node.priorityClass": (False, {"PriorityClass"}),
}


@pytest.mark.parametrize("path", SWITCHES)
def test_a_switch_takes_away_its_kinds_and_no_other(path: str) -> None:
    value, gone = SWITCHES[path]
    kinds = [{kind for kind, _ in objects} for objects in (charted(), charted({path: value}))]
    assert kinds[0] - kinds[1] == gone
    assert not kinds[1] - kinds[0]


def test_what_is_switched_off_leaves_nothing_behind() -> None:
    off = {path: False for path, default in DEFAULTS.items() if isinstance(default, bool)}
    assert set(charted(off)) == {("ConfigMap", "sizewatch-plan")}
    texts = dict(part.split("\n", 1) for part in chart(off).split("---\n# ") if part)
    assert {name for name, text in texts.items() if text.strip()} == {"NOTES.txt", "shared.yaml"}


def test_values_arrive_where_they_belong() -> None:
    found = charted(
        {
            "image.node": "registry.example/sizewatch-node",
            "image.tag": "0.1.0@sha256:" + "a" * 64,
            "image.pullSecrets": [{"name": "registry"}],
            "node.runtimeClassName": "nvidia",
            "node.nodeSelector": {},
            "node.secretName": "tokens",
            "node.priorityClass": False,
            "monitoring.labels": {"release": "prometheus"},
            "rules.labels": {"release": "prometheus"},
            "web.scheme": "HTTPS",
            "networkPolicy.prometheusNamespace": "observability",
        },
        namespace="watching",
    )
    spec = pods(found)["DaemonSet", "sizewatch-node"]
    (container,) = containers(spec)
    assert container["image"] == "registry.example/sizewatch-node:0.1.0@sha256:" + "a" * 64
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http", "scheme": "HTTPS"}
    assert (spec["runtimeClassName"], spec["nodeSelector"]) == ("nvidia", {})
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert "priorityClassName" not in spec
    (secret,) = (one["secret"] for one in spec["volumes"] if "secret" in one)
    assert secret == {"secretName": "tokens", "defaultMode": 0o440}
    for kind, name in (("PodMonitor", "sizewatch-node"), ("PrometheusRule", "sizewatch-alerts")):
        assert found[kind, name]["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = found["PodMonitor", "sizewatch-node"]["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert found["ClusterRoleBinding", "sizewatch-node"]["subjects"][0]["namespace"] == "watching"
    policy = found["NetworkPolicy", "sizewatch-node"]["spec"]["ingress"][0]["from"]
    assert policy == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}]


def test_nothing_is_installed_without_a_plan() -> None:
    pytest.importorskip(
        "go_template", reason="py-go-template is not installed: the chart without a plan was NOT checked"
    )
    files = {f"files/{path.name}": path.read_text(encoding="utf-8") for path in CHART.glob("files/*")}
    given = {"Values": VALUES, "Release": {"Namespace": "n", "Name": "r"}, "Files": files}
    found = render(given)
    assert found.returncode != 0
    assert "plan is empty: give your sizing plan with --set-file plan=plan.yaml" in found.stderr + found.stdout


def test_a_plan_of_ones_own_is_a_file() -> None:
    text = "# mine\nschema: 1\ntiers:\n  mine: {model: m}  # {{ not ours }}\n"
    data = charted({"plan": text})["ConfigMap", "sizewatch-plan"]["data"]
    assert data == {"plan.yaml": text}
    assert VALUES["plan"] == "", "a mapping would be merged with the user's, an example would be judged with"


def test_the_kubelets_socket_is_the_component_of_the_manifests() -> None:
    before, after = (
        pods(charted(change))["DaemonSet", "sizewatch-node"] for change in ({}, {"node.podResources": True})
    )
    file = KUBERNETES / "components/pod-resources/daemonset.yaml"
    patch = yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]["template"]["spec"]
    (own,) = patch["containers"]
    assert after["volumes"] == before["volumes"] + patch["volumes"]
    (first,), (second,) = before["containers"], after["containers"]
    assert second["volumeMounts"] == first["volumeMounts"] + own["volumeMounts"]
    assert second["securityContext"] == {**first["securityContext"], **own["securityContext"]}


@pytest.mark.parametrize("release", ["1.30", "1.37"])
def test_kubernetes_own_schemas_take_what_it_makes_with_everything_switched_on(release: str) -> None:
    library: Any = pytest.importorskip(
        "kubernetes_validate",
        reason="kubernetes-validate is not installed: the chart was NOT checked against Kubernetes",
    )
    switches = {path: True for path, default in DEFAULTS.items() if default is False}
    texts = {
        "node.secretName": "s",
        "fleet.secretName": "s",
        "node.runtimeClassName": "nvidia",
        "standalone.storageClassName": "fast",
    }
    found = charted({**switches, **texts})
    assert len(found) > 25
    for one in found.values():
        if "coreos.com" not in one["apiVersion"]:
            library.validate(one, release, strict=True)


def test_the_notes_name_what_was_installed() -> None:
    def notes(**changes: Any) -> str:
        text = chart({name.replace("_", "."): value for name, value in changes.items()}, namespace="watching")
        return next(part for part in text.split("---\n# ") if part.startswith("NOTES.txt"))

    assert "kubectl -n watching port-forward daemonset/sizewatch-node 19095" in notes()
    assert "service/sizewatch-fleet" in notes()
    assert "service/sizewatch-fleet" not in notes(fleet_enabled=False)
    assert "service/sizewatch-standalone" in notes(standalone_enabled=True)
    assert "{{" not in notes()


def test_the_schema_takes_the_defaults_and_says_no_to_what_it_does_not_know() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)
    jsonschema.validate({**VALUES, "global": {"imageRegistry": "r"}}, SCHEMA)
    for broken in (
        {"nodes": {}},
        {"node": {"enable": True}},
        {"fleet": {"replicas": 2}},
        {"image": {"tag": "a b"}},
        {"image": {"node": 'x" : y'}},
        {"networkPolicy": {"enginePorts": []}},
        {"networkPolicy": {"enginePorts": [{"port": 8000}]}},
        {"web": {"scheme": "http"}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, SCHEMA)


def test_every_value_has_a_comment_a_schema_and_a_use() -> None:
    jsonschema.validate(VALUES, SCHEMA)
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    for path in DEFAULTS:
        *section, name = path.split(".")
        part = text.split(f"\n{section[0]}:\n")[1].split("\n\n")[0] if section else text
        assert re.search(rf"# .*\.\n{'  ' * len(section)}{name}:", part), path
    templates = "".join(path.read_text(encoding="utf-8") for path in CHART.glob("templates/*"))
    assert set(re.findall(r"\.Values\.([\w.]+)", templates)) == set(DEFAULTS)


def test_the_chart_is_of_this_version() -> None:
    told = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (told["version"], told["appVersion"], told["apiVersion"]) == (VERSION, VERSION, "v2")
    assert DEFAULTS["image.tag"] == VERSION
