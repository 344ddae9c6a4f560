"""The whole path by rule files, all of it real: a recorded engine, the daemon, Prometheus, Alertmanager, whom it calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import recorded
from alert_path_servers import ROUTE_TIMES, RULE_TIMES, firing, query, receivers_at, rule_troubles, scraping, sped_up
from alertmanager_server import alertmanager
from alertmanager_server import alerts as held
from daemon_runs import configuration, running, write
from mortal_alertmanager import Pager, pager
from paths import ROOT
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.daemon.factory import assemble
from agent.demo.engines import Player, RecordedTrack, track
from agent.http_server.options import options_of
from agent.sources.recording import load
from exporters.render.text import runbook_url

pytestmark = pytest.mark.server

FILES = ROOT / "rules" / "prometheus"
CASCADE = "KvCacheCascade"
WHERE = ("cpu-small", "r0")

SPEED = 30
"""So many times faster are the daemon's clock and turns, and the durations of rules and routes."""

BEGIN = 46.0
"""Seconds of the recording that are left out: nothing happens in them."""


class PacedClock:
    """Unix seconds that begin now and run faster, and stand while Prometheus is behind: what passes unseen proves nothing."""

    AHEAD = 1.2 * SPEED
    """Seconds that may pass between two samples of Prometheus, which takes one a real second."""

    def __init__(self) -> None:
        self._real, self._now = time.monotonic(), time.time()
        self._limit = self._now + self.AHEAD
        self._lock = threading.Lock()

    def __call__(self) -> float:
        with self._lock:
            real, before = time.monotonic(), self._real
            self._real = real
            self._now = max(self._now, min(self._now + (real - before) * SPEED, self._limit))
            return self._now

    def go_on(self) -> None:
        self._limit = self() + self.AHEAD


@contextmanager
def keeping_pace(clock: PacedClock, prometheus: str) -> Iterator[None]:
    """The clock goes on with each sample that Prometheus takes of the daemon."""
    ended, seen = threading.Event(), ""

    def follow() -> None:
        nonlocal seen
        while not ended.wait(0.05):
            newest = str(query(prometheus, "timestamp(up == 1)"))
            if newest not in (seen, "[]"):
                seen = newest
                clock.go_on()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(CEILING_SECONDS)


def afterwards(*names: str) -> RecordedTrack:
    """Recordings one after the other, each by an engine that was started anew."""
    tracks = []
    for name in names:
        recording, problems = load(recorded.folder(name))
        assert problems == ()
        tracks.append(track(recording, "cpu-small", BEGIN))
    joined = list(tracks[0].scrapes)
    for one in tracks[1:]:
        moved = joined[-1].t + 5.0 - one.scrapes[0].t
        joined += [replace(scrape, t=scrape.t + moved) for scrape in one.scrapes]
    return replace(tracks[0], scrapes=tuple(joined))


@contextmanager
def watched(folder: Path, port: int, clock: PacedClock) -> Iterator[None]:
    """A daemon on this port that watches an engine through a cascade and through healthy hours after it."""
    # So long that the cascade does not come round again on a busy machine.
    player = Player((afterwards("kv_cascade", *("diurnal_quiet", "steady") * 6),), clock)
    player.start()
    data = configuration([], scrape_interval="5s")
    data["targets"] = [{"url": player.url("cpu-small"), "tier": "cpu-small", "replica": "r0"}]
    surroundings: dict[str, Any] = {
        "assemble": partial(assemble, clock=clock),
        "clock": clock,
        "speed": float(SPEED),
        "web": lambda loaded: replace(options_of(loaded.config.web), port=port),
    }
    try:
        with running(write(folder, data), **surroundings) as daemon:
            yield
            assert daemon.counts.errors == 0
    finally:
        player.stop()


def faster(folder: Path, name: str, keys: tuple[str, ...], url: str = "") -> Path:
    """A committed file, sped up; with an address all receivers of an Alertmanager are there."""
    text = sped_up((FILES / name).read_text(encoding="utf-8"), keys, SPEED)
    path = folder / name
    path.write_text(receivers_at(text, url) if url else text, encoding="utf-8")
    return path


def told(called: Pager, receiver: str, status: str) -> list[dict[str, Any]]:
    """The alerts that one receiver of the sample configuration was told with one status."""
    messages = [one for one in list(called.messages) if one["receiver"] == receiver]
    return [alert for one in messages for alert in one["alerts"] if alert["status"] == status]


