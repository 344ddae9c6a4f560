"""Notifications that people get, counted at the pace of life: recorded engines, `sizewatch run`, Prometheus, Alertmanager.

    python benchmarks/notifications.py [SCENE ...] [--path rules|posts] [--minutes 34] [--out build/notifications]

Every scene is a tier of one real daemon with the shipped rules, or with posts, and the sample routes. A webhook stands for
all receivers. A recorded engine goes on from part to part as one process.
"""

from __future__ import annotations

import json
import re
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import recorded
import yaml
from alert_path_servers import alertmanager, receivers_at, scraping
from loopback import running

from agent.demo.engines import track
from agent.sources.recording import load

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
class Scene:
    """Tier with a story. `event` is the second in which the trouble begins; the last part is repeated for ever.

    A part that is a number has so many seconds in which the engine refuses connections; after it there is a new one.
    """

    plan: tuple[str, str]
    parts: tuple[Part | float, ...]
    event: float
    expected: Mapping[str, int]


QUIET = ("agent/demo/plan.yaml", "quiet")
OPEN = ("tests/plans/cpu-small-open.yaml", "cpu-small")
CLOSED = ("tests/plans/cpu-small.yaml", "cpu-small")
PAGE, TICKET, NOTHING = {"pages": 1}, {"tickets": 1}, dict[str, int]()
HEALTHY = Part(recording="steady_quiet")

