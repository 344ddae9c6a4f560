"""The Helm chart: rendered by helm, held against Kubernetes' schemas, the program, and the rights that are listed here."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from deployed import CHART, PLAN, SCHEMA, VALUES, Json, Key, chart, containers, documents, notes, pods, run_helm
from paths import ROOT

from agent.config.load import load, parse_config
from agent.version import VERSION

EXAMPLE = ROOT / "examples" / "kubernetes" / "values.yaml"
CRDS = ROOT.parent / "shared" / "infra" / "k8s" / "crds"
PARTS = {"node": "DaemonSet", "fleet": "Deployment", "standalone": "StatefulSet"}
ALONE = {part: tuple(f"{other}.enabled={json.dumps(other == part)}" for other in PARTS) for part in PARTS}
"""Settings that install a part alone."""

SIDECAR = ("node.enabled=false", "fleet.enabled=false", "sidecar.enabled=true", 'sidecar.tier="l40s-qwen14b"')
EVERYTHING = (
    *SIDECAR[2:],
    "standalone.enabled=true",
    "dashboards.enabled=true",
    "dcgmService.enabled=true",
    "node.podResources=true",
    'node.secretNames=["tokens", "certificate"]',
    'fleet.claimName="history"',
    'sidecar.secretNames=["tokens"]',
    'node.config.discovery.kubernetes.namespaces=["serving"]',
    'monitoring.endpoint={"interval": "30s", "authorization": {"credentials": {"name": "tokens", "key": "web"}}}',
    'standalone.storageClassName="fast"',
    'image.pullSecrets=[{"name": "registry"}]',
    'fleet.affinity={"podAntiAffinity": {}}',
    'node.podAnnotations={"example.com/team": "llm"}',
    'node.extraEnv=[{"name": "MALLOC_ARENA_MAX", "value": "4"}]',
)
CASES = {**ALONE, "default": (), "sidecar": SIDECAR, "everything": EVERYTHING, "example": ()}

TIGHT = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
HOST = {"hostNetwork", "hostPID", "hostIPC", "hostUsers", "shareProcessNamespace"}


def validate(document: Json, release: str) -> None:
    """Raise where Kubernetes' or the operator's schema refuses an object."""
    if "coreos.com" not in document["apiVersion"]:
        library: Any = pytest.importorskip(
            "kubernetes_validate", reason="kubernetes-validate is not installed: objects were NOT checked"
        )
        library.validate(document, release, strict=True)
        return
    path = CRDS / f"{document['kind'].lower()}s.yaml"
    if path.is_file():
        (version,) = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["versions"]
        strict: Json = closed(version["schema"]["openAPIV3Schema"])
        strict["properties"]["metadata"] = {"type": "object", "required": ["name"]}
        jsonschema.validate(document, strict)


def closed(node: Any) -> Any:
    """Return a schema where unknown fields are errors, and an int-or-string is either."""
    if isinstance(node, list):
        return [closed(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    if node.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    # Go's flags stand anywhere in a pattern, Python's at its beginning.
    made = {name: closed(value) for name, value in node.items() if name != "pattern" or "(?i)" not in str(value)}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        return {"additionalProperties": False, **made}
    return made


def part_of(part: str) -> tuple[dict[Key, Json], Json]:
    """Return the objects of a part that is installed alone, and the spec of its pod."""
    objects = chart(*ALONE[part])
    return objects, pods(objects)[PARTS[part], f"sizewatch-{part}"]


def patch(*settings: str) -> Json:
    """Return the patch that adds the sidecar to a workload."""
    data = chart(*SIDECAR, *settings)["ConfigMap", "sizewatch-sidecar"]["data"]
    template: Json = yaml.safe_load(data["patch.yaml"])["spec"]["template"]
    return template


def test_helm_lints_the_chart() -> None:
    linted = run_helm("lint", CHART, "--strict", "--set-file", f"plan={PLAN}")
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize("release", ["1.30", "1.37"])
@pytest.mark.parametrize("name", CASES)
def test_schemas_accept_every_object(name: str, release: str) -> None:
    objects = chart(*CASES[name], files=(EXAMPLE,) if name == "example" else ())
    assert len(objects) >= 4
    for document in objects.values():
        validate(document, release)


SWITCHES: dict[str, set[str]] = {
    "node.enabled": {"DaemonSet", "ClusterRole", "ClusterRoleBinding", "PriorityClass", "PodMonitor"},
    "fleet.enabled": {"Deployment", "Service", "ServiceMonitor"},
    "networkPolicy.enabled": {"NetworkPolicy"},
    "monitoring.enabled": {"PodMonitor", "ServiceMonitor"},
    "rules.enabled": {"PrometheusRule"},
    "node.priorityClass": {"PriorityClass"},
}


@pytest.mark.parametrize("path", SWITCHES)
def test_a_switch_removes_its_kinds_alone(path: str) -> None:
    before, after = ({kind for kind, _ in chart(*settings)} for settings in ((), (f"{path}=false",)))
    assert before - after == SWITCHES[path]
    assert not after - before


def test_releases_share_no_name_or_pod() -> None:
    longest = "sec.ond".ljust(53, "2")
    first, second = chart(*EVERYTHING), chart(*EVERYTHING, release=longest)
    assert not set(first) & set(second)
    # A pod's label of 63 characters holds a revision behind the name of its StatefulSet.
    assert [len(name) for kind, name in second if kind == "StatefulSet"] == [52]
    assert not [name for _, name in second if "." in name], "no name of a Service"
    assert "begins with a letter" in run_helm("template", "1r", CHART, "--set-file", f"plan={PLAN}").stderr
    for document in (*first.values(), *second.values()):
        labels = document["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] in ("sizewatch", longest)
        assert labels["helm.sh/chart"] == f"sizewatch-{VERSION}"
        selector = document.get("spec", {}).get("selector", {})
        if document["kind"] in PARTS.values():
            assert selector["matchLabels"]["app.kubernetes.io/instance"] == labels["app.kubernetes.io/instance"]


def test_values_reach_their_places() -> None:
    digest = f"{VERSION}@sha256:{'a' * 64}"
    values = {"image.tag": digest, "node.runtimeClassName": "nvidia", "web.scheme": "HTTPS"}
    values |= {"image.full": f"r:5000/full@sha256:{'b' * 64}", "fleet.config.web.config_file": "web.yml"}
    settings = [f"{path}={json.dumps(value)}" for path, value in values.items()]
    settings += ['monitoring.labels={"release": "p"}', 'rules.labels={"release": "p"}']
    settings.append('node.config.web={"listen": "[::]:8443", "probe_listen": ":8080"}')
    objects = chart(*EVERYTHING, *settings)
    spec = pods(objects)["DaemonSet", "sizewatch-node"]
    (container,) = containers(spec)
    assert container["image"] == f"sizewatch-node:{digest}"
    assert [port["containerPort"] for port in container["ports"]] == [8443, 8080]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "sizewatch-probe", "scheme": "HTTP"}
    (fleet,) = containers(pods(objects)["Deployment", "sizewatch-fleet"])
    assert fleet["image"] == values["image.full"]
    assert fleet["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "sizewatch", "scheme": "HTTPS"}
    assert [variable.get("value") for variable in container["env"] if "MALLOC" in variable["name"]] == ["4"]
    assert (spec["runtimeClassName"], spec["imagePullSecrets"]) == ("nvidia", [{"name": "registry"}])
    annotations = objects["DaemonSet", "sizewatch-node"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["example.com/team"] == "llm"
    assert pods(objects)["Deployment", "sizewatch-fleet"]["affinity"] == {"podAntiAffinity": {}}
    secrets = {volume["name"]: volume for volume in spec["volumes"]}["sizewatch-secrets"]["projected"]
    sources = [{"secret": {"name": "tokens"}}, {"secret": {"name": "certificate"}}]
    assert secrets == {"defaultMode": 0o440, "sources": sources}
    (page,) = objects["PodMonitor", "sizewatch-node"]["spec"]["podMetricsEndpoints"]
    assert (page["interval"], page["scheme"]) == ("30s", "http"), "without a config_file there is no TLS"
    for key in (("PodMonitor", "sizewatch-node"), ("PrometheusRule", "sizewatch-alerts")):
        assert objects[key]["metadata"]["labels"]["release"] == "p"
    assert objects["ConfigMap", "sizewatch-plan"]["data"] == {"plan.yaml": PLAN.read_text(encoding="utf-8")}


REFUSALS = {
    'plan=""': "plan is empty: give your sizing plan",
    "nodes={}": "'nodes' not allowed",
    "sidecar.enabled=true": "sidecar.tier is empty",
    'image.node="reg/node:1.0"': "'reg/node:1.0' does not match",
    "fleet.config.store=null": "missing property 'store'",
    'fleet.config.role="node"': "/fleet/config/role",
    'standalone.config.data_dir="/data"': "'/data' does not match",
    'node.config.web.listen="127.0.0.1:19095"': "'127.0.0.1:19095' does not match",
    'node.config.discovery.kubernetes.namespaces="serving"': "kubernetes/namespaces': got string",
    'node.extraEnv=[{"name": "NODE_NAME"}]': "the chart sets NODE_NAME itself",
    'node.podAnnotations={"sizewatch.io/scrape": "true"}': "'sizewatch.io/scrape'",
    "networkPolicy.enginePorts=[]": "/networkPolicy/enginePorts",
    "networkPolicy.storePorts=null": "missing property 'storePorts'",
}


@pytest.mark.parametrize("setting", REFUSALS)
def test_a_refusal_names_the_value(setting: str) -> None:
    plan = json.dumps(PLAN.read_text(encoding="utf-8"))
    refused = run_helm("template", "r", CHART, "--set-json", f"plan={plan}", "--set-json", setting)
    assert refused.returncode != 0
    assert REFUSALS[setting] in refused.stderr


def test_values_have_comment_and_schema() -> None:
    jsonschema.validate({**VALUES, "global": {"imageRegistry": "r"}}, SCHEMA)
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    for name, part in SCHEMA["properties"].items():
        assert name == "global" or name in VALUES
        for key in part.get("properties", ()):
            section = text.split(f"\n{name}:\n")[1].split("\n\n")[0]
            assert re.search(rf"# .*\.\n  {key}:", section), f"{name}.{key}"
    about = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (about["version"], about["appVersion"], VALUES["image"]["tag"]) == (VERSION, VERSION, VERSION)


def test_notes_fit_the_values() -> None:
    assert "kubectl -n watching port-forward daemonset/sizewatch-node 19095" in notes()
    assert "service/sizewatch-fleet" in notes()
    assert "labels are set" in notes()
    wrong = notes("standalone.enabled=true", 'fleet.config.store.url="http://mimir.monitoring:8080"')
    assert "counts twice" in wrong
    assert "port 8080" in wrong
    assert "nobody here judges" in notes("fleet.enabled=false")
    alone = notes(*SIDECAR, 'monitoring.labels={"release": "p"}', "rules.enabled=false")
    assert "patch deployment ENGINE" in alone
    assert "port-forward" not in alone
    assert "labels are set" not in alone


def test_rules_and_dashboards_equal_repository() -> None:
    objects = chart(*EVERYTHING)
    spec = objects["PrometheusRule", "sizewatch-alerts"]["spec"]
    assert [spec] == documents((ROOT / "rules/prometheus/sizewatch-alerts.yaml").read_text(encoding="utf-8"))
    boards = [document for (kind, name), document in objects.items() if name.endswith("-dashboard")]
    models = [json.loads(text) for board in boards for text in board["data"].values()]
    paths = (ROOT / "grafana/dashboards").glob("*.json")
    expected = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    assert sorted(models, key=str) == sorted(expected, key=str)


CONFIGS = {**ALONE, "sidecar": SIDECAR}
ENVIRONMENT = {"NODE_NAME": "gpu-1", "POD_NAME": "vllm-0", "POD_NAMESPACE": "serving"}


@pytest.mark.parametrize("part", CONFIGS)
def test_the_program_takes_each_configuration(part: str, tmp_path: Path) -> None:
    config = chart(*CONFIGS[part])["ConfigMap", f"sizewatch-{part}"]["data"]["sizewatch.yaml"]
    (tmp_path / "sizewatch.yaml").write_text(config, encoding="utf-8")
    (tmp_path / "plan.yaml").write_text((ROOT / "agent/demo/plan.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    loaded = load(tmp_path / "sizewatch.yaml", environment=ENVIRONMENT)
    assert loaded.plan is not None
    assert loaded.config.web.address == ("", 19095)
    # Every address of the pod, shut by the network policy: the one weakness that is known.
    assert [warning for warning in loaded.warnings if "web.listen" not in warning] == []


@pytest.mark.parametrize("part", PARTS)
def test_mounts_exist_and_selectors_match(part: str) -> None:
    objects, spec = part_of(part)
    workload = objects[PARTS[part], f"sizewatch-{part}"]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    claims = workload["spec"].get("volumeClaimTemplates", ())
    volumes = {volume["name"] for volume in spec["volumes"]} | {claim["metadata"]["name"] for claim in claims}
    (container,) = containers(spec)
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    assert ("ServiceAccount", spec["serviceAccountName"]) in objects
    for source in (source for volume in spec["volumes"] for source in volume.get("projected", {}).get("sources", ())):
        data = objects["ConfigMap", source["configMap"]["name"]]["data"]
        assert {item["key"] for item in source["configMap"]["items"]} <= set(data)
    if "priorityClassName" in spec:
        assert ("PriorityClass", spec["priorityClassName"]) in objects
    kinds = ("Service", "PodMonitor", "NetworkPolicy")
    for document in (document for document in objects.values() if document["kind"] in kinds):
        selector = document["spec"].get("podSelector") or document["spec"]["selector"]
        assert selector.get("matchLabels", selector).items() <= labels.items()


READS = [[[""], ["pods"], ["list", "watch"]]]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_has_the_listed_rights_alone(part: str) -> None:
    objects, spec = part_of(part)
    rights = [
        [rule["apiGroups"], rule["resources"], rule["verbs"]]
        for (kind, _), document in objects.items()
        for rule in (document["rules"] if kind.endswith("Role") else ())
    ]
    assert rights == ([] if part == "fleet" else READS)
    assert objects["ServiceAccount", f"sizewatch-{part}"]["automountServiceAccountToken"] is False
    assert spec["automountServiceAccountToken"] is (part != "fleet"), "the fleet asks the API server nothing"
    assert spec["enableServiceLinks"] is False
    for (kind, _), document in objects.items():
        if kind.endswith("Binding"):
            assert ("ClusterRole", document["roleRef"]["name"]) in objects
            (subject,) = document["subjects"]
            assert (subject["name"], subject["namespace"]) == (f"sizewatch-{part}", "watching")


def test_one_namespace_needs_no_cluster_role() -> None:
    objects = chart('node.config.discovery.kubernetes.namespaces=["serving"]')
    assert not [kind for kind, _ in objects if kind.startswith("Cluster")]
    assert objects["RoleBinding", "watching-sizewatch-node"]["roleRef"]["kind"] == "Role"
    assert objects["Role", "watching-sizewatch-node"]["metadata"]["namespace"] == "serving"


@pytest.mark.parametrize("part", PARTS)
def test_a_pod_is_nobody_and_restricted(part: str) -> None:
    _, spec = part_of(part)
    security = spec["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] > 10000
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not set(spec) & HOST
    allowed = {"configMap", "emptyDir", "projected", "secret", "persistentVolumeClaim"}
    assert {kind for volume in spec["volumes"] for kind in volume if kind != "name"} <= allowed
    assert all(volume["projected"]["defaultMode"] & 0o333 == 0 for volume in spec["volumes"] if "projected" in volume)
    (container,) = containers(spec)
    assert container["securityContext"] == TIGHT
    assert "hostPort" not in str(container["ports"])
    assert "nvidia.com/gpu" not in str(container["resources"])
    assert container["resources"]["limits"]["memory"]
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert all(mount.get("readOnly") or mount["name"] in ("tmp", "data") for mount in container["volumeMounts"])


@pytest.mark.parametrize("part", PARTS)
def test_pods_are_shut_then_opened(part: str) -> None:
    objects, _ = part_of(part)
    shut = objects["NetworkPolicy", "sizewatch-shut"]["spec"]
    assert set(shut) == {"podSelector", "policyTypes"}
    policy = objects["NetworkPolicy", f"sizewatch-{part}"]["spec"]
    assert sorted(policy["policyTypes"]) == sorted(shut["policyTypes"]) == ["Egress", "Ingress"]
    (inward,) = policy["ingress"]
    assert [port["port"] for port in inward["ports"]] == ["sizewatch"]
    assert inward["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    for rule in policy["egress"]:
        assert rule["ports"], "a rule without ports would open every one"
        assert "to" in rule or (part != "fleet" and {port["port"] for port in rule["ports"]} == {443, 6443})


def test_kubelet_socket_costs_user_0() -> None:
    spec = pods(chart("node.podResources=true"))["DaemonSet", "sizewatch-node"]
    (container,) = containers(spec)
    assert container["securityContext"] == {**TIGHT, "runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0}
    (volume,) = (volume for volume in spec["volumes"] if "hostPath" in volume)
    assert volume["hostPath"] == {"path": "/var/lib/kubelet/pod-resources", "type": "Directory"}
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == volume["name"])
    assert mount["readOnly"] is True
    assert spec["securityContext"]["runAsUser"] > 10000, "only the one container is user 0"


def environment_of(container: Json) -> dict[str, str | None]:
    return {variable["name"]: variable.get("value") for variable in container["env"]}


def test_nvml_needs_two_variables_and_dcgm_none() -> None:
    wanted = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
    _, spec = part_of("node")
    assert wanted.items() <= environment_of(spec["containers"][0]).items()
    exporter = '{"source": "dcgm", "dcgm": {"url": "http://sizewatch-dcgm-local.gpu-operator.svc:9400/metrics"}}'
    objects = chart(f"node.config.gpus={exporter}", "dcgmService.enabled=true")
    assert ("Service", "sizewatch-dcgm-local") in objects
    (container,) = containers(pods(objects)["DaemonSet", "sizewatch-node"])
    assert not environment_of(container).keys() & wanted.keys()


def test_sidecar_reads_gpus_and_spares_engine() -> None:
    template = patch('sidecar.secretNames=["tokens"]', 'image.pullSecrets=[{"name": "registry"}]')
    assert template["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert {volume["projected"]["defaultMode"] for volume in template["spec"]["volumes"]} == {0o444}
    own = template["spec"]["containers"][0]
    assert environment_of(own)["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert template["spec"]["runtimeClassName"] == "nvidia"
    assert "readinessProbe" not in own
    assert "livenessProbe" in own
    assert template["metadata"]["annotations"] == {"sizewatch.io/scrape": "false"}
    selector = chart(*SIDECAR)["PodMonitor", "sizewatch-sidecar"]["spec"]["selector"]
    assert selector["matchLabels"].items() <= template["metadata"]["labels"].items()
    nobody = {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001}
    assert own["securityContext"] == {**TIGHT, **nobody, "seccompProfile": {"type": "RuntimeDefault"}}
    engine = {"name": "vllm", "image": "vllm/vllm-openai:v0.11.0"}
    spec = {**template["spec"], "containers": [engine, own]}
    labels = template["metadata"]["labels"]
    workload = {"selector": {"matchLabels": labels}, "template": {**template, "spec": spec}}
    validate({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "v"}, "spec": workload}, "1.37")


def test_fleet_has_one_replica_without_preemption() -> None:
    objects = chart()
    spec = objects["Deployment", "sizewatch-fleet"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    priority = objects["PriorityClass", "watching-sizewatch-node"]
    assert priority["value"] > 0
    assert (priority["preemptionPolicy"], priority["globalDefault"]) == ("Never", False)


NAMES = ("install-kubernetes", "gpus", "kubernetes-security")
PAGE = "\n".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in NAMES)
BLOCKS = [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)]


def test_the_docs_show_values_of_the_chart(tmp_path: Path) -> None:
    shown = [block for block in BLOCKS if set(block) <= set(VALUES)]
    assert len(shown) >= 3
    for block in shown:
        objects = chart(*(f"{section}={json.dumps(values)}" for section, values in block.items()))
        for document in objects.values():
            config = document.get("data", {}).get("sizewatch.yaml")
            assert not config or parse_config(yaml.safe_load(config), folder=tmp_path, environment=ENVIRONMENT)
    paths = re.findall(r"`((?:node|fleet|sidecar|web|dcgmService|networkPolicy)\.\w+)", PAGE)
    assert [path for path in paths if path.split(".")[1] not in VALUES[path.split(".")[0]]] == []
