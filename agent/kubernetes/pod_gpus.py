"""GPUs of a pod: from the kubelet, else from the GPU exporter, else from the processes on the GPUs.

Add the device ids of another device plugin to SPELLINGS. Each pod of a time-shared GPU gets its values, which belong to
all of them together.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agent.errors import SizewatchError, find_missing
from agent.gpu.owners import PROC, GpuAssignment, gpus_by_index
from agent.kubernetes.pods import GPU_RESOURCES, Pod, truncate_value
from rules.telemetry.snapshots import GpuReadout

if TYPE_CHECKING:
    import h2.connection

METHOD = "/v1.PodResourcesLister/List"
MOST_BYTES = 16 * 1024 * 1024
"""Limit of a response. The receive limit of grpc-go is 4 MiB, that of the kubelet 16 MiB."""

_HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", METHOD),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
    ("user-agent", "sizewatch"),
]
_HINTS = {
    "8": "it is asked too often, by whom else?",
    "12": "this kubelet does not know podresources v1 (Kubernetes 1.20 and newer do)",
}
_FIXED = {1: 8, 5: 4}
"""Bytes of a protobuf field by wire type."""

SPELLINGS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?P<name>(?:GPU|MIG)-[0-9A-Za-z/-]+)(?:::\d+)?"), "UUID, of a time slice or an MPS share with ::N"),
    (re.compile(r"(?P<index>\d{1,3})(?:::\d+)?"), "index (deviceIDStrategy: index)"),
    (re.compile(r"nvidia(?P<index>\d{1,3})(?:/vgpu\d+)?"), "GKE, whole or shared"),
)
"""Device ids of device plugins: NVIDIA's k8s-device-plugin (internal/rm), Google's (pattern of dcgm-exporter)."""

DRIVERS = ("gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com")
"""Drivers of dynamic resource allocation. Their device ids are names, not UUIDs."""


class PodResourcesError(SizewatchError):
    """No devices from the kubelet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Devices of one kind that the kubelet gave to a container. `resource` is such as nvidia.com/gpu."""

    namespace: str
    pod: str
    container: str
    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAssignmentSources:
    """Input of the sources. `devices` is None without an answer of the kubelet; `error` is the reason."""

    readouts: Mapping[str, GpuReadout]
    devices: Sequence[Devices] | None = None
    error: str = ""
    proc: Path = PROC


FoundGpus = tuple[tuple[str, ...], str]
"""GPUs by UUID, or a reason."""


def assign_pod_gpus(pod: Pod, seen: GpuAssignmentSources) -> GpuAssignment:
    """Return the GPUs of a pod. Nothing is missing for a pod that requests no GPU."""
    reasons = []
    for source in SOURCES:
        gpus, why = source(pod, seen)
        if gpus:
            return GpuAssignment(gpus=gpus)
        reasons.append(why)
    missing = f"its GPUs are not known: {'; '.join(filter(None, reasons))}"
    return GpuAssignment(gpus=(), missing=missing if pod.wants_gpu and seen.readouts else "")


def gpus_from_exporter(name: str, seen: GpuAssignmentSources) -> GpuAssignment:
    """Return the GPUs that an exporter assigns to a pod (namespace/name), for a sidecar."""
    gpus = _named(name, seen.readouts)
    missing = f"not exposed: the GPU exporter's page names no GPU of pod {name}; let it add Kubernetes' labels"
    return GpuAssignment(gpus=gpus, missing="" if gpus or not seen.readouts else missing)


def find_shared_gpus(by_replica: Mapping[tuple[str, str], GpuAssignment]) -> tuple[str, ...]:
    """Return a sentence for each GPU of several replicas."""
    times = Counter(gpu for each in by_replica.values() for gpu in each.gpus)
    return tuple(
        f"GPU {gpu} is shared by {', '.join(sorted(key[1] for key, each in by_replica.items() if gpu in each.gpus))}: "
        "what it says is of all of them together"
        for gpu, number in sorted(times.items())
        if number > 1
    )


def _by_kubelet(pod: Pod, seen: GpuAssignmentSources) -> FoundGpus:
    if seen.devices is None:
        return (), seen.error
    ours = [one for one in seen.devices if (one.namespace, one.pod) == (pod.namespace, pod.name) and is_gpu(one)]
    if not ours:
        return (), "the kubelet gave it no GPU"
    indices = gpus_by_index(seen.readouts)
    known = {one: _gpu(one, seen.readouts, indices) for each in ours for one in each.ids}
    strange = [device_id for device_id, gpu in known.items() if gpu is None]
    if strange:
        # A part must not look like the whole.
        named = ", ".join(strange[:3])
        return (), f"the kubelet names device {named} of {ours[0].resource}, which is no GPU that is read here"
    return tuple(dict.fromkeys(gpu for gpu in known.values() if gpu is not None)), ""


def is_gpu(devices: Devices) -> bool:
    """Return whether the devices are of a GPU's device plugin or driver."""
    return devices.resource.startswith(GPU_RESOURCES) or devices.resource in DRIVERS


