"""GPUs of a pod: from the kubelet's pod-resources API (PodResourcesLister/List), else from the GPU exporter.

Each pod of a time-shared GPU gets its values, which belong to all of them together. The API is of Kubernetes 1.20 and
newer (k8s.io/kubelet pkg/apis/podresources/v1/api.proto). grpcio is loaded only where the socket is.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from agent.errors import SizewatchError, find_missing
from agent.gpu.owners import GpuAssignment, gpus_by_index
from agent.kubernetes.pods import GPU_RESOURCES, Pod, truncate_value
from rules.telemetry.snapshots import GpuReadout

METHOD = "/v1.PodResourcesLister/List"
MOST_BYTES = 16 * 1024 * 1024
"""Limit of a response. The receive limit of grpc-go is 4 MiB, that of the kubelet 16 MiB."""

MESSAGES = {
    "ListPodResourcesResponse": (("pod_resources", 1, "PodResources", True),),
    "PodResources": (
        ("name", 1, "", False),
        ("namespace", 2, "", False),
        ("containers", 3, "ContainerResources", True),
    ),
    "ContainerResources": (("devices", 2, "ContainerDevices", True), ("dynamic_resources", 5, "DynamicResource", True)),
    "ContainerDevices": (("resource_name", 1, "", False), ("device_ids", 2, "", True)),
    "DynamicResource": (("claim_resources", 4, "ClaimResource", True),),
    "ClaimResource": (("driver_name", 2, "", False), ("pool_name", 3, "", False), ("device_name", 4, "", False)),
}
"""The fields that are read: name, number, message ("" is a text), whether it is repeated. Dynamic resources have no UUIDs."""


class PodResourcesError(SizewatchError):
    """No devices from the kubelet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Devices of one kind that the kubelet gave to a container of a pod. `resource` is such as nvidia.com/gpu."""

    namespace: str
    pod: str
    resource: str
    ids: tuple[str, ...]


def socket_exists(path: str) -> bool:
    try:
        return Path(path).is_socket()
    except OSError:
        return False


def read_devices(path: str, timeout_seconds: float = 2.0) -> tuple[Devices, ...]:
    """Return all devices of all containers of the node. Raise PodResourcesError."""
    if not socket_exists(path):
        raise PodResourcesError(f"there is no socket {path} here")
    if missing := find_missing("grpc"):
        raise PodResourcesError(missing)
    # Else its library prints lines of its own; what matters is raised.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc
    from google.protobuf.message import DecodeError

    options = [
        ("grpc.max_receive_message_length", MOST_BYTES),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
    ]
    try:
        with grpc.insecure_channel(f"unix:{path}", options) as channel:
            body = channel.unary_unary(METHOD, request_serializer=bytes)(b"", timeout=timeout_seconds)
        return tuple(list_devices(body))
    except grpc.RpcError as error:
        words = truncate_value(error.details() or "") or "without a word"
        raise PodResourcesError(f"{path}: the kubelet did not answer ({error.code().name}): {words}") from error
    except DecodeError as error:
        raise PodResourcesError(f"{path}: the answer is no ListPodResourcesResponse") from error


def list_devices(body: bytes) -> Iterator[Devices]:
    """Yield the devices of an encoded ListPodResourcesResponse. Raise google.protobuf.message.DecodeError."""
    for pod in _response_class().FromString(body).pod_resources:
        for container in pod.containers:
            devices = [(device.resource_name, device.device_ids) for device in container.devices]
            for dynamic in container.dynamic_resources:
                for claim in dynamic.claim_resources:
                    devices.append((claim.driver_name, (f"{claim.pool_name}/{claim.device_name}",)))
            for resource, ids in devices:
                yield Devices(
                    namespace=truncate_value(pod.namespace),
                    pod=truncate_value(pod.name),
                    resource=truncate_value(resource),
                    ids=tuple(map(truncate_value, ids)),
                )


@cache
def _response_class() -> Any:
    """Return the class of ListPodResourcesResponse, made from MESSAGES."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in MESSAGES.items():
        made = file.message_type.add(name=message)
        for name, number, kind, is_repeated in fields:
            made.field.add(
                name=name,
                number=number,
                type=kinds.TYPE_MESSAGE if kind else kinds.TYPE_STRING,
                type_name=f".v1.{kind}" if kind else None,
                label=kinds.LABEL_REPEATED if is_repeated else kinds.LABEL_OPTIONAL,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("v1.ListPodResourcesResponse"))


