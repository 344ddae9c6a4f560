"""Notifications that people get, counted at the pace of life: recorded engines, `sizewatch run`, Prometheus, Alertmanager.

    python benchmarks/notifications.py [SCENE ...] [--path rules|posts] [--minutes 34] [--out build/notifications]

Every scene is a tier of one real daemon with the shipped rules, or with posts, and the sample routes. A webhook stands for
all receivers.
A recorded engine goes on from part to part as one process; after `Dead` it is a new one.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import recorded
from alertmanager_server import alertmanager
from tools import tool
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.sources.recording import Scrape, load, scrapes

FILES = ROOT / "rules" / "prometheus"
INTERVAL = "15s"
"""Time between scrapes of the engines and of sizewatch: its default, and that of the shipped ServiceMonitors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Seconds `begin` to `end` of a recording. While a recorded scrape failed, the engine is dead."""

    recording: str
    begin: float = 0.0
    end: float = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """Time in seconds in which the engine refuses connections."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Tier with a story. `event` is the second in which the trouble begins; the last part is repeated for ever."""

    plan: tuple[str, str]
    parts: tuple[Part | Dead, ...]
    event: float
    expected: Mapping[str, int]


QUIET = ("agent/demo/plan.yaml", "quiet")
OPEN = ("tests/plans/cpu-small-open.yaml", "cpu-small")
CLOSED = ("tests/plans/cpu-small.yaml", "cpu-small")
PAGE, TICKET, NOTHING = {"pages": 1}, {"tickets": 1}, dict[str, int]()
HEALTHY = Part(recording="steady_quiet")

SCENES: Mapping[str, Scene] = {
    "cascade": Scene(plan=QUIET, parts=(Part(recording="kv_cascade"), HEALTHY), event=60, expected=PAGE),
    "cascade-late": Scene(
        plan=CLOSED,
        parts=(
            HEALTHY,
            HEALTHY,
            Part(recording="kv_cascade"),
            Part(recording="kv_cascade", begin=260, end=325),
        ),
        event=540,
        expected=PAGE,
    ),
    "killed": Scene(plan=QUIET, parts=(HEALTHY, HEALTHY, Dead(seconds=300), HEALTHY), event=480, expected=PAGE),
    "killed-early": Scene(
        plan=CLOSED,
        parts=(Part(recording="steady_quiet", end=97), Dead(seconds=150), HEALTHY),
        event=97,
        expected=PAGE,
    ),
    "restart": Scene(plan=CLOSED, parts=(Part(recording="restart"), HEALTHY), event=70, expected=PAGE),
    "overload-killed": Scene(
        plan=CLOSED,
        parts=(HEALTHY, Part(recording="kv_cascade", end=205), Dead(seconds=120), HEALTHY),
        event=300,
        expected=PAGE,
    ),
    "cascades": Scene(
        plan=("agent/demo/plan.yaml", "cascade"),
        parts=(
            *(part for _ in range(4) for part in (Part(recording="kv_cascade", begin=46), Dead(seconds=1))),
            HEALTHY,
        ),
        event=14,
        expected=PAGE,
    ),
    "slow": Scene(plan=OPEN, parts=(Part(recording="steady"),), event=0, expected=TICKET),
    "slow-later": Scene(plan=OPEN, parts=(HEALTHY, HEALTHY, Part(recording="steady")), event=480, expected=TICKET),
    "noisy": Scene(
        plan=("agent/demo/plan.yaml", "noisy"),
        parts=(Part(recording="diurnal", begin=30), Part(recording="diurnal")),
        event=0,
        expected=TICKET,
    ),
    "quiet": Scene(plan=QUIET, parts=(HEALTHY,), event=0, expected=NOTHING),
    "quiet-diurnal": Scene(plan=OPEN, parts=(Part(recording="diurnal_quiet"),), event=0, expected=NOTHING),
}