def _gpu(device_id: str, readouts: Mapping[str, GpuReadout], indices: Mapping[str, str]) -> str | None:
    if device_id in readouts:
        return device_id
    for spelling, _ in SPELLINGS:
        match = spelling.fullmatch(device_id)
        if match is not None:
            parts = match.groupdict()
            gpu = parts.get("name") or indices.get(parts.get("index") or "", "")
            return gpu if gpu in readouts else None
    return None


def _by_exporter(pod: Pod, seen: GpuAssignmentSources) -> FoundGpus:
    gpus = _named(pod.place, seen.readouts)
    says = any(readout.pods for readout in seen.readouts.values())
    return gpus, "" if gpus else "the GPU exporter names it nowhere" if says else "no GPU exporter names pods here"


def _named(place: str, readouts: Mapping[str, GpuReadout]) -> tuple[str, ...]:
    return tuple(gpu for gpu, readout in readouts.items() if place in readout.pods)


def _by_process(pod: Pod, seen: GpuAssignmentSources) -> FoundGpus:
    """Search the control groups of processes for the pod's uid (systemd writes _ for -). It needs hostPID."""
    uids = (pod.uid, pod.uid.replace("-", "_"))
    gpus = tuple(gpu for gpu, one in seen.readouts.items() if _any_of(one.pids, uids, seen.proc))
    visible = any(one.pids for one in seen.readouts.values())
    return (
        gpus,
        "" if gpus else "none of its processes is on a GPU" if visible else "no processes are visible (hostPID)",
    )


def _any_of(pids: Iterable[int], uids: tuple[str, ...], proc: Path) -> bool:
    return any(f"pod{uid}" in _control_groups(pid, proc) for pid in pids for uid in uids)


def _control_groups(pid: int, proc: Path) -> str:
    try:
        with (proc / str(pid) / "cgroup").open(encoding="utf-8", errors="replace") as file:
            return file.read(65_536)
    except OSError:
        # The process has ended or is not visible.
        return ""


SOURCES: tuple[Callable[[Pod, GpuAssignmentSources], FoundGpus], ...] = (_by_kubelet, _by_exporter, _by_process)


