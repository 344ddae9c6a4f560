"""A kubelet's pod-resources socket: a real gRPC server with one method."""

import base64
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

ANSWER = base64.b64decode(
    "CrwBCgZ2bGxtLTASA2xsbRqjAQoGZW5naW5lEmgKDm52aWRpYS5jb20vZ3B1EihHUFUtOGY2ZDFhMmItMTExMS0yMjIyLTMzMzMtNDQ0NDU1NTU2NjY2"
    "EihHUFUtOGY2ZDFhMmItMTExMS0yMjIyLTMzMzMtNDQ0NDU1NTU2NjY3GgIKABISCghyZG1hL2hjYRIGbWx4NV8wGgQCA6wCIhUKBm1lbW9yeRCAgICA"
    "gAEaBAoCCAEaBwoFcHJveHkKWgoFbWlnLTASA2xsbRpMCgZlbmdpbmUSQgoWbnZpZGlhLmNvbS9taWctMWcuMTBnYhIoTUlHLTFhMmIzYzRkLTAwMDAt"
    "MTExMS0yMjIyLTMzMzM0NDQ0NTU1NQpfCghzaGFyZWQtMBIDZGV2Gk4KBmVuZ2luZRJEChVudmlkaWEuY29tL2dwdS5zaGFyZWQSK0dQVS04ZjZkMWEy"
    "Yi0xMTExLTIyMjItMzMzMy00NDQ0NTU1NTY2Njg6OjMKZQoFZHJhLTASA2xsbRpXCgZlbmdpbmUqTRIDZ3B1GgNsbG0iQQohCh9rOHMuZ3B1Lm52aWRp"
    "YS5jb20vZGV2aWNlPWdwdS0wEg5ncHUubnZpZGlhLmNvbRoFZ3B1LTEiBWdwdS0w"
)
"""What protoc's own code makes of a ListPodResourcesResponse (podresources v1) with whole GPUs, a MIG instance, a time slice
and a device of dynamic resource allocation."""


@contextmanager
def kubelet(path: Path, result: Callable[[bytes, Any], bytes]) -> Iterator[str]:
    """A real gRPC server on a Unix socket that knows one method."""
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: result(request, context))
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),))
    server.add_insecure_port(f"unix://{path}")
    server.start()
    try:
        yield str(path)
    finally:
        server.stop(0).wait()
