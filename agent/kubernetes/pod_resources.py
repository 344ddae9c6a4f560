"""Which device the kubelet gave to which container: PodResourcesLister/List of podresources v1, over its Unix socket.

Owns the one gRPC call and the decoding of its answer. What a device's id means is `agent.kubernetes.pod_gpus`'s. The call
changes nothing. Messages: k8s.io/kubelet pkg/apis/podresources/v1/api.proto; v1 is there since Kubernetes 1.20.

Why not grpcio: loaded beside `requests` it takes 12.5 MiB (1.85, Python 3.11, resident after the import), h2 2.1 MiB, and
an agent of 64 MiB asks one question a quarter of a minute. It is loaded where the socket is there, and nowhere else.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent.errors import SizewatchError
from agent.kubernetes.pods import truncate_value

if TYPE_CHECKING:
    import h2.connection

METHOD = "/v1.PodResourcesLister/List"

MOST_BYTES = 16 * 1024 * 1024
"""Of an answer; grpc-go's own limit for what is received is 4 MiB, the kubelet's 16 MiB."""

OK = "0"

_HINTS = {
    "8": "it is asked too often, by whom else?",
    "12": "this kubelet does not know podresources v1 (Kubernetes 1.20 and newer do)",
}


class PodResourcesError(SizewatchError):
    """The kubelet did not tell, with the reason in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Devices of one kind that one container was given. `resource` is such as nvidia.com/gpu."""

    namespace: str
    pod: str
    container: str
    resource: str
    ids: tuple[str, ...]


def ask(path: str, timeout_seconds: float = 5.0) -> tuple[Devices, ...]:
    """All devices of all containers of the node. Raises NoPodResources."""
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
    """Return whether there is such a socket."""
    try:
        return Path(path).is_socket()
    except OSError:
        return False


def _answer(sock: socket.socket, deadline: float) -> bytes:
    """The message of a unary call. The frame of gRPC: a byte (0: not compressed) and four of length, in network order."""
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
    if status != OK:
        words = truncate_value(headers.get("grpc-message", "")) or "without a word"
        said = truncate_value(status or headers.get(":status", "without a status"), 40)
        told = f"{'status' if status else 'HTTP'} {said}"
        raise PodResourcesError(
            f"the kubelet refused ({told}): {words}" + "".join(f"; {x}" for x in (_HINTS.get(status or ""),) if x)
        )
    if len(body) < 5 or body[0] != 0 or struct.unpack(">I", body[1:5])[0] != len(body) - 5:
        raise PodResourcesError("the kubelet's answer is cut off")
    return body[5:]


_HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", METHOD),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
    ("user-agent", "sizewatch"),
]


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


Field = tuple[int, bytes]
"""Number and content of a field that has a length; the others are of no use here."""


def _fields(message: bytes) -> Iterator[Field]:
    """The fields of a message of protocol buffers (encoding: protobuf.dev/programming-guides/encoding). Raises ValueError."""
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


_FIXED = {1: 8, 5: 4}


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
    """ListPodResourcesResponse: 1 PodResources {1 name, 2 namespace, 3 containers {1 name, 2 devices {1 resource, 2 ids}}}."""
    for pod in _all(message, 1):
        name, namespace = _text(pod, 1), _text(pod, 2)
        for container in _all(pod, 3):
            # Once: looked for again for each of ten thousand devices, it would take minutes.
            called = _text(container, 1)
            for device in _all(container, 2):
                yield Devices(
                    namespace=namespace,
                    pod=name,
                    container=called,
                    resource=_text(device, 1),
                    ids=tuple(truncate_value(one.decode("utf-8", "replace")) for one in _all(device, 2)),
                )
            for claim in _all(container, 5):
                # DynamicResource {2 claim_name, 4 claim_resources {2 driver_name, 3 pool_name, 4 device_name}}: names, no UUIDs.
                for resource in _all(claim, 4):
                    ids = (f"{_text(resource, 3)}/{_text(resource, 4)}",)
                    yield Devices(
                        namespace=namespace,
                        pod=name,
                        container=called,
                        resource=_text(resource, 2),
                        ids=ids,
                    )


def _all(message: bytes, wanted: int) -> Iterator[bytes]:
    return (content for number, content in _fields(message) if number == wanted)


def _text(message: bytes, wanted: int) -> str:
    return truncate_value(next(_all(message, wanted), b"").decode("utf-8", "replace"))
