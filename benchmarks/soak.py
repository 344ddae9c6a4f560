"""A week's turns of a real daemon in minutes: what grows?

    python benchmarks/soak.py                    # ten minutes
    python benchmarks/soak.py --minutes 60
    python benchmarks/soak.py --role fleet       # role fleet over a store in memory, in this process
    python benchmarks/soak.py --trace            # with tracemalloc: slower, and says which lines hold what grew

The daemon is a process of its own, begun as `sizewatch run` begins it, on a clock that is 15 s further with each turn, and turns as
fast as the machine makes them. Meanwhile pods come and go under new names (a reload each), engines restart and come back with other
bucket edges, one pod of each generation never answers (its alert fires and is resolved), an Alertmanager takes posts, the webhook
takes alerts, forecasts are made, and upkeep, sealing and retention run by that clock. Memory, files and threads are read from /proc
every second; at the end the schedule alone runs for half a minute by the machine's clock: do turns drift? Exit code 1 where a bound
is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import soak_memory
from soak_bounds import Cycle, Finding, Sample, TooFewSamplesError, drift, judged, printed

from agent.daemon import jobs
from agent.demo.engines import RecordedTrack, track
from agent.demo.setup import CAST
from agent.demo.setup import HERE as DEMO
from agent.http_server.pages import WEBHOOK
from agent.sources.recording import load

FINE, FINDING = 0, 1
TURN_SECONDS = 15.0
WEEK_TURNS = 40_320
GRID_SECONDS = 0.1
PODS = 4
TURNS_A_GENERATION = 240
"""An hour of the daemon's clock."""

CYCLE = Cycle(turns=2 * TURNS_A_GENERATION, full=1500)
"""Every other generation has other bucket edges. Two hours of findings and events are in memory (`soak_daemon`), which are 480
turns; minutes look back one hour; forecasts begin after two. The history's cache of 2 MB fills as its file does, to turn 1,500."""

DROPPED_EDGES = re.compile(rb'^[^#\n]*_bucket\{[^\n]*le="(?:0\.1|0\.5|2\.5|10\.0)"[^\n]*\n', re.MULTILINE)
TOKEN = "no-secret-at-all-of-the-soak"