SCENES: Mapping[str, Scene] = {
    "cascade": Scene(plan=QUIET, parts=(Part(recording="kv_cascade"), HEALTHY), event=60, expected=PAGE),
    "killed": Scene(plan=QUIET, parts=(HEALTHY, HEALTHY, 300.0, HEALTHY), event=480, expected=PAGE),
    "killed-early": Scene(
        plan=CLOSED,
        parts=(Part(recording="steady_quiet", end=97), 150.0, HEALTHY),
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


class Story:
    """Pages of an engine by seconds since the begin. Counters go on between parts, and begin at zero for a new engine.

    Times of start are moved: to now for a new engine, else to that of the part before.
    """

    def __init__(self, scene: Scene, began: float) -> None:
        self._began, self._parts = began, list(scene.parts)
        self._times: list[float] = []
        self._pages: list[bytes | None] = []
        self._until = 0.0

    def page(self, elapsed: float) -> bytes | None:
        """Return the page at that time; None while the engine is dead."""
        while self._until <= elapsed:
            part = self._parts.pop(0) if len(self._parts) > 1 else self._parts[0]
            if isinstance(part, Part):
                self._append(part)
            else:
                self._times.append(self._until)
                self._pages.append(None)
                self._until += part
        return self._pages[bisect_right(self._times, elapsed) - 1]

    def _append(self, part: Part) -> None:
        scrapes = track(load(recorded.folder(part.recording))[0], "", 0.0).scrapes
        start = scrapes[0].t
        inside = [scrape for scrape in scrapes if start + part.begin <= scrape.t <= start + part.end]
        first = inside[0]
        sums, births = _values(first.body or b"", _SUMS), _values(first.body or b"", _BORN)
        before = self._pages[-1] if self._pages else None
        shift = self._began + self._until - first.t
        if before is not None:
            base, moved = _values(before, _SUMS), _values(before, _BORN)
        else:
            base = {} if self._pages else sums
            young = self._began + self._until - 60.0 - min(births.values())
            moved = {name: value + young for name, value in births.items()}
        added = {name: base.get(name, 0.0) - value for name, value in sums.items()}
        moved = {name: moved[name] for name in births if name in moved}
        for scrape in inside:
            self._times.append(self._until + scrape.t - first.t)
            page = scrape.body
            if page is not None:
                present = _values(page, _BORN)
                times = {name: value + shift for name, value in present.items()}
                # After a restart inside the recording its own counters stand, and its own times moved to now.
                has_restarted = not births.items() <= present.items()
                page = _rewrite(page, times if has_restarted else times | moved, {} if has_restarted else added)
            self._pages.append(page)
        self._until += inside[-1].t - first.t


def _rewrite(page: bytes, times: Mapping[bytes, float], added: Mapping[bytes, float]) -> bytes:
    lines = []
    for line in page.splitlines():
        name, _, value = line.rpartition(b" ")
        if name in added:
            line = b"%s %r" % (name, float(value) + added[name])
        elif name in times:
            line = b"%s %r" % (name, times[name])
        lines.append(line)
    return b"\n".join(lines) + b"\n"


def _values(body: bytes, pattern: re.Pattern[bytes]) -> dict[bytes, float]:
    pairs = (line.rpartition(b" ") for line in body.splitlines() if not line.startswith(b"#"))
    return {name: float(value) for name, _, value in pairs if pattern.search(name)}


class SceneServer:
    """Server of `/SCENE/metrics` and of the webhook, which keeps every message of Alertmanager with its time (unix seconds).

    A dead engine closes the connection without a word.
    """

    def __init__(self, scenes: Mapping[str, Scene]) -> None:
        self.began = time.time()
        self.messages: list[dict[str, Any]] = []
        self._stories = {name: Story(scene, self.began) for name, scene in scenes.items()}
        self.url = common.Server(self._respond).url

    def _respond(self, path: str, body: bytes) -> tuple[int, bytes] | None:
        if body:
            self.messages.append(json.loads(body) | {"at": time.time()})
            return 200, b""
        page = self._stories[path.split("/")[1]].page(time.time() - self.began)
        return None if page is None else (200, page)


def build_keys(folder: Path, scenes: Mapping[str, Scene], engines: str) -> dict[str, Any]:
    """Write a plan with a tier per scene. Return the configuration."""
    plans = {path: yaml.safe_load((ROOT / path).read_text()) for path in {scene.plan[0] for scene in scenes.values()}}
    tiers = {name: plans[scene.plan[0]]["tiers"][scene.plan[1]] for name, scene in scenes.items()}
    (folder / "plan.yaml").write_text(yaml.safe_dump({"schema": 1, "tiers": tiers}))
    return {
        "plan": "plan.yaml",
        "data_dir": "data",
        "scrape_interval": INTERVAL,
        "targets": [{"url": f"{engines}/{name}/metrics", "tier": name, "replica": "r0"} for name in scenes],
        "gpus": {"source": "none"},
        "forecast": {"enabled": False},
        "report": {"enabled": False},
    }


def describe(server: SceneServer, scenes: Mapping[str, Scene]) -> bool:
    """Print a line per message and the counts by scene and receiver. Return whether these are as expected."""
    lines, counts = [], Counter[tuple[str, str, str]]()
    for message in server.messages:
        alerts, receiver, status = message["alerts"], message["receiver"], message["status"]
        tier = alerts[0]["labels"].get("tier", "-")
        event = scenes[tier].event if tier in scenes else 0.0
        names = ", ".join(f"{alert['labels']['alertname']}:{alert['status']}" for alert in alerts)
        if receiver != "outside":
            after = f"{message['at'] - server.began - event:.0f} s"
            lines.append((tier, receiver, status, names, after))
        counts[tier, receiver, status] += 1
    common.print_table(("scene", "receiver", "", "alerts", "after"), sorted(lines, key=lambda line: line[0]), 4)
    rows, is_fine = [], True
    for name in (*scenes, "-"):
        for receiver in ("pages", "tickets"):
            firing, resolved = (counts[name, receiver, status] for status in ("firing", "resolved"))
            expected = scenes[name].expected.get(receiver, 0) if name in scenes else 0
            # A scene leaves time for the end of its page. A slow machine stays slow.
            is_fine &= firing == expected and (resolved == firing if receiver == "pages" else resolved <= firing)
            if firing or resolved or expected:
                rows.append((name, receiver, str(firing), str(resolved), str(expected)))
    common.print_table(("scene", "receiver", "firing", "resolved", "expected"), rows, 2)
    print("as expected" if is_fine else "NOT as expected")
    return is_fine


def main() -> int:
    """Play the scenes, then print what people were sent. Return 1 where the counts differ from the expected ones."""
    parser = common.build_parser(__doc__, minutes=34.0, out=ROOT / "build" / "notifications")
    parser.add_argument("scenes", nargs="*", choices=[*SCENES, []], default=[])
    parser.add_argument("--path", choices=["rules", "posts"], default="rules")
    options = parser.parse_args()
    folder, scenes = options.out.absolute(), {name: SCENES[name] for name in options.scenes or SCENES}
    folder.mkdir(parents=True, exist_ok=True)
    server = SceneServer(scenes)
    with ExitStack() as stack:
        sample = receivers_at((ROOT / "examples" / "alertmanager.yml").read_text(), server.url)
        (folder / "alertmanager.yml").write_text(sample)
        manager = stack.enter_context(alertmanager(folder, folder / "alertmanager.yml")).url
        keys, prometheus = build_keys(folder, scenes, server.url), "none"
        if options.path == "posts":
            keys["alerting"] = {"path": "posts", "alertmanagers": [{"url": manager}]}
        agent = stack.enter_context(running(common.Agent(folder, keys)))
        if options.path == "rules":
            target, files = agent.url.removeprefix("http://"), sorted(FILES.glob("sizewatch-*.yaml"))
            prometheus = stack.enter_context(scraping(folder, target, manager, *files, interval=INTERVAL))
        print(f"sizewatch {agent.url}/ prometheus {prometheus} alertmanager {manager}", flush=True)
        time.sleep(options.minutes * 60)
    return int(not describe(server, scenes))


if __name__ == "__main__":
    sys.exit(main())