_SUMS = re.compile(rb"_(?:total|sum|count|bucket)(?:\{[^}]*\})?$")
_BORN = re.compile(rb"^(?:process_start_time_seconds|\S+_created(?:\{[^}]*\})?)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    start: float
    first: float
    scrapes: tuple[Scrape, ...]
    added: Mapping[bytes, float]
    moved: Mapping[bytes, tuple[float, float]]


class Story:
    """Pages of an engine by seconds since the begin. Counters go on between parts, and begin at zero after `Dead`.

    Times of start are moved: to now for a new engine, else to that of the part before.
    """

    def __init__(self, scene: Scene, began: float) -> None:
        self._began, self._parts = began, scene.parts
        self._stretches: list[_Stretch | None] = []
        self._starts: list[float] = []
        self._until = 0.0

    def page(self, elapsed: float) -> bytes | None:
        """Return the page at that time; None while the engine is dead."""
        while self._until <= elapsed:
            self._append()
        one = self._stretches[bisect_right(self._starts, elapsed) - 1]
        return None if one is None else self._render(one, elapsed)

    def _append(self) -> None:
        at = len(self._stretches)
        part = self._parts[min(at, len(self._parts) - 1)]
        self._starts.append(self._until)
        if isinstance(part, Dead):
            self._stretches.append(None)
            self._until += part.seconds
            return
        found = [s for s in scrapes(load(_folder(part.recording))[0], []) if s.target == 0]
        first = found[0].t + part.begin
        last = min(found[0].t + part.end, found[-1].t)
        inside = tuple(s for s in found if first <= s.t <= last)
        zero, births = _values(inside[0].body or b"", _SUMS), _values(inside[0].body or b"", _BORN)
        before = self._stretches[-1] if at else None
        body = self._render(before, self._until) if before is not None else None
        if body is not None:
            base, moved = _values(body, _SUMS), _values(body, _BORN)
        else:
            base = {} if at else zero
            moved = {
                name: self._began + self._until - 60.0 + (value - min(births.values()))
                for name, value in births.items()
            }
        self._stretches.append(
            _Stretch(
                start=self._until,
                first=inside[0].t,
                scrapes=inside,
                added={name: base.get(name, 0.0) - value for name, value in zero.items()},
                moved={name: (value, moved[name]) for name, value in births.items() if name in moved},
            )
        )
        self._until += inside[-1].t - inside[0].t

    def _render(self, one: _Stretch, elapsed: float) -> bytes | None:
        """Return the page; after a restart inside the recording its own counters and times, moved to now."""
        place = one.first + elapsed - one.start
        body = one.scrapes[max(0, bisect_right(one.scrapes, place, key=lambda s: s.t) - 1)].body
        if body is None:
            return None
        present = _values(body, _BORN)
        restarted = any(present.get(name) != old for name, (old, _) in one.moved.items())
        lines = []
        for line in body.splitlines():
            name, _, value = line.rpartition(b" ")
            if not restarted and name in one.added:
                line = b"%s %r" % (name, float(value) + one.added[name])
            elif name in present:
                new = float(value) + self._began + one.start - one.first
                line = b"%s %r" % (name, new if restarted or name not in one.moved else one.moved[name][1])
            lines.append(line)
        return b"\n".join(lines) + b"\n"


def _folder(recording: str) -> Path:
    return Path(recording) if "/" in recording else recorded.folder(recording)


def _values(body: bytes, pattern: re.Pattern[bytes]) -> dict[bytes, float]:
    pairs = (line.rpartition(b" ") for line in body.splitlines() if not line.startswith(b"#"))
    return {name: float(value) for name, _, value in pairs if pattern.search(name)}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def reply(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Yield the address of a server."""
    with _Server(handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()


def engine_handler(stories: Mapping[str, Story], began: float) -> type[BaseHTTPRequestHandler]:
    """Return a handler of `/SCENE/metrics`. A dead engine closes the connection without a word."""

    class Handler(_Handler):
        def do_GET(self) -> None:
            page = stories[self.path.split("/")[1]].page(time.time() - began)
            if page is not None:
                self.reply(page)

    return Handler


def webhook_handler(messages: list[dict[str, Any]], log: Path) -> type[BaseHTTPRequestHandler]:
    """Return a handler that keeps every message of Alertmanager with its time."""

    class Handler(_Handler):
        def do_POST(self) -> None:
            told = json.loads(self.rfile.read(int(self.headers["Content-Length"]))) | {"at": time.time()}
            self.reply(b"")
            if told["receiver"] != "outside":
                messages.append(told)
                with log.open("a") as file:
                    file.write(json.dumps(told) + "\n")

    return Handler


@contextmanager
def process(log: Path, *words: str) -> Iterator[None]:
    """Run a program until the end of the block."""
    with log.open("wb") as out:
        one = subprocess.Popen(words, cwd=ROOT, stdout=out, stderr=out)
    try:
        yield
    finally:
        one.terminate()
        one.wait(CEILING_SECONDS)


def write_sizewatch(
    folder: Path, scenes: Mapping[str, Scene], engines: str, web: str, alerting: Mapping[str, Any]
) -> Path:
    """Write plan and configuration with a tier per scene."""
    plans = {path: yaml.safe_load((ROOT / path).read_text()) for path in {one.plan[0] for one in scenes.values()}}
    tiers = {name: plans[one.plan[0]]["tiers"][one.plan[1]] for name, one in scenes.items()}
    (folder / "plan.yaml").write_text(yaml.safe_dump({"schema": 1, "tiers": tiers}))
    configuration = {
        "plan": "plan.yaml",
        "data_dir": "data",
        "scrape_interval": INTERVAL,
        "targets": [{"url": f"{engines}/{name}/metrics", "tier": name, "replica": "r0"} for name in scenes],
        "gpus": {"source": "none"},
        "web": {"listen": web},
        "alerting": dict(alerting),
        "forecast": {"enabled": False},
        "report": {"enabled": False},
    }
    (folder / "sizewatch.yaml").write_text(yaml.safe_dump(configuration))
    return folder / "sizewatch.yaml"


def write_prometheus(folder: Path, target: str, manager: str) -> Path:
    """Write a configuration with the shipped rules."""
    jobs = [{"job_name": "sizewatch", "static_configs": [{"targets": [target]}]}]
    managers = [{"static_configs": [{"targets": [manager.removeprefix("http://")]}]}]
    configuration = {
        "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": [str(path) for path in sorted(FILES.glob("sizewatch-*.yaml"))],
        "alerting": {"alertmanagers": managers},
        "scrape_configs": jobs,
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    return folder / "prometheus.yml"


def describe(messages: list[dict[str, Any]], scenes: Mapping[str, Scene], began: float) -> tuple[str, bool]:
    """Return a line per message and a table of counts by scene and receiver, and whether these are as expected."""
    lines, counts = [], dict[tuple[str, str, str], int]()
    for told in messages:
        alerts = [(a["labels"], a["status"]) for a in told["alerts"]]
        tier = alerts[0][0].get("tier", "-")
        event = scenes[tier].event if tier in scenes else 0.0
        names = ", ".join(f"{labels['alertname']}:{status}" for labels, status in alerts)
        lines.append(f"{tier:14} {told['at'] - began - event:6.0f} s  {told['receiver']:8} {told['status']:9} {names}")
        key = (tier, told["receiver"], told["status"])
        counts[key] = counts.get(key, 0) + 1
    rows, fine = ["", "scene          receiver   firing resolved expected"], True
    for name in (*scenes, "-"):
        for receiver in ("pages", "tickets"):
            firing, resolved = (counts.get((name, receiver, status), 0) for status in ("firing", "resolved"))
            expected = scenes[name].expected.get(receiver, 0) if name in scenes else 0
            # A scene leaves time for the end of its page. A slow machine stays slow.
            fine &= firing == expected and (resolved == firing if receiver == "pages" else resolved <= firing)
            if firing or resolved or expected:
                rows.append(f"{name:14} {receiver:8} {firing:8} {resolved:8} {expected:8}")
    return "\n".join((*sorted(lines), *rows, "as expected" if fine else "NOT as expected")), fine


def main() -> int:
    """Play the scenes, then print what people were sent. Return 1 where the counts differ from the expected ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenes", nargs="*", choices=[*SCENES, []], default=[])
    parser.add_argument("--path", choices=["rules", "posts"], default="rules")
    parser.add_argument("--minutes", type=float, default=34.0)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "notifications")
    asked = parser.parse_args()
    folder, scenes = asked.out.absolute(), {name: SCENES[name] for name in asked.scenes or SCENES}
    folder.mkdir(parents=True, exist_ok=True)
    messages: list[dict[str, Any]] = []
    began = time.time()
    stories = {name: Story(one, began) for name, one in scenes.items()}
    with ExitStack() as stack:
        hook = stack.enter_context(serving(webhook_handler(messages, folder / "messages.jsonl")))
        engines = stack.enter_context(serving(engine_handler(stories, began)))
        sample = re.sub(r"https://[\w.-]+\.example/\w+", hook, (ROOT / "examples" / "alertmanager.yml").read_text())
        (folder / "alertmanager.yml").write_text(sample)
        manager = stack.enter_context(alertmanager(folder, folder / "alertmanager.yml"))
        web, prometheus = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        posts = {"path": "posts", "alertmanagers": [{"url": manager}]} if asked.path == "posts" else {}
        config = write_sizewatch(folder, scenes, engines, web, posts)
        stack.enter_context(process(folder / "sizewatch.log", sys.executable, "-m", "agent", "run", "-c", str(config)))
        words = (f"--config.file={write_prometheus(folder, web, manager)}", f"--storage.tsdb.path={folder / 'tsdb'}")
        address = (f"--web.listen-address={prometheus}", "--log.level=warn")
        if not posts:
            stack.enter_context(process(folder / "prometheus.log", tool("prometheus"), *words, *address))
        print(f"sizewatch http://{web}/ prometheus http://{prometheus}/ alertmanager {manager}", flush=True)
        wait_for(lambda: time.time() - began > asked.minutes * 60, asked.minutes * 60 + 60, every=1.0)
    text, fine = describe(messages, scenes, began)
    (folder / "table.txt").write_text(text)
    print(text)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
