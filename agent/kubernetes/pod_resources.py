"""Kubelet's pod-resources API: which devices each container of the node was given, by PodResourcesLister/List.

Kubernetes 1.20 and newer; source: k8s.io/kubelet pkg/apis/podresources/v1/api.proto. grpcio is loaded only where the socket
is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from agent.errors import KUBERNETES_MODULE, SizewatchError, find_missing
from agent.kubernetes.pods import truncate_value

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
    """Return whether the kubelet's socket is there for this user."""
    try:
        return Path(path).is_socket()
    except OSError:
        return False


def read_devices(path: str, timeout_seconds: float = 2.0) -> tuple[Devices, ...]:
    """Return all devices of all containers of the node. Raise PodResourcesError."""
    if not socket_exists(path):
        raise PodResourcesError(f"there is no socket {path} here")
    if missing := find_missing(KUBERNETES_MODULE):
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