DEVICE_ID = re.compile(
    r"""(?P<uuid>(?:GPU|MIG)-[0-9A-Za-z/-]+)(?:::\d+)?    # UUID, of a time slice or an MPS share with ::N
    |(?P<index>\d{1,3})(?:::\d+)?                        # deviceIDStrategy: index
    |nvidia(?P<gke>\d{1,3})(?:/vgpu\d+)?                 # GKE, whole or shared
    """,
    re.VERBOSE,
)
"""Device ids of device plugins: NVIDIA's k8s-device-plugin (internal/rm), Google's (pattern of dcgm-exporter)."""

DRIVERS = ("gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com")
"""Drivers of dynamic resource allocation. Their device ids are names, not UUIDs."""


def assign_pod_gpus(pod: Pod, readouts: Mapping[str, GpuReadout], devices: Sequence[Devices] | str) -> GpuAssignment:
    """Return the GPUs of a pod. `devices` are the kubelet's, or the reason why it gave none."""
    gpus, reason = ((), devices) if isinstance(devices, str) else _by_kubelet(pod, readouts, devices)
    if not gpus:
        gpus = _named(pod.place, readouts)
    missing = f"its GPUs are not known: {reason}; no GPU exporter names it" if pod.wants_gpu and readouts else ""
    return GpuAssignment(gpus=gpus, missing="" if gpus else missing)


def gpus_from_exporter(place: str, readouts: Mapping[str, GpuReadout]) -> GpuAssignment:
    """Return the GPUs that an exporter assigns to a pod (namespace/name), for a sidecar."""
    gpus = _named(place, readouts)
    missing = f"not exposed: the GPU exporter's page names no GPU of pod {place}; let it add Kubernetes' labels"
    return GpuAssignment(gpus=gpus, missing="" if gpus or not readouts else missing)


def visible_gpus(place: str, readouts: Mapping[str, GpuReadout], planned: int | None) -> GpuAssignment:
    """Return the GPUs of a sidecar's pod (namespace/name): those that an exporter assigns to it, else all that NVML shows.

    NVML shows what NVIDIA_VISIBLE_DEVICES names, without the owner: another number than planned may be GPUs of others.
    """
    if any(readout.pods for readout in readouts.values()) or not readouts or planned is None:
        return gpus_from_exporter(place, readouts)
    if len(readouts) == planned:
        return GpuAssignment(gpus=tuple(readouts))
    missing = f"not known: NVML shows {len(readouts)}, the plan gives a replica {planned}"
    return GpuAssignment(gpus=(), missing=f"{missing}; name those of pod {place} in NVIDIA_VISIBLE_DEVICES")


def find_shared_gpus(by_replica: Mapping[tuple[str, str], GpuAssignment]) -> tuple[str, ...]:
    """Return a sentence for each GPU of several replicas."""
    replicas = defaultdict[str, list[str]](list)
    for (_, replica), owned in sorted(by_replica.items()):
        for gpu in owned.gpus:
            replicas[gpu].append(replica)
    return tuple(
        f"GPU {gpu} is shared by {', '.join(sorted(names))}: what it says is of all of them together"
        for gpu, names in sorted(replicas.items())
        if len(names) > 1
    )


def is_gpu(devices: Devices) -> bool:
    """Return whether the devices are of a GPU's device plugin or driver."""
    return devices.resource.startswith(GPU_RESOURCES) or devices.resource in DRIVERS


def _by_kubelet(
    pod: Pod, readouts: Mapping[str, GpuReadout], devices: Sequence[Devices]
) -> tuple[tuple[str, ...], str]:
    own = [given for given in devices if (given.namespace, given.pod) == (pod.namespace, pod.name) and is_gpu(given)]
    if not own:
        return (), "the kubelet gave it no GPU"
    indices = gpus_by_index(readouts)
    gpus = {}
    for given in own:
        for device_id in given.ids:
            gpus[device_id] = device_id
            if match := DEVICE_ID.fullmatch(device_id):
                gpus[device_id] = match["uuid"] or indices.get(match["index"] or match["gke"], device_id)
    if unknown := [device_id for device_id, gpu in gpus.items() if gpu not in readouts]:
        # A part must not look like the whole.
        names = ", ".join(unknown[:3])
        return (), f"the kubelet names device {names} of {own[0].resource}, which is no GPU that is read here"
    return tuple(dict.fromkeys(gpus.values())), ""


def _named(place: str, readouts: Mapping[str, GpuReadout]) -> tuple[str, ...]:
    return tuple(gpu for gpu, readout in readouts.items() if place in readout.pods)
