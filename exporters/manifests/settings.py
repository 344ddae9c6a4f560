"""What the user of the chart may set: values.yaml, row by row. The same defaults stand in the kustomize manifests.

Owns the rows, and the values file with its schema made of them. Where a value is put is the objects' business
(`exporters.manifests.node`, `.fleet` and so on). A new value is a row here; a test wants it used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from exporters.manifests.configurations import DCGM_PORT, FLEET, NODE, PLAN, STANDALONE
from exporters.manifests.slots import Slot, printed
from exporters.render.yaml import Block, comment_lines

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_SWITCH: Json = {"type": "boolean"}
_OBJECT: Json = {"type": "object"}
_LIST: Json = {"type": "array"}
_STRINGS: Json = {"type": "object", "additionalProperties": {"type": "string"}}
_IMAGE: Json = {"type": "string", "pattern": "^[a-z0-9][A-Za-z0-9._:/-]*$"}
_TAG: Json = {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}(@sha256:[0-9a-f]{64})?$"}
_NAMESPACE: Json = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
_PORTS: Json = {
    "type": "array",
    # A rule without ports would open every one.
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["port", "protocol"],
        "additionalProperties": False,
        "properties": {
            "port": {"type": "integer", "minimum": 1, "maximum": 65535},
            "protocol": {"enum": ["TCP", "UDP"]},
        },
    },
}

VERSION = "0.1.0"
"""Of the images that the manifests name; a test holds it against the program's own."""


def _tcp(*ports: int) -> list[Json]:
    return [{"port": port, "protocol": "TCP"} for port in ports]


def _slot(path: str, default: Any, text: str, schema: Mapping[str, Any]) -> Slot:
    return Slot(path=path, default=default, text=text, schema=schema)


NODE_IMAGE = _slot("image.node", "sizewatch-node", "Image of the node agents, in your registry.", _IMAGE)
FULL_IMAGE = _slot("image.full", "sizewatch", "Image of the roles fleet and standalone.", _IMAGE)
TAG = _slot("image.tag", VERSION, "Tag of both; with @sha256:... behind it where one image alone is used.", _TAG)
PULL = _slot("image.pullPolicy", "IfNotPresent", "When to pull.", {"enum": ["Always", "IfNotPresent", "Never"]})
PULL_SECRETS = _slot("image.pullSecrets", [], "Secrets of the registry, as [{name: ...}].", _LIST)
PROBE_SCHEME = _slot("web.scheme", "HTTP", "HTTPS, where web.tls is configured.", {"enum": ["HTTP", "HTTPS"]})
READY_PATH = _slot(
    "web.readyPath",
    "/readyz",
    "Asked for readiness; /healthz where the pages want credentials, which a probe has not.",
    {"enum": ["/readyz", "/healthz"]},
)
# A text, not a mapping: Helm would add the tiers of a plan of one's own to these.
PLAN_CONTENT = _slot(
    "plan",
    Block(printed(PLAN)),
    "The sizing plan, as a text: --set-file plan=plan.yaml. This one is an example.",
    {"type": "string", "minLength": 1},
)