def read_devices(path: str, timeout_seconds: float = 5.0) -> tuple[Devices, ...]:
    """Return all devices of all containers of the node, by PodResourcesLister/List. Raise PodResourcesError.

    Messages: k8s.io/kubelet pkg/apis/podresources/v1/api.proto; Kubernetes 1.20 and newer. grpcio would take 12.5 MiB
    (1.85, Python 3.11, resident after the import), h2 takes 2.1 MiB and is loaded only if the socket exists.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout_seconds)
            sock.connect(path)
            message = _answer(sock, time.monotonic() + timeout_seconds)
    except TimeoutError as error:
        raise PodResourcesError(f"{path}: the kubelet did not answer within {timeout_seconds:g} s") from error
    except OSError as error:
        raise PodResourcesError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    try:
        return tuple(_devices(message))
    except (ValueError, IndexError) as error:
        raise PodResourcesError(f"{path}: the answer is no ListPodResourcesResponse ({error})") from error


def socket_exists(path: str) -> bool:
    try:
        return Path(path).is_socket()
    except OSError:
        return False


def _answer(sock: socket.socket, deadline: float) -> bytes:
    """Return the message of a unary call. A gRPC frame has a byte (0: not compressed) and four bytes of length."""
    if missing := find_missing("kubernetes"):
        raise PodResourcesError(missing)
    from h2.config import H2Configuration
    from h2.connection import H2Connection
    from h2.exceptions import ProtocolError

    connection = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    try:
        connection.initiate_connection()
        stream = connection.get_next_available_stream_id()
        connection.send_headers(stream, _HEADERS)
        connection.send_data(stream, struct.pack(">BI", 0, 0), end_stream=True)
        body, headers = _received(sock, connection, deadline)
    except (ProtocolError, UnicodeDecodeError) as error:
        raise PodResourcesError(f"the kubelet's answer is no HTTP/2 ({type(error).__name__})") from error
    status = headers.get("grpc-status")
    if status != "0":
        words = truncate_value(headers.get("grpc-message", "")) or "without a word"
        code = truncate_value(status or headers.get(":status", "without a status"), 40)
        hint = f"; {_HINTS[status]}" if status in _HINTS else ""
        raise PodResourcesError(f"the kubelet refused ({'status' if status else 'HTTP'} {code}): {words}{hint}")
    if len(body) < 5 or body[0] != 0 or struct.unpack(">I", body[1:5])[0] != len(body) - 5:
        raise PodResourcesError("the kubelet's answer is cut off")
    return body[5:]


def _received(
    sock: socket.socket, connection: h2.connection.H2Connection, deadline: float
) -> tuple[bytes, dict[str, str]]:
    from h2 import events

    body, headers = bytearray(), dict[str, str]()
    while True:
        sock.sendall(connection.data_to_send())
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        data = sock.recv(65_536)
        if not data:
            raise PodResourcesError("the kubelet ended the connection before its answer")
        for event in connection.receive_data(data):
            if isinstance(event, events.ResponseReceived | events.TrailersReceived):
                headers |= {str(name): str(value) for name, value in event.headers}
            elif isinstance(event, events.DataReceived):
                body += event.data
                if len(body) > MOST_BYTES:
                    raise PodResourcesError(f"the kubelet sends more than {MOST_BYTES} bytes")
                connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, events.StreamEnded):
                connection.close_connection()
                sock.sendall(connection.data_to_send())
                return bytes(body), headers
            elif isinstance(event, events.StreamReset | events.ConnectionTerminated):
                raise PodResourcesError(f"the kubelet broke the call off (code {event.error_code})")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each field with a length. Raise ValueError.

    Encoding: protobuf.dev/programming-guides/encoding.
    """
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, wire = tag >> 3, tag & 7
        if wire == 2:
            length, place = _varint(message, place)
            if place + length > len(message):
                raise ValueError("a field is longer than its message")
            yield number, message[place : place + length]
            place += length
        elif wire == 0:
            _, place = _varint(message, place)
        elif wire in _FIXED:
            place += _FIXED[wire]
        else:
            raise ValueError(f"wire type {wire}")


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a number of more than ten bytes")


def _devices(message: bytes) -> Iterator[Devices]:
    """Parse a ListPodResourcesResponse.

    1 PodResources {1 name, 2 namespace, 3 containers {1 name, 2 devices {1 resource, 2 ids}}}. A DynamicResource is
    field 5 of a container: {2 claim_name, 4 claim_resources {2 driver_name, 3 pool_name, 4 device_name}}, without UUIDs.
    """
    for pod in _all(message, 1):
        name, namespace = _text(pod, 1), _text(pod, 2)
        for container in _all(pod, 3):
            # Once per container: a search for each of ten thousand devices would take minutes.
            devices = partial(Devices, namespace=namespace, pod=name, container=_text(container, 1))
            for device in _all(container, 2):
                ids = tuple(truncate_value(one.decode("utf-8", "replace")) for one in _all(device, 2))
                yield devices(resource=_text(device, 1), ids=ids)
            for claim in _all(container, 5):
                for resource in _all(claim, 4):
                    yield devices(resource=_text(resource, 2), ids=(f"{_text(resource, 3)}/{_text(resource, 4)}",))


def _all(message: bytes, wanted: int) -> Iterator[bytes]:
    return (content for number, content in _fields(message) if number == wanted)


def _text(message: bytes, wanted: int) -> str:
    return truncate_value(next(_all(message, wanted), b"").decode("utf-8", "replace"))
