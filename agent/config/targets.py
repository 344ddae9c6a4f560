"""Sections `targets`, `discovery` and `gpus`: metrics pages of engines and GPU exporters, given or found."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from agent.config.peer import PeerKeys, Url
from agent.config.sections import ConfigSection, repeats
from agent.config.values import Entries, ExpandedFile, Name, Seconds, Timeout, duration_range, expand, names_or_numbers
from rules.engines.registry import ENGINES
from rules.gpu_sources.registry import BY_NAME
from rules.plan.validation import Contradictions, validation_error
from rules.problems import unknown_name_text

MAX_PAGE_BYTES = 2 * 1024 * 1024
"""Twelve times the largest known page of an engine. Thirty such pages at once fit into a node agent's memory."""


ENGINE_NAMES = tuple(dict.fromkeys(engine.name for engine in ENGINES))


def _engine(value: str) -> str:
    if value not in ENGINE_NAMES:
        raise validation_error(unknown_name_text(value, ENGINE_NAMES, "an engine whose pages can be read"))
    return value


EngineName = Annotated[Name, AfterValidator(_engine)]

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
PORTS: tuple[str | int, ...] = ("metrics", "http-metrics", "http", "http1", "api", 8000, 30000, 8080, 3000)
"""Container ports of engines: vLLM 8000, SGLang 30000, TRT-LLM, llama.cpp 8080, TGI 3000."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")

TIER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
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


class Connection(PeerKeys):
    """Address of a metrics page and its credentials."""

    url: Url = Field(description="Address of the metrics page; without user, password or ${...}.")
    max_bytes: int = Field(MAX_PAGE_BYTES, ge=1024, alias="max_page_bytes", description="Limit of an unpacked page.")


_GPUS = "must be auto or a list of GPUs, by UUID or index (`nvidia-smi -L` lists both)"
_GPU = names_or_numbers(r"[A-Za-z0-9][\w.:/#-]*", _GPUS, or_text="auto")
GpuList = Annotated[tuple[str | int, ...] | Literal["auto"], _GPU, Field(title="auto or list of GPUs")]


class TargetKeys(Connection):
    """Each entry is one engine instance."""

    tier: Name = Field(description="Tier of the plan that it belongs to.")
    replica: Name | None = Field(None, description="Its name, unique in the tier; default host:port of the url.")
    pool: Literal["mixed", "prefill", "decode"] = Field("mixed", description="Part of the tier it belongs to.")
    engine: EngineName | None = Field(None, description="Such as vllm; default: recognised from the page.")
    engine_version: Name | None = Field(None, description="Its release, where it does not tell it (vLLM does).")
    scrape_timeout_seconds: Timeout | None = Field(None, description="Of this target alone; default as above.")
    gpus: GpuList = Field("auto", description="GPUs it owns, by UUID or index; auto: found by process id.")
    pid_file: ExpandedFile | None = Field(None, description="File with the engine's process id, for gpus: auto.")

    @property
    def name(self) -> str:
        return self.replica or default_replica(self.url)

    def _contradictions(self) -> Contradictions:
        yield from super()._contradictions()
        if self.pid_file and self.gpus != "auto":
            yield ("pid_file",), "has no use beside a list of gpus; it is for gpus: auto"


def find_shared(targets: tuple[TargetKeys, ...]) -> Contradictions:
    for place, before in repeats((target.tier, target.name) for target in targets):
        name, tier = targets[place].name, targets[place].tier
        yield ("targets", place), f"is replica {name} of tier {tier}, as targets[{before}] is; give each its own name"
    owners = [(place, gpu) for place, target in enumerate(targets) if target.gpus != "auto" for gpu in target.gpus]
    for again, before in repeats(gpu for _, gpu in owners):
        place, gpu = owners[again]
        text = f"GPU {gpu} already belongs to targets[{owners[before][0]}]; one GPU has one replica"
        yield ("targets", place, "gpus"), text


class GpusConfig(ConfigSection):
    source: Literal["nvml", "dcgm", "amd", "none"] = Field("nvml", description="Where GPUs are read.")
    dcgm: Connection | None = Field(None, description="A dcgm-exporter, for source dcgm.")
    amd: Connection | None = Field(None, description="An AMD device-metrics-exporter, for source amd.")

    def _contradictions(self) -> Contradictions:
        for name, exporter in BY_NAME.items():
            given = getattr(self, name) is not None
            if self.source == name and not given:
                yield (name,), f"is missing; source {name} needs the url of {exporter.a_title}"
            elif given and self.source != name:
                yield ("source",), f"must be {name} where gpus.{name} is given"


class PodTier(ConfigSection):
    """Each entry selects the pods of one tier. All given conditions must hold."""

    tier: Name = Field(description="Tier of the plan.")
    labels: dict[Text, Annotated[str, Field(max_length=63)]] = Field({}, description="Labels that the pod has.")
    namespaces: Entries[Namespace] = Field(
        (), description="One of these. If all entries of the tier have some, no other pod."
    )


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
    pod_resources: ExpandedFile = Field(SOCKET, description="Socket of the kubelet: which GPU is whose.")
    api: PeerKeys | None = Field(None, description="Default: the pod's service account.")


class Discovery(ConfigSection):
    """Discovered targets, in addition to `targets`."""

    kubernetes: Kubernetes | None = None


def default_replica(url: str) -> str:
    """Return the default replica name: host:port of a valid url."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def normalize_url(url: str) -> str:
    """Return a valid url in one spelling: with its port, and `localhost` for every name of this machine's loopback."""
    parts, place = urlsplit(url), default_replica(url)
    if parts.hostname in LOOPBACK:
        place = f"localhost:{place.rpartition(':')[2]}"
    return urlunsplit(parts._replace(netloc=place))
