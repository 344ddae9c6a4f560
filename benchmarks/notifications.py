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
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import recorded
import yaml
from alertmanager_server import alertmanager
from tools import tool
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.sources.recording import Scrape, load, scrapes

ROOT = common.ROOT
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
    "killed": Scene(plan=QUIET, parts=(HEALTHY, HEALTHY, Dead(seconds=300), HEALTHY), event=480, expected=PAGE),
    "killed-early": Scene(
        plan=CLOSED,
        parts=(Part(recording="steady_quiet", end=97), Dead(seconds=150), HEALTHY),
        event=97,
        expected=PAGE,
    ),
    "restart": Scene(plan=CLOSED, parts=(Part(recording="restart"), HEALTHY), event=70, expected=PAGE),
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
        stretch = self._stretches[bisect_right(self._starts, elapsed) - 1]
        return None if stretch is None else self._render(stretch, elapsed)

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

    def _render(self, stretch: _Stretch, elapsed: float) -> bytes | None:
        """Return the page; after a restart inside the recording its own counters and times, moved to now."""
        place = stretch.first + elapsed - stretch.start
        body = stretch.scrapes[max(0, bisect_right(stretch.scrapes, place, key=lambda s: s.t) - 1)].body
        if body is None:
            return None
        present = _values(body, _BORN)
        restarted = any(present.get(name) != old for name, (old, _) in stretch.moved.items())
        lines = []
        for line in body.splitlines():
            name, _, value = line.rpartition(b" ")
            if not restarted and name in stretch.added:
                line = b"%s %r" % (name, float(value) + stretch.added[name])
            elif name in present:
                new = float(value) + self._began + stretch.start - stretch.first
                line = b"%s %r" % (name, new if restarted or name not in stretch.moved else stretch.moved[name][1])
            lines.append(line)
        return b"\n".join(lines) + b"\n"


def _folder(recording: str) -> Path:
    return Path(recording) if "/" in recording else recorded.folder(recording)


def _values(body: bytes, pattern: re.Pattern[bytes]) -> dict[bytes, float]:
    pairs = (line.rpartition(b" ") for line in body.splitlines() if not line.startswith(b"#"))
    return {name: float(value) for name, _, value in pairs if pattern.search(name)}


def serve_engines(stories: Mapping[str, Story], began: float) -> str:
    """Serve `/SCENE/metrics`, and return the address. A dead engine closes the connection without a word."""

    def respond(path: str, body: bytes) -> tuple[int, bytes] | None:
        page = stories[path.split("/")[1]].page(time.time() - began)
        return None if page is None else (200, page)

    return common.Server(respond).url


def serve_webhook(messages: list[dict[str, Any]], log: Path) -> str:
    """Keep every message of Alertmanager with its time; return the address."""

    def respond(path: str, body: bytes) -> tuple[int, bytes]:
        message = json.loads(body) | {"at": time.time()}
        if message["receiver"] != "outside":
            messages.append(message)
            with log.open("a") as file:
                file.write(json.dumps(message) + "\n")
        return 200, b""

    return common.Server(respond).url


@contextmanager
def process(log: Path, *words: str) -> Iterator[None]:
    """Run a program until the end of the block."""
    with log.open("wb") as out:
        program = subprocess.Popen(words, cwd=ROOT, stdout=out, stderr=out)
    try:
        yield
    finally:
        program.terminate()
        program.wait(CEILING_SECONDS)


def write_sizewatch(
    folder: Path, scenes: Mapping[str, Scene], engines: str, web: str, alerting: Mapping[str, Any]
) -> Path:
    """Write plan and configuration with a tier per scene."""
    plans = {path: yaml.safe_load((ROOT / path).read_text()) for path in {scene.plan[0] for scene in scenes.values()}}
    tiers = {name: plans[scene.plan[0]]["tiers"][scene.plan[1]] for name, scene in scenes.items()}
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
    lines, counts = [], Counter[tuple[str, str, str]]()
    for message in messages:
        alerts = [(alert["labels"], alert["status"]) for alert in message["alerts"]]
        receiver, status = message["receiver"], message["status"]
        tier = alerts[0][0].get("tier", "-")
        event = scenes[tier].event if tier in scenes else 0.0
        names = ", ".join(f"{labels['alertname']}:{status}" for labels, status in alerts)
        lines.append(f"{tier:14} {message['at'] - began - event:6.0f} s  {receiver:8} {status:9} {names}")
        counts[tier, receiver, status] += 1
    rows, fine = ["", "scene          receiver   firing resolved expected"], True
    for name in (*scenes, "-"):
        for receiver in ("pages", "tickets"):
            firing, resolved = (counts[name, receiver, status] for status in ("firing", "resolved"))
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
    options = parser.parse_args()
    folder, scenes = options.out.absolute(), {name: SCENES[name] for name in options.scenes or SCENES}
    folder.mkdir(parents=True, exist_ok=True)
    messages: list[dict[str, Any]] = []
    began = time.time()
    stories = {name: Story(scene, began) for name, scene in scenes.items()}
    with ExitStack() as stack:
        hook, engines = serve_webhook(messages, folder / "messages.jsonl"), serve_engines(stories, began)
        sample = re.sub(r"https://[\w.-]+\.example/\w+", hook, (ROOT / "examples" / "alertmanager.yml").read_text())
        (folder / "alertmanager.yml").write_text(sample)
        manager = stack.enter_context(alertmanager(folder, folder / "alertmanager.yml")).url
        web, prometheus = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        posts = {"path": "posts", "alertmanagers": [{"url": manager}]} if options.path == "posts" else {}
        config = write_sizewatch(folder, scenes, engines, web, posts)
        stack.enter_context(process(folder / "sizewatch.log", sys.executable, "-m", "agent", "run", "-c", str(config)))
        words = (f"--config.file={write_prometheus(folder, web, manager)}", f"--storage.tsdb.path={folder / 'tsdb'}")
        address = (f"--web.listen-address={prometheus}", "--log.level=warn")
        if not posts:
            stack.enter_context(process(folder / "prometheus.log", tool("prometheus"), *words, *address))
        print(f"sizewatch http://{web}/ prometheus http://{prometheus}/ alertmanager {manager}", flush=True)
        wait_for(lambda: time.time() - began > options.minutes * 60, options.minutes * 60 + 60, every=1.0)
    text, fine = describe(messages, scenes, began)
    (folder / "table.txt").write_text(text)
    print(text)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