def of(severity: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [alert for alert in found if alert["labels"]["severity"] == severity]


def names(found: list[dict[str, Any]]) -> set[str]:
    return {alert["labels"]["alertname"] for alert in found}


def test_a_file_is_sped_up_in_its_durations_and_nothing_else() -> None:
    for name, keys in (("sizewatch-alerts.yaml", RULE_TIMES), ("sizewatch-recording.yaml", RULE_TIMES)):
        before, after = (FILES / name).read_text(), sped_up((FILES / name).read_text(), keys, SPEED)
        pairs = zip(before.splitlines(), after.splitlines(), strict=True)
        changed = {(a.strip(), b.strip()) for a, b in pairs if a != b}
        assert {a.partition(":")[0] for a, _ in changed} <= set(keys)
        assert ("interval: 15s", "interval: 500ms") in changed or ("interval: 30s", "interval: 1s") in changed
    assert sped_up(" for: 2m\n  for: 0s\n", ("for",), 20) == " for: 6s\n  for: 0s\n"
    with pytest.raises(ValueError):
        sped_up(" for: 1h30m\n", ("for",), 20)


def test_a_cascade_pages_once_by_prometheus_rules_and_is_resolved(tmp_path: Path) -> None:
    port, clock = free_port(), PacedClock()
    rules = [faster(tmp_path, f"sizewatch-{kind}.yaml", RULE_TIMES) for kind in ("alerts", "recording")]
    with (
        pager() as called,
        alertmanager(tmp_path, faster(tmp_path, "alertmanager.sample.yaml", ROUTE_TIMES, called.url)) as manager,
        scraping(tmp_path, f"127.0.0.1:{port}", manager, *rules) as prometheus,
        watched(tmp_path, port, clock),
        keeping_pace(clock, prometheus),
    ):
        assert wait_for(lambda: of("critical", firing(prometheus))), "no page in Prometheus"
        (alert,) = of("critical", firing(prometheus))
        assert (alert["labels"]["alertname"], alert["labels"]["tier"], alert["labels"]["replica"]) == (CASCADE, *WHERE)
        assert (alert["labels"]["loudness"], alert["labels"]["source"]) == ("page", "sizewatch")
        assert alert["annotations"]["summary"] == "KV cache cascade: cpu-small/r0"
        assert alert["annotations"]["description"].startswith("KV cache cascade in tier cpu-small, replica r0 since ")

        assert wait_for(lambda: told(called, "pages", "firing")), called.messages
        (paged,) = told(called, "pages", "firing")
        assert (paged["labels"]["alertname"], paged["labels"]["severity"]) == (CASCADE, "critical")
        assert paged["annotations"]["runbook_url"] == runbook_url(CASCADE)
        (page,) = of("critical", held(manager))
        assert (page["fingerprint"], page["status"]["state"]) == (paged["fingerprint"], "active")
        # Its symptoms are found, and no alert of their own. The cascade may be over by now.
        found = f'max_over_time(sizewatch_verdict{{tier="cpu-small",rule!="{CASCADE}"}}[10m]) >= 1'
        assert wait_for(lambda: query(prometheus, found)), firing(prometheus)
        assert of("warning", held(manager)) == []

        assert wait_for(lambda: told(called, "pages", "resolved")), firing(prometheus)
        (over,) = told(called, "pages", "resolved")
        assert over["fingerprint"] == paged["fingerprint"]
        assert over["startsAt"] == paged["startsAt"] < over["endsAt"]
        assert of("critical", firing(prometheus)) == of("critical", held(manager)) == []

        # Nothing else paged, at any time and anywhere; the watchdog came through, and every rule could be evaluated.
        ever = query(prometheus, 'group by (alertname) (last_over_time(ALERTS{severity="critical"}[10m]))')
        assert [one["metric"]["alertname"] for one in ever] == [CASCADE]
        assert names(told(called, "pages", "firing")) == {CASCADE}
        assert {a["labels"]["severity"] for a in told(called, "tickets", "firing")} <= {"warning"}
        assert names(told(called, "outside", "firing")) == {"SizewatchWatchdog"}
        assert query(prometheus, 'count({__name__=~".+:sizewatch_.+", tier="cpu-small"}) > 10')
        assert rule_troubles(prometheus) == []
        assert CASCADE not in names(told(called, "tickets", "firing"))