NODE_ON = _slot("node.enabled", True, "The DaemonSet on GPU nodes.", _SWITCH)
NODE_CONFIG = _slot("node.config", NODE, "Its sizewatch.yaml.", _OBJECT)
NODE_SELECTOR = _slot(
    "node.nodeSelector",
    {"nvidia.com/gpu.present": "true"},
    "Which nodes have GPUs; this label is NVIDIA's GPU feature discovery's. Take it out with null.",
    _STRINGS,
)
NODE_TOLERATIONS = _slot(
    "node.tolerations",
    [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "Taints of GPU nodes.",
    _LIST,
)
NODE_RESOURCES = _slot(
    "node.resources",
    {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
    "64 MiB is what it should need; the limit is for the rare page of megabytes. No CPU limit: it would only be late.",
    _OBJECT,
)
RUNTIME_CLASS = _slot("node.runtimeClassName", "", "nvidia, where NVIDIA's runtime is not the default one.", _TEXT)
POD_RESOURCES = _slot(
    "node.podResources",
    False,
    "GPU to pod by the kubelet's socket: a hostPath, and user 0, for nobody else may connect.",
    _SWITCH,
)
PRIORITY_ON = _slot("node.priorityClass", True, "A PriorityClass: not evicted first, and evicting nobody.", _SWITCH)

NODE_SECRET = _slot(
    "node.secretName", "", "A Secret of yours, mounted at /etc/sizewatch-secrets: tokens and certificates.", _TEXT
)

FLEET_ON = _slot("fleet.enabled", True, "The deployment above the nodes.", _SWITCH)
FLEET_REPLICAS = _slot(
    "fleet.replicas",
    2,
    "All judge; the one that holds the lease posts alerts and sends reports.",
    {"type": "integer", "minimum": 1},
)
FLEET_CONFIG = _slot("fleet.config", FLEET, "Its sizewatch.yaml.", _OBJECT)
FLEET_SECRET = _slot("fleet.secretName", "", "As node.secretName.", _TEXT)
FLEET_RESOURCES = _slot(
    "fleet.resources",
    {"requests": {"cpu": "100m", "memory": "384Mi"}, "limits": {"memory": "1Gi"}},
    "Two processes: the judging one, and the forecast's with its libraries.",
    _OBJECT,
)

FLEET_CACHE = _slot(
    "fleet.cacheSize", "2Gi", "Most of its folder of history, which a new pod fills again from the store.", _TEXT
)

STANDALONE_ON = _slot("standalone.enabled", False, "All in one pod with a volume, for one machine.", _SWITCH)
STANDALONE_CONFIG = _slot("standalone.config", STANDALONE, "Its sizewatch.yaml.", _OBJECT)
STANDALONE_SIZE = _slot("standalone.storage", "10Gi", "Size of the volume for the history.", _TEXT)
STORAGE_CLASS = _slot("standalone.storageClassName", "", "Class of the volume; empty is the cluster's default.", _TEXT)

MONITORS_ON = _slot("monitoring.enabled", True, "PodMonitor and ServiceMonitor, for the Prometheus operator.", _SWITCH)
MONITOR_LABELS = _slot(
    "monitoring.labels",
    {},
    "What your Prometheus selects monitors by, such as release: kube-prometheus-stack.",
    _STRINGS,
)
RULES_ON = _slot("rules.enabled", True, "Alerts and recording rules as PrometheusRule.", _SWITCH)
RULE_LABELS = _slot("rules.labels", {}, "What your Prometheus selects rules by.", _STRINGS)
DASHBOARDS_ON = _slot("dashboards.enabled", False, "ConfigMaps for Grafana's sidecar.", _SWITCH)

POLICIES_ON = _slot("networkPolicy.enabled", True, "Nothing goes in or out but what is needed.", _SWITCH)
SCRAPERS = _slot("networkPolicy.prometheusNamespace", "monitoring", "Where Prometheus scrapes from.", _NAMESPACE)
ENGINE_PORTS = _slot(
    "networkPolicy.enginePorts",
    _tcp(8000, 30000, 8080, 3000),
    "Ports of the engines' pages: vLLM, SGLang, llama.cpp and TensorRT-LLM, TGI.",
    _PORTS,
)
EXPORTER_PORTS = _slot(
    "networkPolicy.gpuExporterPorts", _tcp(DCGM_PORT), "Port of dcgm-exporter's page, where it is read.", _PORTS
)
API_PORTS = _slot(
    "networkPolicy.apiPorts",
    _tcp(443, 6443),
    "Ports of the API server; its address is known only once a cluster is there.",
    _PORTS,
)
STORE_PORTS = _slot(
    "networkPolicy.storePorts", _tcp(9090), "Ports of the Prometheus-compatible store, in that namespace.", _PORTS
)

SLOTS: tuple[Slot, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Slot))
"""In the order of this file."""

HEAD = """\
Generated by `sizewatch render`; changes by hand are lost: give your own values with -f.

What each means for an operator is in docs/install-kubernetes.md."""


def values() -> Json:
    """The defaults, as the chart's user sees them."""
    tree: Json = {}
    for slot in SLOTS:
        *folders, last = slot.path.split(".")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = slot.default
    return tree


def values_text() -> str:
    """values.yaml, with what each value means above it."""
    return f"{comment_lines(HEAD)}\n" + "\n".join(_section(values(), "", 0))


def _section(tree: Json, prefix: str, column: int) -> Iterator[str]:
    meanings = {slot.path: slot.text for slot in SLOTS}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        pad = " " * column
        if path in meanings:
            yield f"{pad}# {meanings[path]}"
            yield from (f"{pad}{line}" for line in printed({key: value}).splitlines() if line)
        else:
            yield f"{pad}{key}:"
            yield from _section(value, f"{path}.", column + 2)
    if not column:
        yield ""


def values_schema() -> Json:
    """The JSON Schema that Helm checks values against: an unknown key is an error, but within plans and configurations."""
    root = _closed()
    for slot in SLOTS:
        *folders, last = slot.path.split(".")
        place = root
        for folder in folders:
            place = place["properties"].setdefault(folder, _closed())
        place["properties"][last] = {**slot.schema, "description": slot.text}
    # Helm puts `global` into the values of every chart that is part of another one.
    root["properties"]["global"] = {"type": "object"}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "sizewatch chart", **root}


def _closed() -> Json:
    return {"type": "object", "additionalProperties": False, "properties": {}}
