"""One hostile neighbour at a time, beside healthy targets, under the memory limit that the manifests ship for role `node`.

A real `sizewatch run --role node` lives in a memory cgroup of 128 MiB (without cgroups: no limit, and the table says so). It
scrapes healthy targets that play a recording, and whatever the attack adds. An attack is a row of ATTACKS in one of the modules
`attack_*.py`. The table says what a guest on a node may cost: memory, the longest turn, `/healthz`, scrapes that did not come.

usage: python benchmarks/attacks.py [NAME ...] [--minutes 10] [--root CHECKOUT] [--list] [--json FILE]
needs: root, for the cgroup
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]

from chaos_world import free_port
from scrape import pages

LIMIT_MIB = 128
"""`resources.limits.memory` of deploy/kubernetes/base/node/daemonset.yaml."""
SHIPPED_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2"}
"""`env` of the same file."""
HEALTHY = tuple(f"/healthy{number}" for number in range(4))
"""Paths of the targets that play a recording."""
INTERVAL_SECONDS = 15
HEALTH_SECONDS = 1.0
"""A kubelet gives a probe so long."""
STOP_SECONDS = 30.0
"""The unit and a pod's grace period allow so long."""
CGROUPS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
LIMIT_FILES = ("memory.limit_in_bytes", "memory.max")
MODULES = tuple(sorted(path.stem for path in HERE.glob("attack_*.py")))


