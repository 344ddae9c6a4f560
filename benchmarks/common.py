"""Paths, a small server, the agent as a process and the cost of processes, for all benchmarks. Import it before the project."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
# Before this folder: a benchmark may be named as a package.
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import yaml
from loopback import LoopbackServer, Program, Quiet, give
from waiting import free_port

if TYPE_CHECKING:
    from forecast.series.binned import Series

PLAN = ROOT / "tests" / "plans" / "cpu-small.yaml"
TIER = "cpu-small"
METRICS = "text/plain; version=0.0.4"

Metrics = Mapping[str, float]
"""Series of a page, as it names them."""

Respond = Callable[[str, bytes], tuple[int, bytes] | None]
"""Path and body of a request -> status and body of the response. None closes the connection without a word."""


def build_parser(text: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser that shows the text of a script as it stands, with an option for each default.

    A type is of an option without a default, False of a switch.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(option, action="store_true")
        elif isinstance(default, type):
            parser.add_argument(option, type=default)
        else:
            parser.add_argument(option, type=type(default), default=default)
    return parser


def add_traces(parser: argparse.ArgumentParser, nargs: str) -> None:
    """Add the traces that a script reads, and where each ends."""
    parser.add_argument("files", nargs=nargs, type=Path, metavar="FILE", help="CSV: timestamp,requests[,...]; also .gz")
    text = "leave out what is later (UTC)"
    parser.add_argument("--end", action="append", default=[], metavar="TRACE=TIME", help=text)


def write_config(folder: Path, keys: Mapping[str, Any]) -> Path:
    """Write the configuration of an agent. Return its file."""
    path = folder / "sizewatch.yaml"
    path.write_text(yaml.safe_dump(dict(keys), sort_keys=False), encoding="utf-8")
    return path


class Server(LoopbackServer):
    """Server on loopback that runs until the process ends."""

    def __init__(self, respond: Respond, port: int = 0, handler: type[Handler] | None = None) -> None:
        super().__init__(handler or Handler, port)
        self.respond = respond
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()


class Handler(Quiet, BaseHTTPRequestHandler):
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

    def give(self, body: bytes, status: int = 200, kind: str = METRICS, **headers: str) -> None:
        """Send a response. `length` is announced in place of the body's."""
        give(self, body, status, kind, **headers)


class Agent(Program):
    """`sizewatch run`, or a script that runs a daemon, as a process; its configuration and its log are in a folder."""

    def __init__(
        self, folder: Path, keys: Mapping[str, Any], *script: str | Path, before: tuple[str, ...] = ()
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.config = write_config(folder, {**keys, "web": {"listen": f"127.0.0.1:{self.port}"}})
        words = script or ("-m", "agent", "run", "-c", self.config)
        url = f"http://127.0.0.1:{self.port}"
        super().__init__((*before, sys.executable, *words), url, "/metrics", folder / "log")

    def metrics(self) -> Metrics:
        """Return every series of its page; empty while there is no page."""
        try:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as result:
                lines = result.read().decode().splitlines()
        except OSError:
            return {}
        series = {}
        for line in lines:
            if line and line[0] != "#":
                name, _, value = line.rpartition(" ")
                series[name] = float(value)
        return series

    def size(self) -> tuple[float, int, int]:
        """Return resident MiB, open files and threads."""
        status = read_status(self.pid)
        return status["VmRSS"] / 1024, len(os.listdir(f"/proc/{self.pid}/fd")), status["Threads"]


def total(metrics: Metrics, name: str, *texts: str) -> float:
    """Return the sum of a metric's series that hold each of these texts; 0 where there is none."""
    values = []
    for series, value in metrics.items():
        if series.partition("{")[0] == name and all(text in series for text in texts):
            values.append(value)
    return sum(values)


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


def read_trace_until(file: Path, ends: Iterable[str], **options: float) -> tuple[str, Series]:
    """Return the name and the requests of a trace, without what is later than its `NAME=TIME` (UTC) of `ends`."""
    from agent.forecasting.csv_series import read_trace
    from forecast.series.binned import truncate_at

    name = file.name.removesuffix(".gz").removesuffix(".csv")
    series = read_trace(file, **options).requests
    for end in ends:
        only, _, text = end.partition("=")
        if only == name:
            series = truncate_at(series, datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
    return name, series


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> None:
    """Print a table whose first `words` columns are words, the others numbers."""
    from exporters.render.terminal import WIDEST, terminal_text, text_grid

    print(terminal_text(text_grid(rows, head, indent=0, words=words), width=WIDEST))


def print_goal(name: str, value: float, limit: float, form: str = "{:.2f}") -> bool:
    """Print a figure beside its goal. Return whether it is met."""
    word = "met" if value <= limit else "NOT MET"
    print(f"{name:46} {form.format(value):>8}  at most {limit:g}: {word}", flush=True)
    return value <= limit
