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

    def __init__(self, respond: Respond) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.respond = respond
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        response = self.server.respond(self.path, body)
        if response is None:
            self.close_connection = True
            return
        self.send_response(response[0])
        self.send_header("Content-Type", METRICS)
        self.send_header("Content-Length", str(len(response[1])))
        self.end_headers()
        self.wfile.write(response[1])

    def do_POST(self) -> None:
        self.do_GET()

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
