"""A server that answers every connection with the same bytes and hangs up."""

import contextlib
import socket
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager

from loopback import served
from waiting import CEILING_SECONDS


@contextmanager
def answering(said: list[bytes], path: str = "") -> Iterator[str]:
    """Serve `said[0]`, over TCP or over the socket file `path`. Yield the address."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.request.settimeout(CEILING_SECONDS)
                self.request.recv(65_536)
                self.request.sendall(said[0])
                self.request.shutdown(socket.SHUT_WR)
                # Unread bytes would reset the connection and lose the answer.
                while self.request.recv(65_536):
                    pass

    with (
        socketserver.ThreadingUnixStreamServer(path, Handler) if path else _Server(("127.0.0.1", 0), Handler) as server
    ):
        server.daemon_threads, server.block_on_close = True, False
        with served(server):
            yield path or f"http://127.0.0.1:{server.server_address[1]}"


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