class World:
    """The healthy targets, the folder, and the daemon under attack."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bodies = pages()
        self.begin = time.monotonic()
        self.reads: dict[str, list[float]] = {}
        self.headers: dict[str, str] = {}
        """What the harness sends with its own requests; credentials."""
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.ended = 0.0
        self.over = threading.Event()
        world = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                world.reads.setdefault(self.path, []).append(time.monotonic())
                with contextlib.suppress(OSError):
                    world.play(self)

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 512

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Quiet: a client that hangs up is part of an attack."""

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def place(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    @property
    def own(self) -> str:
        """The address of the daemon's own pages."""
        return f"http://127.0.0.1:{self.port}"

    def body(self) -> bytes:
        """The page that a healthy engine would give now."""
        return self.bodies[int((time.monotonic() - self.begin) / 5) % len(self.bodies)]

    def play(self, handler: BaseHTTPRequestHandler) -> None:
        body = self.body()
        handler.send_response(200)
        handler.send_header("Content-Type", "text/plain; version=0.0.4")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def target(self, path: str) -> dict[str, Any]:
        """A target of the configuration at `path`."""
        return {"url": self.place + path, "tier": "cpu-small", "replica": path.strip("/").replace("/", "-")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """`targets` adds targets; `config` changes the configuration; `act` runs in a thread of its own until `world.over` is set;
    `limits` are resource limits (name to soft value) for the daemon in place of the cgroup; `lost` says after the run, in one
    line, what was lost."""

    name: str
    text: str
    targets: Callable[[World], list[dict[str, Any]]] = lambda world: []
    config: Callable[[World, dict[str, Any]], None] = lambda world, config: None
    act: Callable[[World], None] | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    lost: Callable[[World], str] = lambda world: ""


def find_attacks() -> tuple[Attack, ...]:
    return tuple(one for name in MODULES for one in importlib.import_module(name).ATTACKS)


@contextlib.contextmanager
def cgroup(mib: int) -> Iterator[Path | None]:
    """Yield a memory cgroup of so many MiB (v1 or v2), or None where none can be made."""
    for parent in CGROUPS:
        folder = parent / f"sizewatch-attacks-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        limit = next((folder / name for name in LIMIT_FILES if (folder / name).exists()), None)
        if limit is None:
            folder.rmdir()
            continue
        limit.write_text(str(mib << 20))
        try:
            yield folder
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()
        return
    yield None


def metrics(world: World) -> dict[str, float]:
    """The daemon's own page; empty while it gives none."""
    try:
        asked = urllib.request.Request(world.own + "/metrics", headers=world.headers)
        with urllib.request.urlopen(asked, timeout=5) as page:
            lines = page.read().decode().splitlines()
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def health(world: World) -> tuple[int, float]:
    """The status of /healthz (0: no answer in time) and the seconds it took."""
    begin = time.monotonic()
    try:
        with urllib.request.urlopen(world.own + "/healthz", timeout=HEALTH_SECONDS) as page:
            page.read()
            return page.status, time.monotonic() - begin
    except urllib.error.HTTPError as error:
        return error.code, time.monotonic() - begin
    except OSError:
        return 0, time.monotonic() - begin


def peak_mib(process: subprocess.Popen[bytes]) -> float:
    """The most resident memory of the process (VmHWM): a cgroup counts its page cache too."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    return 0.0


@contextlib.contextmanager
def attacked(
    world: World, attacks: Sequence[Attack], root: Path, group: Path | None, interval: float = INTERVAL_SECONDS
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the daemon of role `node`, in the cgroup if there is one, while these attacks go on together.

    It is stopped in order at the end, or killed if that takes too long. Its log is `log` in the world's folder.
    """
    # No history, as in deploy/kubernetes: with one, forecasts are made in a second process of 34 MiB.
    config: dict[str, Any] = {
        "role": "node",
        "scrape_interval": f"{interval:g}s",
        "plan": str(root / "tests" / "plans" / "cpu-small-open.yaml"),
        "targets": [world.target(path) for path in HEALTHY] + [one for each in attacks for one in each.targets(world)],
        "gpus": {"source": "none"},
        "web": {"listen": f"127.0.0.1:{world.port}"},
    }
    for one in attacks:
        one.config(world, config)
    (world.folder / "sizewatch.yaml").write_text(yaml.safe_dump(config))
    limits = {name: value for one in attacks for name, value in one.limits.items()}

    def enter() -> None:
        if group is not None and not limits:
            (group / "cgroup.procs").write_text(str(os.getpid()))
        for limit, value in limits.items():
            number = getattr(resource, limit)
            resource.setrlimit(number, (value, resource.getrlimit(number)[1]))

    command = [sys.executable, "-m", "agent", "run", "-c", str(world.folder / "sizewatch.yaml"), "--role", "node"]
    with (world.folder / "log").open("wb") as log:
        environment = os.environ | SHIPPED_ENVIRONMENT
        process = subprocess.Popen(command, cwd=root, env=environment, stdout=log, stderr=log, preexec_fn=enter)
    world.process = process
    for one in attacks:
        if one.act is not None:
            threading.Thread(target=one.act, args=(world,), daemon=True).start()
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(4 * STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        world.ended = time.monotonic()
        world.over.set()
        world.server.shutdown()
        world.server.server_close()


def run_attack(attack: Attack, minutes: float, root: Path) -> dict[str, Any]:
    """One row of the table."""
    turn, peak, slowest, last = 0.0, 0.0, 0.0, {}
    statuses: list[int] = []
    with tempfile.TemporaryDirectory() as name, cgroup(LIMIT_MIB) as group:
        world = World(Path(name))
        begin = time.monotonic()
        with attacked(world, [attack], root, group) as process:
            while time.monotonic() < begin + minutes * 60 and process.poll() is None:
                time.sleep(1.0)
                status, seconds = health(world)
                statuses.append(status)
                slowest = max(slowest, seconds)
                last = metrics(world) or last
                turn = max(turn, last.get("sizewatch_cycle_duration_seconds", 0.0))
                peak = max(peak, peak_mib(process))
            due = int((time.monotonic() - begin) / INTERVAL_SECONDS)
            exit_early, lost = process.poll(), attack.lost(world)
            stop_begin = time.monotonic()
        stop = world.ended - stop_begin
        text = (world.folder / "log").read_text(errors="replace")
    unhealthy = [one for one in statuses[10:] if one != 200]
    return {
        "attack": attack.name,
        "limit": f"{LIMIT_MIB} MiB" if group is not None and not attack.limits else dict(attack.limits) or "none",
        "peak MiB": round(peak, 1),
        "longest turn s": round(turn, 2),
        "healthz not 200": f"{len(unhealthy)} of {len(statuses[10:])}",
        "healthz slowest s": round(slowest, 3),
        "healthy reads": f"{min(len(world.reads.get(path, ())) for path in HEALTHY)} of {due}",
        "stop s": round(stop, 1),
        "ended": "ran on" if exit_early is None else f"ended with {exit_early}",
        "tracebacks": text.count("Traceback"),
        "log MB": round(len(text) / 1e6, 2),
        "lost": lost,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="an attack, or the begin of some names (default: all)")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long each lasts (default 10)")
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the checkout whose daemon is attacked (default: this one)"
    )
    parser.add_argument("--list", action="store_true", help="print the attacks and stop")
    parser.add_argument("--json", type=Path, help="write the rows there too")
    arguments = parser.parse_args()
    attacks = [one for one in find_attacks() if not arguments.names or one.name.startswith(tuple(arguments.names))]
    if arguments.list or not attacks:
        print("\n".join(f"{one.name:28} {one.text}" for one in attacks) or "no attack has such a name; see --list")
        return 0 if attacks else 2
    rows = []
    for one in attacks:
        rows.append(run_attack(one, arguments.minutes, arguments.root.resolve()))
        print(json.dumps(rows[-1]), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
