"""Section `discovery`: discovery and trust of engine pods."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema

from agent.config.peer import Peer, TlsConfig, Url
from agent.config.sections import ConfigSection
from agent.config.values import EnvironmentFileName, Name, Seconds, duration_range, expand
from rules.plan.validation import validation_error

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
"""Socket of the kubelet's device API, since 1.20."""

PORTS: tuple[str | int, ...] = ("metrics", "http-metrics", "http", "http1", "api", 8000, 30000, 8080, 3000)
"""Container ports of engines: vLLM 8000, SGLang 30000, TRT-LLM, llama.cpp 8080, TGI 3000."""


_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_PORT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")


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


def _ports(value: Any) -> object:
    is_list = isinstance(value, list | tuple) and value
    if not is_list or not all(
        0 < port <= 65535 if type(port) is int else isinstance(port, str) and _PORT_NAME.fullmatch(port)
        for port in value
    ):
        raise validation_error("must be a list of names (small letters, digits, -) or numbers of container ports")
    return tuple(value)


_NAME_SCHEMA = WithJsonSchema({"type": "string", "title": "name"})
ObjectOfNode = Annotated[str, _object_name("node"), _NAME_SCHEMA, Field(validate_default=True)]
ObjectOfPod = Annotated[str, _object_name("pod"), _NAME_SCHEMA, Field(validate_default=True)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Namespaces = Annotated[tuple[Namespace, ...], Field(strict=False)]
Keep = Annotated[Seconds, duration_range(30.0, 86_400.0)]


class PodTier(ConfigSection):
    """Each entry selects the pods of one tier. All given conditions must hold."""

    tier: Name = Field(description="Tier of the plan.")
    labels: dict[Text, Annotated[str, Field(max_length=63)]] = Field({}, description="Labels that the pod has.")
    namespaces: Namespaces = Field(
        (), description="One of these. If every entry of the tier has some, the tier takes no other pod."
    )


class KubernetesApiConfig(ConfigSection):
    """Address of the Kubernetes API, for an agent outside a pod."""

    url: Url = Field(description="Its address.")
    bearer_token_file: EnvironmentFileName | None = Field(None, description="File that holds a bearer token.")
    ca_file: EnvironmentFileName | None = Field(None, description="CA that signed its certificate.")

    @property
    def peer(self) -> Peer:
        """Return the server as the client takes it. A CA has no use without TLS."""
        tls = TlsConfig(ca_file=self.ca_file) if self.url.lower().startswith("https:") else None
        return Peer(url=self.url, bearer_token_file=self.bearer_token_file, tls=tls)


class Kubernetes(ConfigSection):
    """Engine pods of this node, found by the API (scope node), or the pod of this sidecar (scope pod)."""

    scope: Literal["node", "pod"] = Field(
        "node", description="node: a DaemonSet, its node's pods; pod: a sidecar, the file's targets and its pod's GPUs."
    )
    node: ObjectOfNode = Field("${NODE_NAME}", description="Name of the node, for scope node.")
    pod: ObjectOfPod = Field("${POD_NAME}", description="Name of the pod, for scope pod.")
    namespace: ObjectOfPod = Field("${POD_NAMESPACE}", description="Namespace of the pod, for scope pod.")
    namespaces: Namespaces = Field((), description="Only pods of these, also without a GPU; default all.")
    selector: Text | None = Field(None, description="Label selector, such as app=vllm; each such pod is an engine.")
    ports: Annotated[tuple[str | int, ...], BeforeValidator(_ports)] = Field(
        PORTS, title="list of ports", description="Container ports of pages, by name or number; the first counts."
    )
    tiers: Annotated[tuple[PodTier, ...], Field(strict=False)] = Field((), description="For pods that name no tier.")
    keep_seconds: Keep = Field(600.0, description="How long the pods last known are watched while the API is away.")
    pod_resources: EnvironmentFileName = Field(SOCKET, description="Socket of the kubelet: which GPU is whose.")
    api: KubernetesApiConfig | None = Field(None, description="Default: the pod's service account.")


class Discovery(ConfigSection):
    """Discovered targets, in addition to `targets`."""

    kubernetes: Kubernetes | None = None
