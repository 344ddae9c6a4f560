"""Paths, a small server and the cost of processes, for all benchmarks. Import it before the packages of the project."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Before this folder: a benchmark may be named as a package.
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

METRICS = "text/plain; version=0.0.4"

Respond = Callable[[str, bytes], tuple[int, bytes] | None]
"""Path and body of a request -> status and body of the response. None closes the connection without a word."""


class Server(ThreadingHTTPServer):
    """Server on loopback that runs until the process ends."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, respond: Respond, port: int = 0, handler: type[Handler] | None = None) -> None:
        super().__init__(("127.0.0.1", port), handler or Handler)
        self.respond = respond
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that hang up."""


class Handler(BaseHTTPRequestHandler):
    """Handler of one connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.reply(self.rfile.read(int(self.headers.get("Content-Length", "0"))))

    def do_POST(self) -> None:
        self.do_GET()

    def reply(self, body: bytes) -> None:
        """Respond to a request with this body."""
        response = self.server.respond(self.path, body)
        if response is None:
            self.close_connection = True
        else:
            self.give(response[1], response[0])

    def give(self, body: bytes, status: int = 200, length: int | None = None, **headers: str) -> None:
        """Send a response. `length` is announced in place of the body's."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in ({"Content-Type": METRICS} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process, of all its threads, to the nanosecond."""
    # The clock of a process as `clock_getcpuclockid` names it (CPUCLOCK_SCHED of the kernel). /proc counts ticks of 10 ms.
    return time.clock_gettime(~pid << 3 | 2)


def read_status(pid: int | str = "self") -> dict[str, int]:
    """Return the lines of /proc/PID/status that hold a number; sizes are in KiB."""
    numbers = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        word = value.split()[0] if value.split() else ""
        if word.isdigit():
            numbers[name] = int(word)
    return numbers


def print_goal(name: str, value: float, limit: float, form: str = "{:.2f}") -> bool:
    """Print a figure beside its goal. Return whether it is met."""
    word = "met" if value <= limit else "NOT MET"
    print(f"{name:46} {form.format(value):>8}  at most {limit:g}: {word}", flush=True)
    return value <= limit
