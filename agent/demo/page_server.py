"""Serves `/NAME/metrics` on loopback, for whatever plays an engine.

Owns the HTTP server only. What a page says is the affair of who is asked for it: a recording (`agent.demo.engines`) or a
simulated engine (`agent.demo.simulation.live_fleet`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class PageServer:
    """`page` is asked by name, from several threads; None is answered with 503, a name that is none of `names` with 404."""

    def __init__(self, names: Container[str], page: Callable[[str], bytes | None], port: int = 0) -> None:
        self._names = names
        self._page = page
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="player", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/{name}/metrics"

    def stop(self) -> None:
        """Closes the port; also of one that was never started."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        names, page = self._names, self._page

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                name = self.path.strip("/").partition("/")[0]
                body = page(name) if name in names else None
                self.send_response(200 if body is not None else 503 if name in names else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, format: str, *args: object) -> None:
                """The demo's terminal is for findings."""

        return Handler