@dataclass
class World:
    """The engines, the Alertmanager and the count of turns, all behind one server on loopback."""

    tracks: tuple[RecordedTrack, ...]
    asked: dict[str, int] = field(default_factory=dict)
    posts: int = 0
    generation: int = 0

    def page(self, pod: str) -> bytes | None:
        """The next page of a pod: 15 s further each time, another recording with other edges in every other generation."""
        number = self.asked[pod] = self.asked.get(pod, 0) + 1
        which = int(pod.rpartition("-")[2])
        one = self.tracks[which % len(self.tracks)]
        body = one.scrape_at(number * TURN_SECONDS)[0].body
        return DROPPED_EDGES.sub(b"", body) if body is not None and self.generation % 2 else body


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    world: World

    def do_GET(self) -> None:
        pod = self.path.strip("/").partition("/")[0]
        body = self.world.page(pod) if pod.startswith("slot-") else None
        if body is None:
            self._give(503, b"", "text/plain")
        else:
            self._give(200, body, "text/plain; version=0.0.4")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.world.posts += 1
        self._give(200, b"", "application/json")

    def _give(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def world() -> tuple[World, ThreadingHTTPServer]:
    tracks = tuple(track(load(DEMO / "recordings" / part.recording)[0], part.tier, part.begin) for part in CAST)
    made = World(tracks=tracks)
    served = ThreadingHTTPServer(("127.0.0.1", 0), type("Of", (Handler,), {"world": made}))
    served.daemon_threads = True
    threading.Thread(target=served.serve_forever, daemon=True).start()
    return made, served


def configure(folder: Path, port: int, generation: int, web: int) -> None:
    """The configuration of one generation of pods, put in place of the one before."""
    slots = [f"slot-{n}" for n in range(PODS)] + ["dead"]
    targets = [
        {
            "url": f"http://127.0.0.1:{port}/{slot}/metrics",
            "tier": CAST[n % len(CAST)].tier,
            "replica": f"pod-{generation}-{slot}",
        }
        for n, slot in enumerate(slots)
    ]
    keys: dict[str, Any] = {
        "plan": str(DEMO / "plan.yaml"),
        "targets": targets,
        "scrape_interval": "15s",
        "gpus": {"source": "none"},
        "data_dir": str(folder / "data"),
        "web": {"listen": f"127.0.0.1:{web}"},
        "alerting": {
            "path": "posts",
            "alertmanagers": [{"url": f"http://127.0.0.1:{port}"}],
            "receiver": {"bearer_token_file": str(folder / "token")},
        },
        "report": {"enabled": False},
    }
    fresh = folder / "fresh.yaml"
    fresh.write_text(yaml.safe_dump(keys), encoding="utf-8")
    fresh.replace(folder / "sizewatch.yaml")


def look(pid: int) -> tuple[int, int, int]:
    """Resident bytes, open files and threads of a process."""
    told = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return int(told["VmRSS"].split()[0]) * 1024, len(os.listdir(f"/proc/{pid}/fd")), int(told["Threads"])


def ask(url: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, data=body)
    if body is not None:
        request.add_header("Content-Type", "application/json")
        request.add_header("Authorization", f"Bearer {TOKEN}")
    with urllib.request.urlopen(request, timeout=10) as result:
        return bytes(result.read())


def foreign(number: int, now: float) -> bytes:
    """A body of Alertmanager's webhook: one alert that begins, or ends."""
    begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    alert = {
        "status": "firing" if number % 2 else "resolved",
        "labels": {"alertname": f"Foreign{number // 2}", "tier": CAST[0].tier},
        "annotations": {},
        "startsAt": begun,
        "endsAt": begun,
        "fingerprint": f"{number // 2:016x}",
    }
    body = {"version": "4", "status": alert["status"], "receiver": "soak", "groupKey": "x", "alerts": [alert]}
    return json.dumps(body).encode()


def number_of(page: str, name: str) -> float:
    found = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(map(float, found))


def begun(folder: Path, traced: bool) -> subprocess.Popen[bytes]:
    words = [sys.executable, str(HERE / "soak_daemon.py"), str(folder)] + (["--trace"] if traced else [])
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(words, stderr=log, cwd=HERE.parent)


def soak(minutes: float, folder: Path, traced: bool, turns: int) -> list[Sample]:
    """Runs the daemon and looks at it every second; until so many minutes or turns are over."""
    made, served = world()
    port, web = int(served.server_address[1]), free_port()
    (folder / "token").write_text(TOKEN, encoding="utf-8")
    (folder / "token").chmod(0o600)
    configure(folder, port, 0, web)
    samples: list[Sample] = []
    daemon = begun(folder, traced)
    began, due = time.monotonic(), 0
    try:
        while not CYCLE.is_over(samples[-1].turns if samples else 0, time.monotonic() - began, minutes):
            time.sleep(1.0)
            if daemon.poll() is not None:
                raise SystemExit(f"the daemon ended: {(folder / 'log').read_text()[-2000:]}")
            try:
                page = ask(f"http://127.0.0.1:{web}/metrics").decode()
            except (OSError, urllib.error.HTTPError):
                continue
            one = sampled(time.monotonic() - began, daemon.pid, page, folder, made)
            samples.append(one)
            if one.turns >= turns:
                break
            if one.turns // TURNS_A_GENERATION > due:
                due = one.turns // TURNS_A_GENERATION
                made.generation += 1
                configure(folder, port, made.generation, web)
                daemon.send_signal(signal.SIGHUP)
                ask(f"http://127.0.0.1:{web}{WEBHOOK}", foreign(due, one.now))
    finally:
        daemon.send_signal(signal.SIGTERM)
        if daemon.wait(60) != 0:
            raise SystemExit(f"the daemon did not end in order: {(folder / 'log').read_text()[-2000:]}")
        served.shutdown()
    samples[-1] = replace(samples[-1], **spans(folder / "data" / "history.db"))
    return samples


def spans(history: Path) -> dict[str, int]:
    """How many findings, and spans in which a rule could not be judged, are in the history."""
    with closing(sqlite3.connect(f"{history.as_uri()}?mode=ro", uri=True)) as connection:
        unknown, all_of_them = connection.execute("SELECT sum(kind = 'unknown'), count(*) FROM spans").fetchone()
    return {"findings": all_of_them - unknown, "unknowns": unknown}


def free_port() -> int:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closing:
        return int(closing.server_address[1])


def grid() -> Finding:
    """Half a minute of the daemon's own jobs, on the machine's clock."""
    starts: list[float] = []

    def nothing(*_: object) -> None:
        return

    functions = dict.fromkeys(jobs.SECONDS, nothing)
    running = jobs.DaemonJobs({**functions, jobs.CYCLE: lambda: starts.append(time.time())}, nothing)
    running.schedule(GRID_SECONDS)
    time.sleep(30.0)
    running.shutdown()
    return drift(starts, GRID_SECONDS)


def sampled(seconds: float, pid: int, page: str, folder: Path, made: World) -> Sample:
    rss, files, threads = look(pid)
    # An incident's alert names the replica with which it began for as long as the incident lasts.
    current = "\n".join(line for line in page.splitlines() if not line.startswith("sizewatch_incident"))
    pods = set(re.findall(r'replica="pod-(\d+)-', current))
    data = folder / "data" / "history.db"
    return Sample(
        seconds=seconds,
        turns=int(number_of(page, "sizewatch_cycles_total")),
        now=number_of(page, "sizewatch_last_cycle_timestamp_seconds"),
        rss_bytes=rss,
        files=files,
        threads=threads,
        series=sum(not line.startswith("#") for line in page.splitlines()),
        generations=len(pods),
        history_bytes=data.stat().st_size if data.exists() else 0,
        log_bytes=(folder / "log").stat().st_size,
        left_out=int(number_of(page, "sizewatch_cycle_overruns_total")),
        defects=int(number_of(page, "sizewatch_cycle_errors_total")),
        reloads=int(number_of(page, "sizewatch_config_reloads_total")),
        posts=made.posts,
        held=soak_memory.read(folder / "held"),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="at most so long (%(default)s)")
    parser.add_argument("--turns", type=int, default=WEEK_TURNS, help="a week of 15 s turns (%(default)s)")
    parser.add_argument("--role", choices=("standalone", "fleet"), default="standalone")
    parser.add_argument("--trace", action="store_true", help="with tracemalloc")
    parser.add_argument("--keep", type=Path, help="a folder for history, log and traces, which is kept")
    options = parser.parse_args()
    try:
        return run(options)
    except TooFewSamplesError as error:
        raise SystemExit(f"soak: {error}") from error


def run(options: argparse.Namespace) -> int:
    """Run the soak of a role, print the course and the bounds, and return the exit code."""
    if options.role == "fleet":
        import soak_fleet

        samples = soak_fleet.soak_fleet(options.minutes, options.turns)
        # A pod is gone five minutes after the last word of it, within which two came in its place.
        findings = judged(samples, soak_fleet.AT_ONCE + 3, soak_fleet.CYCLE)
    else:
        folder = options.keep or Path(tempfile.mkdtemp(prefix="sizewatch-soak-"))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            samples = soak(options.minutes, folder, options.trace, options.turns)
            if options.trace:
                print((folder / "trace").read_text())
        finally:
            if options.keep is None:
                shutil.rmtree(folder)
        # That of before a reload is told of until the turn after it.
        findings = [*judged(samples, 2, CYCLE), grid()]
    print(printed(samples, findings))
    return FINDING if any(not one.holds for one in findings) else FINE


if __name__ == "__main__":
    raise SystemExit(main())
