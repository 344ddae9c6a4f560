"""Section `discovery`: discovery and trust of engine pods."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo

from agent.config.peer import PeerKeys, Url
from agent.config.sections import ConfigSection
from agent.config.values import Entries, EnvironmentFileName, Name, Seconds, duration_range, expand, names_or_numbers
from rules.plan.validation import validation_error

PORTS: tuple[str | int, ...] = ("metrics", "http-metrics", "http", "http1", "api", 8000, 30000, 8080, 3000)
"""Container ports of engines: vLLM 8000, SGLang 30000, TRT-LLM, llama.cpp 8080, TGI 3000."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def _object_name(scope: str) -> Any:
    """Return a validator of an object name (RFC 1123). In the other scope the key is unused and the name is ""."""

    def read(value: object, info: ValidationInfo) -> str:
        if info.data.get("scope", scope) != scope:
            return ""
        text = expand(value if isinstance(value, str) else "", (info.context or {}).get("environment", {}))
        if not _NAME.fullmatch(text):
            raise validation_error("must be the name of an object of Kubernetes (small letters, digits, - and .)")
        return text

    return BeforeValidator(read)


ObjectOfNode = Annotated[str, _object_name("node"), Field(validate_default=True, title="name")]
ObjectOfPod = Annotated[str, _object_name("pod"), Field(validate_default=True, title="name")]
Text = Annotated[str, Field(min_length=1, max_length=1000)]
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
_PORTS = "must be a list of names (small letters, digits, -) or numbers of container ports"
_PORT = names_or_numbers("[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?", _PORTS)
Ports = Annotated[tuple[str | int, ...], _PORT, Field(title="list of ports")]
Keep = Annotated[Seconds, duration_range(30.0, 86_400.0)]


class PodTier(ConfigSection):
    """Each entry selects the pods of one tier. All given conditions must hold."""

    tier: Name = Field(description="Tier of the plan.")
    labels: dict[Text, Annotated[str, Field(max_length=63)]] = Field({}, description="Labels that the pod has.")
    namespaces: Entries[Namespace] = Field(
        (), description="One of these. If all entries of the tier have some, no other pod."
    )


class KubernetesApi(PeerKeys):
    """Address of the Kubernetes API, for an agent outside a pod."""

    url: Url = Field(description="Its address.")


class Kubernetes(ConfigSection):
    """Engine pods of this node, found by the API (scope node), or the pod of this sidecar (scope pod)."""

    scope: Literal["node", "pod"] = Field("node", description="node: pods of a node; pod: GPUs of a sidecar's own pod.")
    node: ObjectOfNode = Field("${NODE_NAME}", description="Name of the node, for scope node.")
    pod: ObjectOfPod = Field("${POD_NAME}", description="Name of the pod, for scope pod.")
    namespace: ObjectOfPod = Field("${POD_NAMESPACE}", description="Namespace of the pod, for scope pod.")
    namespaces: Entries[Namespace] = Field((), description="Only pods of these, also without a GPU; default all.")
    selector: Text | None = Field(None, description="Label selector, such as app=vllm; each such pod is an engine.")
    ports: Ports = Field(PORTS, description="Container ports of pages, by name or number; the first counts.")
    tiers: Entries[PodTier] = Field((), description="For pods that name no tier.")
    keep_seconds: Keep = Field(600.0, description="How long the pods last known are watched while the API is away.")
    pod_resources: EnvironmentFileName = Field(
        "/var/lib/kubelet/pod-resources/kubelet.sock", description="Socket of the kubelet: which GPU is whose."
    )
    api: KubernetesApi | None = Field(None, description="Default: the pod's service account.")


class Discovery(ConfigSection):
    """Discovered targets, in addition to `targets`."""

    kubernetes: Kubernetes | None = None
